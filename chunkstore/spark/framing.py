"""Rows that do not depend on chunks, made of the bytes of a run, on an executor.

Promises: rows of the same range are the same, whatever partitions and chunks there are; each line comes once, from the task that holds
its first byte. A task keeps one row besides what it reads, and no line longer than allowed. Leaves out: Arrow (``batches``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import NamedTuple

from chunkstore.checksum import BytesLike
from chunkstore.spark.line_ends import NEWLINE, line_too_long
from chunkstore.spark.pieces import Span
from chunkstore.spark.runs import ROW_BYTES, Cut

__all__ = ["Rows", "fixed_rows", "line_rows", "offsets_of_rows"]


class Rows(NamedTuple):
    """Some rows that follow each other: their offsets in the segment, and their bytes."""

    offsets: list[int]
    values: list[BytesLike]


def offsets_of_rows(cut: Cut) -> list[int]:
    """Where rows that are no lines begin."""
    return [max(cut.start, low) for low in range(cut.start // ROW_BYTES * ROW_BYTES, cut.stop, ROW_BYTES)]


def fixed_rows(cut: Cut, spans: Iterable[Span]) -> Iterator[Rows]:
    """Rows that end at multiples of ``ROW_BYTES`` of the segment; those that lie in one span are not copied."""
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
    """Lines without their newlines. Raises as ``_line_blocks``."""
    for at, block in _line_blocks(segment, cut, spans):
        lines: list[BytesLike] = list(block.split(NEWLINE))
        yield Rows(_starts(at, lines), lines)


def _starts(at: int, lines: Iterable[BytesLike]) -> list[int]:
    starts = list(accumulate((len(line) + 1 for line in lines), initial=at))
    starts.pop()
    return starts


def _line_blocks(segment: str, cut: Cut, spans: Iterable[Span]) -> Iterator[tuple[int, bytes]]:
    """Some whole lines at a time, without the last one's newline, and where they begin.

    Raises ``InvalidArgument``: one is longer than ``cut.line_bytes_max``.
    """
    limit = cut.line_bytes_max
    skips = cut.joined
    at, parts = cut.start, list[bytes]()
    for data, offset in _slices(spans):
        if skips:
            # What began before belongs to another task.
            end = data.find(NEWLINE)
            if end < 0:
                continue
            data, at, skips = data[end + 1 :], offset + end + 1, False
            offset = at
        if at >= cut.stop:
            return
        stop = -1 if offset + len(data) < cut.stop else data.find(NEWLINE, max(0, cut.stop - 1 - offset))
        is_last = stop >= 0 and cut.stop < cut.end
        if is_last:
            data = data[: stop + 1]
        end = data.rfind(NEWLINE)
        if end < 0:
            parts.append(data)
            if sum(map(len, parts)) > limit:
                line_too_long(segment, at, limit)
            continue
        block = b"".join((*parts, data[:end]))
        if len(block) > limit:
            _check_lengths(segment, at, block, limit)
        yield at, block
        if is_last:
            return
        at, parts = at + len(block) + 1, [data[end + 1 :]]
    rest = b"".join(parts)
    if rest and at < cut.stop:
        yield at, rest


def _check_lengths(segment: str, at: int, block: bytes, limit: int) -> None:
    lines = block.split(NEWLINE)
    for start, line in zip(_starts(at, lines), lines, strict=True):
        if len(line) > limit:
            line_too_long(segment, start, limit)


def _slices(spans: Iterable[Span]) -> Iterator[tuple[bytes, int]]:
    """The bytes in slices of ``ROW_BYTES`` at most, and where each begins in the segment."""
    for span in spans:
        for low in range(0, len(span.data), ROW_BYTES):
            yield span.data[low : low + ROW_BYTES], span.offset + low
