"""Kafka's ``RemoteLogMetadataManager`` (KIP-405, final form): each event is one commit of table rows, each look-up reads one row.

Promises: an event is durable and fenced when its future is done, and readable at the owner at once. Events of a partition have one
order, from any number of threads and managers: each replaces the partition's row by its version. ``strict`` finds an offset exactly
while a finished segment holds it; ``kafka-exact`` answers as Kafka's RemoteLogMetadataCache does, where a late smaller segment hides
a larger one and an illegal transition is dropped. Each answer is of one point of history, but for lists of an epoch, which may show a
change that came meanwhile. Leaves out: bytes of segments, and when to copy or delete.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import islice, takewhile
from typing import Final, Literal, TypeAlias

from chunkstore import runtime
from chunkstore.changes import TableDelete, TablePut
from chunkstore.codec.kafka.remote_metadata import NEXT_STATES
from chunkstore.engine.replica import Replica
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import ChunkstoreError, Closed, Conflict
from chunkstore.kafka import model, rows
from chunkstore.kafka.model import EPOCH_MAX, OFFSET_MAX, TopicIdPartition, check_int, require
from chunkstore.kafka.rows import PartitionRow
from chunkstore.operations.tables import TableEntry

__all__ = ["RemoteLogMetadataManager", "RemoteLogMetadataReader"]

_MODES: Final = {"strict": 1, "kafka-exact": 2}
_ROWS_MAX: Final = 4096
_STARTED, _FINISHED, _DELETING, _DELETED = model.RemoteLogSegmentState
_GONE: Final = model.RemotePartitionDeleteState.DELETE_PARTITION_FINISHED

Rows: TypeAlias = dict[bytes, bytes | None]
"""Rows as an event leaves them; None: deleted."""
Segment: TypeAlias = model.RemoteLogSegmentMetadata
Update: TypeAlias = model.RemoteLogSegmentMetadataUpdate
Future: TypeAlias = runtime.Future[None]
Change: TypeAlias = Callable[[Segment | None], Rows]
Planned: TypeAlias = tuple[PartitionRow, Rows] | None
Plan: TypeAlias = Callable[[PartitionRow], Planned]


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

    def _stored_row(self, partition: TopicIdPartition) -> PartitionRow | None:
        row = self._table.get(rows.partition_key(partition) + rows.PARTITION)
        return None if row is None else rows.decode_partition(row)

    def _known(self, partition: TopicIdPartition) -> PartitionRow:
        found = self._stored_row(partition)
        if found is None or found.deletion == model.RemotePartitionDeleteState.DELETE_PARTITION_FINISHED:
            raise model.RemoteResourceNotFoundException(f"partition {partition}")
        return found

    def _check(self, partition: TopicIdPartition, epoch: int | None = None) -> None:
        require(isinstance(partition, TopicIdPartition), "partition", "a TopicIdPartition")
        if epoch is not None:
            check_int(epoch, "epoch", EPOCH_MAX)
        if self._closed:
            raise Closed("this metadata manager")


class RemoteLogMetadataManager(RemoteLogMetadataReader):
    """See the module's text. Thread-safe. ``mode``: a partition's rows are kept in one mode.

    Events run in the calling thread and return a future that is done: its exception is the event's error (``InvalidArgument``,
    ``RemoteResourceNotFoundException``, ``LeaderFenced``, ``IllegalTransition``, and what ``store.commit`` raises). Retry: safe; a
    repeated deletion may find the segment gone (``RemoteResourceNotFoundException``). ``token``: of the leader that sends the event,
    from ``on_partition_leadership_changes``; for mode strict.
    """

    def __init__(self, store: ChunkedSegmentStorage, mode: Literal["strict", "kafka-exact"] = "strict") -> None:
        require(mode in _MODES, "mode", "'strict' or 'kafka-exact'")
        super().__init__(store)
        self._store = store
        self._mode, self._strict = _MODES[mode], mode == "strict"
        self._assigned: set[TopicIdPartition] = set()

    def add_remote_log_segment_metadata(self, metadata: Segment, *, token: int | None = None) -> Future:
        """Record that a copy begins: in state COPY_SEGMENT_STARTED only. A repeated one replaces the first."""
        require(isinstance(metadata, Segment), "metadata", "a RemoteLogSegmentMetadata")
        require(metadata.state == _STARTED, "metadata", "in state COPY_SEGMENT_STARTED")

        def change(stored: Segment | None) -> Rows:
            gone = _own_rows(stored, None) if self._strict and stored is not None else {}
            return gone | _own_rows(metadata, b"") | {_id_key(metadata): rows.encode_segment(metadata)}

        return self._event(metadata.remote_log_segment_id, _STARTED, token, change)

    def update_remote_log_segment_metadata(self, update: Update, *, token: int | None = None) -> Future:
        """Move a segment to another state: COPY_SEGMENT_FINISHED makes it readable, DELETE_SEGMENT_FINISHED forgets it."""
        require(isinstance(update, Update), "update", "a RemoteLogSegmentMetadataUpdate")

        def change(stored: Segment | None) -> Rows:
            if stored is None:
                raise model.RemoteResourceNotFoundException(str(update.remote_log_segment_id))
            require(update.state != _STARTED, "update", "to another state than COPY_SEGMENT_STARTED: add the segment")
            return self._moved(stored, stored.with_update(update))

        return self._event(update.remote_log_segment_id, update.state, token, change)

    def record_log_start(self, partition: TopicIdPartition, offset: int, *, token: int | None = None) -> Future:
        """Record the first offset that consumers get, before what is below it is deleted. It never goes down."""
        check_int(offset, "offset", OFFSET_MAX)

        def plan(known: PartitionRow) -> Planned:
            key = rows.partition_key(partition) + rows.LOG_START
            return (known, {key: rows.pack(offset)}) if offset > self.log_start(partition) else None

        return self._future(partition, token, plan)

    def put_remote_partition_delete_metadata(
        self, metadata: model.RemotePartitionDeleteMetadata, *, token: int | None = None
    ) -> Future:
        """Record a step of a partition's deletion. DELETE_PARTITION_FINISHED forgets all of it, in several commits if it is large."""
        require(isinstance(metadata, model.RemotePartitionDeleteMetadata), "metadata", "of a partition's deletion")
        partition = metadata.topic_id_partition

        def plan(known: PartitionRow) -> Planned:
            if self._strict and metadata.state - known.deletion not in (0, 1):
                current = f"in deletion state {known.deletion}"
                raise model.IllegalTransition(f"partition {partition}", current, metadata.state.name)
            changed = self._all_but_few(partition) if metadata.state == _GONE else {}
            return known._replace(deletion=int(metadata.state)), changed

        return self._future(partition, token, plan)

    def on_partition_leadership_changes(
        self, leaders: Collection[TopicIdPartition], followers: Collection[TopicIdPartition] = ()
    ) -> dict[TopicIdPartition, int]:
        """Make partitions known. In mode strict each of ``leaders`` gets the token returned; older ones are fenced from now on.

        Durable. Raises ``InvalidArgument``, ``Closed``, and what ``store.commit`` raises. Retry: safe; it gives newer tokens.
        """
        led, tokens = frozenset(leaders if self._strict else ()), {}

        def plan(partition: TopicIdPartition, known: PartitionRow) -> Planned:
            made = known if known.version else known._replace(mode=self._mode)
            if known.deletion == _GONE:
                made = known._replace(mode=self._mode, deletion=rows.NOT_DELETED)
            self._check_mode(partition, made)
            if partition in led:
                tokens[partition] = made.token + 1
                made = made._replace(token=made.token + 1)
            return None if made == known and known.version else (made, {})

        several = iter({*leaders, *followers})
        while batch := list(islice(several, _ROWS_MAX)):
            self._commit(batch, plan)
            self._assigned.update(batch)
        return tokens

    def on_stop_partitions(self, partitions: Collection[TopicIdPartition]) -> None:
        """Forget that this broker serves them. What is stored stays."""
        self._assigned.difference_update(partitions)

    def is_ready(self, partition: TopicIdPartition) -> bool:
        """Whether the partition is assigned here: its metadata are readable at once."""
        self._check(partition)
        return partition in self._assigned

    def _event(
        self, identity: model.RemoteLogSegmentId, target: model.RemoteLogSegmentState, token: int | None, change: Change
    ) -> Future:
        def plan(known: PartitionRow) -> Planned:
            stored = self.remote_log_segment(identity)
            state = None if stored is None else stored.state
            if target in NEXT_STATES[state] or stored is None:
                return known, change(stored)
            if self._strict:
                raise model.IllegalTransition(str(identity), stored.state.name, target.name)
            return None

        return self._future(identity.topic_id_partition, token, plan)

    def _future(self, partition: TopicIdPartition, token: int | None, plan: Plan) -> Future:
        """What is planned, as an event of the partition's leader, which has ``token``."""

        def fenced(_: TopicIdPartition, known: PartitionRow) -> Planned:
            if not known.version or known.deletion == _GONE:
                raise model.RemoteResourceNotFoundException(f"partition {partition}")
            self._check_mode(partition, known)
            if self._strict and token != known.token:
                require(type(token) is int, "token", "the leader's: mode strict needs it")
                raise model.LeaderFenced(str(partition), token or 0, known.token)
            return plan(known)

        future: Future = runtime.future()
        try:
            self._commit([partition], fenced)
            future.set_result(None)
        except ChunkstoreError as error:
            future.set_exception(error)
        return future

    def _commit(
        self, partitions: Collection[TopicIdPartition], plan: Callable[[TopicIdPartition, PartitionRow], Planned]
    ) -> None:
        """One commit of what is planned for each partition, planned anew as often as another event came first."""
        while True:
            changes: list[TablePut | TableDelete] = []
            for partition in partitions:
                self._check(partition)
                planned = plan(partition, self._stored_row(partition) or PartitionRow(self._mode))
                if planned is None:
                    continue
                made, changed = planned
                key = rows.partition_key(partition) + rows.PARTITION
                changes.append(TablePut(rows.NAMESPACE, key, rows.pack(*made[:3]), made.version))
                changes += (
                    TableDelete(rows.NAMESPACE, key) if value is None else TablePut(rows.NAMESPACE, key, value)
                    for key, value in changed.items()
                )
            try:
                if changes:
                    self._store.commit(changes)
                return
            except Conflict:
                continue

    def _check_mode(self, partition: TopicIdPartition, known: PartitionRow) -> None:
        require(known.mode == self._mode, "mode", f"the other one: the rows of partition {partition} are kept in it")

    def _all_but_few(self, partition: TopicIdPartition) -> Rows:
        """Delete the partition's rows but for the last few and its own, and return the deletion of those."""
        base = rows.partition_key(partition)
        while True:
            keys = [row.key for row in islice(self._table.scan(base), _ROWS_MAX) if row.key != base + rows.PARTITION]
            if len(keys) < _ROWS_MAX:
                return dict.fromkeys(keys)
            self._store.commit([TableDelete(rows.NAMESPACE, key) for key in keys])

    def _moved(self, old: Segment, new: Segment) -> Rows:
        if new.state == _DELETED:
            return _own_rows(new, None)
        changed = _own_rows(new, b"" if new.state == _DELETING else None)
        changed[_id_key(new)] = value = rows.encode_segment(new)
        for epoch in new.segment_leader_epochs if _FINISHED in (old.state, new.state) else ():
            if old.state == _FINISHED:
                changed[_key(new, epoch, rows.SUPERSEDED)] = None
            if new.state == _DELETING:
                changed |= self._unmapped(new, epoch)
                continue
            key = rows.epoch_key(new.remote_log_segment_id.topic_id_partition, epoch, rows.HIGHEST)
            row, end = self._table.get(key), new.epoch_end(epoch)
            highest = None if row is None else rows.decode_offset(row)
            held = self._held(new, epoch) if self._strict else self._held_as_kafka(new, epoch, highest)
            for item in held or ():
                changed[_key(item, epoch, rows.MAPPED)] = None
                if item.remote_log_segment_id != new.remote_log_segment_id:
                    changed[_key(item, epoch, rows.SUPERSEDED)] = rows.encode_segment(item)
            changed[_key(new, epoch, rows.SUPERSEDED if held is None else rows.MAPPED)] = value
            if highest is None or end > highest:
                changed[key] = rows.pack(end)
        return changed

    def _held_as_kafka(self, new: Segment, epoch: int, highest: int | None) -> Iterable[Segment]:
        """All mapped segments from its start on, if none ever reached further. One with the same start is overwritten in any case."""
        at = OFFSET_MAX
        while highest is not None and highest <= new.epoch_end(epoch):
            last = self._at(new, epoch, at)
            if last is None or last.epoch_start(epoch) < new.epoch_start(epoch):
                return
            yield last
            at = last.epoch_start(epoch) - 1

    def _held(self, new: Segment, epoch: int) -> list[Segment] | None:
        """Mapped segments that ``new`` holds whole, equal ones too; None: a larger one holds it. So none ever holds another."""
        start, end = new.epoch_start(epoch), new.epoch_end(epoch)
        before = self._at(new, epoch, start)
        if before is not None and before.remote_log_segment_id != new.remote_log_segment_id:
            reach = before.epoch_end(epoch)
            if reach > end or (reach == end and before.epoch_start(epoch) < start):
                return None
        mapped = (item for item, _ in self._from(new, epoch, rows.MAPPED, start))
        return list(takewhile(lambda item: item.epoch_end(epoch) <= end, mapped)) if start <= end else None

    def _unmapped(self, gone: Segment, epoch: int) -> Rows:
        """``gone`` is found no more; in mode strict those are that only it held, of equal ones the one that finished last."""
        start, end = gone.epoch_start(epoch), gone.epoch_end(epoch)
        mapped = self._at(gone, epoch, start)
        if mapped is None or mapped.remote_log_segment_id != gone.remote_log_segment_id:
            return {}
        changed: Rows = {_key(gone, epoch, rows.MAPPED): None}
        if not self._strict:
            return changed
        before, after = self._at(gone, epoch, start - 1), next(self._from(gone, epoch, rows.MAPPED, start + 1), None)
        reach = -1 if before is None else before.epoch_end(epoch)
        end = end if after is None else min(end, after[0].epoch_start(epoch) - 1)
        superseded = self._from(gone, epoch, rows.SUPERSEDED, start)
        held = takewhile(lambda pair: pair[0].epoch_start(epoch) <= end, superseded)
        for item, _ in sorted(held, key=lambda pair: (pair[0].epoch_start(epoch), -pair[0].epoch_end(epoch), -pair[1])):
            if item.epoch_end(epoch) > max(reach, item.epoch_start(epoch) - 1):
                reach = item.epoch_end(epoch)
                changed[_key(item, epoch, rows.SUPERSEDED)] = None
                changed[_key(item, epoch, rows.MAPPED)] = rows.encode_segment(item)
        return changed

    def _at(self, like: Segment, epoch: int, offset: int) -> Segment | None:
        partition = like.remote_log_segment_id.topic_id_partition
        row = self._floor(partition, epoch, offset)
        return None if row is None else rows.decode_segment(partition, row, epoch)

    def _from(self, like: Segment, epoch: int, kind: bytes, start: int) -> Iterator[tuple[Segment, int]]:
        """Segments from ``start`` on, each with its row's version."""
        partition = like.remote_log_segment_id.topic_id_partition
        prefix = rows.epoch_key(partition, epoch, kind)
        # A key with an id sorts after its number alone.
        after = prefix + rows.number_key(start - 1) + b"\xff" * 16 if start else None
        found = self._table.scan(prefix, after=after)
        return ((rows.decode_segment(partition, row, epoch), row.version) for row in found)


def _id_key(item: Segment) -> bytes:
    return rows.partition_key(item.remote_log_segment_id.topic_id_partition) + rows.ID + item.remote_log_segment_id.id


def _own_rows(item: Segment, mark: bytes | None) -> Rows:
    """Its own row, deleted; in each epoch it is marked as not referenced, or not."""
    partition, identity = item.remote_log_segment_id.topic_id_partition, item.remote_log_segment_id.id
    keys = (rows.epoch_key(partition, epoch, rows.UNREFERENCED) + identity for epoch in item.segment_leader_epochs)
    return {_id_key(item): None} | dict.fromkeys(keys, mark)


def _key(item: Segment, epoch: int, kind: bytes) -> bytes:
    """Of its row among those that are mapped or superseded in an epoch."""
    key = rows.epoch_key(item.remote_log_segment_id.topic_id_partition, epoch, kind)
    key += rows.number_key(item.epoch_start(epoch))
    return key + item.remote_log_segment_id.id if kind == rows.SUPERSEDED else key
