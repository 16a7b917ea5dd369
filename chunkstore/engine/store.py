"""``ChunkedSegmentStorage``: append-only segments on immutable chunks, owned by one epoch at a time.

Promises
* Every changing method is atomic and, when it returns, durable and fenced: the record is in the journal and no newer owner can
  have started before it (protocol 3.5). Order of checks: argument, closed, not owner, segment exists, sealed, offset.
* Thread-safe: operations on different segments run in parallel; those on one segment are ordered by reservation and share
  group commits.
* Every error but ``OutcomeUnknown`` says that the change did not happen, so that a retry is safe. After ``OutcomeUnknown`` it
  may have happened; each method says what a retry does then.

Leaves out: upkeep (``chunkstore.upkeep``), backup (later); S3 and HDFS (bindings).
Sources: PDP-34 "Segment Layer", Pravega's ChunkedSegmentStorage for names and cases.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from chunkstore import processes, runtime
from chunkstore.changes.asks import Ask, AskBox, Result
from chunkstore.changes.sessions import check_holder
from chunkstore.checksum import BytesLike, check_data
from chunkstore.config import MIB, OptimiserPolicy, RollingPolicy, Settings
from chunkstore.engine.parts import ContainerParts
from chunkstore.engine.reading import ReadableContainer, Watchers
from chunkstore.engine.segment import Segment
from chunkstore.engine.upkeep_calls import UpkeepCalls
from chunkstore.engine.writer import StorageWriter, Writers
from chunkstore.engine.writer_batch import Pace
from chunkstore.errors import Closed, InvalidArgument, SegmentExists, SegmentNotFound
from chunkstore.journal import JournalService, Ownership, TakeOverReport
from chunkstore.metadata.keys import writer_key
from chunkstore.metadata.lines import decode_writer_row
from chunkstore.observer import Observer
from chunkstore.operations.append import AppendWindow, append, settle
from chunkstore.operations.attach import plan_open_session
from chunkstore.operations.change_set import commit_changes
from chunkstore.operations.container import OwnedContainer
from chunkstore.operations.maintenance import Maintenance
from chunkstore.operations.read import OwnerReads, find_segment
from chunkstore.operations.recovery import Recovery
from chunkstore.operations.segments import plan_attributes, plan_create, plan_delete, plan_seal, plan_unseal
from chunkstore.operations.tables import Session, Table
from chunkstore.records.arguments import (
    SegmentHandle,
    SegmentRef,
    check_attribute_changes,
    check_attributes,
    check_not_itself,
    check_number,
    check_writer,
    gather,
    resolve,
    resolve_writable,
    writer_bytes,
)
from chunkstore.records.framing import Framing
from chunkstore.records.names import check_segment_name
from chunkstore.records.segments import AttributeValue
from chunkstore.upkeep.asked import Asked
from chunkstore.upkeep.usage import Space, Written

__all__ = ["ChunkedSegmentStorage", "Store"]

_POLL_LOCAL_S, _POLL_REMOTE_S = 1.0, 10.0


class Store(ReadableContainer, UpkeepCalls):
    """An owned container; see the module. Made by ``chunkstore.open``; a context manager that closes."""

    def __init__(
        self,
        parts: ContainerParts,
        service: JournalService,
        ownership: Ownership,
        *,
        observer: Observer | None = None,
        optimiser: OptimiserPolicy | None = None,
        asks: AskBox | None = None,
        importer: Callable[[ChunkedSegmentStorage, OwnedContainer], Callable[[str], bool]] | None = None,
    ) -> None:
        # The background threads hold no reference to the store itself, so that one that is forgotten is closed.
        storage, names, settings = parts.storage, parts.names, parts.settings
        self._parts, self.uuid = parts, parts.uuid
        self._close_lock = runtime.lock()
        self._watchers = Watchers()
        self._writers = Writers()
        self._released = False
        container = self._container = OwnedContainer(
            storage=storage,
            names=names,
            settings=settings,
            service=service,
            observer=observer,
            changed=self._watchers.wake,
        )
        recovery = self._recovery = Recovery(container)
        container.begin_epoch(ownership)
        self._maintenance = Maintenance(container, recovery)
        self._context = OwnerReads(container)
        if importer is not None:
            container.importer = importer(weakref.proxy(self), container)
        written = partial(_written, container, recovery, self._maintenance)
        self._space = Space(parts.stored_sizes, written, lambda: container.space.room(container.current.store))
        self._make_optimiser(optimiser)
        if asks is not None:
            run = partial(_run, weakref.ref(self))
            self._maintenance.background.append(Asked(container, asks, run))
        self._maintenance.start()
        processes.tell_in_child(self)
        self._made_in = runtime.active()

    def __repr__(self) -> str:
        lost = self._container.fence.error
        state = "closed" if self._container.closed else "open" if lost is None else type(lost).__name__
        return f"<Store {self.url} container={self.container!r} epoch={self.epoch} {state}>"

    # What it is

    @property
    def epoch(self) -> int:
        """The epoch this owner has (it grows with every take-over of its own)."""
        return self._container.current.epoch

    @property
    def url(self) -> str:
        """The root in one spelling, without credentials."""
        return self._container.storage.url

    @property
    def settings(self) -> Settings:
        """The settings it was opened with."""
        return self._container.settings

    @property
    def report(self) -> TakeOverReport:
        """What the last take-over found and did, a cut tail included; and why the last snapshot failed, if it did."""
        return replace(self._container.current.report, snapshot_failure=self._maintenance.snapshots.failure)

    # Segments

    def create(
        self,
        name: str,
        *,
        rolling: RollingPolicy | None = None,
        attributes: Mapping[str, AttributeValue] | None = None,
        exist_ok: bool = False,
    ) -> SegmentHandle:
        """Create an empty segment; returns a write handle. A name is free again as soon as its segment was deleted.
        ``exist_ok``: an existing segment stays as it is, and the handle is one of that.

        Raises ``InvalidArgument``, ``SegmentExists``, ``Closed``, ``NotOwner``, ``OutcomeUnknown``, ``StorageFull``,
        ``StorageUnavailable``, ``DeadlineExceeded``, ``Damaged``. Retry: safe (``SegmentExists`` if it had happened).
        """
        check_segment_name(name, "name")
        self._container.fetch(name)
        if rolling is not None and not isinstance(rolling, RollingPolicy):
            raise InvalidArgument("rolling must be a RollingPolicy", argument="rolling")
        policy = rolling or self._container.settings.default_rolling
        checked = check_attributes({} if attributes is None else attributes)
        plan = partial(plan_create, name=name, rolling=policy, attributes=checked)
        try:
            segment = commit_changes(self._container, (name,), plan, adds=0)
        except SegmentExists:
            if not exist_ok:
                raise
            return self.open_write(name)
        return SegmentHandle(name, segment.id, True)

    def __getitem__(self, name: SegmentRef) -> Segment:
        return Segment(self, self.open_write(name))

    def open_write(self, segment: SegmentRef) -> SegmentHandle:
        """A write handle. Works on sealed segments; changes nothing. Raises as ``info``. Retry: safe.

        Only where nothing is found it looks at the fence: else what is done with the handle does.
        """
        name, identity = resolve(segment)
        self._context.check_open()
        try:
            found = self._context.look(lambda view: find_segment(view, name, identity))
        except SegmentNotFound:
            return self.open_read(segment)._replace(writable=True)
        return SegmentHandle(found.name, found.id, True)

    def write(self, segment: SegmentRef, offset: int, data: BytesLike) -> int:
        """Append ``data`` at ``offset``, which must be the segment's length; returns the new length.

        All or nothing, also over several chunks; durable. Zero bytes change nothing. Raises as ``append``. Retry: safe
        (``BadOffset(expected, given)`` if it had happened).
        """
        name, identity = resolve_writable(segment)
        check_number(offset, "offset")
        payload = check_data(data)
        append(self._container, name, identity, payload, expected_offset=offset)
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
        """Append ``data``, which no one may change before this returns; returns the offset it was written at.

        All or nothing, durable. With ``writer_id`` (1 to 64 bytes) and ``event_number`` (> 0) a number not above the writer's
        stored one writes nothing and returns the recorded offset: exactly once, also across owners.

        Raises ``Conflict`` (the stored number with other bytes, unless fewer; lower ones pass), ``InvalidArgument``, ``SegmentNotFound``,
        ``SegmentSealed``, ``BadOffset``, ``Closed``, ``NotOwner``, ``OutcomeUnknown``, ``StorageFull``, ``StorageUnavailable``,
        ``DeadlineExceeded``, ``Damaged``. Retry after ``OutcomeUnknown``: safe with an offset or event number; else it may append twice.
        """
        if type(segment) is str and segment in self._container.current.segments.by_name and "\0" not in segment:
            name, identity = segment, None  # checked when it was used first
        else:
            name, identity = resolve_writable(segment)
        payload = data if type(data) is bytes else check_data(data)
        if expected_offset is not None:
            check_number(expected_offset, "expected_offset")
        writer = None
        if writer_id is not None or event_number is not None:
            writer = check_writer(writer_id, event_number)
        return append(self._container, name, identity, payload, expected_offset, writer, event_number or 0)

    def append_many(
        self, segment: SegmentRef, buffers: Sequence[BytesLike], *, expected_offset: int | None = None
    ) -> int:
        """Append all buffers in order, as one append; returns the offset of the first. Raises and retry as ``append``."""
        name, identity = resolve_writable(segment)
        payload = gather(buffers)
        if expected_offset is not None:
            check_number(expected_offset, "expected_offset")
        return append(self._container, name, identity, payload, expected_offset=expected_offset)

    def seal(self, segment: SegmentRef) -> None:
        """Take no more bytes. Sealing a sealed segment is no change. Atomic, durable.

        Raises ``InvalidArgument``, ``SegmentNotFound``, ``Closed``, ``NotOwner``, ``OutcomeUnknown``, ``StorageFull``,
        ``StorageUnavailable``, ``DeadlineExceeded``, ``Damaged``. Retry: safe.
        """
        name, identity = resolve_writable(segment)
        commit_changes(self._container, (name,), lambda changes: plan_seal(changes, name, identity))
        self._spiller.sealed(name)

    def unseal(self, segment: SegmentRef) -> None:
        """Take bytes again (in a new chunk). Atomic, durable. Raises as ``seal``, and ``SegmentNotSealed``.

        Retry: safe (``SegmentNotSealed`` if it had happened).
        """
        name, identity = resolve_writable(segment)
        commit_changes(self._container, (name,), lambda changes: plan_unseal(changes, name, identity))

    def truncate(self, segment: SegmentRef, offset: int) -> None:
        """Forget everything below ``offset``; also on sealed segments. At or below the start offset: no change.

        Atomic, durable; O(1) journal bytes; chunks go to garbage. Raises as ``seal``, and ``BadOffset`` beyond the length.
        Retry: safe.
        """
        from chunkstore.operations.segments import plan_truncate

        name, identity = resolve_writable(segment)
        check_number(offset, "offset")
        commit_changes(self._container, (name,), lambda changes: plan_truncate(changes, name, offset, identity))

    def concat(self, target: SegmentRef, offset: int, source: SegmentRef) -> None:
        """Splice the sealed ``source`` after ``target`` at ``offset`` (its length); the source ceases to exist. O(1).

        Atomic, durable. An empty source just disappears. Raises as ``seal``, and ``SegmentSealed`` (target),
        ``SegmentNotSealed`` (source), ``SegmentTruncated`` (source with a start offset), ``BadOffset``. Retry: safe
        (``SegmentNotFound`` of the source if it had happened).
        """
        from chunkstore.operations.segments import plan_concat

        target_name, target_id = resolve_writable(target, "target")
        source_name, source_id = resolve(source, "source")
        check_number(offset, "offset")
        check_not_itself(target_name, source_name)
        commit_changes(
            self._container,
            (target_name, source_name),
            lambda changes: plan_concat(changes, target_name, offset, source_name, target_id, source_id),
        )

    def delete(self, segment: SegmentRef) -> None:
        """Delete a segment. Its name is free at once; its chunks go to garbage. Atomic, durable. Raises as ``seal``.

        Retry: safe with a handle (``SegmentNotFound`` if it had happened); by name it may hit a segment created since.
        """
        name, identity = resolve_writable(segment)
        commit_changes(self._container, (name,), lambda changes: plan_delete(changes, name, identity))

    def update_attributes(
        self,
        segment: SegmentRef,
        changes: Mapping[str, AttributeValue | None],
        *,
        expected: Mapping[str, AttributeValue | None] | None = None,
    ) -> None:
        """Set attributes (None removes one) if every ``expected`` one matches (None: absent).

        Atomic, durable. Raises as ``seal``, and ``Conflict`` (nothing changed). Retry: safe (a ``Conflict`` may be its own).
        """
        name, identity = resolve_writable(segment)
        check_attribute_changes(changes, "changes")
        check_attribute_changes({} if expected is None else expected, "expected")
        commit_changes(
            self._container, (name,), lambda planned: plan_attributes(planned, name, changes, expected or {}, identity)
        )

    # Tables, sessions

    def table(self, namespace: str) -> Table:
        """The table of this namespace (1 to 64 bytes, no ``!`` first); it needs no creation. Raises ``InvalidArgument``."""
        return Table(self._container, self._context, namespace, self)

    def session(self, holder: str, *, ttl_s: float = 86_400.0) -> Session:
        """Open a session for writers outside the owner. ``holder`` and ``ttl_s`` are labels for people and for the sweep.

        Atomic, durable. Raises ``InvalidArgument``, ``Closed``, ``NotOwner``, ``OutcomeUnknown``, ``StorageFull``,
        ``StorageUnavailable``, ``DeadlineExceeded``, ``Damaged``. Retry: safe (it opens another one).
        """
        check_holder(holder, ttl_s)
        plan = partial(plan_open_session, holder=holder, ttl_s=ttl_s)
        session_id = commit_changes(self._container, (), plan, adds=0)
        return Session(self._container, session_id, holder, self)

    def writer(
        self,
        segment: SegmentRef,
        *,
        flush_bytes: int = 1 * MIB,
        flush_s: float = 0.05,
        buffer_bytes_max: int | None = None,
        window: int = 8,
        writer_id: bytes | str | None = None,
        expected_offset: int | None = None,
        framing: Framing | None = None,
    ) -> StorageWriter:
        """A buffered, asynchronous appender; see ``StorageWriter``. One of the same id that is open on this store gives way first.

        ``flush_bytes``, ``flush_s``: a batch is due when so much waits, or for so long. ``buffer_bytes_max``: so much may wait; None:
        16 MiB, and on remote storages 8 MiB for each batch of the window. ``window`` (1 to 64): so many batches are written at once, and as
        many wait for their records; only one where chunks grow. In memory are the buffer and these, of 8 MiB or ``flush_bytes`` each.
        ``expected_offset``: as of ``append``; each batch expects the end of the one before. ``framing``: each payload becomes a record.

        Raises as ``last_event_number``, and ``DeadlineExceeded`` (what a former writer has under way is undecided). Retry: safe.
        """
        pace = Pace(flush_bytes, flush_s, buffer_bytes_max, window, framing)
        pace.check()
        if expected_offset is not None:
            check_number(expected_offset, "expected_offset")
        writer = check_writer(writer_id, 1 if writer_id is not None else None)
        resolve_writable(segment)
        handle = self.open_write(segment)

        def make() -> StorageWriter:
            return StorageWriter(
                self,
                handle,
                AppendWindow(self._container, handle.name, handle.segment_id),
                pace,
                writer_id=writer,
                last_event_number=0 if writer is None else self.last_event_number(handle, writer),
                expected_offset=expected_offset,
            )

        return make() if writer is None else self._writers.replace(handle.segment_id, writer, make)

    def last_event_number(self, segment: SegmentRef, writer_id: bytes | str) -> int:
        """The highest committed event number of a writer in a segment; 0 if there is none.

        Waits for what is being committed to the segment: a writer that goes on while its last event is undecided would
        repeat it. Changes nothing. Raises as ``info``, and ``StorageFull``. Retry: safe.
        """
        name, identity = resolve(segment)
        writer = writer_bytes(writer_id)
        self._context.check_open()
        if self._container.fence.error is None:
            settle(self._container, name)
        try:
            raw = self._context.look(lambda view: view.get(writer_key(find_segment(view, name, identity).id, writer)))
        finally:
            self._context.check()
        return 0 if raw is None else decode_writer_row(name, raw).number

    def close(self) -> None:
        """Finish what is under way, end the journal cleanly, release everything. Raises nothing.

        Safe to repeat: after an interrupt (Ctrl-C) it goes on where it was.
        """
        self._made_in = None
        if self._container.inherited:
            return  # everything belongs to the process that we were forked from
        with self._close_lock:
            if not self._released:
                self._maintenance.close(self._parts.close)
                self._released = True
                self._container.observer.closed()

    def _present_epoch(self) -> int:
        return self._container.current.epoch

    def _poll_s(self, *, at_once: bool) -> float:  # own commits wake all who wait: what is left to see is a newer owner
        return _POLL_REMOTE_S if self._container.remote else _POLL_LOCAL_S

    def _watch(self, wake: Callable[[], None]) -> Callable[[], None]:
        """As of ``ReadableContainer``. Raises nothing."""
        return self._watchers.add(wake)


def _run(owner: weakref.ref[Store], ask: Ask) -> Result:
    if (store := owner()) is None:
        raise Closed("the store")
    return store.run(ask)


def _written(container: OwnedContainer, recovery: Recovery, maintenance: Maintenance) -> Written:
    journal = container.current.journal
    return Written(journal.epoch, journal.bytes_written, recovery.journal_bytes(), maintenance.snapshots.written_bytes)


ChunkedSegmentStorage = Store
"""Its name in PDP-34."""
