"""Bytes of chunks on an executor: fetched in long reads, lengths and CRCs checked on the way.

Promises: bytes reach the caller only after the check that was due at that point: the last bytes of a chunk that is read
whole come after its CRC was compared. Memory: a few fetches (1 or 8 MiB), whatever the chunks' lengths. Leaves out: metadata; a chunk
that is gone is an error here, because a task cannot know whether it was collected or lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from chunkstore.checksum import crc32c_extend
from chunkstore.config import MIB
from chunkstore.errors import BadOffset, ChunkNotFound, Damaged
from chunkstore.spark.errors import annotated
from chunkstore.spark.plan import Piece
from chunkstore.storage import ChunkHandle, ChunkStorage

__all__ = ["LOCAL_FETCH_BYTES", "REMOTE_FETCH_BYTES", "PieceReader", "RunBytes", "Span"]

LOCAL_FETCH_BYTES: Final = 1 * MIB
"""Bytes of one read where reading is a system call: short enough that what follows finds them in the processor's cache."""
REMOTE_FETCH_BYTES: Final = 8 * MIB
"""Bytes of one read where reading is a request."""


class Span(NamedTuple):
    """Bytes of a piece: ``data`` begins at byte ``start`` of the chunk, which is byte ``offset`` of the segment."""

    piece: Piece
    start: int
    offset: int
    data: bytes


class PieceReader:
    """Reads pieces in order. One per task; pieces of a chunk that follow each other are verified in one go."""

    def __init__(self, storage: ChunkStorage, *, lsn: int) -> None:
        self._storage = storage
        self._lsn = lsn
        self._fetch_bytes = LOCAL_FETCH_BYTES if storage.capabilities.append else REMOTE_FETCH_BYTES
        self._chunk = ""
        self._checked_to = 0
        self._crc = 0

    def spans(self, segment: str, pieces: Iterable[Piece]) -> Iterator[Span]:
        """The bytes of the pieces in spans of one fetch at most, cut at multiples of its length in each chunk.

        Raises ``Damaged`` (a chunk is shorter than planned, or its CRC differs), ``ChunkNotFound``, ``StorageUnavailable``.
        """
        for piece in pieces:
            with annotated(segment=segment, offset=piece.offset, chunk=piece.chunk, lsn=self._lsn):
                yield from self._piece(piece)

    def _piece(self, piece: Piece) -> Iterator[Span]:
        verify = piece.crc32c is not None
        if verify and not self._continues(piece):
            if piece.start == 0:
                self._chunk, self._checked_to, self._crc = piece.chunk, 0, 0
            elif piece.stop == piece.length:
                self._check_beginning(piece)
            else:
                verify = False  # another task reads the end of this chunk, and verifies it
        start = piece.start
        while start < piece.stop:
            stop = min(piece.stop, (start // self._fetch_bytes + 1) * self._fetch_bytes)
            data = self._fetch(piece, start, stop)
            if verify:
                self._crc, self._checked_to = crc32c_extend(self._crc, data), stop
                if stop == piece.length and self._crc != piece.crc32c:
                    raise Damaged("the chunk's bytes do not have the recorded CRC32C", object=piece.chunk)
            yield Span(piece, start, piece.offset + start - piece.start, data)
            start = stop

    def _continues(self, piece: Piece) -> bool:
        return self._chunk == piece.chunk and self._checked_to == piece.start

    def _check_beginning(self, piece: Piece) -> None:
        """Take what lies before the piece into the CRC; if it is wanted, other tasks read it."""
        self._chunk, self._checked_to, self._crc = piece.chunk, 0, 0
        while self._checked_to < piece.start:
            stop = min(piece.start, self._checked_to + self._fetch_bytes)
            self._crc = crc32c_extend(self._crc, self._fetch(piece, self._checked_to, stop))
            self._checked_to = stop

    def fetch(self, segment: str, piece: Piece, start: int, stop: int) -> bytes:
        """Bytes ``[start, stop)`` of the piece's chunk, without a CRC. Errors as ``spans``."""
        with annotated(segment=segment, offset=piece.offset, chunk=piece.chunk, lsn=self._lsn):
            return self._fetch(piece, start, stop)

    def _fetch(self, piece: Piece, start: int, stop: int) -> bytes:
        try:
            data = self._storage.read(ChunkHandle(piece.chunk, False), start, stop - start)
        except ChunkNotFound as error:
            error.add_note(
                f"The read was planned at lsn {self._lsn}. If chunks were merged or truncated and collected since, load again; "
                "if it happens again, run check."
            )
            raise
        if len(data) != stop - start:
            raise Damaged(
                f"the chunk is shorter than its record: it ends at {start + len(data)}, {piece.length} expected",
                object=piece.chunk,
                position=start + len(data),
            )
        return data


class RunBytes:
    """Consecutive bytes of a segment for a reader that moves forward, with small steps back within what it read last."""

    def __init__(self, reader: PieceReader, segment: str, pieces: Sequence[Piece]) -> None:
        self._reader = reader
        self._segment = segment
        self._pieces = pieces
        self._spans = reader.spans(segment, pieces)
        self._held: list[Span] = []

    def read(self, offset: int, length: int) -> bytes:
        """Bytes ``[offset, offset + length)`` of the segment; fewer where the run ends. Raises as ``PieceReader.spans``."""
        while self._held and _end(self._held[0]) <= offset:
            self._held.pop(0)
        while not self._held or _end(self._held[-1]) < offset + length:
            span = next(self._spans, None)
            if span is None:
                break
            if _end(span) > offset:
                self._held.append(span)
        if not self._held or offset < self._held[0].offset:
            return self._again(offset, length)
        parts: list[memoryview] = []
        for span in self._held:
            low, high = max(0, offset - span.offset), min(len(span.data), offset + length - span.offset)
            if high - low == length == len(span.data):
                return span.data
            if low < high:
                parts.append(memoryview(span.data)[low:high])
        return b"".join(parts)

    def finish(self) -> None:
        """Read what was not asked for, so that the chunks are verified to their ends."""
        self._held.clear()
        for _ in self._spans:
            pass

    def _again(self, offset: int, length: int) -> bytes:
        """Bytes that were let go; only a look for the cause of an error goes back that far."""
        parts: list[bytes] = []
        for piece in self._pieces:
            start = max(piece.start, piece.start + offset - piece.offset)
            stop = min(piece.stop, piece.start + offset + length - piece.offset)
            if start < stop:
                parts.append(self._reader.fetch(self._segment, piece, start, stop))
        if not parts and length and offset < self._pieces[0].offset:
            raise BadOffset(self._segment, expected=self._pieces[0].offset, given=offset)
        return b"".join(parts)


def _end(span: Span) -> int:
    return span.offset + len(span.data)
