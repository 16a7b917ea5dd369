"""What appends come to: short ones as lines of the next record, others as bytes on a segment's tail (docs/architecture.md, "One append").

Promises
* Nothing of a line is written before its record, so nothing can be left half written; lines of one segment are committed in the order
  they enter. ``append_line`` does all of an append where nothing has to be looked up, waited for or refused; else it does nothing.
* Exactly once (protocol 3.5): the row of a writer's last event commits in the same record as the append it describes. An undecided event
  is waited for before a repetition of it is answered; the next one goes after it into the queue, and fails with it.
* What a line changes is derived when it is needed (``metadata.lines``); the segment's *tip* is all that the next line has to know.
* Planning is pure but for fresh chunk ids; pieces are written one in the caller's thread, several in parallel.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from chunkstore import runtime
from chunkstore.checksum import BytesLike, crc32c, crc32c_extend, crc32c_of_bytes
from chunkstore.deadline import Deadline
from chunkstore.errors import Conflict
from chunkstore.journal import OpCode
from chunkstore.metadata.codec import decode_table
from chunkstore.metadata.keys import chunk_key, segment_key, writer_key
from chunkstore.metadata.lines import WriterEvent, decode_writer_row, encode_writer_row
from chunkstore.metadata.port import Op
from chunkstore.metadata.reserved import add_borders, last_row_key
from chunkstore.operations.commit_queue import CommitQueue
from chunkstore.operations.container import SPACE_CHECK_S, OwnedContainer
from chunkstore.operations.owned_epoch import OwnedEpoch
from chunkstore.operations.pending import (
    NOT_LOADED,
    Pending,
    PendingLine,
    PendingOp,
    PendingSegment,
    RowRecord,
    Stale,
    Tail,
    Undecided,
    Waiter,
)
from chunkstore.records.blocks import BLOCK_BYTES, ChunkSum, is_one_block, may_pass_border
from chunkstore.records.layout import AppendPiece, check_chunk_count, plan_append
from chunkstore.records.names import NO_CHUNK
from chunkstore.records.segments import (
    ACTIVE,
    CLOSED,
    FLAG_SEALED,
    KIND_INLINE,
    KIND_OBJECT,
    ChunkRecord,
    SegmentRecord,
    TableRecord,
)
from chunkstore.storage import ChunkHandle, ChunkStorage

__all__ = [
    "OFFSET_MAX",
    "AppendRequest",
    "PlannedAppend",
    "append_line",
    "enter_line",
    "grow_chunk",
    "known_event",
    "load_tip",
    "plan_inline",
    "plan_on_tail",
    "remember_event",
    "require_same_event",
    "write_pieces",
]

OFFSET_MAX: Final = (1 << 63) - 1
_NAME_BYTES_MAX: Final = 255
"""What a line has room for."""


class AppendRequest(NamedTuple):
    """What a caller asked for. ``identity``: of the segment, None: of any; ``writer_id`` and ``event_number``: of an append that happens
    once."""

    name: str
    identity: int | None
    data: BytesLike
    expected_offset: int | None
    writer_id: bytes | None
    event_number: int
    deadline: Deadline


def load_tip(container: OwnedContainer, owned: OwnedEpoch, state: PendingSegment) -> None:
    """With the lock held: what the next line has to know. Raises as ``OwnedEpoch.load``."""
    if state.generation != owned.queue.generation:
        owned.load(state)
    segment, tail = state.segment, state.tail
    state.segment_id = 0
    if segment is not None:
        following = tail is not None and tail.record.kind == KIND_INLINE
        fits = len(state.encoded) <= _NAME_BYTES_MAX
        longest = container.inline_bytes_after if following else container.inline_bytes
        state.segment_id, state.length = segment.id, segment.length
        state.sealed = bool(segment.flags & FLAG_SEALED)
        state.line_bytes_max = min(longest, segment.chunk_size_bytes_max) if fits else 0
        state.extent_bytes_max = min(BLOCK_BYTES, segment.chunk_size_bytes_max)
    state.tip_generation = state.generation


def enter_line(
    container: OwnedContainer, queue: CommitQueue, state: PendingSegment, request: AppendRequest, *, leads: bool
) -> tuple[PendingLine, Sequence[Pending] | Waiter | None]:
    """With the lock held and the tip loaded: put an admitted append into the queue; with ``leads`` as ``CommitQueue.enter_line``."""
    data, writer_id, event_number = request.data, request.writer_id, request.event_number
    if type(data) is not bytes:
        data = bytes(data)
    offset, length, event = state.length, len(data), None
    if writer_id is not None:
        event = writer_id, event_number, crc32c_of_bytes(data)
    op = PendingLine(state, state.segment_id, offset, data, event, state.tip_generation)
    entered = None
    if leads:
        entered = queue.enter_line(op)
    else:
        queue.enter(op)
    if event is not None:
        state.writers[event[0]] = WriterEvent(event_number, offset, length, event[2]), op
    state.length = offset + length
    # The records of segment and tail follow from the committed lines, if anything else wants them.
    state.generation = NOT_LOADED
    state.line_bytes_max = min(container.inline_bytes_after, state.extent_bytes_max)
    return op, entered


def append_line(container: OwnedContainer, request: AppendRequest) -> tuple[OwnedEpoch, PendingLine] | None:
    """Enter an append, and commit it or wait; it is decided, or the deadline has passed. None: nothing was entered."""
    name, identity, data, expected_offset, writer_id, event_number, deadline = request
    owned = container.current
    queue = owned.queue
    state = owned.segments.by_name.get(name)
    if (
        state is None
        or state.tip_generation != queue.generation
        or container.closed
        or container.fence.error is not None
        or container.space.watchful
        or deadline.end_s - container.space_checked_s > SPACE_CHECK_S
    ):
        return None
    with runtime.defer_interrupt():
        # Only where no one has to be waited for: waiting has a deadline, on the general way.
        if not state.turn.acquire(False):
            return None
        held = state.lock.acquire(False)
        state.turn.release()
        if not held:
            return None
        try:
            if (
                container.draining
                or owned.segments.by_name.get(name) is not state
                or state.tip_generation != queue.generation
                or state.sealed
                or not 0 < len(data) <= OFFSET_MAX - state.length
                or not container.backlog.takes(data, state.line_bytes_max)
                or (identity is not None and identity != state.segment_id)
                or not state.segment_id
                or (expected_offset is not None and expected_offset != state.length)
            ):
                return None
            if writer_id is not None:
                known = state.writers.get(writer_id)
                if known is None or known[0].number >= event_number or known[1].error is not None:
                    return None
            op, entered = enter_line(container, queue, state, request, leads=True)
        except Stale:
            return None
        finally:
            state.lock.release()
        if type(entered) is tuple:
            queue.lead(op, entered)
    if isinstance(entered, Waiter):
        queue.wait_decided(op, deadline, entered)
    return owned, op


# Exactly once


def known_event(owned: OwnedEpoch, state: PendingSegment, writer_id: bytes, event_number: int) -> WriterEvent | None:
    """The writer's last event; None for a new writer. ``event_number`` is what is about to be appended.

    Called with ``state.lock`` held, its tip loaded. Raises ``Undecided`` (that event has to be decided first), ``Stale``, ``Damaged``.
    """
    pending = state.writers.get(writer_id)
    if pending is None:
        raw = owned.store.get(writer_key(state.segment_id, writer_id))
        return None if raw is None else decode_writer_row(state.name, raw)
    event, op = pending
    if not op.decided and event_number <= event.number:
        raise Undecided(op)
    if op.error is not None:
        # Its batch failed a moment ago, and this state with it.
        raise Stale
    return event


def require_same_event(name: str, event: WriterEvent, event_number: int, data: BytesLike) -> None:
    """Raise ``Conflict`` if event ``event_number`` of segment ``name`` had other bytes.

    Of lower numbers the row does not say it, nor of fewer bytes: these may be the last event of a batch (``writer``)."""
    if event_number < event.number or len(data) < event.length:
        return
    if (len(data), crc32c(data)) != (event.length, event.crc32c):
        what = f"event {event_number} of a writer of segment {name!r} is stored with other bytes; length and CRC32C"
        raise Conflict(
            what,
            expected=f"{event.length}, {event.crc32c:08x}",
            found=f"{len(data)}, {crc32c(data):08x}",
            remedy="number new events from last_event_number + 1 on, or use another writer_id",
        )


def remember_event(
    state: PendingSegment, op: PendingOp, segment: SegmentRecord, writer_id: bytes, event_number: int, data: BytesLike
) -> None:
    """Add the writer's row to the operation that appends ``data`` at ``segment.length``."""
    event = WriterEvent(event_number, segment.length, len(data), crc32c(data))
    op.rows[writer_key(segment.id, writer_id)] = TableRecord(0, encode_writer_row(event))
    state.writers[writer_id] = (event, op)


