"""Where the borders of a chunk's blocks lie, and the running CRC32C there (decision 0015).

A block is between two neighbouring borders. Kept is the CRC32C of all bytes of the chunk below each border: extended over the
block after it, it must be that of the next border, and the chunk's own CRC closes the last block. So a range is verified
with the borders around it alone, and an append that passes no border has nothing to keep.

Promises: pure. New chunks get borders at multiples of 64 KiB up to 32 MiB, of 128 KiB in the 64 MiB after those, and so on: 512
blocks of each size, whatever the chunk will grow to. A chunk made of others' bytes keeps borders of theirs, about as many, wherever
those are. Readers take borders as they find them. Leaves out: rows (``metadata.reserved``).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from chunkstore.checksum import BytesLike, crc32c_combine, crc32c_extend
from chunkstore.config import KIB

__all__ = [
    "BLOCK_BYTES",
    "BORDERS_OF_A_ROW_MAX",
    "ROWS_OF_A_CHUNK_MAX",
    "Borders",
    "ChunkSum",
    "Piece",
    "Stretch",
    "borders_inside",
    "count_borders",
    "first_bad",
    "in_rows",
    "is_one_block",
    "known_pieces",
    "may_pass_border",
    "merged_borders",
    "stretch_at",
]

BLOCK_BYTES = 64 * KIB
"""The smallest block. A chunk that is no longer has no borders: its own CRC closes it."""
_BLOCKS_OF_A_SIZE = 512
BORDERS_OF_A_ROW_MAX = 64
ROWS_OF_A_CHUNK_MAX = 256
"""Of a chunk made of others' bytes: some 25 KB where no two of its borders are as far apart as the next two."""


class Stretch(NamedTuple):
    """``[start, stop)`` of a chunk, whose borders are one row: every ``step`` bytes from ``start`` on."""

    start: int
    stop: int
    step: int


class Piece(NamedTuple):
    """Bytes ``[start, stop)`` of a chunk, and borders of the blocks that hold them; None: their CRCs are not known."""

    start: int
    stop: int
    borders: Borders | None


class Borders(NamedTuple):
    """Of a chunk's first ``at[i]`` bytes the CRC32C is ``crcs[i]``. At least two, ascending: the blocks between them."""

    at: Sequence[int]
    crcs: Sequence[int]

    def between(self, low: int, high: int) -> Borders:
        """Those of the blocks that touch ``[low, high)``."""
        first = bisect_right(self.at, low) - 1
        last = first + 1
        while self.at[last] < high:
            last += 1
        return Borders(self.at[first : last + 1], self.crcs[first : last + 1])


