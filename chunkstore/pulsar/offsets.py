"""Where entries begin inside blocks, as earlier scans saw it: one bounded cache for the process.

Promises: an entry for about every 64 KiB that was scanned; at most 1,000,000 of them, and the blocks that were used least recently go
first. Thread-safe. What it says is a hint, which its user checks. Leaves out: the checks (``codec.pulsar.windows``).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

from chunkstore import runtime
from chunkstore.codec.pulsar.frames import entry_id_at
from chunkstore.codec.pulsar.windows import Window
from chunkstore.config import KIB

__all__ = ["OFFSETS", "OffsetCache"]

_STEP_BYTES: Final = 64 * KIB


class OffsetCache:
    """Entry ids and positions by block. A key names a block: its object, as exactly as is known, and where it begins there."""

    def __init__(self, positions_max: int = 1_000_000) -> None:
        self._positions_max = positions_max
        self._blocks: OrderedDict[Hashable, tuple[array[int], array[int]]] = OrderedDict()
        self._lock = runtime.lock()
        self.positions = 0
        """How many are held."""

    def find(self, key: Hashable, entry: int) -> tuple[int, int] | None:
        """The last known entry of the block up to ``entry``: its id and the position of its header."""
        with self._lock:
            entries, positions = self._blocks.get(key, ((), ()))
            at = bisect_right(entries, entry) - 1
            if at < 0:
                return None
            self._blocks.move_to_end(key)
            return entries[at], positions[at]

    def note(self, key: Hashable, window: Window) -> None:
        """Remember some of the entries that a scan of the block has found, behind those that are known."""
        with self._lock:
            entries, positions = self._blocks.setdefault(key, (array("q"), array("q")))
            self._blocks.move_to_end(key)
            at, least = 0, positions[-1] + _STEP_BYTES - window.position if positions else 0
            while (at := bisect_left(window.marks, least, lo=at)) < len(window.marks) - 1:
                entries.append(entry_id_at(window.data, window.marks[at]))
                positions.append(window.position + window.marks[at])
                self.positions += 1
                least = window.marks[at] + _STEP_BYTES
            while self.positions > self._positions_max:
                self.positions -= len(self._blocks.popitem(last=False)[1][0])

    def forget(self, key: Hashable) -> None:
        """Remember nothing of a block any more: a hint was wrong."""
        with self._lock:
            self.positions -= len(self._blocks.pop(key, ((), ()))[0])


OFFSETS: Final = OffsetCache()
