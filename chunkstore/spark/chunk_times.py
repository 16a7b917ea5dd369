"""When the chunks of a segment were begun: the only time that bytes have. Plain Python, in the planning process.

Promises: chunk-granular, and labels of the owners' clocks, nothing more: a chunk's time is not later than that of its bytes, times need
not ascend (clocks run back; concat puts older chunks behind younger ones), and a merge of chunks gives all of their bytes the time of the
merge. Leaves out: what a row is (``batches``).
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from chunkstore.metadata.index import walk
from chunkstore.metadata.port import MetadataView
from chunkstore.operations.read import find_segment
from chunkstore.reading import read_view
from chunkstore.replica import Replica

__all__ = ["ChunkTimes", "TimesOfTasks", "chunk_times"]


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
    """For whoever plans many tasks: each segment's list is walked once."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._found: dict[str, ChunkTimes] = {}

    def of(self, segment: str, start: int, stop: int) -> ChunkTimes:
        """Of bytes ``[start, stop)`` of a segment. Raises as ``chunk_times``."""
        if segment not in self._found:
            self._found[segment] = chunk_times(self._replica, segment)
        return self._found[segment].between(start, stop)
