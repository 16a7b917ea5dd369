"""Which extents of each segment wait to be spilled: the one count of them (protocol 3.10).

An operation is counted when the cache shows it, and before it is acknowledged. So a look at the rows finds all that was counted before
it. After a spill of what a look has found, the count falls to what came since (``mark``, ``settle``): also where a truncation or another
spill has taken extents away. A count may be too high until then, and is never too low.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

from chunkstore import runtime
from chunkstore.checksum import BytesLike
from chunkstore.config import KIB, MIB, Settings
from chunkstore.metadata.tail_cache import TailCache
from chunkstore.records.blocks import BLOCK_BYTES
from chunkstore.records.chunks import Capabilities

__all__ = ["Arrival", "Backlog", "Mark", "Waiting", "inline_limits"]

_INLINE_BYTES: Final = 64 * KIB
_BEHIND_TIMES: Final = 4
_BEHIND_BYTES: Final = 256 * MIB
"""So much may wait before spilling counts as late, at least: the journal holds it, and spilling reads what memory no longer does."""


def inline_limits(settings: Settings, capabilities: Capabilities) -> tuple[int, int]:
    """Appends of up to so many bytes go into the journal's record, and of up to so many after bytes that did.

    There, where storages append, each larger one begins a chunk: the one that grew before cannot go on after bytes that are not in it.
    """
    limit = _INLINE_BYTES if settings.inline_bytes_max is None else settings.inline_bytes_max
    return limit, min(_BEHIND_TIMES * limit, BLOCK_BYTES) if capabilities.append else limit


class Waiting:
    """What of a segment waits, and since when; ``came_extents`` and ``came_bytes`` are all that ever did."""

    __slots__ = ("came_bytes", "came_extents", "extents", "since_s", "size_bytes")

    def __init__(self, since_s: float) -> None:
        self.extents: int = 0
        self.size_bytes: int = 0
        self.since_s: float = since_s
        self.came_extents: int = 0
        self.came_bytes: int = 0


class Arrival(NamedTuple):
    """What a commit adds to a segment: so many extents and bytes, or with a ``source`` all that this segment had."""

    name: str
    size_bytes: int = 0
    extents: int = 0
    source: str = ""


class Mark(NamedTuple):
    """What was counted of a segment at some time."""

    held: Waiting
    extents: int
    size_bytes: int


class Backlog:
    """What of each segment waits to be spilled, by its name. Thread-safe."""

    def __init__(self, settings: Settings) -> None:
        self._extents_max = 2 * settings.tuning.inline_rows_max
        self._bytes_max = max(_BEHIND_BYTES, 2 * settings.tail_cache_bytes)
        self.tail: TailCache = TailCache(settings.tail_cache_bytes)
        """Bytes that were appended last."""
        self._lock = runtime.lock()
        self._held: dict[str, Waiting] = {}
        self.extents: int = 0
        self.size_bytes: int = 0

    def takes(self, data: BytesLike, length_max: int) -> bool:
        """Whether an append may add to it: it is short, and spilling keeps up."""
        return len(data) <= length_max and self.extents < self._extents_max and self.size_bytes < self._bytes_max

    def came(self, name: str, size_bytes: int, extents: int, since_s: float = math.inf) -> None:
        """So much more of a segment waits, since now or earlier."""
        with self._lock:
            held = self._held.get(name)
            if held is None:
                held = self._held[name] = Waiting(min(since_s, runtime.monotonic_s()))
            elif since_s < held.since_s:
                held.since_s = since_s
            held.came_extents += extents
            held.came_bytes += size_bytes
            held.extents += extents
            held.size_bytes += size_bytes
            self.extents += extents
            self.size_bytes += size_bytes

    def count(self, arrival: Arrival) -> None:
        """The cache shows what a commit has added."""
        name, size_bytes, extents, source = arrival
        if not source:
            self.came(name, size_bytes, extents)
        elif (held := self._held.get(source)) is not None:
            self.came(name, held.size_bytes, held.extents, held.since_s)
            self.settle(source, self.mark(source))

    def mark(self, name: str) -> Mark | None:
        """What is counted of a segment now; None: nothing."""
        with self._lock:
            held = self._held.get(name)
            return None if held is None else Mark(held, held.came_extents, held.came_bytes)

    def settle(self, name: str, mark: Mark | None) -> None:
        """What was counted at ``mark`` is in chunks by now, or gone. Of what is left it is not known since when: since now."""
        with self._lock:
            if mark is None or self._held.get(name) is not mark.held:
                return
            held = mark.held
            # What came since is left, and less where another spill has settled more.
            extents = min(held.extents, held.came_extents - mark.extents)
            size_bytes = min(held.size_bytes, held.came_bytes - mark.size_bytes)
            self.extents -= held.extents - extents
            self.size_bytes -= held.size_bytes - size_bytes
            held.extents, held.size_bytes, held.since_s = extents, size_bytes, runtime.monotonic_s()
            if not (extents or size_bytes):
                del self._held[name]

    def total(self) -> tuple[int, int]:
        """How many extents wait, and their bytes."""
        with self._lock:
            return self.extents, self.size_bytes

    def held(self) -> dict[str, Waiting]:
        """All of it, as it is: the counts of a segment may change while they are read."""
        with self._lock:
            return dict(self._held)
