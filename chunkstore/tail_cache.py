"""The bytes of extents that were committed last, so that who reads what was just appended asks no storage (protocol 3.7).

Promises: bytes are given out only under the object and the byte at which a record holds them; what a record holds never changes, so they
are never stale. Bounded: the oldest go first. Thread-safe. Leaves out: which extents there are.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque

from chunkstore import runtime

__all__ = ["TailCache"]

_COMPACTED_FROM = 1024


class _Object:
    """Blobs of one object of the journal, by the bytes where they begin, ascending; those in front of ``first`` are gone."""

    __slots__ = ("blobs", "first", "starts")

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.blobs: list[bytes] = []
        self.first = 0


class TailCache:
    """See the module. ``bytes_max`` 0 keeps nothing."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._lock = runtime.lock()
        self._objects: dict[str, _Object] = {}
        self._order: deque[str] = deque()
        self._bytes = 0
        self.hits = self.misses = 0

    def put(self, name: str, start: int, blob: bytes) -> None:
        """``blob`` lies at byte ``start`` of the object ``name``, behind all that was put of it before."""
        if not len(blob) <= self._bytes_max:
            return
        with self._lock:
            held = self._objects.get(name)
            if held is None:
                held = self._objects[name] = _Object()
            held.starts.append(start)
            held.blobs.append(blob)
            self._order.append(name)
            self._bytes += len(blob)
            while self._bytes > self._bytes_max:
                self._drop_oldest()

    def get(self, name: str, start: int, length: int) -> bytes | None:
        """``length`` bytes from byte ``start`` of the object on; None: they are not held."""
        with self._lock:
            held = self._objects.get(name)
            at = -1 if held is None else bisect_right(held.starts, start, held.first) - 1
            if held is None or at < held.first:
                self.misses += 1
                return None
            blob, begin = held.blobs[at], start - held.starts[at]
            if begin + length > len(blob):
                self.misses += 1
                return None
            self.hits += 1
        return blob[begin : begin + length]

    def _drop_oldest(self) -> None:
        name = self._order.popleft()
        held = self._objects[name]
        self._bytes -= len(held.blobs[held.first])
        held.blobs[held.first] = b""
        held.first += 1
        if held.first == len(held.starts):
            del self._objects[name]
        elif held.first >= _COMPACTED_FROM and 2 * held.first >= len(held.starts):
            del held.starts[: held.first], held.blobs[: held.first]
            held.first = 0
