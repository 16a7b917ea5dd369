"""Planning an append on a segment's tail: which bytes go where, and what the metadata will say (PDP-34: rollover).

Promises: pure but for fresh chunk ids. Leaves out: writing, reserving (``append``, ``commit_changes``).
"""

from __future__ import annotations

from typing import NamedTuple

from chunkstore.checksum import BytesLike, crc32c, crc32c_extend
from chunkstore.journal import OpCode
from chunkstore.layout import AppendPiece, check_chunk_count, plan_append
from chunkstore.metadata.keys import chunk_key, segment_key
from chunkstore.metadata.port import Op
from chunkstore.names import NO_CHUNK
from chunkstore.operations.owned_epoch import OwnedEpoch
from chunkstore.operations.pending import RowRecord
from chunkstore.records import ACTIVE, CLOSED, KIND_OBJECT, ChunkRecord, SegmentRecord

__all__ = ["PlannedAppend", "plan_on_tail"]

_APPEND = int(OpCode.APPEND)


class PlannedAppend(NamedTuple):
    """The records and pieces of one append: what to write where, and what the metadata will say. ``targets``: the chunk of
    each piece, the tail's last; without ``pieces`` all of it goes there."""

    segment: SegmentRecord
    tail: ChunkRecord
    rows: dict[bytes, RowRecord]
    header: Op
    pieces: tuple[AppendPiece, ...]
    targets: tuple[str, ...]


def plan_on_tail(
    owned: OwnedEpoch,
    segment: SegmentRecord,
    last: ChunkRecord | None,
    growing: bool,
    last_name: str,
    data: BytesLike,
    now_ms: int,
) -> PlannedAppend:
    """Plan ``data`` (not empty) behind ``segment.length``. ``last`` is the last chunk's record; ``growing``: it may be extended."""
    length = len(data)
    size_max = segment.chunk_size_bytes_max
    if growing and last is not None and last.length + length <= size_max:
        # The short path: one piece into our own tail chunk.
        tail = last.grown(last.length + length, crc32c_extend(last.crc32c or 0, data))
        after = segment.grown(segment.length + length, owned.epoch, now_ms)
        return PlannedAppend(
            segment=after,
            tail=tail,
            rows={segment_key(segment.name): after, chunk_key(segment.last_chunk): tail},
            header=(_APPEND, segment.id, segment.length, length, ()),
            pieces=(),
            targets=(last_name,),
        )
    check_chunk_count(length, size_max)
    return _plan_rollover(owned, segment, last, growing, last_name, data, now_ms)


def _plan_rollover(
    owned: OwnedEpoch,
    segment: SegmentRecord,
    last: ChunkRecord | None,
    growing: bool,
    last_name: str,
    data: BytesLike,
    now_ms: int,
) -> PlannedAppend:
    length, size_max = len(data), segment.chunk_size_bytes_max
    tail_room, tail_length = 0, 0
    if growing and last is not None:
        tail_room, tail_length = max(0, size_max - last.length), last.length
    pieces = plan_append(length, tail_room=tail_room, tail_length=tail_length, chunk_size_bytes_max=size_max)
    records: list[tuple[bytes, ChunkRecord]] = [] if last is None else [(segment.last_chunk, last)]
    targets: list[str] = []
    added: list[tuple[int, bytes]] = []
    view = memoryview(data)
    for piece in pieces:
        part = view[piece.start : piece.stop]
        previous, before = records[-1] if records else (NO_CHUNK, None)
        if before is not None and not piece.new:
            records[-1] = (previous, before.grown(before.length + len(part), crc32c_extend(before.crc32c or 0, part)))
            targets.append(last_name)
            continue
        identity = owned.new_chunk(segment.id)
        if before is not None:
            records[-1] = (previous, before._replace(next=identity, state=CLOSED))
        record = ChunkRecord(
            object="",
            object_offset=0,
            length=len(part),
            crc32c=crc32c(part),
            previous=previous,
            next=NO_CHUNK,
            segment_id=segment.id,
            epoch=owned.epoch,
            state=ACTIVE if owned.appendable else CLOSED,
            kind=KIND_OBJECT,
            created_ms=now_ms,
        )
        records.append((identity, record))
        targets.append(owned.names.chunk(identity))
        added.append((segment.length + piece.start, identity))
    tail_id, tail = records[-1]
    # A segment without chunks (new, or truncated to its end) has no skipped bytes in front.
    after = segment._replace(
        length=segment.length + length,
        first_chunk=segment.first_chunk or records[0][0],
        last_chunk=tail_id,
        last_chunk_offset=segment.length + length - tail.length,
        owner_epoch=owned.epoch,
        chunk_count=segment.chunk_count + len(added),
        modified_ms=now_ms,
    )
    rows: dict[bytes, RowRecord] = {segment_key(segment.name): after}
    rows.update((chunk_key(identity), record) for identity, record in records)
    return PlannedAppend(
        segment=after,
        tail=tail,
        rows=rows,
        header=(_APPEND, segment.id, segment.length, length, tuple(added)),
        pieces=pieces,
        targets=tuple(targets),
    )
