"""Appending: the hot path (docs/architecture.md, "One append").

Promises
* All or nothing: an append becomes visible whole, by one commit, or not at all.
* Reservation order is commit order per segment. On storages that append, the bytes are written under the segment's lock, then
  the operation enters the commit queue; elsewhere it enters first, and several are written at the same time (decision 0008).
* A chunk is written only by the epoch in its name; after a failed write it is never written again (protocol A2).
* Exactly once: an event number not above the writer's stored one writes nothing and returns the recorded offset.

* Appends of one ``AppendWindow`` are under way at once, each after the one before it and nowhere else: in the same epoch while that is
  undecided, or once it is committed. So what is committed is a prefix: when one fails, all after it have failed or are refused. Several
  are written at once only where every append makes chunks of its own.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from chunkstore import runtime
from chunkstore.checksum import BytesLike
from chunkstore.config import MIB
from chunkstore.deadline import Deadline
from chunkstore.errors import (
    BadOffset,
    CacheDamaged,
    ChunkExists,
    ChunkNotFound,
    ChunkstoreError,
    Closed,
    InvalidArgument,
    InvalidOffset,
    SegmentNotFound,
    SegmentSealed,
)
from chunkstore.operations.append_plan import (
    OFFSET_MAX,
    AppendRequest,
    PlannedAppend,
    append_line,
    enter_line,
    known_event,
    load_tip,
    plan_on_tail,
    remember_event,
    require_same_event,
    write_pieces,
)
from chunkstore.operations.container import OwnedContainer, unexpected
from chunkstore.operations.owned_epoch import OwnedEpoch
from chunkstore.operations.pending import NOT_LOADED, Pending, PendingOp, PendingSegment, Stale
from chunkstore.storage import ChunkHandle

__all__ = ["AppendWindow", "Underway", "append", "settle"]

_make = tuple.__new__  # what a NamedTuple's constructor does, without its argument handling


class Underway:
    """An append of a window, which is written after its reservation: its operation and plan, once it has them."""

    def __init__(self, window: AppendWindow, before: Underway | None) -> None:
        self.window = window
        self.before = before
        self.offset: int = 0
        self.owned: OwnedEpoch
        self.op: Pending
        self.request: AppendRequest
        self.planned: PlannedAppend | None = None

    def check(self) -> None:
        """With the segment's lock held: may it enter the queue? Raises ``_Alone``, ``_Refused``."""
        if self.window.closed:
            raise _Refused(Closed("this writer"))
        if self.before is not None and self.before.op.decided and self.before.op.error is not None:
            error = self.before.op.error
            raise _Alone if isinstance(error, CacheDamaged) else _Refused(error.copy())


def append(
    container: OwnedContainer,
    name: str,
    identity: int | None,
    data: BytesLike,
    expected_offset: int | None,
    writer_id: bytes | None = None,
    event_number: int = 0,
) -> int:
    """Append ``data``; returns the offset it was written at, once it is committed. See ``Store.append``."""
    deadline = Deadline(container.settings.op_deadline_s)
    request: AppendRequest = _make(
        AppendRequest, (name, identity, data, expected_offset, writer_id, event_number, deadline)
    )
    line = append_line(container, request)
    entered = None
    if line is not None:
        owned, op = line
        if op.decided and op.error is None:
            return op.offset
        entered = owned, op, op.offset
    return container.run(partial(reserve, container, request), deadline, len(data), entered)


def settle(container: OwnedContainer, name: str) -> None:
    """Wait until what was entered on a segment before the call is decided. Raises ``DeadlineExceeded``, and as ``serving``."""
    deadline = container.deadline()
    while True:
        # A batch in doubt is decided before this returns.
        owned = container.serving(deadline)
        try:
            with runtime.defer_interrupt():
                state = _lock(owned, name, deadline)
                undecided = state.undecided()
                state.lock.release()
        except Stale:
            continue
        # Those of a segment are decided in order: what came before the call has been, and others may come all the time.
        if undecided is not None and not owned.queue.wait_decided(undecided, deadline):
            deadline.fail("waiting for an earlier operation")
        if owned.end_reason is None:
            return
        # The end of an epoch fails what is queued at once, before a batch in doubt in front of it is decided.


