"""A small world that makes commits: segments as plain lists of chunks, and the rows and operations that follow from them.

Everything is derived the slow and obvious way, so that a store can be compared with it. A chunk that leaves its list keeps its row until
``collect``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from chunkstore.checksum import DIGEST_MODULUS, crc32c, record_hash, row_digest
from chunkstore.journal import OpCode
from chunkstore.metadata.codec import encode_row, encode_segment
from chunkstore.metadata.keys import chunk_key, garbage_key, segment_key, writer_key
from chunkstore.metadata.port import GENESIS, Commit, Line, Lines, Op, Position, RowChange
from chunkstore.records.names import chunk_id, line_chunk_id, session_chunk_id
from chunkstore.records.segments import (
    CLOSED,
    FLAG_SEALED,
    KIND_INLINE,
    KIND_OBJECT,
    ChunkRecord,
    SegmentRecord,
    TableRecord,
)


class History:
    """A chain of commits over rows. ``rows`` and ``digest`` are what a store must hold at ``position``."""

    def __init__(self) -> None:
        self.position: Position = GENESIS
        self.digest: int = 0
        self.rows: dict[bytes, bytes] = {}

    def commit(self, rows: Sequence[RowChange], ops: Sequence[Op] = (), lines: Lines | None = None) -> Commit:
        """The next commit; the history has it already. ``lines``: the commit says these, in the place of rows and operations."""
        for key, value in rows:
            self.rows.pop(key, None)
            if value is not None:
                self.rows[key] = value
        self.digest = sum(row_digest(key, value) for key, value in self.rows.items()) % DIGEST_MODULUS
        previous = self.position
        lsn = previous.lsn + 1
        link = record_hash(previous.hash + lsn.to_bytes(8, "big") + repr(rows).encode())
        self.position = Position(lsn, link, 1, lsn, 400 * lsn)
        if lines is not None:
            return Commit(self.position, previous.hash, None, (), (), lines)
        return Commit(self.position, previous.hash, self.digest, tuple(ops), tuple(rows))


@dataclass
class Chunk:
    """One chunk of a list."""

    id: bytes
    length: int
    segment_id: int
    state: int = CLOSED
    record: int = 0
    """Where the record is that holds it; 0: it has an object."""
    at: int = 0
    crc32c: int | None = None
    epoch: int = 1
    created_ms: int = 1

    def encoded(self, previous: bytes, following: bytes) -> bytes:
        """Its row."""
        kind, place = (KIND_INLINE, f"{self.record:x}") if self.record else (KIND_OBJECT, "")
        return encode_row(
            ChunkRecord(
                place, self.at, self.length, self.crc32c, previous, following, self.segment_id, self.epoch, self.state, kind,
                self.created_ms,
            )
        )  # fmt: skip


@dataclass
class Segment:
    """One segment: where its first chunk begins, where reading starts, and its chunks."""

    id: int
    name: str
    first: int = 0
    start: int = 0
    chunks: list[Chunk] = field(default_factory=list)
    epoch: int = 1
    modified_ms: int = 2
    flags: int = 0

    def places(self) -> list[tuple[int, Chunk]]:
        """Each chunk with the segment offset of its first byte."""
        found, offset = [], self.first
        for chunk in self.chunks:
            found.append((offset, chunk))
            offset += chunk.length
        return found

    @property
    def length(self) -> int:
        """End offset."""
        return self.first + sum(chunk.length for chunk in self.chunks)

    def record(self) -> SegmentRecord:
        """The segment's record."""
        places = self.places()
        return SegmentRecord(
            name=self.name,
            id=self.id,
            flags=self.flags,
            start_offset=self.start,
            length=self.length,
            first_chunk=self.chunks[0].id if self.chunks else b"",
            last_chunk=self.chunks[-1].id if self.chunks else b"",
            last_chunk_offset=places[-1][0] if places else 0,
            first_chunk_skip=self.start - self.first,
            chunk_size_bytes_max=1 << 20,
            owner_epoch=self.epoch,
            chunk_count=len(self.chunks),
            attributes={},
            created_ms=1,
            modified_ms=self.modified_ms,
        )