_APPEND = int(OpCode.APPEND)
_make = tuple.__new__  # what a NamedTuple's constructor does after its argument handling


class PlannedAppend(NamedTuple):
    """What the metadata will say after one append, and what to write where. ``targets``: the chunk of each piece, the tail's last; without
    ``pieces`` all of it goes there."""

    segment: SegmentRecord
    tail: Tail
    rows: dict[bytes, RowRecord]
    header: Op
    pieces: tuple[AppendPiece, ...] = ()
    targets: tuple[str, ...] = ()


def plan_on_tail(
    owned: OwnedEpoch, segment: SegmentRecord, tail: Tail | None, data: BytesLike, now_ms: int
) -> PlannedAppend:
    """Plan ``data`` (not empty) after ``segment.length``."""
    length = len(data)
    size_max = segment.chunk_size_bytes_max
    if tail is None or not tail.growing or tail.record.length + length > size_max:
        check_chunk_count(length, size_max)
        return _plan_rollover(owned, segment, tail, data, now_ms)
    # The short path: one piece into our own tail chunk.
    last, open_row = tail.record, tail.open_row
    after = segment.grown(segment.length + length, owned.epoch, now_ms)
    rows: dict[bytes, RowRecord] = {segment_key(segment.name): after}
    if may_pass_border(last.length, last.length + length):
        record, open_row = grow_chunk(owned, segment.last_chunk, last, open_row, _summed(last, data), rows)
    else:
        record = last.grown(last.length + length, crc32c_extend(last.crc32c or 0, data))
        rows[chunk_key(segment.last_chunk)] = record
    grown: Tail = _make(Tail, (record, tail.name, True, open_row))
    header = (_APPEND, segment.id, segment.length, length, ())
    return _make(PlannedAppend, (after, grown, rows, header, (), (tail.name,)))


