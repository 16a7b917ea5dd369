"""When the chunks of a segment were begun: the only time that bytes have. Plain Python, in the planning process.

Promises: chunk-granular, and labels of the owners' clocks, nothing more: a chunk's time is not later than that of its bytes, times need
not ascend (clocks run back; concat puts older chunks behind younger ones), and a merge of chunks gives all of their bytes the time of the
merge. Leaves out: what a row is (``batches``).
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from chunkstore.handles import SegmentHandle
from chunkstore.metadata.index import walk
from chunkstore.metadata.port import MetadataView
from chunkstore.operations.read import find_segment
from chunkstore.records import SegmentInfo
from chunkstore.replica import Replica
from chunkstore.spark.line_ends import line_too_long, pass_lines

__all__ = ["ChunkTimes", "TimesOfTasks", "begin_since", "chunk_times"]


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


def chunk_times(replica: Replica, name: str, identity: int | None = None) -> ChunkTimes:
    """Of all chunks that hold bytes; one walk of the list. Raises ``SegmentNotFound``, ``Damaged``."""

    def found(view: MetadataView) -> list[tuple[int, int]]:
        segment = find_segment(view, name, identity)
        return [(offset, record.created_ms) for offset, _, record in walk(view.get, segment) if record.length]

    pairs = replica.look(found) or [(0, 0)]
    offsets, times_ms = zip(*pairs, strict=True)
    return ChunkTimes(name, offsets, times_ms)


class TimesOfTasks:
    """For whoever plans many tasks: each segment's list is walked once."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._found: dict[str, ChunkTimes] = {}

    def of(self, segment: str, start: int, stop: int) -> ChunkTimes:
        """Of bytes ``[start, stop)`` of a segment. Raises as ``chunk_times``."""
        if segment not in self._found:
            self._found[segment] = chunk_times(self._replica, segment)
        return self._found[segment].between(start, stop)


def begin_since(replica: Replica, info: SegmentInfo, time_ms: int, line_bytes_max: int) -> int | None:
    """Where the first chunk that was begun at ``time_ms`` or later begins, or the first line in or behind it (``line_bytes_max`` 0: there
    are none); None where there is none.

    Raises ``InvalidArgument`` (a line is too long), and as ``chunk_times`` and ``read``.
    """
    times = chunk_times(replica, info.name, info.id)
    begins = (offset for offset, begun_ms in zip(times.offsets, times.times_ms, strict=True) if begun_ms >= time_ms)
    at = next(begins, info.length)
    if at >= info.length:
        return None
    if at <= info.start_offset:
        return info.start_offset
    if not line_bytes_max:
        return at
    high = min(info.length, at + line_bytes_max)
    end, passed = pass_lines(replica, SegmentHandle(info.name, info.id, False), at - 1, high, 1)
    if not passed and high < info.length:
        line_too_long(info.name, at, line_bytes_max)
    return end if passed and end < info.length else None
