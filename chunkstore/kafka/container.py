"""A container as a source of segments: what ``RemoteStorageManager`` stored in it, read at a replica or its owner.

Promises: only whole copies are listed; where the container has a metadata manager's rows, these say which segments count, else leader
epochs and higher ends do. Nothing is changed. Leaves out: copies under way, which ``copies_under_way`` lists.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, closing, nullcontext, suppress
from functools import partial

from chunkstore.buckets import open_bucket
from chunkstore.codec.kafka.checkpoints import LeaderEpoch
from chunkstore.codec.kafka.names import parse_partition_folder, parse_uuid, uuid_text
from chunkstore.codec.sources import DataSource
from chunkstore.engine.replica import Replica
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import AccessDenied, Damaged
from chunkstore.following import open_replica
from chunkstore.kafka import rows
from chunkstore.kafka.metadata import RemoteLogMetadataReader
from chunkstore.kafka.model import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteResourceNotFoundException,
    TopicIdPartition,
)
from chunkstore.kafka.sources import Listing, Segment, SegmentSource
from chunkstore.kafka.storage import RemoteStorageReader, log_name
from chunkstore.records.names import ContainerNames

__all__ = ["ContainerSource", "identity_of", "open_container", "segment_of"]


class ContainerSource(SegmentSource):
    """What ``store`` has. Raises as reads of tables and segments do, ``Damaged`` of a row."""

    def __init__(self, store: ChunkedSegmentStorage | Replica, url: str) -> None:
        super().__init__(url)
        self._store, self._stored, self._metadata = store, RemoteStorageReader(store), RemoteLogMetadataReader(store)
        table = store.table(rows.NAMESPACE)
        self.stated: bool = next(table.scan(after=b"\0\xff"), None) is not None
        self.lineage = "the metadata manager" if self.stated else "leader epochs and higher ends"

    def close(self) -> None:
        self._store.close()

    def listing(self, topic: str | None = None, partition: int | None = None) -> Listing:
        found, places = Listing(), set[TopicIdPartition]()
        for item in self._stored.stored_segments(topic):
            place = item.remote_log_segment_id.topic_id_partition
            if partition not in (None, place.partition):
                continue
            known = self._metadata.remote_log_segment(item.remote_log_segment_id)
            segment = segment_of(item, None if known is None else known.state.name)
            if parse_partition_folder(str(place)) is None:
                raise Damaged(f"{place.topic[:40]!r} is not a topic name", object=segment.name)
            found.segments.append(segment)
            places.add(place)
        starts = [(self._metadata.log_start(each), each.topic, each.partition) for each in places]
        # The lowest one of topics of one name.
        found.log_starts = {(name, number): start for start, name, number in sorted(starts, reverse=True)}
        return found

    def log(self, segment: Segment) -> AbstractContextManager[DataSource]:
        return nullcontext(DataSource(segment.name, segment.bytes, partial(self._store.read, segment.name)))

    def index(self, segment: Segment, name: str) -> bytes | None:
        epochs = {each.epoch: each.start_offset for each in segment.epochs}
        place = segment.start_offset, segment.end_offset, -1, -1, -1, segment.bytes
        item = RemoteLogSegmentMetadata(identity_of(segment), *place, epochs)
        with suppress(RemoteResourceNotFoundException), self._stored.fetch_index(item, name) as stream:
            return stream.read()
        return None


def identity_of(segment: Segment) -> RemoteLogSegmentId:
    """The id of a tier's segment. Raises ``Damaged``: it is none."""
    topic_id, identity = (parse_uuid(each, object=segment.name) for each in (segment.topic_id, segment.uuid))
    return RemoteLogSegmentId(TopicIdPartition(topic_id, segment.topic, segment.partition), identity)


def segment_of(item: RemoteLogSegmentMetadata, state: str | None) -> Segment:
    """A segment of the tier as those of other sources; its name is that of its log in the container."""
    identity, epochs = item.remote_log_segment_id, [LeaderEpoch(*pair) for pair in item.segment_leader_epochs.items()]
    place = identity.topic_id_partition
    return Segment(
        place.topic, uuid_text(place.topic_id), place.partition, item.start_offset, item.end_offset, uuid_text(identity.id), state,
        item.segment_size_in_bytes, tuple(epochs), log_name(place, item.start_offset, identity.id), dense=False,
    )  # fmt: skip


def open_container(root: str, container: str) -> ContainerSource | None:
    """The container at ``root``; None where there is none, which takes one listing. Raises what ``open_replica`` raises."""
    if not root.startswith("memory:"):
        found = None
        with closing(open_bucket(root)) as bucket, suppress(AccessDenied):  # not to the whole of the bucket
            found = next(bucket.list(ContainerNames(container).journal_prefix()), None)
        if found is None:
            return None
    return ContainerSource(open_replica(root, container=container), root)