def plan_inline(
    owned: OwnedEpoch, segment: SegmentRecord, tail: Tail | None, extends: bool, data: bytes, now_ms: int
) -> PlannedAppend:
    """Plan ``data`` (not empty, one block at most) as bytes of the next record: a new extent after ``tail``, or with ``extends`` more of
    that one, which is not in a record yet."""
    length = len(data)
    if extends and tail is not None:
        after = segment.grown(segment.length + length, owned.epoch, now_ms)
        record = tail.record.grown(tail.record.length + length, crc32c_extend(tail.record.crc32c or 0, data))
        rows: dict[bytes, RowRecord] = {segment_key(segment.name): after, chunk_key(segment.last_chunk): record}
        return PlannedAppend(after, Tail(record, "", False), rows, (_APPEND, segment.id, segment.length, length, ()))
    previous, identity = segment.last_chunk, owned.new_chunk(segment.id)
    record = ChunkRecord(
        "", 0, length, crc32c_of_bytes(data), previous, NO_CHUNK, segment.id, owned.epoch, CLOSED, KIND_INLINE, now_ms
    )
    after = segment.lengthened(segment.length + length, owned.epoch, now_ms, identity)
    rows = {segment_key(segment.name): after, chunk_key(identity): record}
    if tail is not None:
        # A chunk that spills have made takes these bytes, too, one day.
        state = tail.record.state if previous in owned.spilled else CLOSED
        rows[chunk_key(previous)] = tail.record.followed(identity, state)
    header: Op = (_APPEND, segment.id, segment.length, length, ((segment.length, identity),), 1)
    return PlannedAppend(after, Tail(record, "", False), rows, header)


