"""The metadata manager of KIP-405's early text, over the rows of the final one.

Promises: an entry is found by an offset only once it is created; of two lineages, the newest epoch's. A put with created=False is
COPY_SEGMENT_STARTED, one with created=True COPY_SEGMENT_FINISHED. Its copies are not fenced: a leader may finish the one under way.
Leaves out: topics made anew under the same name, unless ``topic.ids`` tells them apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.kafka import metadata as final
from chunkstore.kafka import model
from chunkstore.kafka.model import EPOCH_MAX, RemoteLogSegmentState, TopicIdPartition, check_int, require

__all__ = ["RemoteLogMetadataManager", "RemoteLogSegmentId", "RemoteLogSegmentMetadata", "TopicPartition"]


class TopicPartition(NamedTuple):
    """A partition by its topic's name."""

    topic: str
    partition: int


class RemoteLogSegmentId(NamedTuple):
    """One attempt to copy a segment: ``id`` are 16 bytes that no other attempt has."""

    topic_partition: TopicPartition
    id: bytes


class RemoteLogSegmentMetadata(NamedTuple):
    """A segment: offsets ``start_offset`` to ``end_offset``, both included; ``created``: its copy is whole."""

    remote_log_segment_id: RemoteLogSegmentId
    start_offset: int
    end_offset: int
    leader_epoch: int
    created: bool
    remote_log_segment_context: bytes = b""


class RemoteLogMetadataManager:
    """See the module's text. All calls raise as those of ``chunkstore.kafka.metadata``. Retry: safe."""

    def __init__(self, store: ChunkedSegmentStorage) -> None:
        self._final = final.RemoteLogMetadataManager(store)
        self._ids: Mapping[str, bytes] = {}

    def configure(self, configs: Mapping[str, object]) -> None:
        """``topic.ids``: the 16 bytes of topics' ids, by name; others have the id zero. Other keys are passed over."""
        ids = configs.get("topic.ids", {})
        require(isinstance(ids, Mapping), "topic.ids", "a mapping of topics to ids")
        self._ids = dict(ids)  # type: ignore[call-overload]  # checked above; each id where it is used

    def put_remote_log_segment_data(self, identity: RemoteLogSegmentId, metadata: RemoteLogSegmentMetadata) -> None:
        """Record an entry, before its copy and after. Durable. What is created keeps its offsets and epoch (``InvalidArgument``)."""
        require(metadata.remote_log_segment_id == identity, "metadata", "of this id")
        check_int(metadata.leader_epoch, "leader_epoch", EPOCH_MAX)
        known, start, end = self._id(identity), metadata.start_offset, metadata.end_offset
        epochs, context = {metadata.leader_epoch: start}, metadata.remote_log_segment_context
        begun = model.RemoteLogSegmentMetadata(known, start, end, -1, -1, -1, 0, epochs, context)
        stored, partition = self.get_remote_log_segment_metadata(identity), known.topic_id_partition
        if not self._final.is_ready(partition):
            self._final.on_partition_leadership_changes((), (partition,))
        if stored is not None and stored.created:
            kept = metadata.created and stored[:4] == metadata[:4]
            require(kept, "metadata", "created, with the offsets and the epoch that are stored")
        else:
            self._final.add_remote_log_segment_metadata(begun, token=self._final.token(partition)).result()
        if metadata.created:
            self._move(identity, RemoteLogSegmentState.COPY_SEGMENT_FINISHED, context)

    def delete_remote_log_segment_metadata(self, identity: RemoteLogSegmentId) -> None:
        """Remove the entry of a copy that failed, or of a segment that is deleted; none: no change. Durable."""
        stored = self.get_remote_log_segment_metadata(identity)
        if stored is not None:
            self._move(identity, RemoteLogSegmentState.DELETE_SEGMENT_STARTED, stored.remote_log_segment_context)
            self._move(identity, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED, stored.remote_log_segment_context)

    def get_remote_log_segment_id(self, partition: TopicPartition, offset: int) -> RemoteLogSegmentId | None:
        """The created segment that holds ``offset``, of the newest epoch that has one, or None."""
        known = self._partition(partition)
        several = (self._final.remote_log_segment_metadata(known, each, offset) for each in self._final.epochs(known))
        found = next((item for item in several if item is not None), None)
        return None if found is None else RemoteLogSegmentId(partition, found.remote_log_segment_id.id)

    def get_remote_log_segment_metadata(self, identity: RemoteLogSegmentId) -> RemoteLogSegmentMetadata | None:
        """The entry of this id, created or not, or None."""
        found = self._final.remote_log_segment(self._id(identity))
        return None if found is None else _entry(identity.topic_partition, found)

    def earliest_log_offset(self, partition: TopicPartition) -> int | None:
        """The lowest offset of what is created, or None."""
        known = self._partition(partition)
        lowest = (self._final.lowest_offset_for_epoch(known, epoch) for epoch in self._final.epochs(known))
        return min((offset for offset in lowest if offset is not None), default=None)

    def list_remote_segments(self, partition: TopicPartition, min_offset: int = 0) -> list[RemoteLogSegmentMetadata]:
        """All entries, created or not, that start at or above ``min_offset``, by ascending start offset."""
        try:
            found = [*self._final.list_remote_log_segments(self._partition(partition))]
        except model.RemoteResourceNotFoundException:
            return []
        found.sort(key=lambda item: item.start_offset)
        return [_entry(partition, item) for item in found if item.start_offset >= min_offset]

    def close(self) -> None:
        """End it; later calls raise ``Closed``. The store stays open. Safe to repeat."""
        self._final.close()

    def _move(self, identity: RemoteLogSegmentId, state: RemoteLogSegmentState, context: bytes | None) -> None:
        update = model.RemoteLogSegmentMetadataUpdate(self._id(identity), -1, context, state, -1)
        token = self._final.token(update.remote_log_segment_id.topic_id_partition)
        self._final.update_remote_log_segment_metadata(update, token=token).result()

    def _partition(self, partition: TopicPartition) -> TopicIdPartition:
        return TopicIdPartition(self._ids.get(partition.topic, bytes(16)), partition.topic, partition.partition)

    def _id(self, identity: RemoteLogSegmentId) -> model.RemoteLogSegmentId:
        return model.RemoteLogSegmentId(self._partition(identity.topic_partition), identity.id)


def _entry(partition: TopicPartition, item: model.RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata:
    created = item.state == RemoteLogSegmentState.COPY_SEGMENT_FINISHED
    identity = RemoteLogSegmentId(partition, item.remote_log_segment_id.id)
    fields = item.start_offset, item.end_offset, max(item.segment_leader_epochs), created, item.custom_metadata or b""
    return RemoteLogSegmentMetadata(identity, *fields)
