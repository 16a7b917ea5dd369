"""Consecutive reads of an object as ranges that grow, the next of which is read ahead in the background.

Promises: ranges of 1, 2, 4 and then 8 MiB, none requested twice, none read ahead before the second is needed; at most three are held,
but for an entry that is longer. An error of a range that was read ahead is raised where its bytes are needed.
Leaves out: threads that share one (each reading place has its own).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from chunkstore import runtime
from chunkstore.checksum import BytesLike
from chunkstore.codec.pulsar.block_index import BlockSpan
from chunkstore.codec.pulsar.frames import DataSource
from chunkstore.config import MIB

__all__ = ["RangeStream"]

_BYTES_LEAST: Final = 1 * MIB
_BYTES_MOST: Final = 8 * MIB


class _Ahead(NamedTuple):
    begin: int
    end: int
    data: runtime.Future[Any]


class RangeStream:
    """Reads ``source`` from ``position`` on, as far as its bytes belong to ``spans``, which ascend. Not thread-safe.

    ``stop``: no range goes beyond; may be raised at any time. ``source.read`` is called by one more thread.
    """

    def __init__(self, source: DataSource, spans: Sequence[BlockSpan], position: int, stop: int) -> None:
        self.stop = stop
        self._source = source
        self._spans = spans
        self._at = 0
        self._start = self._position = position
        self._size = _BYTES_LEAST
        self._held: deque[tuple[int, bytes]] = deque()
        self._ahead: _Ahead | None = None

    @property
    def held_bytes(self) -> int:
        """Bytes of all ranges that are held or under way."""
        ahead = self._ahead
        return sum(len(data) for _, data in self._held) + (ahead.end - ahead.begin if ahead is not None else 0)

    def read(self, position: int, length: int) -> BytesLike:
        """As ``DataSource.read``, in a fresh or immutable buffer. What does not continue the stream is a read of its own."""
        end = position + length
        while self._held and self._held[0][0] + len(self._held[0][1]) <= position:
            self._held.popleft()
        while not self._held or self._held[-1][0] + len(self._held[-1][1]) < end:
            expected = self._held[-1][0] + len(self._held[-1][1]) if self._held else position
            if not self._take(expected):
                break
        if not self._held or not self._held[0][0] <= position:
            return self._source.read(position, length)
        pieces = [memoryview(data)[max(0, position - at) : end - at] for at, data in self._held if at < end]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def close(self) -> None:
        """Give up what is held, and what is under way: its result is discarded."""
        self._held.clear()
        self._ahead = None
        self.stop = 0

    def _take(self, expected: int) -> bool:
        """Hold one more range; whether there is one that begins at ``expected``, and is whole."""
        ahead = self._ahead
        begin, end = (ahead.begin, ahead.end) if ahead is not None else self._next()
        if begin != expected or end <= begin:
            return False
        if ahead is not None:
            self._ahead = None
            data = ahead.data.result()
        else:
            self._advance(end)
            data = self._load(begin, end)
        self._held.append((begin, data))
        if begin != self._start:
            self._read_ahead()
        return len(data) == end - begin

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

    def _advance(self, end: int) -> None:
        self._position = end
        self._size = min(2 * self._size, _BYTES_MOST)

    def _load(self, begin: int, end: int) -> bytes:
        data = self._source.read(begin, end - begin)[: end - begin]
        return data if type(data) is bytes else bytes(data)

    def _read_ahead(self) -> None:
        begin, end = self._next()
        if end <= begin:
            return
        future = runtime.future()

        def run() -> None:
            try:
                future.set_result(self._load(begin, end))
            except BaseException as error:  # noqa: BLE001  (raised where the bytes are needed)
                future.set_exception(error)

        if runtime.spawn_if_possible(run, "chunkstore-read-ahead") is not None:
            self._ahead = _Ahead(begin, end, future)
            self._advance(end)