def grow_chunk(
    owned: OwnedEpoch,
    identity: bytes,
    chunk: ChunkRecord,
    open_row: bytes,
    total: ChunkSum,
    rows: dict[bytes, RowRecord],
) -> tuple[ChunkRecord, bytes]:
    """Put the rows of a chunk that grows to ``total`` into ``rows``; its record, and its last block row. ``open_row``: the value of that
    before, empty: the store's."""
    passed = total.passed
    if passed and not open_row and not is_one_block(chunk.length):
        raw = owned.store.get(last_row_key(identity, chunk.length))
        open_row = b"" if raw is None else decode_table("block row", raw).value
    blocks = add_borders(identity, open_row, passed)
    rows.update(blocks)
    rows[chunk_key(identity)] = chunk = chunk.grown(total.length, total.crc32c)
    return chunk, next(reversed(blocks.values())).value if blocks else open_row


def _summed(chunk: ChunkRecord, data: BytesLike) -> ChunkSum:
    total = ChunkSum(chunk.length, chunk.crc32c or 0)
    total.add(data)
    return total


def _plan_rollover(
    owned: OwnedEpoch, segment: SegmentRecord, tail: Tail | None, data: BytesLike, now_ms: int
) -> PlannedAppend:
    length, size_max = len(data), segment.chunk_size_bytes_max
    record = None if tail is None else tail.record
    tail_room = tail_length = 0
    if tail is not None and tail.growing:
        tail_room, tail_length = max(0, size_max - tail.record.length), tail.record.length
    pieces = plan_append(length, tail_room=tail_room, tail_length=tail_length, chunk_size_bytes_max=size_max)
    identity, open_row = segment.last_chunk, b""
    rows: dict[bytes, RowRecord] = {}
    targets: list[str] = []
    added: list[tuple[int, bytes]] = []
    view = memoryview(data)
    for piece in pieces:
        part = view[piece.start : piece.stop]
        if tail is not None and not piece.new:
            total = _summed(tail.record, part)
            record, open_row = grow_chunk(owned, identity, tail.record, tail.open_row, total, rows)
            targets.append(tail.name)
            continue
        previous, identity = identity, owned.new_chunk(segment.id)
        if record is not None:
            rows[chunk_key(previous)] = record._replace(next=identity, state=CLOSED)
        state = ACTIVE if owned.appendable else CLOSED
        empty = ChunkRecord("", 0, 0, 0, previous, NO_CHUNK, segment.id, owned.epoch, state, KIND_OBJECT, now_ms)
        record, open_row = grow_chunk(owned, identity, empty, b"", _summed(empty, part), rows)
        targets.append(owned.names.chunk(identity))
        added.append((segment.length + piece.start, identity))
    assert record is not None
    # A segment without chunks (new, or truncated to its end) has no skipped bytes in front.
    after = segment._replace(
        length=segment.length + length,
        first_chunk=segment.first_chunk or added[0][1],
        last_chunk=identity,
        last_chunk_offset=segment.length + length - record.length,
        owner_epoch=owned.epoch,
        chunk_count=segment.chunk_count + len(added),
        modified_ms=now_ms,
    )
    rows[segment_key(segment.name)] = after
    last = Tail(record, targets[-1], owned.appendable and record.state == ACTIVE, open_row)
    header: Op = (_APPEND, segment.id, segment.length, length, tuple(added))
    return PlannedAppend(after, last, rows, header, pieces, tuple(targets))


def write_pieces(container: OwnedContainer, planned: PlannedAppend, data: BytesLike, deadline: Deadline) -> None:
    """Write every piece to its chunk. Raises what the storage raises."""
    storage, pieces = container.storage, planned.pieces
    with container.bounded(deadline):
        if not pieces:
            _write_piece(storage, planned.tail.name, planned.tail.record.length - len(data), False, data)
        elif len(pieces) == 1:
            _write_piece(storage, planned.targets[0], pieces[0].offset_in_chunk, pieces[0].new, data)
        else:
            view = memoryview(data)
            calls = [
                partial(_write_piece, storage, target, piece.offset_in_chunk, piece.new, view[piece.start : piece.stop])
                for target, piece in zip(planned.targets, pieces, strict=True)
            ]
            container.pool.run_all(calls)


def _write_piece(storage: ChunkStorage, target: str, offset: int, new: bool, data: BytesLike) -> None:
    if new:
        storage.create(target, data)
    else:
        storage.write(ChunkHandle(target, True), offset, data)
