"""What the tasks of a read are made of, and how bytes are shared out among them. Plain data and pure functions.

A row of a raw segment is at most ``ROW_BYTES`` long: chunks are cut at multiples of that, counted from the chunk's first byte, and a row
never spans two chunks. Partitions are cut between pieces, and inside only where there are fewer than ``minPartitions``."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from chunkstore.codec.pulsar.block_index import Block, LedgerRange
from chunkstore.config import MIB
from chunkstore.engine.reading import read_view
from chunkstore.engine.replica import Replica
from chunkstore.metadata.index import walk
from chunkstore.metadata.port import MetadataView
from chunkstore.operations.read import find_segment
from chunkstore.records.blocks import Borders, is_one_block

__all__ = [
    "PARTITION_BYTES",
    "ROW_BYTES",
    "ChunkTimes",
    "Cut",
    "LedgerRun",
    "Piece",
    "ReadTask",
    "SegmentRun",
    "Sizing",
    "TimesOfTasks",
    "chunk_times",
    "plan_entries",
    "plan_pieces",
    "share",
]

PARTITION_BYTES: Final = 128 * MIB
"""Bytes of a partition unless chunks are longer: a task costs tens of milliseconds whatever it does."""
ROW_BYTES: Final = 1 * MIB
"""The longest row of a raw segment."""
_ID_BYTES: Final = 8
_IDS: Final = 1 << 20
"""Rows without payload are shared out by so many."""


class Piece(NamedTuple):
    """Bytes ``[start, stop)`` of a chunk, whose first byte is byte ``begin`` of the object ``chunk``; byte ``start`` is byte ``offset`` of
    the segment.

    ``length`` is how many of the chunk's bytes the snapshot knows (it may have grown since). ``borders``: of the blocks that
    hold the piece; None where nothing verifies it (``_with_own_borders``).
    """

    chunk: str
    start: int
    stop: int
    length: int
    offset: int
    borders: Borders | None
    begin: int = 0


class Cut(NamedTuple):
    """How rows are cut so that they are the same whatever becomes of chunks: those that begin in ``[start, stop)`` of the segment.

    ``line_bytes_max`` 0: at multiples of ``ROW_BYTES`` of the segment. Else after newlines: a line that begins there may end
    after it, up to ``end``, where the last one ends in any case; and with ``joined`` one that began before goes on there.
    """

    start: int
    stop: int
    end: int
    line_bytes_max: int
    joined: bool


class SegmentRun(NamedTuple):
    """Consecutive bytes of a raw segment. ``cut`` None: rows are pieces of chunks."""

    segment: str
    pieces: tuple[Piece, ...]
    cut: Cut | None = None


class LedgerRun(NamedTuple):
    """Consecutive blocks of a ledger in one data segment, and their bytes; entries outside first to last are not wanted.

    Without blocks: there is an entry of each id from first to last, and ids are all that is wanted.
    """

    topic: str
    ledger: int
    first_entry: int
    last_entry: int
    segment: str
    blocks: tuple[Block, ...]
    pieces: tuple[Piece, ...]


class ReadTask(NamedTuple):
    """One partition: plain data. ``lsn`` is the point of history all tasks of a read were planned at."""

    root: str
    container: str
    lsn: int
    runs: tuple[SegmentRun | LedgerRun, ...]
    uuid: bytes = b""
    """The container's: what is under ``root`` on the task's machine must be the same one."""
    times: tuple[ChunkTimes, ...] = ()
    """Of the segments of these runs, if column ``timestamp`` is wanted."""


class Sizing(NamedTuple):
    """How large partitions are: at least so many, and of about ``PARTITION_BYTES`` at most."""

    partitions_min: int = 1

    def parts(self, sizes: Sequence[int]) -> int:
        """How many partitions share these bytes."""
        return max(self.partitions_min, -(-sum(sizes) // PARTITION_BYTES))

    def groups(self, sizes: Sequence[int]) -> list[tuple[int, int]]:
        """The sizes as partitions; see ``share``."""
        return share(sizes, self.parts(sizes))


def share(sizes: Sequence[int], parts: int) -> list[tuple[int, int]]:
    """Cut a row of sizes into ``parts`` groups of neighbours (fewer only where there are fewer sizes), about equal in sum.

    Returns the groups as half-open ranges; none is empty.
    """
    groups: list[tuple[int, int]] = []
    begin, left = 0, sum(sizes)
    for number in range(min(parts, len(sizes)), 0, -1):
        goal = left / number
        end, got = begin + 1, sizes[begin]
        while len(sizes) - end >= number and (number == 1 or got + sizes[end] / 2 <= goal):
            got += sizes[end]
            end += 1
        groups.append((begin, end))
        begin, left = end, left - got
    return groups


def plan_pieces(pieces: Sequence[tuple[str, Piece]], sizing: Sizing) -> list[list[SegmentRun]]:
    """Partitions over pieces of raw segments, by name, in the order given."""
    if len(pieces) < sizing.partitions_min:
        total = sum(piece.stop - piece.start for _, piece in pieces)
        rows = max(1, total // sizing.partitions_min // ROW_BYTES)
        pieces = [(name, part) for name, piece in pieces for part in _cut(piece, rows)]
    sizes = [piece.stop - piece.start for _, piece in pieces]
    return [_segment_runs(pieces[begin:end]) for begin, end in sizing.groups(sizes)]


def _cut(piece: Piece, rows: int) -> list[Piece]:
    """The piece in parts of ``rows`` rows; the parts end where rows end."""
    parts: list[Piece] = []
    start = piece.start
    while start < piece.stop:
        stop = min(piece.stop, (start // ROW_BYTES + rows) * ROW_BYTES)
        parts.append(piece._replace(start=start, stop=stop, offset=piece.offset + start - piece.start))
        start = stop
    return parts


def _segment_runs(pieces: Sequence[tuple[str, Piece]]) -> list[SegmentRun]:
    runs: list[tuple[str, list[Piece]]] = []
    for name, piece in pieces:
        if not runs or runs[-1][0] != name:
            runs.append((name, [piece]))
            continue
        last = runs[-1][1][-1]
        if (last.chunk, last.begin, last.stop) == (piece.chunk, piece.begin, piece.start):
            runs[-1][1][-1] = last._replace(stop=piece.stop)
        else:
            runs[-1][1].append(piece)
    return [SegmentRun(name, _with_own_borders(found)) for name, found in runs]


def _with_own_borders(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
    """The pieces with the borders of their own blocks, instead of the whole chunk's. Of a chunk that is one long
    block only the piece that ends it has any: one task reads all of it."""
    found: list[Piece] = []
    for piece in pieces:
        borders = piece.borders
        if borders is not None:
            left_to_another = len(borders.at) == 2 and piece.stop < piece.length and not is_one_block(piece.length)
            borders = None if left_to_another else borders.between(piece.start, piece.stop)
        found.append(piece._replace(borders=borders))
    return tuple(found)


def plan_entries(
    parts: Sequence[LedgerRange],
    pieces_of: Callable[[str], Callable[[int, int], list[Piece]]],
    sizing: Sizing,
) -> list[list[LedgerRun]]:
    """Partitions over parts of ledgers, in the order given: their blocks, none of them cut; of parts without blocks the ids.

    ``pieces_of``: what finds the pieces of bytes ``[start, stop)`` of a segment, asked for once per segment.
    """
    cells: list[tuple[LedgerRange, Block | None]] = []
    for part in parts:
        if part.blocks:
            cells += ((part, block) for block in part.blocks)
        else:
            cells += ((ids, None) for ids in _ids(part, sizing))
    extents = {name: pieces_of(name) for name in dict.fromkeys(part.segment for part, block in cells if block)}
    sizes = [block.stop - block.start if block else _ID_BYTES * part.ids for part, block in cells]
    groups: list[list[LedgerRun]] = []
    for begin, end in sizing.groups(sizes):
        runs: list[LedgerRun] = []
        for part, row in _rows_of_cells(cells[begin:end]):
            pieces = extents[part.segment](row[0].start, row[-1].stop) if row else ()
            runs.append(LedgerRun(*part[:5], tuple(row), _with_own_borders(pieces)))
        groups.append(runs)
    return groups


def _ids(part: LedgerRange, sizing: Sizing) -> Iterator[LedgerRange]:
    first, last = part.first_entry, part.last_entry
    step = max(1, min(_IDS, -(-(last - first + 1) // sizing.partitions_min)))
    for low in range(first, last + 1, step):
        yield part._replace(first_entry=low, last_entry=min(last, low + step - 1))


def _rows_of_cells(cells: Sequence[tuple[LedgerRange, Block | None]]) -> list[tuple[LedgerRange, list[Block]]]:
    """Neighbouring blocks of one part that follow each other without a hole, together; ids as they are."""
    rows: list[tuple[LedgerRange, list[Block]]] = []
    for part, block in cells:
        before, row = rows[-1] if rows else (None, [])
        if block is None:
            rows.append((part, []))
        elif before is part and row and row[-1].stop == block.start:
            row.append(block)
        else:
            rows.append((part, [block]))
    return rows


class ChunkTimes(NamedTuple):
    """By where chunks begin in a segment, ascending, when they were begun, in milliseconds since 1970. Plain data."""

    segment: str
    offsets: tuple[int, ...]
    times_ms: tuple[int, ...]

    def at(self, offset: int) -> int:
        """The time of the chunk that holds this byte, in microseconds since 1970."""
        return self.times_ms[max(0, bisect_right(self.offsets, offset) - 1)] * 1000

    def between(self, start: int, stop: int) -> ChunkTimes:
        """Those of bytes ``[start, stop)`` alone."""
        low = max(0, bisect_right(self.offsets, start) - 1)
        high = max(low + 1, bisect_right(self.offsets, stop - 1))
        return ChunkTimes(self.segment, self.offsets[low:high], self.times_ms[low:high])


def chunk_times(replica: Replica, name: str) -> ChunkTimes:
    """Of all chunks that hold bytes; one walk of the list. Raises ``SegmentNotFound``, ``Damaged``."""

    def found(view: MetadataView) -> list[tuple[int, int]]:
        segment = find_segment(view, name, None)
        return [(offset, record.created_ms) for offset, _, record in walk(view.get, segment) if record.length]

    pairs = read_view(replica, found) or [(0, 0)]
    offsets, times_ms = zip(*pairs, strict=True)
    return ChunkTimes(name, offsets, times_ms)


class TimesOfTasks:
    """For a caller that plans many tasks: each segment's list is walked once."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._found: dict[str, ChunkTimes] = {}

    def of(self, segment: str, start: int, stop: int) -> ChunkTimes:
        """Of bytes ``[start, stop)`` of a segment. Raises as ``chunk_times``."""
        if segment not in self._found:
            self._found[segment] = chunk_times(self._replica, segment)
        return self._found[segment].between(start, stop)
