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

import msgpack

from chunkstore import runtime
from chunkstore.checksum import BytesLike, crc32c, crc32c_extend
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
from chunkstore.layout import AppendPiece, plan_append
from chunkstore.metadata.codec import decode_table
from chunkstore.metadata.keys import chunk_key, segment_key, writer_key
from chunkstore.metadata.port import Op
from chunkstore.names import NO_CHUNK
from chunkstore.operations.core import Core, Outdated
from chunkstore.operations.pending import PendingOp, RowRecord, SegmentState
from chunkstore.records import ACTIVE, CLOSED, KIND_OBJECT, ChunkRecord, SegmentRecord, TableRecord
from chunkstore.storage import ChunkHandle

__all__ = [
    "PlannedAppend",
    "append",
    "check_data",
    "decode_writer_row",
    "encode_writer_row",
    "gather",
    "plan_on_tail",
    "write_pieces",
]

_APPEND = int(OpCode.APPEND)
_OFFSET_MAX = (1 << 63) - 1


class PlannedAppend:
    """The records and pieces of one append: what to write where, and what the metadata will say."""

    __slots__ = ("header", "pieces", "rows", "segment", "sync_names", "tail", "tail_name", "targets")

    def __init__(
        self,
        *,
        segment: SegmentRecord,
        tail: ChunkRecord,
        tail_name: str,
        rows: dict[bytes, RowRecord],
        header: Op,
        pieces: tuple[AppendPiece, ...],
        targets: tuple[str, ...],
    ) -> None:
        self.segment = segment
        self.tail = tail
        self.tail_name = tail_name
        self.rows = rows
        self.header = header
        self.pieces = pieces
        self.targets = targets
        self.sync_names = targets


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
    while True:
        core.pass_gate(deadline_s)
        state = core.states.acquire(name)
        try:
            reserved = _reserve(core, state, identity, data, expected_offset, writer_id, event_number, deadline_s)
        except Outdated:
            continue
        finally:
            core.states.release(state)
        op, offset = reserved
        if op is None:
            return offset
        core.committer.wait(op, deadline_s)
        return offset


def _reserve(
    core: Core,
    state: SegmentState,
    identity: int | None,
    data: BytesLike,
    expected_offset: int | None,
    writer_id: bytes | None,
    event_number: int,
    deadline_s: float,
) -> tuple[PendingOp | None, int]:
    lock = state.lock
    _lock_within(core, state, deadline_s)
    try:
        if state.dead:
            core.load(state, deadline_s)
        segment = core.require(state.segment, state.name, identity)
        if writer_id is not None:
            known = _known_event(core, state, segment, writer_id, deadline_s)
            if known is not None and event_number <= known[0]:
                return None, known[1]
        if segment.flags & 1:
            raise SegmentSealed(state.name)
        offset = segment.length
        if expected_offset is not None and expected_offset != offset:
            raise BadOffset(state.name, expected=offset, given=expected_offset)
        length = len(data)
        if length == 0:
            return None, offset
        if offset + length > _OFFSET_MAX:
            raise InvalidArgument(f"segment {state.name!r} would grow beyond 2**63 - 1 bytes", argument="data")
        tail = state.tail if state.growing else None
        planned = plan_on_tail(core, segment, state.tail, tail is not None, state.tail_name, data)
        op = PendingOp([planned.header], planned.rows, (state,), planned.sync_names if core.appendable else ())
        if writer_id is not None:
            op.rows[writer_key(segment.id, writer_id)] = TableRecord(0, encode_writer_row(event_number, offset, length))
            state.writers[writer_id] = (event_number, offset, op)
        core.committer.reserve()
        if core.appendable:
            try:
                write_pieces(core, planned, data)
            except (InvalidOffset, ChunkNotFound, ChunkExists) as error:
                # The tail is not as long as its record says (an earlier half-done write), or gone: it is closed for ever,
                # and the same bytes go to a new chunk.
                _abandon(core, state, op, planned)
                raise Outdated from error
            except BaseException:
                _abandon(core, state, op, planned)
                raise
            _advance(state, planned, growing=True)
            state.last = op
            core.committer.enter(op)
            return op, offset
        _advance(state, planned, growing=False)
        state.reserved.append(op)
    finally:
        lock.release()
    try:
        write_pieces(core, planned, data)
    except BaseException as error:
        _fail_reserved(core, state, op, error)
        raise
    _enter_written(core, state, op)
    return op, offset