def _lock(owned: OwnedEpoch, name: str, deadline: Deadline) -> PendingSegment:
    """The pending state of ``name``, locked, after changes of structure that wait for it."""
    by_name = owned.segments.by_name
    state = by_name.get(name) or owned.segments.find(name)
    if not state.turn.acquire(False):
        deadline.acquire(state.turn, f"the lock of segment {name!r}")
    try:
        if not state.lock.acquire(False):
            deadline.acquire(state.lock, f"the lock of segment {name!r}")
    finally:
        state.turn.release()
    if by_name.get(name) is not state:
        state.lock.release()
        raise Stale
    return state


def reserve(
    container: OwnedContainer, request: AppendRequest, owned: OwnedEpoch, underway: Underway | None = None
) -> tuple[Pending | None, int]:
    """Reserve, write and enter the queue; the offset, and the operation to wait for, if there is anything to write. What is
    ``underway`` is not written yet where that needs no lock."""
    data, queue, appendable = request.data, owned.queue, owned.appendable
    state = _lock(owned, request.name, request.deadline)
    op: PendingOp | None = None
    try:
        try:
            if container.draining:
                raise Stale  # before anything is written: who drains has looked for locks already, perhaps
            if state.tip_generation != queue.generation:
                load_tip(container, owned, state)
            if underway is not None:
                underway.check()
            answer = _admit(owned, state, request)
            if answer is not None:
                return None, answer
            if container.backlog.takes(data, state.line_bytes_max):
                line, _ = enter_line(container, queue, state, request, leads=False)
                return line, line.offset
            if state.generation != queue.generation:
                owned.load(state)
            generation, segment = state.generation, state.segment
            assert segment is not None  # admitted
            planned = plan_on_tail(owned, segment, state.tail, data, runtime.now_ms())
            op = PendingOp([planned.header], planned.rows, (state,), planned.targets if appendable else (), generation)
            state.generation, state.writing = NOT_LOADED, planned.rows if appendable else {}
            if planned.pieces:
                op.reshapes = True
            if appendable:
                try:
                    if planned.pieces or container.remote:
                        write_pieces(container, planned, data, request.deadline)
                    else:
                        handle = ChunkHandle(planned.tail.name, True)
                        container.storage.write(handle, planned.tail.record.length - len(data), data)
                except (InvalidOffset, ChunkNotFound, ChunkExists) as error:
                    # The tail differs from its record (an earlier half-done write): it is closed for ever; plan again.
                    raise Stale from error
            else:
                op.written = False
            if request.writer_id is not None:
                # Not before the write: an operation that never enters the queue is never decided, and a retry would wait for it.
                remember_event(state, op, segment, request.writer_id, request.event_number, data)
            queue.enter(op)
            state.advance(planned.segment, planned.tail, generation)
        finally:
            state.lock.release()
        if not op.written:
            if underway is not None:
                underway.planned = planned
                return op, segment.length
            write_pieces(container, planned, data, request.deadline)
            queue.written(op)
    except BaseException as error:
        if op is not None and not op.written:
            fail_unwritten(owned, op, error)
        raise
    return op, segment.length


def fail_unwritten(owned: OwnedEpoch, op: Pending, error: BaseException) -> None:
    """The bytes of an append that is in the queue could not be written: it fails, and all after it on its segment."""
    (state,) = op.segments
    with state.lock:
        owned.queue.not_written(op, unexpected(error))


def _admit(owned: OwnedEpoch, state: PendingSegment, request: AppendRequest) -> int | None:
    """With the lock held, the tip loaded: None where it is to be appended, or the offset to answer when there is nothing to write."""
    if not state.segment_id or request.identity not in (None, state.segment_id):
        raise SegmentNotFound(state.name)
    if request.writer_id is not None:
        known = known_event(owned, state, request.writer_id, request.event_number)
        if known is not None and request.event_number <= known.number:
            require_same_event(state.name, known, request.event_number, request.data)
            return known.offset
    if state.sealed:
        raise SegmentSealed(state.name)
    offset = state.length
    if request.expected_offset is not None and request.expected_offset != offset:
        raise BadOffset(state.name, expected=offset, given=request.expected_offset)
    length = len(request.data)
    if length == 0:
        return offset
    if offset + length > OFFSET_MAX:
        raise InvalidArgument(f"segment {state.name!r} would grow beyond 2**63 - 1 bytes", argument="data")
    return None


