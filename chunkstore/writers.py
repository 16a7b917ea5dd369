"""The writers of one store that have an id. The newest of each id and segment goes on, alone: a former one gives way before it begins.

Else both would number their events by themselves, and what one of them appends would be taken for a repetition of the other's.
Leaves out: writers of other owners, which the fence ends.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakValueDictionary

from chunkstore import runtime
from chunkstore.writer import StorageWriter

__all__ = ["Writers"]


class Writers:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = runtime.lock()
        self._newest: WeakValueDictionary[tuple[int, bytes], StorageWriter] = WeakValueDictionary()

    def replace(self, segment_id: int, writer_id: bytes, make: Callable[[], StorageWriter]) -> StorageWriter:
        """What ``make`` makes, once the writer before it has given way. Raises what either raises."""
        key = segment_id, writer_id
        while True:
            former = self._newest.get(key)
            if former is not None:
                former.give_way()
            made = make()
            with self._lock:
                if self._newest.get(key) is former:
                    self._newest[key] = made
                    return made
            made.give_way()  # another thread was faster: it gives way to us now
