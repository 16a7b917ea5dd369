"""Rows of a segment that do not depend on its chunks: cut at fixed offsets, or at ends of lines; and where lines end, for planners."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple, NoReturn

from chunkstore.checksum import BytesLike
from chunkstore.config import KIB, MIB
from chunkstore.engine.reading import ReadableContainer
from chunkstore.errors import Damaged, InvalidArgument
from chunkstore.records.arguments import SegmentHandle
from chunkstore.records.framing import Records, RecordSplitter
from chunkstore.spark.pieces import Span
from chunkstore.spark.runs import ROW_BYTES, Cut

__all__ = [
    "NEWLINE",
    "Rows",
    "fixed_rows",
    "line_end_before",
    "line_rows",
    "line_too_long",
    "offsets_of_rows",
    "pass_lines",
]


class Rows(NamedTuple):
    """Some rows that follow each other: their offsets in the segment, and their bytes."""

    offsets: list[int]
    values: list[BytesLike]


def offsets_of_rows(cut: Cut) -> list[int]:
    """Where rows that are no lines begin."""
    return [max(cut.start, low) for low in range(cut.start // ROW_BYTES * ROW_BYTES, cut.stop, ROW_BYTES)]


def fixed_rows(cut: Cut, spans: Iterable[Span]) -> Iterator[Rows]:
    """Rows that end at multiples of ``ROW_BYTES`` of the segment; those that are in one span are not copied."""
    at, parts = cut.start, list[memoryview]()
    for span in spans:
        view = memoryview(span.data)
        low = 0
        while low < len(view):
            end = min(cut.stop, (at // ROW_BYTES + 1) * ROW_BYTES)
            high = min(len(view), end - span.offset)
            parts.append(view[low:high])
            if span.offset + high == end:
                yield Rows([at], [parts[0] if len(parts) == 1 else b"".join(parts)])
                at, parts = end, []
            low = high


def line_rows(segment: str, cut: Cut, spans: Iterable[Span]) -> Iterator[Rows]:
    """Lines without their newlines. Raises ``InvalidArgument``: one is longer than ``cut.line_bytes_max``."""
    splitter = None if cut.joined else RecordSplitter(segment, "lines", cut.start, cut.line_bytes_max)
    for data, offset in _slices(spans):
        low = 0
        if splitter is None:
            low = data.find(NEWLINE) + 1  # what began before belongs to another task
            if not low:
                continue
            if offset + low >= cut.stop:
                return
            splitter = RecordSplitter(segment, "lines", offset + low, cut.line_bytes_max)
        end = 0
        if cut.stop < cut.end and offset + len(data) >= cut.stop:
            end = data.find(NEWLINE, max(low, cut.stop - 1 - offset)) + 1
        yield _rows_of(splitter.feed, segment, cut, data[low : end or None])
        if end:
            break
    if splitter is not None:
        yield _rows_of(splitter.end, segment, cut)


def _rows_of(take: Callable[..., Records], segment: str, cut: Cut, *data: bytes) -> Rows:
    try:
        offsets, values = take(*data)
    except Damaged as error:
        line_too_long(segment, error.position or 0, cut.line_bytes_max)
    return Rows(offsets, [*values])


def _slices(spans: Iterable[Span]) -> Iterator[tuple[bytes, int]]:
    """The bytes in slices of ``ROW_BYTES`` at most, and where each begins in the segment."""
    for span in spans:
        for low in range(0, len(span.data), ROW_BYTES):
            yield span.data[low : low + ROW_BYTES], span.offset + low


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


def pass_lines(
    replica: ReadableContainer, segment: SegmentHandle, low: int, high: int, count: int, limit: int
) -> tuple[int, int]:
    """The end of the first ``count`` lines that end in ``(low, high]``, and how many these are; ``low`` and 0 if none.

    Stops early at a line of more than ``limit`` bytes. Raises as ``read``.
    """
    end, passed, step = low, 0, _STEP_BYTES
    while low < high and passed < count and low - end <= limit:
        data = replica.read(segment, low, min(step, high - low))
        wanted = count - passed
        there = data.count(NEWLINE)
        at = data.rfind(NEWLINE)
        if there > wanted:
            there, at = wanted, sum(map(len, data.split(NEWLINE, wanted)[:wanted])) + wanted - 1
        if there:
            end, passed = low + at + 1, passed + there
        low, step = low + len(data), min(_STEP_BYTES_MAX, step * 4)
    return end, passed
