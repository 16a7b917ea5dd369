"""Pure planning: where bytes of an append go, and which pieces of which chunks a read needs. No I/O, no clock.

Promises: pieces and slices are half-open, in order, without gaps or overlaps, and cover exactly what was asked.
Leaves out: names, records, errors about offsets (the operations check those first).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from chunkstore.config import KIB, LIMITS
from chunkstore.errors import InvalidArgument
from chunkstore.records.blocks import Borders
from chunkstore.records.names import Address

__all__ = ["AppendPiece", "ReadSlice", "check_chunk_count", "plan_append", "split_for_parallel_read"]

_READ_PIECE_BYTES_MIN = 1024 * KIB


class AppendPiece(NamedTuple):
    """Bytes ``[start, stop)`` of the caller's data go to ``offset_in_chunk`` of the tail chunk or, if ``new``, of a new one."""

    start: int
    stop: int
    offset_in_chunk: int
    new: bool


class ReadSlice(NamedTuple):
    """Bytes ``[offset, offset + length)`` of a chunk go to ``[start, start + length)`` of the caller's buffer.

    The chunk's first byte is at ``address``, and byte ``chunk_offset`` of its segment. ``borders``: of the blocks that
    hold the slice, against which the reader verifies them; None where nothing verifies it alone.
    """

    address: Address
    chunk_offset: int
    offset: int
    length: int
    start: int
    borders: Borders | None


def check_chunk_count(length: int, chunk_size_bytes_max: int) -> None:
    """Refuse one append that would make more chunks than a record may name. Raises ``InvalidArgument``."""
    if length > chunk_size_bytes_max * LIMITS.commit_chunks_max:
        raise InvalidArgument(
            f"{length} bytes in chunks of {chunk_size_bytes_max} would make more than {LIMITS.commit_chunks_max} chunks; "
            "append them in several parts",
            argument="data",
        )
    if length > LIMITS.commit_bytes_max:
        raise InvalidArgument(
            f"{length} bytes are too many for one append; append them in several parts", argument="data"
        )


def plan_append(length: int, *, tail_room: int, tail_length: int, chunk_size_bytes_max: int) -> tuple[AppendPiece, ...]:
    """Cut ``length`` (> 0) bytes into pieces: first what fits the growing tail chunk, then full new chunks, then the rest.

    ``tail_room`` is how much the tail may still take (0 when there is none to grow), ``tail_length`` its present length.
    """
    if length <= tail_room:
        return (AppendPiece(0, length, tail_length, False),)
    pieces: list[AppendPiece] = []
    position = 0
    if tail_room > 0:
        pieces.append(AppendPiece(0, tail_room, tail_length, False))
        position = tail_room
    while position < length:
        stop = min(length, position + chunk_size_bytes_max)
        pieces.append(AppendPiece(position, stop, 0, True))
        position = stop
    return tuple(pieces)


def split_for_parallel_read(slices: Sequence[ReadSlice], *, ways: int) -> list[ReadSlice]:
    """Cut long slices so that about ``ways`` readers have equal work, at borders of blocks where there are any."""
    total = sum(item.length for item in slices)
    target = max(_READ_PIECE_BYTES_MIN, -(-total // max(1, ways)))
    result: list[ReadSlice] = []
    for item in slices:
        parts = -(-item.length // target)
        step = -(-item.length // parts)
        position, stop = item.offset, item.offset + item.length
        while position < stop:
            borders = item.borders
            cut = min(stop, position + step)
            if borders is not None and cut < stop:
                cut = min(stop, borders.at[bisect_left(borders.at, cut)])
            start = item.start + position - item.offset
            part = None if borders is None else borders.between(position, cut)
            result.append(item._replace(offset=position, length=cut - position, start=start, borders=part))
            position = cut
    return result
