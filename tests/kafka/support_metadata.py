"""What tests of the metadata manager share: segments, updates, and answers as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any, TypeAlias

import chunkstore
from chunkstore.kafka import RemoteLogMetadataManager, RemoteLogMetadataReader
from chunkstore.kafka.model import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemoteResourceNotFoundException,
    TopicIdPartition,
)

STARTED, FINISHED, DELETING, DELETED = RemoteLogSegmentState
_roots = count()
Store: TypeAlias = chunkstore.ChunkedSegmentStorage
PARTITION = TopicIdPartition(b"topic id, 16 B..", "orders", 3)


def fresh_root() -> str:
    """A root that no other test has."""
    return f"memory://kafka-metadata-{next(_roots)}"


def segment(
    number: int,
    start: int,
    end: int,
    epochs: Mapping[int, int],
    *,
    partition: TopicIdPartition = PARTITION,
    **more: Any,
) -> RemoteLogSegmentMetadata:
    """A segment whose copy begins; ``number`` makes its id."""
    identity = RemoteLogSegmentId(partition, number.to_bytes(16, "big"))
    fields = {"max_timestamp_ms": 7, "broker_id": 1, "event_timestamp_ms": 8, "segment_size_in_bytes": 1024} | more
    return RemoteLogSegmentMetadata(identity, start, end, segment_leader_epochs=epochs, **fields)


def update(
    item: RemoteLogSegmentMetadata, state: RemoteLogSegmentState, *, broker_id: int = 1, custom: bytes | None = None
) -> RemoteLogSegmentMetadataUpdate:
    """The update of a segment to a state."""
    return RemoteLogSegmentMetadataUpdate(item.remote_log_segment_id, 9, custom, state, broker_id)


def number_of(item: RemoteLogSegmentMetadata | None) -> int | None:
    """The number of a segment."""
    return None if item is None else int.from_bytes(item.remote_log_segment_id.id, "big")


class Leader:
    """A leader of one partition: sends events with its token and waits for them."""

    def __init__(self, manager: RemoteLogMetadataManager, partition: TopicIdPartition = PARTITION) -> None:
        self.manager = manager
        self.partition = partition
        self.token = manager.on_partition_leadership_changes([partition]).get(partition)

    def add(self, item: RemoteLogSegmentMetadata) -> None:
        self.manager.add_remote_log_segment_metadata(item, token=self.token).result()

    def move(self, item: RemoteLogSegmentMetadata, *states: RemoteLogSegmentState) -> None:
        for state in states:
            self.manager.update_remote_log_segment_metadata(update(item, state), token=self.token).result()

    def finish(self, *items: RemoteLogSegmentMetadata) -> None:
        for item in items:
            self.add(item)
            self.move(item, FINISHED)


def find(reader: RemoteLogMetadataReader, epoch: int, offset: int) -> int | None:
    """The number of the segment found."""
    return number_of(reader.remote_log_segment_metadata(PARTITION, epoch, offset))


def listed(
    reader: RemoteLogMetadataReader, epoch: int | None = None, partition: TopicIdPartition = PARTITION
) -> list[int]:
    """The numbers of the segments listed; those of an epoch in order, equal starts by number; all of them sorted."""
    items = [*reader.list_remote_log_segments(partition, epoch)]
    starts = [item.start_offset for item in items]
    assert epoch is None or starts == sorted(starts)
    pairs = [(0 if epoch is None else item.start_offset, number_of(item) or 0) for item in items]
    return [number for _, number in sorted(pairs)]


def answers(
    reader: RemoteLogMetadataReader, partition: TopicIdPartition, epochs: range, offsets: range
) -> dict[str, object]:
    """Everything that can be asked, as plain values."""
    found: dict[str, object] = {"all": listed(reader, None, partition)}
    for epoch in epochs:
        found[f"highest {epoch}"] = reader.highest_offset_for_epoch(partition, epoch)
        try:
            found[f"list {epoch}"] = listed(reader, epoch, partition)
            found[f"size {epoch}"] = reader.remote_log_size(partition, epoch)
        except RemoteResourceNotFoundException:
            found[f"list {epoch}"] = found[f"size {epoch}"] = "missing"
        for offset in offsets:
            found[f"find {epoch} {offset}"] = number_of(reader.remote_log_segment_metadata(partition, epoch, offset))
            found[f"txn {epoch} {offset}"] = number_of(reader.next_segment_with_txn_index(partition, epoch, offset))
    return found
