"""Bytes of chunks on an executor: fetched in long reads, lengths and CRCs checked on the way, in a few fetches of memory.

Blocks of more than 8 MiB, which only long chunks without borders have, are handed out before their end is verified."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from chunkstore.checksum import crc32c_extend
from chunkstore.config import MIB
from chunkstore.engine.parts import uuid_at
from chunkstore.errors import BadOffset, ChunkNotFound, ChunkstoreError, ContainerNotFound, Damaged, RootUnavailable
from chunkstore.records.blocks import first_bad
from chunkstore.spark.errors import annotated
from chunkstore.spark.runs import Piece
from chunkstore.storage import ChunkHandle, ChunkStorage

__all__ = ["LOCAL_FETCH_BYTES", "REMOTE_FETCH_BYTES", "PieceReader", "RunBytes", "Span", "check_place"]

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

    def spans(self, segment: str, pieces: Iterable[Piece]) -> Iterator[Span]:
        """The bytes of the pieces in spans of one fetch at most, cut at multiples of its length in each chunk.

        Raises ``Damaged`` (a chunk is shorter than planned, or a block's CRC differs), ``ChunkNotFound``, ``StorageUnavailable``.
        """
        for piece in pieces:
            with annotated(segment=segment, offset=piece.offset, chunk=piece.chunk, lsn=self._lsn):
                yield from self._piece(segment, piece)

    def _piece(self, segment: str, piece: Piece) -> Iterator[Span]:
        # Without borders as if the piece were one block, which nothing compares.
        at: Sequence[int] = (piece.start, piece.stop)
        crcs: Sequence[int] = ()
        if piece.borders is not None:
            at, crcs = piece.borders
        start, crc, passed = at[0], crcs[0] if crcs else 0, 0
        while start < at[-1]:
            limit = (start // self._fetch_bytes + 1) * self._fetch_bytes
            reached = bisect_right(at, limit, passed) - 1
            if reached == passed and at[passed + 1] - start <= REMOTE_FETCH_BYTES:
                reached += 1
            stop = at[reached] if reached > passed else limit
            data = self._fetch(piece, start, stop)
            if crcs:
                before, crc = crc, crc32c_extend(crc, data)
                if reached > passed and crc != crcs[reached]:
                    following = zip(at[passed + 1 :], crcs[passed + 1 :], strict=True)
                    bad = passed + (first_bad(start, before, data, following) or 0)
                    raise _damaged(segment, piece, at[bad], at[bad + 1])
            low, high = max(start, piece.start), min(stop, piece.stop)
            if low < high:
                wanted = data if high - low == len(data) else data[low - start : high - start]
                yield Span(piece, low, piece.offset + low - piece.start, wanted)
            start, passed = stop, reached

    def _fetch(self, piece: Piece, start: int, stop: int) -> bytes:
        try:
            data = self._storage.read(ChunkHandle(piece.chunk, False), piece.begin + start, stop - start)
        except ChunkNotFound as error:
            if not self._lsn:
                raise
            text = (
                f"{error.message}. The read was planned at lsn {self._lsn}; chunks that were merged or truncated since are collected after "
                "gc_grace_s. Load (or start the stream) again; for longer reads pin a state ('chunkstore pins add') "
                "and read it with option lsnAsOf. If it happens again, run check"
            )
            raise ChunkstoreError.from_fields("ChunkNotFound", text, error.to_fields()) from error
        if len(data) != stop - start:
            raise Damaged(
                f"the chunk is shorter than its record: it ends at {start + len(data)}, bytes up to {stop} are expected",
                object=piece.chunk,
                position=piece.begin + start + len(data),
            )
        return data


def _damaged(segment: str, piece: Piece, low: int, high: int) -> Damaged:
    base = piece.offset - piece.start
    return Damaged(
        f"the block of {high - low} bytes does not have the recorded CRC32C",
        object=piece.chunk,
        position=piece.begin + low,
        segment=segment,
        start=base + low,
        stop=base + high,
    )


class RunBytes:
    """Consecutive bytes of a segment for a reader that moves forward, with small steps back within what it read last."""

    def __init__(self, reader: PieceReader, segment: str, pieces: Sequence[Piece]) -> None:
        self._reader = reader
        self._segment = segment
        self._pieces = pieces
        self._stop = pieces[-1].offset + pieces[-1].stop - pieces[-1].start
        self._spans = reader.spans(segment, pieces)
        self._held: list[Span] = []

    def read(self, offset: int, length: int) -> bytes:
        """Bytes ``[offset, offset + length)`` of the segment; fewer where the run ends. Raises as ``PieceReader.spans``."""
        if length and offset < self._pieces[0].offset:
            raise BadOffset(self._segment, expected=self._pieces[0].offset, given=offset)
        if offset >= self._stop:
            return b""
        while self._held and _end(self._held[0]) <= offset:
            self._held.pop(0)
        while not self._held or _end(self._held[-1]) < offset + length:
            span = next(self._spans, None)
            if span is None:
                break
            if _end(span) > offset:
                self._held.append(span)
        if not self._held or offset < self._held[0].offset:
            # Only a look for the cause of an error goes back to bytes that were let go.
            return RunBytes(self._reader, self._segment, self._pieces).read(offset, length)
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


def _end(span: Span) -> int:
    return span.offset + len(span.data)


_REMEDY: Final = "every machine that runs tasks must reach the same storage under this URL"


def check_place(storage: ChunkStorage, *, container: str, uuid: bytes) -> None:
    """Raise ``RootUnavailable`` unless the container of this ``uuid`` is in ``storage``; and what reading FORMAT raises.

    Where no ``uuid`` is known nothing is compared. Changes nothing; a retry, here or on another machine, is safe.
    """
    if not uuid:
        return
    try:
        found = uuid_at(storage, container)
    except ContainerNotFound:
        reason = f"container {container!r} does not exist on this machine"
    else:
        if found == uuid:
            return
        reason = f"on this machine container {container!r} is not the planned one: its uuid is {found.hex()}, the plan has {uuid.hex()}"
    raise RootUnavailable(storage.url, reason, remedy=_REMEDY) from None
