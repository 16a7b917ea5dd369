"""Planning an append on a segment's tail: which bytes go where, and what the metadata will say (PDP-34: rollover); and writing them.

Promises: planning is pure but for fresh chunk ids; pieces are written one in the caller's thread, several in parallel.
Leaves out: reserving, what a failure means (``append``, ``commit_changes``), syncing (``commit_queue``).
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from chunkstore.checksum import BytesLike, crc32c_extend, crc32c_of_bytes
from chunkstore.deadline import Deadline
from chunkstore.journal import OpCode
from chunkstore.metadata.blocks import add_borders, last_row_key
from chunkstore.metadata.codec import decode_table
from chunkstore.metadata.keys import chunk_key, segment_key
from chunkstore.metadata.port import Op
from chunkstore.operations.container import OwnedContainer
from chunkstore.operations.owned_epoch import OwnedEpoch
from chunkstore.operations.pending import RowRecord
from chunkstore.records.blocks import ChunkSum, is_one_block, may_pass_border
from chunkstore.records.layout import AppendPiece, check_chunk_count, plan_append
from chunkstore.records.names import NO_CHUNK
from chunkstore.records.segments import ACTIVE, CLOSED, KIND_INLINE, KIND_OBJECT, ChunkRecord, SegmentRecord
from chunkstore.storage import ChunkHandle, ChunkStorage

__all__ = ["PlannedAppend", "grow_chunk", "plan_inline", "plan_on_tail", "write_pieces"]


_APPEND = int(OpCode.APPEND)
_make = tuple.__new__  # what a NamedTuple's constructor does after its argument handling


class PlannedAppend(NamedTuple):
    """The records and pieces of one append: what to write where, and what the metadata will say. ``targets``: the chunk of
    each piece, the tail's last; without ``pieces`` all of it goes there. ``open_row``: the value of the tail's last block row; empty: the
    store's."""

    segment: SegmentRecord
    tail: ChunkRecord
    rows: dict[bytes, RowRecord]
    header: Op
    pieces: tuple[AppendPiece, ...]
    targets: tuple[str, ...]
    open_row: bytes


def plan_on_tail(
    owned: OwnedEpoch,
    segment: SegmentRecord,
    last: ChunkRecord | None,
    growing: bool,
    last_name: str,
    open_row: bytes,
    data: BytesLike,
    now_ms: int,
) -> PlannedAppend:
    """Plan ``data`` (not empty) after ``segment.length``. ``last`` is the last chunk's record; ``growing``: it may be extended.
    ``open_row``: as in ``PlannedAppend``."""
    length = len(data)
    size_max = segment.chunk_size_bytes_max
    if growing and last is not None and last.length + length <= size_max:
        # The short path: one piece into our own tail chunk.
        after = segment.grown(segment.length + length, owned.epoch, now_ms)
        rows: dict[bytes, RowRecord] = {segment_key(segment.name): after}
        if may_pass_border(last.length, last.length + length):
            tail, open_row = grow_chunk(owned, segment.last_chunk, last, open_row, _summed(last, data), rows)
        else:
            tail = last.grown(last.length + length, crc32c_extend(last.crc32c or 0, data))
            rows[chunk_key(segment.last_chunk)] = tail
        return PlannedAppend(
            segment=after,
            tail=tail,
            rows=rows,
            header=(_APPEND, segment.id, segment.length, length, ()),
            pieces=(),
            targets=(last_name,),
            open_row=open_row,
        )
    check_chunk_count(length, size_max)
    return _plan_rollover(owned, segment, last, growing, last_name, open_row, data, now_ms)