class World:
    """Segments by id, and the history that made them. Every method answers the commit to apply."""

    def __init__(self) -> None:
        self.history: History = History()
        self.segments: dict[int, Segment] = {}
        self.removed: list[Chunk] = []
        self.writers: dict[bytes, bytes] = {}
        """Rows of the last events of writers."""
        self._next_segment = 1
        self._next_chunk = 1

    def _rows(self) -> dict[bytes, bytes]:
        rows = dict(self.writers)
        for segment in self.segments.values():
            rows[segment_key(segment.name)] = encode_segment(segment.record())
            ids = [b"", *(chunk.id for chunk in segment.chunks), b""]
            for number, chunk in enumerate(segment.chunks):
                rows[chunk_key(chunk.id)] = chunk.encoded(ids[number], ids[number + 2])
        for chunk in self.removed:
            key = chunk_key(chunk.id)
            rows[key] = self.history.rows[key]
        return rows

    def _commit(self, *ops: Op, lines: Lines | None = None) -> Commit:
        before, after = self.history.rows, self._rows()
        changes: list[RowChange] = [(key, value) for key, value in after.items() if before.get(key) != value]
        changes += [(key, None) for key in before if key not in after]
        return self.history.commit(changes, ops, lines)

    def _new_chunk(self, segment_id: int, length: int, *, session: bool = False) -> Chunk:
        number = self._next_chunk
        self._next_chunk += 1
        identity = session_chunk_id(5, number, 9) if session else chunk_id(segment_id, 1, number, 9)
        return Chunk(identity, length, segment_id)

    def create(self, name: str | None = None) -> Commit:
        """A new segment; its id is the greatest in ``segments``."""
        segment_id = self._next_segment
        self._next_segment += 1
        self.segments[segment_id] = Segment(segment_id, name if name is not None else f"segment-{segment_id}")
        return self._commit((int(OpCode.CREATE), segment_id, self.segments[segment_id].name))

    def append(self, segment_id: int, *lengths: int, session: bool = False, state: int = CLOSED) -> Commit:
        """New chunks at the end; ``state``: of the last one."""
        segment = self.segments[segment_id]
        offset = at = segment.length
        new = []
        for length in lengths:
            chunk = self._new_chunk(segment_id, length, session=session)
            segment.chunks.append(chunk)
            new.append((at, chunk.id))
            at += length
        segment.chunks[-1].state = state
        return self._commit(
            (int(OpCode.ATTACH if session else OpCode.APPEND), segment_id, offset, at - offset, tuple(new))
        )

    def lines(self, *appends: tuple[int, int, bytes], epoch: int = 1) -> Commit:
        """Appends by line: segment, length and writer of each (empty: none). What follows its like goes on with the extent, by turns."""
        lsn = self.history.position.lsn + 1
        place, begin, time_ms = Lines(epoch, lsn, 1000 + lsn, f"{epoch:x}", 400 * lsn, ()), 400 * lsn, 1000 + lsn
        lines: list[Line] = []
        data = b""
        number = 0
        for segment_id, length, writer in appends:
            segment = self.segments[segment_id]
            offset, piece = segment.length, bytes((lsn + len(lines)) % 251 for _ in range(length))
            joined = bool(lines) and lines[-1].segment_id == segment_id and len(lines) % 3 > 0
            data = data + piece if joined else piece
            if joined:
                chunk = segment.chunks[-1]
                chunk.length += length
            else:
                chunk = Chunk(line_chunk_id(segment_id, epoch, lsn, number), length, segment_id, CLOSED, epoch, begin)
                chunk.epoch, chunk.created_ms = epoch, time_ms
                segment.chunks.append(chunk)
                number += 1
            chunk.crc32c = crc32c(data)
            segment.epoch, segment.modified_ms = epoch, time_ms
            begin += length
            event = None
            if writer:
                event = writer, lsn, crc32c(piece)
                value = b"\2" + b"".join(field.to_bytes(8) for field in (lsn, offset, length)) + event[2].to_bytes(4)
                self.writers[writer_key(segment_id, writer)] = encode_row(TableRecord(lsn, value))
            lines.append(Line(segment_id, offset, length, crc32c(data), joined, segment.name.encode(), event))
        return self._commit(lines=place._replace(lines=lines))

    def grow(self, segment_id: int, length: int) -> Commit:
        """More bytes in the last chunk."""
        segment = self.segments[segment_id]
        offset = segment.length
        segment.chunks[-1].length += length
        return self._commit((int(OpCode.APPEND), segment_id, offset, length, ()))

    def seal(self, segment_id: int) -> Commit:
        """No more appends."""
        self.segments[segment_id].flags = FLAG_SEALED
        return self._commit((int(OpCode.SEAL), segment_id))

    def concat(self, target_id: int, source_id: int) -> Commit:
        """The source disappears into the target."""
        target, source = self.segments[target_id], self.segments.pop(source_id)
        assert source.first == source.start == 0
        offset = target.length
        target.chunks += source.chunks
        return self._commit((int(OpCode.CONCAT), target_id, offset, source_id))

    def truncate(self, segment_id: int, start: int) -> Commit:
        """Chunks wholly below ``start`` leave the list; where nothing is left, the segment is empty."""
        segment = self.segments[segment_id]
        segment.start = start
        while segment.chunks and segment.first + segment.chunks[0].length <= start:
            chunk = segment.chunks.pop(0)
            segment.first += chunk.length
            self.removed.append(chunk)
        if not segment.chunks:
            segment.first = start
        return self._commit((int(OpCode.TRUNCATE), segment_id, start))

    def delete(self, segment_id: int) -> Commit:
        """The segment ends."""
        self.removed += self.segments.pop(segment_id).chunks
        return self._commit((int(OpCode.DELETE), segment_id))

    def replace(self, segment_id: int, first: int, count: int, parts: int, *, leave_head: bool = False) -> Commit:
        """``count`` chunks from number ``first`` on become ``parts`` new ones with the same bytes; or without those below the start."""
        segment = self.segments[segment_id]
        start = segment.places()[first][0]
        old = segment.chunks[first : first + count]
        total = sum(chunk.length for chunk in old)
        if leave_head and start < segment.start:
            total -= segment.start - start
            start = segment.first = segment.start
        # A first chunk that is partly truncated stays whole: a part wholly below the start could not be in the list.
        parts = 1 if start < segment.start else min(parts, total)
        lengths = [total // parts] * (parts - 1)
        lengths.append(total - sum(lengths))
        new = [self._new_chunk(segment_id, length) for length in lengths]
        segment.chunks[first : first + count] = new
        self.removed += old
        at, header = start, []
        for chunk in new:
            header.append((at, chunk.id))
            at += chunk.length
        return self._commit((int(OpCode.REPLACE), segment_id, start, start + total, tuple(header)))

    def collect(self, count: int) -> Commit:
        """The oldest ``count`` removed chunks are forgotten."""
        del self.removed[:count]
        return self._commit((int(OpCode.COLLECT), garbage_key(1, 0), count))