# Several appends of one caller (decision 0036)

_UNDERWAY_BYTES_MIN: Final = 1 * MIB
_DEADLINE_SHARE: Final = 0.25


class _Alone(Exception):
    """It can only be done when everything before it is."""


class _Refused(Exception):
    """What was before it failed with ``error``."""

    def __init__(self, error: ChunkstoreError) -> None:
        super().__init__()
        self.error = error


class AppendWindow:
    """See the module. ``begin`` is for one thread at a time, the others for many."""

    def __init__(self, container: OwnedContainer, name: str, identity: int) -> None:
        self._container = container
        self._name = name
        self._identity = identity
        self.closed: bool = False
        self.wide: bool = not container.storage.capabilities.append
        """Whether several can be written at the same time."""
        self.remote: bool = container.remote

    def most_bytes(self, width: int, least_bytes: int) -> int:
        """So much may be under way, of ``width`` appends: a share of the deadline is enough for it, at the pace of before."""
        container = self._container
        if not container.pace_bytes_s:
            return width * least_bytes
        share_s = container.settings.op_deadline_s * _DEADLINE_SHARE
        return max(least_bytes, _UNDERWAY_BYTES_MIN, int(container.pace_bytes_s * share_s))

    def measure(self, size_bytes: int, meanwhile_bytes: int, took_s: float) -> None:
        """So much was committed while an append of ``size_bytes`` was under way. A little one that took long says nothing about how long
        a large one takes."""
        pace = meanwhile_bytes / max(1e-6, took_s)
        if size_bytes >= _UNDERWAY_BYTES_MIN or pace > self._container.pace_bytes_s:
            self._container.pace_bytes_s = pace

    def begin(
        self,
        data: BytesLike,
        before: Underway | None,
        *,
        expected_offset: int | None,
        writer_id: bytes | None,
        event_number: int,
    ) -> Underway | None:
        """Reserve and enter an append after ``before`` (None: all before it is committed). None: it has to be done alone, when everything
        before it is committed: there is nothing to write, or what was before it did not happen and is done again. Whatever it returns
        must come to ``write`` and ``wait``. Raises as ``append``; nothing happened."""
        container = self._container
        deadline = container.deadline()
        underway = Underway(self, before)
        request = AppendRequest(self._name, self._identity, data, expected_offset, writer_id, event_number, deadline)

        def attempt(owned: OwnedEpoch) -> tuple[Pending | None, int]:
            # In another epoch nothing holds this one up: what became of the one before has to be known first.
            foreign = before is not None and before.owned is not owned
            if before is not None and foreign and not before.owned.queue.wait_decided(before.op, deadline):
                deadline.fail("waiting for an earlier append of this writer")
            return reserve(container, request, owned, underway)

        try:
            owned, op, offset = container.enter(attempt, deadline, len(data))
        except _Alone:
            return None
        except _Refused as refused:
            raise refused.error from None
        if op is None:
            return None
        underway.owned, underway.op, underway.offset, underway.request = owned, op, offset, request
        underway.before = None  # else each would keep all before it, with their bytes
        return underway

    def write(self, underway: Underway) -> None:
        """Write the bytes of what ``begin`` returned. Raises as ``append``, and ``CacheDamaged``: it did not happen, nor did anything after
        it."""
        op, request = underway.op, underway.request
        if underway.planned is not None and not op.decided:
            try:
                write_pieces(self._container, underway.planned, request.data, request.deadline)
                underway.owned.queue.written(op)  # type: ignore[arg-type]  # only lines have nothing to write
            except BaseException as error:
                fail_unwritten(underway.owned, op, error)
                raise

    def wait(self, underway: Underway) -> int:
        """Wait until what was written is committed; returns its offset. Raises as ``write``."""
        self._container.wait(underway.owned, underway.op, underway.request.deadline)
        return underway.offset

    def close(self) -> None:
        """Refuse what has not entered yet."""
        self.closed = True
