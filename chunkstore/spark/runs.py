"""What the tasks of a read are made of, and how bytes are shared out among them. Plain data and pure functions.

A row of a raw segment is at most ``ROW_BYTES`` long."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from chunkstore.codec.pulsar.block_index import Block, LedgerRange
from chunkstore.codec.pulsar.frames import ENTRY_ID_MAX
from chunkstore.config import MIB
from chunkstore.records.blocks import Borders

__all__ = [
    "PARTITION_BYTES",
    "ROW_BYTES",
    "ChunkTimes",
    "Cut",
    "LedgerRun",
    "Piece",
    "ReadTask",
    "SegmentRun",
    "partition_count",
    "share",
    "share_entries",
]

PARTITION_BYTES: Final = 128 * MIB
"""Bytes of a partition, about: a task costs tens of milliseconds whatever it does."""
ROW_BYTES: Final = 1 * MIB
"""The longest row of a raw segment."""
_ID_BYTES: Final = 8
_IDS: Final = 1 << 20
"""Rows without payload are shared out by so many."""


class Piece(NamedTuple):
    """Bytes ``[start, stop)`` of a chunk, whose first byte is byte ``begin`` of the object ``chunk``; byte ``start`` is byte ``offset`` of
    the segment.

    ``borders``: of the blocks that hold the piece; None where this task does not verify it.
    """

    chunk: str
    start: int
    stop: int
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


class ChunkTimes(NamedTuple):
    """By where chunks begin in a segment, ascending, when they were begun, in milliseconds since 1970. Only for column ``timestamp``."""

    offsets: tuple[int, ...]
    times_ms: tuple[int, ...]

    def at(self, offset: int) -> int:
        """The time of the chunk that holds this byte, in microseconds since 1970."""
        return self.times_ms[max(0, bisect_right(self.offsets, offset) - 1)] * 1000

    def between(self, start: int, stop: int) -> ChunkTimes:
        """Those of bytes ``[start, stop)`` alone."""
        low = max(0, bisect_right(self.offsets, start) - 1)
        high = max(low + 1, bisect_right(self.offsets, stop - 1))
        return ChunkTimes(self.offsets[low:high], self.times_ms[low:high])


class SegmentRun(NamedTuple):
    """Consecutive bytes of a raw segment. ``cut`` None: rows are pieces of chunks, cut at multiples of ``ROW_BYTES`` of the chunk."""

    segment: str
    pieces: tuple[Piece, ...]
    cut: Cut | None = None
    times: ChunkTimes | None = None


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
    times: ChunkTimes | None = None


class ReadTask(NamedTuple):
    """One partition: plain data. ``lsn`` is the point of history all tasks of a read were planned at."""

    root: str
    container: str
    lsn: int
    runs: tuple[SegmentRun | LedgerRun, ...]
    uuid: bytes = b""
    """The container's: what is under ``root`` on the task's machine must be the same one."""


def partition_count(size_bytes: int, least: int) -> int:
    """How many partitions share so many bytes."""
    return max(least, -(-size_bytes // PARTITION_BYTES))


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


class _Cell(NamedTuple):
    """Entries of one block, or ids of a part without blocks: what partitions are put together from."""

    part: LedgerRange
    block: Block | None
    first: int
    last: int
    size_bytes: int


def share_entries(parts: Sequence[LedgerRange], least: int) -> list[list[tuple[LedgerRange, list[Block]]]]:
    """Share parts of ledgers among partitions, in the order given: their blocks; of parts without blocks the ids.

    In a partition, blocks of one part that follow each other without a hole are together. Where there are fewer blocks than ``least``,
    several partitions read one block, each some of its entries.
    """
    cells = [cell for part in parts for cell in _cells(part)]
    count = partition_count(sum(cell.size_bytes for cell in cells), least)
    if len(cells) < least:
        cells = _cut(cells, least)
    groups: list[list[tuple[LedgerRange, list[Block]]]] = []
    for begin, end in share([cell.size_bytes for cell in cells], count):
        rows: list[tuple[_Cell, list[Block]]] = []
        for cell in cells[begin:end]:
            held, row = rows[-1] if rows else (cell, [])
            if cell.block is None:
                rows.append((cell, []))
            elif held.part is cell.part and row and (row[-1] is cell.block or row[-1].stop == cell.block.start):
                rows[-1] = held._replace(last=cell.last), row
                if row[-1] is not cell.block:
                    row.append(cell.block)
            else:
                rows.append((cell, [cell.block]))
        groups.append(
            [(cell.part._replace(first_entry=cell.first, last_entry=cell.last), blocks) for cell, blocks in rows]
        )
    return groups


def _cells(part: LedgerRange) -> Iterator[_Cell]:
    first, last, blocks = part.first_entry, part.last_entry, part.blocks
    for block, stop in zip(blocks, [*(block.first_entry for block in blocks[1:]), last + 1], strict=False):
        yield _Cell(part, block, max(first, block.first_entry), min(last, stop - 1), block.stop - block.start)
    for low in () if blocks else range(first, last + 1, _IDS):
        high = min(last, low + _IDS - 1)
        yield _Cell(part, None, low, high, _ID_BYTES * (high - low + 1))


def _cut(cells: Sequence[_Cell], least: int) -> list[_Cell]:
    """At least so many, if there are as many entries; those whose end is not known stay whole."""
    known = [cell.last - cell.first + 1 for cell in cells if cell.last < ENTRY_ID_MAX]
    step = max(1, sum(known) // least)
    found: list[_Cell] = []
    for cell in cells:
        part, block, first, last, size_bytes = cell
        if last == ENTRY_ID_MAX:
            found.append(cell)
            continue
        for low in range(first, last + 1, step):
            high = min(last, low + step - 1)
            found.append(_Cell(part, block, low, high, size_bytes * (high - low + 1) // (last - first + 1)))
    return found
