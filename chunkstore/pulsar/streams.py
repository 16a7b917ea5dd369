"""Consecutive reads of an object as ranges that grow, the next two of which are read ahead in the background.

Promises: ranges of 1, 2, 4 and then 8 MiB, none requested twice, none read ahead before a second one is needed; at most four are held,
but for an entry that is longer. An error of a range that was read ahead is raised where its bytes are needed.
Leaves out: threads that share one (each reading place has its own).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Any, Final

from chunkstore import runtime
from chunkstore.checksum import BytesLike
from chunkstore.codec.pulsar.block_index import BlockSpan
from chunkstore.codec.pulsar.frames import DataSource
from chunkstore.config import MIB

__all__ = ["RangeStream"]

_RANGE_BYTES_LEAST: Final = 1 * MIB
_RANGE_BYTES_MOST: Final = 8 * MIB
_AHEAD_MAX: Final = 2
"""One is being read while the next one is on its way."""


class RangeStream:
    """Reads ``source`` from ``position`` on, as far as its bytes belong to ``spans``, which ascend. Not thread-safe.

    ``stop``: no range goes beyond; may be raised at any time. ``source.read`` is called by other threads, too.
    """

    def __init__(self, source: DataSource, spans: Sequence[BlockSpan], position: int, stop: int) -> None:
        self.stop = stop
        self._source = source
        self._spans = spans
        self._at = 0
        self._start = self._position = position
        self._size = _RANGE_BYTES_LEAST
        self._held: deque[tuple[int, bytes]] = deque()
        self._ahead: deque[tuple[int, int, runtime.Future[Any]]] = deque()

    @property
    def held_bytes(self) -> int:
        """Bytes of all ranges that are held or under way."""
        return sum(len(data) for _, data in self._held) + sum(end - begin for begin, end, _ in self._ahead)

    def read(self, position: int, length: int) -> BytesLike:
        """As ``DataSource.read``; the buffer never changes. What does not continue the stream is a read of its own."""
        end = position + length
        while self._held and self._held[0][0] + len(self._held[0][1]) <= position:
            self._held.popleft()
        covered = self._held[-1][0] + len(self._held[-1][1]) if self._held else position
        while covered < end and self._take(covered):
            covered = self._held[-1][0] + len(self._held[-1][1])
        if not self._held or self._held[0][0] > position:
            return self._source.read(position, length)
        pieces = [memoryview(data)[max(0, position - at) : end - at] for at, data in self._held if at < end]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _take(self, expected: int) -> bool:
        """Hold one more range; whether there is one that begins at ``expected``, and is whole."""
        if not self._ahead and self._next()[0] == expected:
            self._request(in_background=False)
        if not self._ahead or self._ahead[0][0] != expected:
            return False
        begin, end, future = self._ahead.popleft()
        self._held.append((begin, future.result()))
        while begin != self._start and len(self._ahead) < _AHEAD_MAX and self._request(in_background=True):
            pass
        return len(self._held[-1][1]) == end - begin

    def _next(self) -> tuple[int, int]:
        """The range that follows; an empty one where there is none."""
        spans = self._spans
        while self._at < len(spans) and spans[self._at].end <= self._position:
            self._at += 1
        if self._at == len(spans):
            return self._position, self._position
        begin, end = max(spans[self._at].start, self._position), spans[self._at].end
        limit = min(begin + self._size, self.stop)
        for span in islice(spans, self._at + 1, None):
            if span.start != end or end >= limit:
                break
            end = span.end
        return begin, min(end, limit)

    def _request(self, *, in_background: bool) -> bool:
        """Have the range that follows read; whether there is one."""
        begin, end = self._next()
        if end <= begin:
            return False
        future = runtime.future()

        def run() -> None:
            try:
                data = self._source.read(begin, end - begin)[: end - begin]
                future.set_result(data if type(data) is bytes else bytes(data))
            except BaseException as error:  # noqa: BLE001  (raised where the bytes are needed)
                future.set_exception(error)

        self._ahead.append((begin, end, future))
        self._position, self._size = end, min(2 * self._size, _RANGE_BYTES_MOST)
        if not in_background or runtime.spawn_if_possible(run, "chunkstore-read-ahead") is None:
            run()
        return True