def _lock_within(core: Core, state: SegmentState, deadline_s: float) -> None:
    if not state.lock.acquire(False) and not state.lock.acquire(True, max(0.0, deadline_s - runtime.monotonic_s())):
        core.raise_deadline(f"waiting for the lock of segment {state.name!r}")


def _advance(state: SegmentState, planned: PlannedAppend, *, growing: bool) -> None:
    state.segment = planned.segment
    state.tail = planned.tail
    state.tail_name = planned.tail_name
    state.growing = growing


def _abandon(core: Core, state: SegmentState, op: PendingOp, planned: PlannedAppend) -> None:
    """Our write failed under the lock: nothing was planned behind it, so falling back is enough."""
    written = {key[1:] for key in planned.rows if key[:1] == b"C"}
    state.poisoned = written if state.poisoned is None else state.poisoned | written
    state.dead = True
    state.writers.clear()
    core.committer.give_up()


def _fail_reserved(core: Core, state: SegmentState, op: PendingOp, error: BaseException) -> None:
    """A write without append failed: everything reserved behind it on this segment fails with it (protocol A6)."""
    with state.lock:
        if op.decided:
            return
        reason = error if isinstance(error, ChunkstoreError) else core.unexpected(error)
        position = state.reserved.index(op)
        victims = [state.reserved[index] for index in range(position, len(state.reserved))]
        while len(state.reserved) > position:
            state.reserved.pop()
        state.dead = True
        state.writers.clear()
    core.committer.fail_reserved(victims, reason)


def _enter_written(core: Core, state: SegmentState, op: PendingOp) -> None:
    """Our bytes are there: enter the queue, together with those that waited for us, in reservation order."""
    with state.lock:
        op.written = True
        reserved = state.reserved
        while reserved and reserved[0].written:
            head = reserved.popleft()
            state.last = head
            core.committer.enter(head)


def _known_event(
    core: Core, state: SegmentState, segment: SegmentRecord, writer_id: bytes, deadline_s: float
) -> tuple[int, int] | None:
    """The writer's last event number and offset; waits while that event itself is undecided."""
    while True:
        pending = state.writers.get(writer_id)
        if pending is None:
            raw = core.store.get(writer_key(segment.id, writer_id))
            return None if raw is None else decode_writer_row(state.name, raw)
        number, offset, op = pending
        if op.decided:
            return number, offset
        core.wait_unlocked(state, op, deadline_s)
        if state.dead:
            core.load(state, deadline_s)


def encode_writer_row(event_number: int, offset: int, length: int) -> bytes:
    """Value of a writer row: (event number, offset, length) as msgpack."""
    return bytes(msgpack.packb((event_number, offset, length)))


def decode_writer_row(name: str, raw: bytes) -> tuple[int, int]:
    """Event number and offset of a writer row. Raises ``Damaged``."""
    row = decode_table(f"writer row of {name}", raw)
    try:
        number, offset, _length = msgpack.unpackb(row.value)
    except Exception as error:
        raise Damaged("a writer row cannot be decoded", object=f"writer row of {name}") from error
    if not isinstance(number, int) or not isinstance(offset, int):
        raise Damaged("a writer row holds something else than numbers", object=f"writer row of {name}")
    return number, offset


# Planning an append on a segment's tail; also used for commits of several changes.