def stretch_at(position: int) -> Stretch:
    """The stretch of a new chunk that holds byte ``position``."""
    unit = BLOCK_BYTES * _BLOCKS_OF_A_SIZE
    level = (position // unit + 1).bit_length() - 1
    step, base = BLOCK_BYTES << level, unit * ((1 << level) - 1)
    start = base + (position - base) // (step * BORDERS_OF_A_ROW_MAX) * step * BORDERS_OF_A_ROW_MAX
    return Stretch(start, start + step * BORDERS_OF_A_ROW_MAX, step)


def _borders(start: int, stop: int) -> Iterator[int]:
    """The borders of a new chunk in ``[start, stop)``, 0 left out."""
    while start < stop:
        stretch = stretch_at(start)
        passed = -(-(start - stretch.start) // stretch.step)
        yield from range(
            stretch.start + max(passed, stretch.start == 0) * stretch.step, min(stop, stretch.stop), stretch.step
        )
        start = stretch.stop


def borders_inside(length: int) -> Iterator[int]:
    """The borders of a new chunk of ``length`` bytes, ascending."""
    return _borders(0, length)


def count_borders(length: int) -> int:
    """How many borders a new chunk of ``length`` bytes has."""
    stretch = stretch_at(max(0, length - 1))
    level = (stretch.step // BLOCK_BYTES).bit_length() - 1
    base = BLOCK_BYTES * _BLOCKS_OF_A_SIZE * ((1 << level) - 1)
    return level * _BLOCKS_OF_A_SIZE + (max(0, length - 1) - base) // stretch.step


def is_one_block(length: int) -> bool:
    """Whether a new chunk of ``length`` bytes has no border."""
    return length <= BLOCK_BYTES


def may_pass_border(length: int, longer: int) -> bool:
    """Whether a border may be passed when a chunk of ``length`` bytes, not empty, grows to ``longer``; in doubt true."""
    return (longer - 1) // BLOCK_BYTES != (length - 1) // BLOCK_BYTES


class ChunkSum:
    """Length and CRC32C of a chunk's bytes, and the borders that they pass, with the CRC32C at each. Bytes after a border pass it."""

    def __init__(self, length: int = 0, crc32c: int = 0) -> None:
        self.length = length
        self.crc32c = crc32c
        self.passed: list[tuple[int, int]] = []

    def add(self, data: BytesLike) -> None:
        """Take these bytes as the next ones."""
        view, done, crc = memoryview(data), 0, self.crc32c
        for border in _borders(self.length, self.length + len(data)):
            if border - self.length > done:
                crc = crc32c_extend(crc, view[done : border - self.length])
                done = border - self.length
            self.passed.append((border, crc))
        self.crc32c = crc32c_extend(crc, view[done:] if done else data)
        self.length += len(data)

    def borders(self) -> Borders:
        """Of a chunk whose bytes were all added here."""
        at, crcs = [at for at, _ in self.passed], [crc for _, crc in self.passed]
        return Borders([0, *at, self.length], [0, *crcs, self.crc32c])


def first_bad(position: int, crc: int, data: BytesLike, borders: Iterable[tuple[int, int]]) -> int | None:
    """The number of the first of ``borders`` whose CRC is not that of the bytes below it. ``data`` begins at ``position``, below all of
    them; the CRC of the bytes before is ``crc``. None: as far as the data goes, all agree."""
    view, begin = memoryview(data), position
    for number, (border, expected) in enumerate(borders):
        if border > position + len(view):
            break
        if crc32c_extend(crc, view[begin - position : border - position]) != expected:
            return number
        begin, crc = border, expected
    return None


# ---- chunks made of the bytes of others


def known_pieces(piece: Piece) -> Iterator[Piece]:
    """``piece`` cut where its CRCs cease to be known: with its own borders, or with None where nothing but its bytes tells its CRC.

    Reading such bytes (with those of the blocks around them, to verify them) puts their ``Borders`` in its place: with the first
    byte at the first of them, whatever the CRC there, and the end at the last.
    """
    start, stop, borders = piece
    low = high = start
    if borders is not None:
        at = borders.at
        first, last = bisect_left(at, start), bisect_right(at, stop) - 1
        if first < last:
            low, high = at[first], at[last]
            if start < low:
                yield Piece(start, low, None)
            yield Piece(low, high, Borders(at[first : last + 1], borders.crcs[first : last + 1]))
    if high < stop:
        yield Piece(high, stop, None)


def merged_borders(pieces: Sequence[Piece]) -> Borders:
    """The borders of the chunk that consists of ``pieces``, each with borders from its start to its stop; no byte is read.

    Where theirs lie closer than those of a new chunk would, or would take too many rows, they are thinned out.
    """
    inside: list[int] = []
    length = 0
    for start, stop, borders in pieces:
        assert borders is not None
        assert (borders.at[0], borders.at[-1]) == (start, stop)
        inside += (length + border - start for border in borders.at[1:])
        length += stop - start
    inside.pop()
    spread = 1
    kept = _thinned(inside, spread)
    while sum(1 for _ in in_rows(Borders([0, *kept, length], kept))) > ROWS_OF_A_CHUNK_MAX:
        spread *= 2
        kept = _thinned(inside, spread)
    wanted, crcs = {*kept, length}, [0]
    begin = crc = 0
    for start, stop, borders in pieces:
        assert borders is not None
        low, before = start, borders.crcs[0]
        for border, following in zip(borders.at[1:], borders.crcs[1:], strict=True):
            is_wanted = begin + border - start in wanted
            if is_wanted or border == stop:
                # ``before`` and ``after`` say what the bytes between them do to a CRC, whatever came before.
                crc = crc32c_combine(crc ^ before, following, border - low)
                low, before = border, following
            if is_wanted:
                crcs.append(crc)
        begin += stop - start
    return Borders([0, *kept, length], crcs)


_STEPS_TRIED = 4


def _thinned(inside: Sequence[int], spread: int) -> list[int]:
    """Of possible borders, ascending, as many as a new chunk has (or one of ``spread``), in rows as long as can be."""
    known, kept, last = frozenset(inside), list[int](), 0
    while (number := bisect_left(inside, last + stretch_at(last).step * spread)) < len(inside):
        first = inside[number]
        row = range(first, first + 1)
        number = bisect_left(inside, first + stretch_at(first).step * spread)
        for second in inside[number : number + _STEPS_TRIED]:
            candidate = range(first, first + BORDERS_OF_A_ROW_MAX * (second - first), second - first)
            candidate = candidate[: next((at for at, border in enumerate(candidate) if border not in known), None)]
            row = max(row, candidate, key=len)
        kept += row
        last = kept[-1]
    return kept


def in_rows(borders: Borders) -> Iterator[tuple[int, int, Sequence[int]]]:
    """Start, step and CRCs of the rows that hold the borders inside: as many as are equally far apart, one after the other."""
    at, first, end = borders.at, 1, len(borders.at) - 1
    while first < end:
        step = at[first + 1] - at[first]
        following = first + 1
        while (
            following < end and following - first < BORDERS_OF_A_ROW_MAX and at[following] - at[following - 1] == step
        ):
            following += 1
        yield at[first], step, borders.crcs[first:following]
        first = following
