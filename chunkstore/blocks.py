"""Where the borders of a chunk's blocks lie, and the running CRC32C there (decision 0015).

A block lies between two neighbouring borders. Kept is the CRC32C of all bytes of the chunk below each border: extended over the
block behind it, it must be that of the next border, and the chunk's own CRC closes the last block. So a range is verified
with the borders around it alone, and an append that passes no border has nothing to keep.

Promises: pure. New chunks get borders at multiples of 64 KiB up to 32 MiB, of 128 KiB in the 64 MiB behind those, and so on: 512
blocks of each size, whatever the chunk will grow to. Readers take borders as they find them. Leaves out: rows (``metadata.blocks``).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from chunkstore.checksum import BytesLike, crc32c_extend
from chunkstore.config import KIB

__all__ = [
    "BLOCK_BYTES",
    "Borders",
    "Stretch",
    "borders_inside",
    "count_borders",
    "crc_at_borders",
    "first_bad",
    "is_one_block",
    "may_pass_border",
    "stretch_at",
]

BLOCK_BYTES = 64 * KIB
"""The smallest block. A chunk that is no longer has no borders: its own CRC closes it."""
_BLOCKS_OF_A_SIZE = 512
_BLOCKS_OF_A_ROW = 64


class Stretch(NamedTuple):
    """``[start, stop)`` of a chunk, whose borders are one row: every ``step`` bytes from ``start`` on."""

    start: int
    stop: int
    step: int


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
    start = base + (position - base) // (step * _BLOCKS_OF_A_ROW) * step * _BLOCKS_OF_A_ROW
    return Stretch(start, start + step * _BLOCKS_OF_A_ROW, step)


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


def crc_at_borders(crc: int, length: int, data: BytesLike) -> tuple[int, list[tuple[int, int]]]:
    """Extend ``crc`` of a chunk of ``length`` bytes by ``data``: the CRC behind it, and border and CRC for each border passed.

    A border at the very end is passed by the bytes behind it only.
    """
    passed: list[tuple[int, int]] = []
    view, done = memoryview(data), 0
    for border in _borders(length, length + len(data)):
        if border - length > done:
            crc = crc32c_extend(crc, view[done : border - length])
            done = border - length
        passed.append((border, crc))
    return crc32c_extend(crc, view[done:] if done else data), passed


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