def plan_on_tail(
    core: Core, segment: SegmentRecord, last: ChunkRecord | None, growing: bool, last_name: str, data: BytesLike
) -> PlannedAppend:
    """Plan ``data`` (not empty) behind ``segment.length``. ``last`` is the last chunk's record; ``growing``: it may be extended."""
    length = len(data)
    now_ms = runtime.now_ms()
    size_max = segment.chunk_size_bytes_max
    if growing and last is not None and last.length + length <= size_max:
        # The short path: one piece into our own tail chunk.
        crc = crc32c_extend(last.crc32c or 0, data)
        tail = last._replace(length=last.length + length, crc32c=crc)
        after = segment._replace(length=segment.length + length, owner_epoch=core.epoch, modified_ms=now_ms)
        return PlannedAppend(
            segment=after,
            tail=tail,
            tail_name=last_name,
            rows={segment_key(segment.name): after, chunk_key(segment.last_chunk): tail},
            header=(_APPEND, segment.id, segment.length, length, ()),
            pieces=(AppendPiece(0, length, last.length, False),),
            targets=(last_name,),
        )
    return _plan_rollover(core, segment, last if growing else None, last, last_name, data, now_ms)


def _plan_rollover(
    core: Core,
    segment: SegmentRecord,
    grown: ChunkRecord | None,
    last: ChunkRecord | None,
    last_name: str,
    data: BytesLike,
    now_ms: int,
) -> PlannedAppend:
    length = len(data)
    view = memoryview(data)
    size_max = segment.chunk_size_bytes_max
    pieces = plan_append(
        length,
        tail_room=max(0, size_max - grown.length) if grown is not None else 0,
        tail_length=grown.length if grown is not None else 0,
        chunk_size_bytes_max=size_max,
    )
    records: list[tuple[bytes, ChunkRecord]] = []
    targets: list[str] = []
    added: list[tuple[int, bytes]] = []
    if last is not None:
        records.append((segment.last_chunk, last))
    for piece in pieces:
        if not piece.new:
            assert grown is not None
            crc = crc32c_extend(grown.crc32c or 0, view[piece.start : piece.stop])
            records[-1] = (
                segment.last_chunk,
                grown._replace(length=grown.length + piece.stop - piece.start, crc32c=crc),
            )
            targets.append(last_name)
            continue
        identity = core.new_chunk(segment.id)
        previous = NO_CHUNK
        if records:
            before_id, before = records[-1]
            records[-1] = (before_id, before._replace(next=identity, state=CLOSED))
            previous = before_id
        record = ChunkRecord(
            object="",
            object_offset=0,
            length=piece.stop - piece.start,
            crc32c=crc32c(view[piece.start : piece.stop]),
            previous=previous,
            next=NO_CHUNK,
            segment_id=segment.id,
            epoch=core.epoch,
            state=ACTIVE if core.appendable else CLOSED,
            kind=KIND_OBJECT,
            created_ms=now_ms,
        )
        records.append((identity, record))
        targets.append(core.names.chunk(identity))
        added.append((segment.length + piece.start, identity))
    tail_id, tail = records[-1]
    # A segment without chunks (new, or truncated to its end) has no skipped bytes in front.
    after = segment._replace(
        length=segment.length + length,
        first_chunk=segment.first_chunk or records[0][0],
        last_chunk=tail_id,
        last_chunk_offset=segment.length + length - tail.length,
        owner_epoch=core.epoch,
        chunk_count=segment.chunk_count + len(added),
        modified_ms=now_ms,
    )
    rows: dict[bytes, RowRecord] = {segment_key(segment.name): after}
    for identity, record in records:
        rows[chunk_key(identity)] = record
    return PlannedAppend(
        segment=after,
        tail=tail,
        tail_name=targets[-1],
        rows=rows,
        header=(_APPEND, segment.id, segment.length, length, tuple(added)),
        pieces=pieces,
        targets=tuple(targets),
    )


def write_pieces(core: Core, planned: PlannedAppend, data: BytesLike) -> None:
    """Write every piece to its chunk: one in the caller's thread, several in parallel. Raises what the storage raises."""
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
    return b"".join(check_data(item) for item in buffers)
