"""What the tasks of a read are made of, and how bytes are shared out among them, whoever says where these lie: a container (``plan``),
or anybody who knows objects, blocks and ranges. Plain data and pure functions.

Promises: tasks are plain data (names, ranges, CRCs) and need no metadata. A row of a raw segment is at most ``ROW_BYTES`` long: chunks are
cut at multiples of that, counted from the chunk's first byte, and a row never spans two chunks. Partitions are cut between pieces;
inside (at ends of rows) only where there are fewer than ``minPartitions``. Blocks of ledgers are
never cut. Leaves out: reading (``pieces``, ``batches``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from chunkstore.blocks import Borders, is_one_block
from chunkstore.codec.pulsar.ranges import Block, LedgerRange
from chunkstore.config import MIB
from chunkstore.errors import Damaged
from chunkstore.spark.chunk_times import ChunkTimes

__all__ = [
    "PARTITION_BYTES",
    "ROW_BYTES",
    "Cut",
    "Extents",
    "LedgerRun",
    "Piece",
    "ReadTask",
    "SegmentRun",
    "Sizing",
    "WholeObject",
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

    ``line_bytes_max`` 0: at multiples of ``ROW_BYTES`` of the segment. Else behind newlines: a line that begins there may end
    behind it, up to ``end``, where the last one ends in any case; and with ``joined`` one that began before goes on there.
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
    """The container's: what lies under ``root`` on the task's machine must be the same one."""
    times: tuple[ChunkTimes, ...] = ()
    """Of the segments of these runs, if column ``timestamp`` is wanted."""


class Extents(Protocol):
    """Where the bytes of one thing lie: a segment, an object of a bucket."""

    def pieces(self, start: int, stop: int) -> list[Piece]:
        """The pieces that hold bytes ``[start, stop)``. Raises ``SegmentTruncated``, ``Damaged``: they are not there."""


class WholeObject(NamedTuple):
    """``Extents`` of an object that is no chunk: nothing but its content verifies it."""

    name: str
    length: int

    def pieces(self, start: int, stop: int) -> list[Piece]:
        if stop > self.length:
            raise Damaged(f"a block ends at {stop} of {self.length} bytes", object=self.name, position=start)
        return [Piece(self.name, start, stop, self.length, start, None)]


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
    extents_of: Callable[[str], Extents],
    sizing: Sizing,
) -> list[list[LedgerRun]]:
    """Partitions over parts of ledgers, in the order given: their blocks, none of them cut; of parts without blocks the ids.

    ``extents_of``: where a part's segment lies, asked once for each. Raises what that and ``Extents.pieces`` raise.
    """
    cells: list[tuple[LedgerRange, Block | None]] = []
    for part in parts:
        if part.blocks:
            cells += ((part, block) for block in part.blocks)
        else:
            cells += ((ids, None) for ids in _ids(part, sizing))
    extents = {name: extents_of(name) for name in dict.fromkeys(part.segment for part, block in cells if block)}
    sizes = [block.stop - block.start if block else _ID_BYTES * part.ids for part, block in cells]
    groups: list[list[LedgerRun]] = []
    for begin, end in sizing.groups(sizes):
        runs: list[LedgerRun] = []
        for part, row in _rows_of_cells(cells[begin:end]):
            pieces = extents[part.segment].pieces(row[0].start, row[-1].stop) if row else ()
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
