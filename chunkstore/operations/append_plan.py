"""Planning an append on a segment's tail: which bytes go where, and what the metadata will say (PDP-34: rollover).

Promises: pure but for the clock and fresh chunk ids; the records that are given are not changed. Used by single appends, and by
commits of several changes. Leaves out: writing, reserving (``append``, ``commit_changes``).
"""

from __future__ import annotations

from chunkstore.checksum import BytesLike, crc32c, crc32c_extend
from chunkstore.config import LIMITS
from chunkstore.errors import InvalidArgument
from chunkstore.journal import OpCode
from chunkstore.layout import AppendPiece, plan_append
from chunkstore.metadata.keys import chunk_key, segment_key
from chunkstore.metadata.port import Op
from chunkstore.names import NO_CHUNK
from chunkstore.operations.owned_epoch import OwnedEpoch
from chunkstore.operations.pending import RowRecord
from chunkstore.records import ACTIVE, CLOSED, KIND_OBJECT, ChunkRecord, SegmentRecord

__all__ = ["PlannedAppend", "plan_on_tail"]

_APPEND = int(OpCode.APPEND)


class PlannedAppend:
    """The records and pieces of one append: what to write where, and what the metadata will say. Without ``pieces`` all of it
    goes behind the tail, ``targets[0]``."""

    __slots__ = ("header", "pieces", "rows", "segment", "tail", "tail_name", "targets")

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
            tail_name=last_name,
            rows={segment_key(segment.name): after, chunk_key(segment.last_chunk): tail},
            header=(_APPEND, segment.id, segment.length, length, ()),
            pieces=(),
            targets=(last_name,),
        )
    return _plan_rollover(owned, segment, last if growing else None, last, last_name, data, now_ms)


class _Chain:
    """The end of a chunk list while an append is planned onto it."""

    def __init__(
        self, owned: OwnedEpoch, segment: SegmentRecord, last: ChunkRecord | None, last_name: str, now_ms: int
    ) -> None:
        self._owned = owned
        self._segment = segment
        self._last_name = last_name
        self._now_ms = now_ms
        self.records: list[tuple[bytes, ChunkRecord]] = [] if last is None else [(segment.last_chunk, last)]
        self.targets: list[str] = []
        self.added: list[tuple[int, bytes]] = []

    def add(self, piece: AppendPiece, data: memoryview) -> None:
        """Extend the tail by the piece, or put a new chunk behind it."""
        owned, segment, records = self._owned, self._segment, self.records
        if not piece.new:
            identity, grown = records[-1]
            records[-1] = (identity, grown.grown(grown.length + len(data), crc32c_extend(grown.crc32c or 0, data)))
            self.targets.append(self._last_name)
            return
        identity = owned.new_chunk(segment.id)
        previous = NO_CHUNK
        if records:
            previous, before = records[-1]
            records[-1] = (previous, before._replace(next=identity, state=CLOSED))
        record = ChunkRecord(
            object="",
            object_offset=0,
            length=len(data),
            crc32c=crc32c(data),
            previous=previous,
            next=NO_CHUNK,
            segment_id=segment.id,
            epoch=owned.epoch,
            state=ACTIVE if owned.appendable else CLOSED,
            kind=KIND_OBJECT,
            created_ms=self._now_ms,
        )
        records.append((identity, record))
        self.targets.append(owned.names.chunk(identity))
        self.added.append((segment.length + piece.start, identity))


def _plan_rollover(
    owned: OwnedEpoch,
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
    if length > size_max * LIMITS.commit_chunks_max:
        raise InvalidArgument(
            f"{length} bytes in chunks of {size_max} would make more than {LIMITS.commit_chunks_max} chunks; "
            "append them in several parts",
            argument="data",
        )
    pieces = plan_append(
        length,
        tail_room=max(0, size_max - grown.length) if grown is not None else 0,
        tail_length=grown.length if grown is not None else 0,
        chunk_size_bytes_max=size_max,
    )
    chain = _Chain(owned, segment, last, last_name, now_ms)
    for piece in pieces:
        chain.add(piece, view[piece.start : piece.stop])
    records, targets, added = chain.records, chain.targets, chain.added
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
