"""Planning an append on a segment's tail: which bytes go where, and what the metadata will say (PDP-34: rollover); and writing them.

Promises: planning is pure but for fresh chunk ids; pieces are written one in the caller's thread, several in parallel.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from chunkstore.checksum import BytesLike, crc32c_extend, crc32c_of_bytes
from chunkstore.deadline import Deadline
from chunkstore.journal import OpCode
from chunkstore.metadata.codec import decode_table
from chunkstore.metadata.keys import chunk_key, segment_key
from chunkstore.metadata.port import Op
from chunkstore.metadata.reserved import add_borders, last_row_key
from chunkstore.operations.container import OwnedContainer
from chunkstore.operations.owned_epoch import OwnedEpoch
from chunkstore.operations.pending import RowRecord, Tail
from chunkstore.records.blocks import ChunkSum, is_one_block, may_pass_border
from chunkstore.records.layout import AppendPiece, check_chunk_count, plan_append
from chunkstore.records.names import NO_CHUNK
from chunkstore.records.segments import ACTIVE, CLOSED, KIND_INLINE, KIND_OBJECT, ChunkRecord, SegmentRecord
from chunkstore.storage import ChunkHandle, ChunkStorage

__all__ = ["PlannedAppend", "grow_chunk", "plan_inline", "plan_on_tail", "write_pieces"]


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