def plan_inline(
    owned: OwnedEpoch, segment: SegmentRecord, last: ChunkRecord | None, extends: bool, data: bytes, now_ms: int
) -> PlannedAppend:
    """Plan ``data`` (not empty, one block at most) as bytes of the next record: a new extent after ``last``, or with ``extends`` more of
    that one, which is not in a record yet. ``open_row`` and ``targets`` say nothing."""
    length = len(data)
    if extends and last is not None:
        after = segment.grown(segment.length + length, owned.epoch, now_ms)
        tail = last.grown(last.length + length, crc32c_extend(last.crc32c or 0, data))
        rows: dict[bytes, RowRecord] = {segment_key(segment.name): after, chunk_key(segment.last_chunk): tail}
        header: Op = (_APPEND, segment.id, segment.length, length, ())
        return PlannedAppend(after, tail, rows, header, (), (), b"")
    previous, identity = segment.last_chunk, owned.new_chunk(segment.id)
    tail = _make(
        ChunkRecord,
        (
            "", 0, length, crc32c_of_bytes(data), previous, NO_CHUNK, segment.id, owned.epoch, CLOSED, KIND_INLINE, now_ms,
            (),
        ),
    )  # fmt: skip
    after = segment.lengthened(segment.length + length, owned.epoch, now_ms, identity)
    rows = {segment_key(segment.name): after, chunk_key(identity): tail}
    if last is not None:
        # A chunk that spills have made takes these bytes, too, one day.
        state = last.state if previous in owned.spilled else CLOSED
        rows[chunk_key(previous)] = last.followed(identity, state)
    header = (_APPEND, segment.id, segment.length, length, ((segment.length, identity),), 1)
    return PlannedAppend(after, tail, rows, header, (), (), b"")


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
    owned: OwnedEpoch,
    segment: SegmentRecord,
    last: ChunkRecord | None,
    growing: bool,
    last_name: str,
    open_row: bytes,
    data: BytesLike,
    now_ms: int,
) -> PlannedAppend:
    length, size_max = len(data), segment.chunk_size_bytes_max
    tail_room, tail_length = 0, 0
    if growing and last is not None:
        tail_room, tail_length = max(0, size_max - last.length), last.length
    pieces = plan_append(length, tail_room=tail_room, tail_length=tail_length, chunk_size_bytes_max=size_max)
    identity, tail = segment.last_chunk, last
    rows: dict[bytes, RowRecord] = {}
    targets: list[str] = []
    added: list[tuple[int, bytes]] = []
    view = memoryview(data)
    for piece in pieces:
        part = view[piece.start : piece.stop]
        if tail is not None and not piece.new:
            tail, open_row = grow_chunk(owned, identity, tail, open_row, _summed(tail, part), rows)
            targets.append(last_name)
            continue
        previous, identity = identity, owned.new_chunk(segment.id)
        if tail is not None:
            rows[chunk_key(previous)] = tail._replace(next=identity, state=CLOSED)
        empty = ChunkRecord(
            object="",
            object_offset=0,
            length=0,
            crc32c=0,
            previous=previous,
            next=NO_CHUNK,
            segment_id=segment.id,
            epoch=owned.epoch,
            state=ACTIVE if owned.appendable else CLOSED,
            kind=KIND_OBJECT,
            created_ms=now_ms,
        )
        tail, open_row = grow_chunk(owned, identity, empty, b"", _summed(empty, part), rows)
        targets.append(owned.names.chunk(identity))
        added.append((segment.length + piece.start, identity))
    assert tail is not None
    # A segment without chunks (new, or truncated to its end) has no skipped bytes in front.
    after = segment._replace(
        length=segment.length + length,
        first_chunk=segment.first_chunk or added[0][1],
        last_chunk=identity,
        last_chunk_offset=segment.length + length - tail.length,
        owner_epoch=owned.epoch,
        chunk_count=segment.chunk_count + len(added),
        modified_ms=now_ms,
    )
    rows[segment_key(segment.name)] = after
    return PlannedAppend(
        segment=after,
        tail=tail,
        rows=rows,
        header=(_APPEND, segment.id, segment.length, length, tuple(added)),
        pieces=pieces,
        targets=tuple(targets),
        open_row=open_row,
    )


def write_pieces(container: OwnedContainer, planned: PlannedAppend, data: BytesLike, deadline: Deadline) -> None:
    """Write every piece to its chunk. Raises what the storage raises."""
    storage, pieces = container.storage, planned.pieces
    with container.bounded(deadline):
        if not pieces:
            _write_piece(storage, planned.targets[0], planned.tail.length - len(data), False, data)
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
