"""Where entries begin inside blocks, as earlier scans saw it: one bounded cache for the process.

Promises: an entry for about every 64 KiB that was scanned; at most 1,000,000 of them, and the blocks that were used least recently go
first. Thread-safe. What it says is a hint, which its user checks. Leaves out: the checks (``codec.pulsar.windows``).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Hashable
from typing import Final, NamedTuple

from chunkstore import runtime
from chunkstore.codec.pulsar.frames import entry_id_at
from chunkstore.codec.pulsar.windows import Window
from chunkstore.config import KIB

__all__ = ["OFFSETS", "OffsetCache"]

_STEP_BYTES: Final = 64 * KIB
_POSITIONS_MAX: Final = 1_000_000


class _Block(NamedTuple):
    entries: array[int]
    positions: array[int]


class OffsetCache:
    """Entry ids and positions by block. A key names a block: its object (as exactly as is known) and where it begins there."""

    def __init__(self, positions_max: int = _POSITIONS_MAX) -> None:
        self._positions_max = positions_max
        self._blocks: OrderedDict[Hashable, _Block] = OrderedDict()
        self._lock = runtime.lock()
        self.positions = 0
        """How many are held."""

    def find(self, key: Hashable, entry: int) -> tuple[int, int] | None:
        """The last known entry of the block up to ``entry``: its id and the position of its header."""
        with self._lock:
            block = self._blocks.get(key)
            at = bisect_right(block.entries, entry) - 1 if block is not None else -1
            if block is None or at < 0:
                return None
            self._blocks.move_to_end(key)
            return block.entries[at], block.positions[at]

    def note(self, key: Hashable, window: Window) -> None:
        """Remember some of the entries that a scan of the block has found."""
        with self._lock:
            block = self._blocks.setdefault(key, _Block(array("q"), array("q")))
            self._blocks.move_to_end(key)
            before = len(block.positions)
            at = 0
            while at < len(window.marks) - 1:
                mark = window.marks[at]
                self._insert(block, entry_id_at(window.data, mark), window.position + mark)
                at = bisect_left(window.marks, mark + _STEP_BYTES, lo=at + 1)
            self.positions += len(block.positions) - before
            while self.positions > self._positions_max:
                self._drop(next(iter(self._blocks)))

    def forget(self, key: Hashable) -> None:
        """Remember nothing of a block any more: a hint was wrong."""
        with self._lock:
            if key in self._blocks:
                self._drop(key)

    def _insert(self, block: _Block, entry: int, position: int) -> None:
        at = bisect_left(block.positions, position)
        after_previous = not at or (position - block.positions[at - 1] >= _STEP_BYTES and entry > block.entries[at - 1])
        before_next = at == len(block.positions) or (
            block.positions[at] - position >= _STEP_BYTES and entry < block.entries[at]
        )
        if after_previous and before_next:
            block.positions.insert(at, position)
            block.entries.insert(at, entry)

    def _drop(self, key: Hashable) -> None:
        self.positions -= len(self._blocks.pop(key).positions)


OFFSETS: Final = OffsetCache()
