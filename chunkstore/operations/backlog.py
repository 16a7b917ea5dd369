"""How much of each segment lies in the journal and waits to be spilled: counted, not looked up (protocol 3.10).

Promises: never too little, for as long as it is there; what is counted too much is found to be nothing, twice. What enters the queue is
counted before it is committed, and what a concat takes elsewhere counts for both segments, whatever becomes of it.
Leaves out: spilling (``spill``).
"""

from __future__ import annotations

from typing import Final

from chunkstore import runtime
from chunkstore.blocks import BLOCK_BYTES
from chunkstore.checksum import BytesLike
from chunkstore.chunks import Capabilities
from chunkstore.config import KIB, MIB, Settings

__all__ = ["Backlog", "Waiting", "inline_limits"]

_INLINE_BYTES: Final = 64 * KIB
_BEHIND_TIMES: Final = 4
_BEHIND_BYTES: Final = 256 * MIB
"""So much may wait before spilling counts as behind, at least: the journal holds it, and spilling reads what memory no longer does."""
_DOUBT_S: Final = 5.0
"""Between two looks that find nothing of what is counted, at least: in between whatever was under way has been committed."""


def inline_limits(settings: Settings, capabilities: Capabilities) -> tuple[int, int]:
    """Appends of up to so many bytes go into the journal's record, and of up to so many behind bytes that did.

    There, where storages append, each larger one begins a chunk: the one that grew before cannot go on behind bytes that are not in it.
    """
    limit = _INLINE_BYTES if settings.inline_bytes_max is None else settings.inline_bytes_max
    return limit, min(_BEHIND_TIMES * limit, BLOCK_BYTES) if capabilities.append else limit


class Waiting:
    """What of a segment lies in the journal, about, and since when. ``missed_s``: when a look found nothing of it, and nothing has
    come since."""

    __slots__ = ("extents", "missed_s", "since_s", "size_bytes")

    def __init__(self, size_bytes: int, extents: int, since_s: float) -> None:
        self.size_bytes: int = size_bytes
        self.extents: int = extents
        self.since_s: float = since_s
        self.missed_s: float | None = None


class Backlog:
    """What of each segment waits to be spilled, by its name. Thread-safe."""

    def __init__(self, settings: Settings) -> None:
        self._extents_max = 2 * settings.tuning.inline_rows_max
        self._bytes_max = max(_BEHIND_BYTES, 2 * settings.tail_cache_bytes)
        self._lock = runtime.lock()
        self._held: dict[str, Waiting] = {}
        self.extents: int = 0
        self.size_bytes: int = 0

    def takes(self, data: BytesLike, length_max: int) -> bool:
        """Whether an append may add to it: it is short, and spilling is not behind."""
        return len(data) <= length_max and self.extents < self._extents_max and self.size_bytes < self._bytes_max

    def came(self, name: str, size_bytes: int, extents: int) -> None:
        """So much more lies there."""
        with self._lock:
            self.extents += extents
            self.size_bytes += size_bytes
            held = self._held.get(name)
            if held is None:
                self._held[name] = Waiting(size_bytes, extents, runtime.monotonic_s())
            else:
                held.size_bytes += size_bytes
                held.extents += extents
                held.missed_s = None

    def spilled(self, name: str, size_bytes: int, extents: int) -> None:
        """So much less; of what is left it is not known since when it lies there: since now."""
        with self._lock:
            held = self._held.pop(name, None)
            if held is None:
                return
            left = max(0, held.extents - extents)
            left_bytes = max(0, held.size_bytes - size_bytes) if left else 0
            if left:
                self._held[name] = Waiting(left_bytes, left, runtime.monotonic_s())
            self.extents -= held.extents - left
            self.size_bytes -= held.size_bytes - left_bytes

    def spliced(self, source: str, target: str) -> None:
        """What one has is about to be the other's."""
        with self._lock:
            held = self._held.get(source)
            if held is None:
                return
            other = self._held.setdefault(target, Waiting(0, 0, held.since_s))
            other.size_bytes += held.size_bytes
            other.extents += held.extents
            other.since_s = min(other.since_s, held.since_s)
            other.missed_s = None
            self.extents += held.extents
            self.size_bytes += held.size_bytes

    def missed(self, name: str) -> None:
        """A look found nothing, or no such segment: it is forgotten if one before did, too."""
        with self._lock:
            held, now_s = self._held.get(name), runtime.monotonic_s()
            if held is None:
                return
            if held.missed_s is None:
                held.missed_s = now_s
            if now_s - held.missed_s >= _DOUBT_S:
                del self._held[name]
                self.extents -= held.extents
                self.size_bytes -= held.size_bytes
            else:
                held.since_s = now_s

    def total(self) -> tuple[int, int]:
        """How many extents there are, about, and their bytes."""
        with self._lock:
            return self.extents, self.size_bytes

    def held(self) -> dict[str, Waiting]:
        """All of it, as it is: what a segment has may grow while it is looked at."""
        with self._lock:
            return dict(self._held)
