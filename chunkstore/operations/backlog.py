"""How much of each segment lies in the journal and waits to be spilled: counted, not looked up (protocol 3.10).

Promises: about right; what is counted too much is found to be nothing, what is counted too little is found by the next owner.
Leaves out: spilling (``spill``).
"""

from __future__ import annotations

from typing import NamedTuple

from chunkstore import runtime

__all__ = ["Backlog", "Waiting"]


class Waiting(NamedTuple):
    """What of a segment lies in the journal, about, and since when."""

    size_bytes: int
    extents: int
    since_s: float


class Backlog:
    """What of each segment waits to be spilled, by its name. Thread-safe."""

    def __init__(self) -> None:
        self._lock = runtime.lock()
        self._held: dict[str, Waiting] = {}
        self.extents = 0

    def came(self, name: str, size_bytes: int, extents: int) -> None:
        """So much more lies there."""
        with self._lock:
            held = self._held.get(name)
            self.extents += extents
            if held is None:
                self._held[name] = Waiting(size_bytes, extents, runtime.monotonic_s())
            else:
                self._held[name] = Waiting(held.size_bytes + size_bytes, held.extents + extents, held.since_s)

    def spilled(self, name: str, size_bytes: int, extents: int) -> None:
        """So much less; of what is left it is not known since when it lies there: since now. Nothing was found: there is nothing."""
        with self._lock:
            held = self._held.pop(name, None)
            if held is None:
                return
            self.extents -= min(held.extents, extents) if extents else held.extents
            if extents and held.extents > extents:
                left = max(0, held.size_bytes - size_bytes), held.extents - extents
                self._held[name] = Waiting(*left, runtime.monotonic_s())

    def moved(self, source: str, target: str) -> None:
        """What one had belongs to the other now."""
        with self._lock:
            held = self._held.pop(source, None)
            if held is not None:
                self.extents -= held.extents
        if held is not None:
            self.came(target, held.size_bytes, held.extents)

    def forget(self, name: str) -> None:
        """The segment is gone."""
        self.spilled(name, 0, 0)

    def total(self) -> tuple[int, int]:
        """How many extents there are, about, and their bytes."""
        with self._lock:
            return self.extents, sum(item.size_bytes for item in self._held.values())

    def held(self) -> dict[str, Waiting]:
        """All of it."""
        with self._lock:
            return dict(self._held)
