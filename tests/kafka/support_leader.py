"""Log directories made of batches, and a leader of their partition with a container of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import chunkstore
from chunkstore.codec.kafka.checkpoints import LeaderEpoch, TopicOffset, write_checkpoint, write_partition_metadata
from chunkstore.codec.kafka.indexes import ProducerStates, rebuild_indexes
from chunkstore.kafka import RemoteLogManager, RemoteLogManagerConfig, RemoteLogMetadataManager, RemoteStorageManager
from tests.kafka.support_batches import Made, batch_of
from tests.kafka.support_marks import marks_of
from tests.kafka.support_metadata import PARTITION, fresh_root

__all__ = ["FaultyStorage", "batches", "leading", "offsets", "write_log"]


def batches(start: int, end: int, epoch: int = 0, **fields: Any) -> bytes:
    """Batches of 10 records each, whose values are their offsets, from ``start`` to ``end``, both included."""
    return b"".join(
        batch_of([Made(b"%d" % each) for each in range(at, min(at + 10, end + 1))], at, leader_epoch=epoch, **fields)
        for at in range(start, end + 1, 10)
    )


def write_log(
    folder: Path,
    segments: Mapping[int, bytes],
    epochs: Sequence[tuple[int, int]],
    high: int,
    log_start: int | None = None,
) -> Path:
    """The log directory of a broker with one partition: logs by start offset, the last one active; all anew."""
    place = folder / f"{PARTITION.topic}-{PARTITION.partition}"
    place.mkdir(parents=True, exist_ok=True)
    for path in place.iterdir():
        path.unlink()
    states = ProducerStates()
    for start, data in segments.items():
        made = rebuild_indexes(marks_of(data), start, states, interval_bytes=100)
        files = {"log": data, "index": made.offsets, "timeindex": made.timestamps, "txnindex": made.transactions}
        for suffix, content in files.items():
            if content or suffix == "log":
                (place / f"{start:020d}.{suffix}").write_bytes(content)
        stop = min((other for other in segments if other > start), default=None)
        if stop is not None:
            (place / f"{stop:020d}.snapshot").write_bytes(made.snapshot)
    (place / "leader-epoch-checkpoint").write_bytes(write_checkpoint([LeaderEpoch(*each) for each in epochs]))
    (place / "partition.metadata").write_bytes(write_partition_metadata(PARTITION.topic_id))
    offsets = {"replication-offset-checkpoint": high, "log-start-offset-checkpoint": log_start}
    for name, offset in offsets.items():
        rows = [] if offset is None else [TopicOffset(PARTITION.topic, PARTITION.partition, offset)]
        (folder / name).write_bytes(write_checkpoint(rows))
    return folder


class FaultyStorage(RemoteStorageManager):
    """Calls ``before[name]()`` before its call of that name; ``calls`` counts them."""

    def __init__(self, store: chunkstore.ChunkedSegmentStorage) -> None:
        super().__init__(store)
        self.before: dict[str, Any] = {}
        self.calls: dict[str, int] = {}

    def _called(self, name: str) -> None:
        self.calls[name] = self.calls.get(name, 0) + 1
        self.before.get(name, lambda: None)()

    def copy_log_segment_data(self, metadata: Any, data: Any) -> bytes | None:
        self._called("copy")
        return super().copy_log_segment_data(metadata, data)

    def delete_log_segment_data(self, metadata: Any) -> None:
        self._called("delete")
        super().delete_log_segment_data(metadata)


class Leading:
    """A leader over a log directory."""

    def __init__(
        self, store: chunkstore.ChunkedSegmentStorage, log_dir: Path, mode: Any, config: RemoteLogManagerConfig
    ) -> None:
        self.metadata, self.storage = RemoteLogMetadataManager(store, mode), FaultyStorage(store)
        self.manager = RemoteLogManager(str(log_dir), self.metadata, self.storage, config)
        self.manager.on_leadership_change({PARTITION: 0})

    @property
    def spans(self) -> list[tuple[int, int, str]]:
        """Segments of the tier: first and last offset, state."""
        items = self.metadata.list_remote_log_segments(PARTITION)
        return sorted((item.start_offset, item.end_offset, item.state.name.rpartition("_")[2]) for item in items)


@contextmanager
def leading(log_dir: Path, store: chunkstore.ChunkedSegmentStorage | None = None, **config: Any) -> Iterator[Leading]:
    """A leader of the partition; without ``store``, in a new container."""
    made = chunkstore.open(fresh_root()) if store is None else store
    try:
        leader = Leading(made, log_dir, config.pop("mode", "strict"), RemoteLogManagerConfig(**config))
        with leader.manager:
            yield leader
    finally:
        if store is None:
            made.close()


def offsets(manager: RemoteLogManager, start: int, end: int, max_bytes: int = 200, **options: Any) -> list[int]:
    """The offsets of the records from ``start`` to below ``end``, as a consumer pages through them."""
    found, at = [], start
    while at < end:
        fetched = manager.read(PARTITION, at, max_bytes, **options)
        assert fetched.next_offset > at
        found += [each.offset for each in fetched.records]
        at = fetched.next_offset
    return found
