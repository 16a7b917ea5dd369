"""Appending: the hot path (house.md section 5).

Promises
* All or nothing: an append becomes visible whole, by one commit, or not at all.
* Reservation order is commit order per segment. On storages that append, the bytes are written under the segment's lock
  (they must follow each other in one chunk anyway), so a reservation enters the commit queue at once; on storages without
  append every append is a chunk of its own and several are written at the same time.
* A chunk is written only by the epoch in its name; after any failed write it is never written again (protocol A2).
* Exactly once: an event number not above the writer's stored one writes nothing and returns the recorded offset.

Leaves out: buffering (``chunkstore.writer``), commits of several segments (``draft``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from chunkstore import runtime
from chunkstore.checksum import BytesLike
from chunkstore.deadline import until
from chunkstore.errors import (
    BadOffset,
    ChunkExists,
    ChunkNotFound,
    ChunkstoreError,
    Damaged,
    InvalidArgument,
    InvalidOffset,
    SegmentSealed,
)
from chunkstore.journal import OpCode
from chunkstore.layout import AppendPiece
from chunkstore.metadata.keys import CHUNK
from chunkstore.operations.append_plan import PlannedAppend, plan_on_tail
from chunkstore.operations.core import Core, Outdated, Undecided
from chunkstore.operations.exactly_once import known_event, remember_event
from chunkstore.operations.lazy import ACKNOWLEDGED, Spoilt, append_lazily, mark_lazy, why_spoilt
from chunkstore.operations.pending import PendingOp, SegmentState
from chunkstore.records import ACTIVE, FLAG_SEALED, SegmentRecord
from chunkstore.storage import ChunkHandle

__all__ = [
    "append",
    "check_data",
    "gather",
    "settle",
    "write_pieces",
]

_APPEND = int(OpCode.APPEND)
_OFFSET_MAX = (1 << 63) - 1
_TAIL_DIFFERS = (InvalidOffset, ChunkNotFound, ChunkExists)


def check_data(data: object) -> BytesLike:
    """A contiguous buffer of bytes. Raises ``InvalidArgument``."""
    if isinstance(data, (bytes, bytearray)):
        return data
    if isinstance(data, memoryview):
        if data.c_contiguous:
            return data if data.format == "B" and data.ndim == 1 else data.cast("B")
        raise InvalidArgument("data must be contiguous; copy it with bytes(...)", argument="data")
    raise InvalidArgument(f"data must be bytes, bytearray or memoryview, not {type(data).__name__}", argument="data")


def append(
    core: Core,
    name: str,
    identity: int | None,
    data: BytesLike,
    *,
    expected_offset: int | None,
    writer_id: bytes | None = None,
    event_number: int = 0,
) -> int:
    """Append ``data``; returns the offset it was written at, once it is committed. See ``ChunkedSegmentStorage.append``."""
    deadline_s = core.deadline_s()
    request = _Request(identity, data, expected_offset, writer_id, event_number, deadline_s)
    while True:
        core.pass_gate(deadline_s)
        state = core.states.acquire(name)
        failed: BaseException | None = None
        op: PendingOp | None = None
        try:
            with runtime.whole():
                op, offset = _reserve(core, state, request)
        except KeyboardInterrupt:
            if op is not None:
                core.committer.leave(op)
            raise
        except Outdated:
            continue
        except Damaged as damage:
            if core.rows_moved_on(damage):
                continue
            raise
        except Undecided as earlier:
            core.wait_for(earlier.op, deadline_s)
            continue
        except Spoilt as spoilt:
            failed = why_spoilt(core, spoilt, deadline_s)
        finally:
            core.states.release(state)
        if failed is not None:
            if isinstance(failed, _TAIL_DIFFERS):
                continue
            raise failed
        if op is not None:
            core.committer.wait(op, deadline_s)
        else:
            # "Nothing to write" is an answer about the present state: a deposed owner must not give it.
            core.check_fence()
        return offset


def settle(core: Core, name: str) -> None:
    """Wait until nothing is undecided on a segment at some moment after the call.

    Raises ``DeadlineExceeded``, and as ``Core.pass_gate``.
    """
    deadline_s = core.deadline_s()
    while True:
        # An undecided batch of a broken journal is decided before anybody gets through here.
        core.pass_gate(deadline_s)
        state = core.states.acquire(name)
        try:
            with runtime.whole():
                _lock_within(core, state, deadline_s)
                undecided, outdated = state.undecided(), core.states_outdated(state)
                state.lock.release()
        finally:
            core.states.release(state)
        if undecided is not None:
            core.wait_for(undecided, deadline_s)
        if not outdated:
            # Those of a segment are decided in order: what came before the call has been, and others may come all the time.
            return


class _Request(NamedTuple):
    """What a caller asked for."""

    identity: int | None
    data: BytesLike
    expected_offset: int | None
    writer_id: bytes | None
    event_number: int
    deadline_s: float


def _reserve(core: Core, state: SegmentState, request: _Request) -> tuple[PendingOp | None, int]:
    lock = state.lock
    _lock_within(core, state, request.deadline_s)
    try:
        segment = _admit(core, state, request)
        if isinstance(segment, int):
            return None, segment
        data = request.data
        if core.lazy and request.writer_id is None and append_lazily(core, state, segment, data):
            return ACKNOWLEDGED, segment.length
        planned = plan_on_tail(core, segment, state.tail, state.growing, state.tail_name, data)
        if core.lazy:
            mark_lazy(core, state, segment, planned, plain=request.writer_id is None)
        op = PendingOp([planned.header], planned.rows, (state,), planned.targets if core.appendable else (), core.epoch)
        try:
            if request.writer_id is not None:
                remember_event(state, op, segment, request.writer_id, request.event_number, len(data))
            if core.appendable:
                if not _write_and_enter(core, state, planned, op, data, request.deadline_s):
                    raise core.leave_behind(op)
                return op, segment.length
            core.committer.reserve()
            state.reserved.append(op)
            _advance(state, planned, growing=False)
        except BaseException:
            if not op.entered:
                _forget_plan(core, state, op)
            raise
    finally:
        lock.release()
    try:
        write_pieces(core, planned, data, request.deadline_s)
        _enter_written(core, state, op)
    except BaseException as error:
        _fail_reserved(core, state, op, error)
        raise
    return op, segment.length


def _forget_plan(core: Core, state: SegmentState, op: PendingOp) -> None:
    """With the lock held: whoever comes next looks at what is committed."""
    if op in state.reserved:
        state.reserved.remove(op)
        core.committer.give_up()
    state.dead = True
    state.writers.clear()


def _admit(core: Core, state: SegmentState, request: _Request) -> SegmentRecord | int:
    """With the lock held: the segment to append to, or the offset to answer when there is nothing to write."""
    if state.dead:
        core.load(state)
    segment = core.require(state.segment, state.name, request.identity)
    if request.writer_id is not None:
        known = known_event(core, state, segment, request.writer_id)
        if known is not None and request.event_number <= known[0]:
            return known[1]
    if segment.flags & FLAG_SEALED:
        raise SegmentSealed(state.name)
    offset = segment.length
    if request.expected_offset is not None and request.expected_offset != offset:
        raise BadOffset(state.name, expected=offset, given=request.expected_offset)
    length = len(request.data)
    if length == 0:
        return offset
    if offset + length > _OFFSET_MAX:
        raise InvalidArgument(f"segment {state.name!r} would grow beyond 2**63 - 1 bytes", argument="data")
    return segment


def _write_and_enter(
    core: Core, state: SegmentState, planned: PlannedAppend, op: PendingOp, data: BytesLike, deadline_s: float
) -> bool:
    """With the lock held: whether it entered the queue, which is no if others had to go on without it. Raises what the storage
    raises, and ``Outdated`` where the tail is not what its record says."""
    state.writing = planned.rows
    try:
        write_pieces(core, planned, data, deadline_s)
        _advance(state, planned, growing=planned.tail.state == ACTIVE)
        return core.committer.enter(op, reserve=True)
    except BaseException as error:
        if op.entered:
            raise  # interrupted right behind it: it is committed like any other
        # Nothing was planned behind it, so falling back (``_forget_plan``) is enough.
        written = {key[1:] for key in planned.rows if key[:1] == CHUNK}
        state.poisoned = written if state.poisoned is None else state.poisoned | written
        if isinstance(error, _TAIL_DIFFERS):
            # The tail is not as long as its record says (an earlier half-done write), or gone: it is closed for ever, and
            # the same bytes go to a new chunk.
            raise Outdated from error
        raise


def _lock_within(core: Core, state: SegmentState, deadline_s: float) -> None:
    if not state.turn.acquire(False):
        core.acquire_within(state.turn, deadline_s, f"segment {state.name!r}")
    try:
        if not state.lock.acquire(False):
            core.acquire_within(state.lock, deadline_s, f"segment {state.name!r}")
    finally:
        state.turn.release()


def _advance(state: SegmentState, planned: PlannedAppend, *, growing: bool) -> None:
    state.segment = planned.segment
    state.tail = planned.tail
    state.tail_name = planned.tail_name
    state.growing = growing


def _fail_reserved(core: Core, state: SegmentState, op: PendingOp, error: BaseException) -> None:
    """A write without append failed: everything reserved behind it on this segment fails with it (protocol A6)."""
    with state.lock:
        if op.entered:
            # Interrupted behind it: those that waited for it must not wait for us.
            _enter_ready(core, state)
            return
        if op.decided or op not in state.reserved:
            # Failed by somebody else: with an earlier one on its segment, or by a take-over.
            return
        reason = error if isinstance(error, ChunkstoreError) else core.unexpected(error)
        position = state.reserved.index(op)
        victims = state.reserved[position:]
        del state.reserved[position:]
        state.dead = True
        state.writers.clear()
    core.committer.fail_reserved(victims, reason)


def _enter_written(core: Core, state: SegmentState, op: PendingOp) -> None:
    """Our bytes are there: enter the queue, together with those that waited for us, in reservation order."""
    with state.lock:
        op.written = True
        _enter_ready(core, state)


def _enter_ready(core: Core, state: SegmentState) -> None:
    """With the lock held: those at the head whose bytes are there."""
    reserved = state.reserved
    while reserved and reserved[0].written:
        head = reserved[0]
        if not head.entered and not core.committer.enter(head):
            core.committer.fail_reserved([head], core.left_behind(head))
        # Not before: whoever is interrupted in between finds it here.
        reserved.pop(0)


def write_pieces(core: Core, planned: PlannedAppend, data: BytesLike, deadline_s: float) -> None:
    """Write every piece to its chunk: one in the caller's thread, several in parallel. Raises what the storage raises.

    A remote storage is told when the operation has to be over (``chunkstore.deadline``).
    """
    if core.remote:
        with until(deadline_s):
            _write_pieces(core, planned, data)
    else:
        _write_pieces(core, planned, data)


def _write_pieces(core: Core, planned: PlannedAppend, data: BytesLike) -> None:
    pieces = planned.pieces
    if len(pieces) == 1:
        piece = pieces[0]
        _write_piece(core, planned.targets[0], piece.offset_in_chunk, piece.new, data)
        return
    view = memoryview(data)
    core.pool.run_all(
        [
            _PieceWrite(core, target, piece, view[piece.start : piece.stop])
            for target, piece in zip(planned.targets, pieces, strict=True)
        ]
    )


class _PieceWrite:
    __slots__ = ("core", "data", "piece", "target")

    def __init__(self, core: Core, target: str, piece: AppendPiece, data: memoryview) -> None:
        self.core = core
        self.target = target
        self.piece = piece
        self.data = data

    def __call__(self) -> None:
        _write_piece(self.core, self.target, self.piece.offset_in_chunk, self.piece.new, self.data)


def _write_piece(core: Core, target: str, offset: int, new: bool, data: BytesLike) -> None:
    if new:
        core.storage.create(target, data)
    else:
        core.storage.write(ChunkHandle(target, True), offset, data)


def gather(buffers: Sequence[object]) -> bytes:
    """Join the buffers of ``append_many`` into one. Raises ``InvalidArgument`` naming a bad one."""
    if not isinstance(buffers, Sequence) or isinstance(buffers, (bytes, bytearray, memoryview, str)):
        raise InvalidArgument("append_many takes a sequence of buffers; use append for one", argument="buffers")
    return b"".join(check_data(item) for item in buffers)
