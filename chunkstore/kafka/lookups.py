"""Reading remote log metadata at an owner or a replica: no topic, no replay.

Promises: a look-up is one table look-up; each answer is of one point of history, but for lists of an epoch, which may show a
change that came meanwhile. At an owner reads are fenced as all of its reads are. Leaves out: changes (``metadata``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from chunkstore.engine.replica import Replica
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import Closed
from chunkstore.kafka import model, rows
from chunkstore.kafka.model import EPOCH_MAX, OFFSET_MAX, TopicIdPartition, check_int, require
from chunkstore.operations.tables import TableEntry

__all__ = ["RemoteLogMetadataReader"]

Segment: TypeAlias = model.RemoteLogSegmentMetadata


class RemoteLogMetadataReader:
    """The reading half of KIP-405's metadata manager. All calls raise ``InvalidArgument``, ``Closed``, ``Damaged``,
    ``RemoteResourceNotFoundException`` (no such partition, or deleted), and what reads of tables raise. Retry: safe."""

    def __init__(self, store: ChunkedSegmentStorage | Replica) -> None:
        self._table = store.table(rows.NAMESPACE)
        self._closed = False

    def remote_log_segment_metadata(self, partition: TopicIdPartition, epoch: int, offset: int) -> Segment | None:
        """The finished segment that holds ``offset`` of ``epoch``, or None."""
        self._check(partition, epoch)
        check_int(offset, "offset", OFFSET_MAX)
        return self._find(partition, epoch, offset)

    def next_segment_with_txn_index(self, partition: TopicIdPartition, epoch: int, offset: int) -> Segment | None:
        """The first segment with a transaction index from the one at ``offset`` on, in ``epoch`` and without a gap, or None."""
        found = self.remote_log_segment_metadata(partition, epoch, offset)
        while found is not None and found.txn_idx_empty:
            found = self._find(partition, epoch, found.end_offset + 1) if found.end_offset < OFFSET_MAX else None
        return found

    def highest_offset_for_epoch(self, partition: TopicIdPartition, epoch: int) -> int | None:
        """The highest end that a finished segment ever had in ``epoch``; deletions do not lower it."""
        self._check(partition, epoch)
        found = self._table.get(rows.epoch_key(partition, epoch, rows.HIGHEST))
        if found is None:
            self._known(partition)
        return None if found is None else rows.decode_offset(found)

    def lowest_offset_for_epoch(self, partition: TopicIdPartition, epoch: int) -> int | None:
        """The lowest offset that is found in ``epoch``, or None."""
        self._check(partition, epoch)
        row = next(self._table.scan(rows.epoch_key(partition, epoch, rows.MAPPED)), None)
        return None if row is None else int.from_bytes(row.key[-8:], "big")

    def log_start(self, partition: TopicIdPartition) -> int:
        """The first offset that consumers get, as ``record_log_start`` recorded it; 0: never."""
        self._check(partition)
        row = self._table.get(rows.partition_key(partition) + rows.LOG_START)
        return 0 if row is None else rows.decode_offset(row)

    def list_remote_log_segments(self, partition: TopicIdPartition, epoch: int | None = None) -> Iterator[Segment]:
        """All segments that are not deleted, also superseded ones; of one ``epoch`` by ascending start offset. Iterating may raise, too."""
        self._check(partition, epoch)
        self._known(partition)
        if epoch is None:
            found = self._table.scan(rows.partition_key(partition) + rows.ID)
            return (rows.decode_segment(partition, row) for row in found)
        scanned = self._table.scan(rows.epoch_key(partition, epoch, b""))
        listed = (self._listed(partition, epoch, row) for row in scanned)
        return iter(sorted((item for item in listed if item is not None), key=lambda item: item.start_offset))

    def remote_log_size(self, partition: TopicIdPartition, epoch: int) -> int:
        """Bytes of what ``list_remote_log_segments`` lists of ``epoch``."""
        check_int(epoch, "epoch", EPOCH_MAX)
        return sum(item.segment_size_in_bytes for item in self.list_remote_log_segments(partition, epoch))

    def remote_log_segment(self, identity: model.RemoteLogSegmentId) -> Segment | None:
        """The segment of this id in whichever state, or None."""
        require(isinstance(identity, model.RemoteLogSegmentId), "identity", "a RemoteLogSegmentId")
        self._check(identity.topic_id_partition)
        row = self._table.get(rows.partition_key(identity.topic_id_partition) + rows.ID + identity.id)
        return None if row is None else rows.decode_segment(identity.topic_id_partition, row)

    def epochs(self, partition: TopicIdPartition) -> Iterator[int]:
        """The leader epochs that have or had segments, the newest first; each is one look-up."""
        self._check(partition)
        prefix = rows.partition_key(partition) + rows.EPOCH
        at = prefix + b"\xff" * 4
        while (row := self._table.floor(at, prefix)) is not None:
            at = rows.checked_key(row, len(prefix) + 5)[: len(prefix) + 4]
            yield int.from_bytes(at[-4:], "big")

    def token(self, partition: TopicIdPartition) -> int:
        """The token of the partition's present leader; 0: none yet."""
        self._check(partition)
        return self._known(partition).token

    def deletion(self, partition: TopicIdPartition) -> int:
        """The partition's stored deletion state; -1: it is not being deleted."""
        self._check(partition)
        return self._known(partition).deletion

    def version(self, partition: TopicIdPartition) -> int:
        """A number that is another one after each event of the partition."""
        self._check(partition)
        return self._known(partition).version

    def close(self) -> None:
        """End it; later calls raise ``Closed``. The store stays open. Safe to repeat."""
        self._closed = True

    def _find(self, partition: TopicIdPartition, epoch: int, offset: int) -> Segment | None:
        row = self._floor(partition, epoch, offset)
        if row is None:
            self._known(partition)
            return None
        found = rows.decode_segment(partition, row, epoch)
        return found if offset <= found.epoch_end(epoch) else None

    def _floor(self, partition: TopicIdPartition, epoch: int, offset: int) -> TableEntry | None:
        prefix = rows.epoch_key(partition, epoch, rows.MAPPED)
        return self._table.floor(prefix + rows.number_key(offset), prefix) if offset >= 0 else None

    def _listed(self, partition: TopicIdPartition, epoch: int, row: TableEntry) -> Segment | None:
        base = len(rows.epoch_key(partition, epoch, b""))
        kind = row.key[base : base + 1]
        if kind != rows.UNREFERENCED:
            return None if kind == rows.HIGHEST else rows.decode_segment(partition, row, epoch)
        identity = model.RemoteLogSegmentId(partition, rows.checked_key(row, base + 17)[-16:])
        found = self.remote_log_segment(identity)
        if found is None and self._table.get(row.key) is not None:
            raise model.RemoteResourceNotFoundException(str(identity))
        return found

    def _row(self, partition: TopicIdPartition) -> rows.PartitionRow | None:
        row = self._table.get(rows.partition_key(partition) + rows.PARTITION)
        return None if row is None else rows.decode_partition(row)

    def _known(self, partition: TopicIdPartition) -> rows.PartitionRow:
        found = self._row(partition)
        if found is None or found.deletion == model.RemotePartitionDeleteState.DELETE_PARTITION_FINISHED:
            raise model.RemoteResourceNotFoundException(f"partition {partition}")
        return found

    def _check(self, partition: TopicIdPartition, epoch: int | None = None) -> None:
        require(isinstance(partition, TopicIdPartition), "partition", "a TopicIdPartition")
        if epoch is not None:
            check_int(epoch, "epoch", EPOCH_MAX)
        if self._closed:
            raise Closed("this metadata manager")
