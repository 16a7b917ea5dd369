"""Where lines end, for whoever plans: a stream gives out finished lines only.

Promises: reads as little as the answer needs, verified as all reads are; nothing longer than the longest line allowed. Leaves out:
making rows of lines, which the tasks do (``framing``).
"""

from __future__ import annotations

from typing import Final, NoReturn

from chunkstore.arguments import SegmentHandle
from chunkstore.config import KIB, MIB
from chunkstore.errors import InvalidArgument
from chunkstore.reading import ReadableContainer

__all__ = ["NEWLINE", "first_line_end", "line_end_before", "line_too_long"]

_STEP_BYTES: Final = 64 * KIB
_STEP_BYTES_MAX: Final = 4 * MIB
NEWLINE: Final = b"\n"


def line_too_long(segment: str, offset: int, limit: int) -> NoReturn:
    """Refuse a line of which ``offset`` is a byte, the first one if that is known."""
    raise InvalidArgument(
        f"the line that holds offset {offset} of segment {segment!r} is longer than {limit} bytes: raise maxRecordBytes "
        "or use framing=none",
        argument="framing",
    )


def line_end_before(replica: ReadableContainer, segment: SegmentHandle, low: int, high: int, limit: int) -> int | None:
    """The highest offset in ``(low, high]`` that has a newline in front of it.

    Raises ``InvalidArgument`` where more than ``limit`` bytes have none, and as ``read``.
    """
    step, floor, end = _STEP_BYTES, max(low, high - limit - 1), high
    while end > floor:
        start = max(floor, end - step)
        found = replica.read(segment, start, end - start).rfind(NEWLINE)
        if found >= 0:
            return start + found + 1
        end, step = start, min(_STEP_BYTES_MAX, step * 4)
    if high - floor > limit:
        line_too_long(segment.name, floor, limit)
    return None


def first_line_end(replica: ReadableContainer, segment: SegmentHandle, low: int, high: int) -> int | None:
    """The lowest offset in ``(low, high]`` that has a newline in front of it. Raises as ``read``."""
    step = _STEP_BYTES
    while low < high:
        data = replica.read(segment, low, min(step, high - low))
        at = data.find(NEWLINE)
        if at >= 0:
            return low + at + 1
        low, step = low + len(data), min(_STEP_BYTES_MAX, step * 4)
    return None
