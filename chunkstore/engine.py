"""``ChunkedSegmentStorage``: append-only segments on immutable chunks, owned by one epoch at a time.

Promises
* Every changing method is atomic and, when it returns, durable and fenced: the record is in the journal and no newer owner can
  have started before it (protocol 3.5). Order of checks: argument, closed, not owner, segment exists, sealed, offset.
* Thread-safe: operations on different segments run in parallel; those on one segment are ordered by reservation and share
  group commits.
* Errors of every changing method, besides those named at each: ``InvalidArgument`` (before any effect), ``Closed``,
  ``NotOwner`` (deposed; did not happen), ``OutcomeUnknown`` (retry with an expected offset or event number), ``StorageFull``,
  ``StorageUnavailable``, ``DeadlineExceeded`` (did not happen). A retry after ``OutcomeUnknown`` is safe only with
  ``expected_offset`` or an event number; after the others it is safe.

Leaves out: defrag, pins, backup (later layers); S3 and HDFS (bindings).
Sources: PDP-34 "Segment Layer", Pravega's ChunkedSegmentStorage for names and cases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Self

from chunkstore import runtime
from chunkstore.changes import Attach, Change, EndSession, TableDelete, TablePut
from chunkstore.checksum import BytesLike
from chunkstore.config import MIB, RollingPolicy, Settings
from chunkstore.errors import ChunkstoreError, InvalidArgument
from chunkstore.journal import JournalService, Ownership, SnapshotReport, TakeOverReport
from chunkstore.metadata.keys import writer_key
from chunkstore.metadata.port import MetadataStore
from chunkstore.names import ContainerNames, check_segment_name, utf8_bytes
from chunkstore.operations.append import append, check_data, gather, settle
from chunkstore.operations.apply_changes import check_changes, plan_changes, segment_names
from chunkstore.operations.collect import CollectReport, collect
from chunkstore.operations.core import Core
from chunkstore.operations.draft import check_attribute_changes, check_attributes, check_not_itself
from chunkstore.operations.exactly_once import decode_writer_row
from chunkstore.operations.lifecycle import Lifecycle
from chunkstore.operations.read import ReadContext, check_range, find_segment
from chunkstore.operations.session import SessionWriter, check_chunk_number, plan_end, plan_open
from chunkstore.operations.shared_check import SharedCheck
from chunkstore.operations.table import PendingTables, check_key, check_value, check_version, plan_delete, plan_put
from chunkstore.operations.transact import transact
from chunkstore.reading import (
    JournalFindings,
    ReadingHalf,
    SegmentHandle,
    SegmentRef,
    TableReader,
    no_findings,
    resolve,
)
from chunkstore.records import AttributeValue
from chunkstore.storage import ChunkStorage
from chunkstore.writer import StorageWriter, check_buffering

__all__ = ["ChunkedSegmentStorage", "Session", "Table"]

_EVENT_MAX = (1 << 63) - 1


class Table(TableReader):
    """``store.table(namespace)``: journaled key-value rows. Versions are lsns; 0 as an expectation means "absent"."""

    def __init__(self, core: Core, context: ReadContext, namespace: str) -> None:
        super().__init__(context, namespace)
        self._core = core

    def put(self, key: bytes, value: bytes, *, expected_version: int | None = None) -> None:
        """Set a row. Raises ``Conflict`` when ``expected_version`` is given and differs (nothing changed)."""
        check_key(key)
        check_value(value)
        check_version(expected_version)
        transact(
            self._core, (), lambda draft: plan_put(draft, self.namespace, key, value, expected_version), tables=True
        )

    def delete(self, key: bytes, *, expected_version: int | None = None) -> None:
        """Delete a row; deleting an absent one is no change. Raises ``Conflict``."""
        check_key(key)
        check_version(expected_version)
        transact(self._core, (), lambda draft: plan_delete(draft, self.namespace, key, expected_version), tables=True)


class Session:
    """An open session for writers outside the owner (protocol A9). A context manager that ends it if nobody has."""

    def __init__(self, core: Core, session_id: int, holder: str) -> None:
        self._core = core
        self.id = session_id
        self.holder = holder
        self._ended = False

    def writer(self, first_number: int = 0) -> SessionWriter:
        """Plain data for an executor: what it needs to write chunks of this session. Raises ``InvalidArgument``."""
        check_chunk_number(first_number, "first_number")
        return SessionWriter(self._core.names.container, self.id, first_number)

    def mark_ended(self) -> None:
        """Say that a commit of yours contained ``EndSession`` for it."""
        self._ended = True

    def end(self) -> None:
        """End it without attaching anything more. Raises ``Conflict`` if it has been ended, and the errors of every changing
        method (see the module); after ``OutcomeUnknown`` a retry is safe: ``Conflict`` says then that it had happened."""
        transact(self._core, (), lambda draft: plan_end(draft, self.id), tables=True)
        self._ended = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._ended:
            self.end()


class ChunkedSegmentStorage(ReadingHalf):
    """An owned container; see the module. Made by ``chunkstore.open``; a context manager that closes."""

    def __init__(
        self,
        *,
        storage: ChunkStorage,
        names: ContainerNames,
        settings: Settings,
        service: JournalService,
        ownership: Ownership,
        journal_findings: JournalFindings = no_findings,
        snapshot_worker: Callable[[int], SnapshotReport] | None = None,
        on_close: Iterable[Callable[[], None]] = (),
    ) -> None:
        core = Core(storage=storage, names=names, settings=settings, service=service, ownership=ownership)
        core.tables = PendingTables()
        core.snapshot_worker = snapshot_worker
        core.lifecycle = Lifecycle(core)
        self._core = core
        self._on_close = tuple(on_close)
        self._journal_findings = journal_findings
        self._waiters_lock = runtime.lock()
        self._waiters: set[runtime.Event] = set()
        self._close_lock = runtime.lock()
        self._released = False
        fenced = settings.read_fence == "fenced"
        check = core.check_fence if fenced else core.check_open
        beside = fenced and core.remote
        self._context = ReadContext(
            storage=storage,
            names=names,
            pool=core.pool,
            parallel_read_bytes_min=settings.parallel_read_bytes_min,
            op_deadline_s=settings.op_deadline_s,
            store=self._store,
            check_open=core.check_owner if fenced else core.check_open,
            check=SharedCheck(check, settings.op_deadline_s) if beside else check,
            check_beside=beside,
            recheck=core.check_fence,
            ahead=core.ahead,
        )
        core.committer.listeners.append(self._wake_waiters)
        core.lifecycle.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # What it is

    @property
    def epoch(self) -> int:
        """The epoch this owner has (it grows with every take-over of its own)."""
        return self._core.epoch

    @property
    def container(self) -> str:
        """The container's name."""
        return self._core.names.container

    @property
    def settings(self) -> Settings:
        """The settings it was opened with."""
        return self._core.settings

    @property
    def report(self) -> TakeOverReport:
        """What the last take-over found and did, a cut tail included; and why the last snapshot failed, if it did."""
        return replace(self._core.report, snapshot_failure=self._core.lifecycle.snapshot_failure())

    @property
    def journal_mode(self) -> str:
        """Either "slot" or "append"."""
        return self._core.journal.mode

    # Segments

    def create(
        self,
        name: str,
        *,
        rolling: RollingPolicy | None = None,
        attributes: Mapping[str, AttributeValue] | None = None,
    ) -> SegmentHandle:
        """Create an empty segment; returns a write handle. A name is free again as soon as its segment was deleted.

        Raises ``SegmentExists``.
        """
        check_segment_name(name)
        if rolling is not None and not isinstance(rolling, RollingPolicy):
            raise InvalidArgument("rolling must be a RollingPolicy", argument="rolling")
        policy = rolling or self._core.settings.default_rolling
        checked = check_attributes({} if attributes is None else attributes)
        segment = transact(self._core, (name,), lambda draft: draft.create(name, policy, checked))
        return SegmentHandle(name, segment.id, True)

    def open_write(self, segment: SegmentRef) -> SegmentHandle:
        """A write handle. Works on sealed segments; changes nothing. Raises ``SegmentNotFound``."""
        return self.open_read(segment)._replace(writable=True)

    def write(self, segment: SegmentRef, offset: int, data: BytesLike) -> int:
        """Append ``data`` at ``offset``, which must be the segment's length; returns the new length.

        All or nothing, also over several chunks. Zero bytes change nothing. Raises ``SegmentNotFound``, ``SegmentSealed``,
        ``BadOffset(expected, given)``. A retry with the same offset is safe (``BadOffset`` tells that it had happened).
        """
        name, identity = self._writable(segment)
        check_range(offset, 0)
        payload = check_data(data)
        append(self._core, name, identity, payload, expected_offset=offset)
        return offset + len(payload)

    def append(
        self,
        segment: SegmentRef,
        data: BytesLike,
        *,
        expected_offset: int | None = None,
        writer_id: bytes | str | None = None,
        event_number: int | None = None,
    ) -> int:
        """Append ``data``; returns the offset it was written at.

        With ``writer_id`` (1 to 64 bytes) and ``event_number`` (> 0) a number not above the writer's stored one writes nothing
        and returns the recorded offset: exactly once, also across owners. Raises ``SegmentNotFound``, ``SegmentSealed``,
        ``BadOffset``.
        """
        name, identity = self._writable(segment)
        payload = check_data(data)
        if expected_offset is not None:
            check_range(expected_offset, 0)
        writer = check_writer(writer_id, event_number)
        return append(
            self._core,
            name,
            identity,
            payload,
            expected_offset=expected_offset,
            writer_id=writer,
            event_number=event_number or 0,
        )

    def append_many(
        self, segment: SegmentRef, buffers: Sequence[BytesLike], *, expected_offset: int | None = None
    ) -> int:
        """Append all buffers in order, as one append; returns the offset of the first. Raises as ``append``."""
        name, identity = self._writable(segment)
        payload = gather(buffers)
        if expected_offset is not None:
            check_range(expected_offset, 0)
        return append(self._core, name, identity, payload, expected_offset=expected_offset)

    def seal(self, segment: SegmentRef) -> None:
        """Take no more bytes. Sealing a sealed segment is no change. Raises ``SegmentNotFound``."""
        name, identity = self._writable(segment)
        transact(self._core, (name,), lambda draft: draft.seal(name, identity))

    def unseal(self, segment: SegmentRef) -> None:
        """Take bytes again (in a new chunk). Raises ``SegmentNotFound``, ``SegmentNotSealed``."""
        name, identity = self._writable(segment)
        transact(self._core, (name,), lambda draft: draft.unseal(name, identity))

    def truncate(self, segment: SegmentRef, offset: int) -> None:
        """Forget everything below ``offset``; also on sealed segments. At or below the start offset: no change.

        Raises ``SegmentNotFound``, ``BadOffset`` beyond the length. O(1) journal bytes; chunks go to garbage.
        """
        name, identity = self._writable(segment)
        check_range(offset, 0)
        transact(self._core, (name,), lambda draft: draft.truncate(name, offset, identity))

    def concat(self, target: SegmentRef, offset: int, source: SegmentRef) -> None:
        """Splice the sealed ``source`` behind ``target`` at ``offset`` (its length); the source ceases to exist. O(1).

        An empty source just disappears. Raises ``SegmentNotFound``, ``SegmentSealed`` (target), ``SegmentNotSealed`` (source),
        ``SegmentTruncated`` (source with a start offset), ``BadOffset``, ``InvalidArgument`` (onto itself).
        """
        target_name, target_id = self._writable(target)
        source_name, source_id = resolve(source)
        check_range(offset, 0)
        check_not_itself(target_name, source_name)
        transact(
            self._core,
            (target_name, source_name),
            lambda draft: draft.concat(target_name, offset, source_name, target_id, source_id),
        )

    def delete(self, segment: SegmentRef) -> None:
        """Delete a segment. Its name is free at once; its chunks go to garbage. Raises ``SegmentNotFound``."""
        name, identity = self._writable(segment)
        transact(self._core, (name,), lambda draft: draft.delete(name, identity))

    def update_attributes(
        self,
        segment: SegmentRef,
        changes: Mapping[str, AttributeValue | None],
        *,
        expected: Mapping[str, AttributeValue | None] | None = None,
    ) -> None:
        """Set attributes (None removes one) if every ``expected`` one matches (None: absent).

        Raises ``SegmentNotFound``, ``Conflict`` (nothing changed), ``InvalidArgument`` (types, sizes, count).
        """
        name, identity = self._writable(segment)
        check_attribute_changes(changes)
        check_attribute_changes({} if expected is None else expected)
        transact(self._core, (name,), lambda draft: draft.update_attributes(name, changes, expected or {}, identity))

    # Commits, tables, sessions

    def commit(self, changes: Sequence[Change]) -> list[int | None]:
        """Apply several changes (``chunkstore.changes``) in one record, all or nothing; later ones see earlier ones.

        Returns, for each change, the offset of an ``Append`` or ``Attach``, else None. Raises what the single verbs raise.
        """
        if isinstance(changes, (str, bytes)) or not isinstance(changes, Sequence):
            raise InvalidArgument("commit takes a sequence of changes", argument="changes")
        check_changes(changes)
        names = [name for change in changes for name in segment_names(change)]
        tables = any(isinstance(change, (TablePut, TableDelete, Attach, EndSession)) for change in changes)
        return transact(self._core, names, lambda draft: plan_changes(draft, changes), tables=tables)

    def table(self, namespace: str) -> Table:
        """The table of this namespace (1 to 64 bytes, not beginning with ``!``); it needs no creation."""
        return Table(self._core, self._context, namespace)

    def session(self, holder: str, *, ttl_s: float = 86_400.0) -> Session:
        """Open a session for writers outside the owner. ``holder`` and ``ttl_s`` are labels for people and for the sweep."""
        if not isinstance(holder, str) or not 1 <= utf8_bytes(holder) <= 255:
            raise InvalidArgument("holder must be a str of 1 to 255 bytes", argument="holder")
        if not isinstance(ttl_s, (int, float)) or not 0 < ttl_s <= 366 * 86_400:
            raise InvalidArgument(f"ttl_s must be a number of seconds above 0, not {ttl_s!r}", argument="ttl_s")
        session_id = transact(self._core, (), lambda draft: plan_open(draft, holder, ttl_s))
        return Session(self._core, session_id, holder)

    def writer(
        self,
        segment: SegmentRef,
        *,
        flush_bytes: int = 1 * MIB,
        flush_s: float = 0.05,
        buffer_bytes_max: int = 16 * MIB,
        writer_id: bytes | str | None = None,
    ) -> StorageWriter:
        """A buffered, asynchronous appender; see ``StorageWriter``. Raises ``SegmentNotFound``, ``InvalidArgument``."""
        check_buffering(flush_bytes, flush_s, buffer_bytes_max)
        writer = check_writer(writer_id, 1 if writer_id is not None else None)
        self._writable(segment)
        handle = self.open_write(segment)
        last = 0 if writer is None else self.last_event_number(handle, writer)
        return StorageWriter(
            self,
            handle,
            flush_bytes=flush_bytes,
            flush_s=flush_s,
            buffer_bytes_max=buffer_bytes_max,
            writer_id=writer,
            last_event_number=last,
        )

    def last_event_number(self, segment: SegmentRef, writer_id: bytes | str) -> int:
        """The highest committed event number of a writer in a segment; 0 if there is none.

        Waits for what is being committed to the segment: a writer that goes on while its last event is undecided would
        repeat it. Raises ``SegmentNotFound``, ``DeadlineExceeded``, and why a broken journal cannot be mended now.
        """
        name, identity = resolve(segment)
        writer = check_writer(writer_id, 1)
        assert writer is not None
        self._context.check_open()
        if self._core.fenced is None:
            settle(self._core, name)
        try:
            with self._core.store.view() as view:
                record = find_segment(view, name, identity)
                raw = view.get(writer_key(record.id, writer))
        finally:
            self._context.check()
        return 0 if raw is None else decode_writer_row(name, raw)[0]

    # Upkeep

    def snapshot(self) -> SnapshotReport:
        """Write, validate and publish a snapshot now. Of a large state a worker process writes it: that may take up to an hour,
        whatever ``op_deadline_s`` says, which bounds the wait for another snapshot and for the commit of the note.

        Raises ``Closed``, ``NotOwner``, ``DeadlineExceeded`` (another one is under way), ``OutcomeUnknown`` (of the note),
        ``StorageFull``, ``StorageUnavailable``, ``Damaged`` (read-back). Retry: safe, names are unique.
        """
        self._core.check_owner()
        return self._core.lifecycle.snapshot()

    def collect(self, *, dry_run: bool = False) -> CollectReport:
        """One synchronous collection: garbage chunks past their grace, then journal records and snapshots nobody needs.

        Not atomic: chunks go in steps of at most 5,000, and what a step has done stays done when a later one fails. Raises
        ``Closed``, ``NotOwner``, ``DeadlineExceeded`` (another one is under way, too), ``OutcomeUnknown`` (of a step),
        ``StorageFull``, ``StorageUnavailable``, ``Damaged``. Retry: safe, it goes on where it was.
        """
        self._core.check_owner()
        return collect(self._core, dry_run=dry_run)

    def close(self) -> None:
        """Finish what is under way, end the journal cleanly, release everything. Never raises.

        Safe to repeat: who was interrupted (Ctrl-C) calls it again, and it goes on where it was.
        """
        if self._core.inherited:
            return  # everything belongs to the process that we were forked from
        with self._close_lock:
            if not self._released:
                self._core.lifecycle.close(self._on_close)
                self._released = True

    def wrap_unexpected(self, error: BaseException) -> ChunkstoreError:
        """For ``StorageWriter``: an error of chunkstore's own kind around something unforeseen."""
        return self._core.unexpected(error)

    # Helpers

    def _writable(self, segment: SegmentRef) -> tuple[str, int | None]:
        if isinstance(segment, SegmentHandle) and not segment.writable:
            raise InvalidArgument(f"the handle of {segment.name!r} is read-only; use open_write", argument="segment")
        return resolve(segment)

    def _store(self) -> MetadataStore:
        return self._core.store

    def _present_epoch(self) -> int:
        return self._core.epoch

    def _poll_s(self) -> float:
        return 1.0

    def _arm(self) -> runtime.Event:
        waiter = runtime.event()
        with self._waiters_lock:
            self._waiters.add(waiter)
        return waiter

    def _disarm(self, waiter: runtime.Event) -> None:
        with self._waiters_lock:
            self._waiters.discard(waiter)

    def _wake_waiters(self) -> None:
        if self._waiters:
            with self._waiters_lock:
                for waiter in self._waiters:
                    waiter.set()


def check_writer(writer_id: bytes | str | None, event_number: int | None) -> bytes | None:
    """The writer id as bytes. Raises ``InvalidArgument`` unless both or neither are given and in range."""
    if (writer_id is None) != (event_number is None):
        raise InvalidArgument("writer_id and event_number belong together", argument="writer_id")
    if writer_id is None:
        return None
    raw = writer_id.encode("utf-8", "replace") if isinstance(writer_id, str) else writer_id
    if (
        not isinstance(raw, bytes)
        or not 1 <= len(raw) <= 64
        or (isinstance(writer_id, str) and utf8_bytes(writer_id) < 0)
    ):
        raise InvalidArgument("writer_id must be 1 to 64 bytes (as a str: of valid UTF-8)", argument="writer_id")
    if type(event_number) is not int or not 1 <= event_number <= _EVENT_MAX:
        raise InvalidArgument(
            f"event_number must be a whole number from 1 on, not {event_number!r}", argument="event_number"
        )
    return raw
