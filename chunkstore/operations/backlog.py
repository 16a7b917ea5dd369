"""How much of each segment lies in the journal and waits to be spilled: counted, not looked up (protocol 3.10).

Promises: about right; what is counted too much is found to be nothing, what is counted too little is found by the next owner.
Leaves out: spilling (``spill``).
"""

from __future__ import annotations

from typing import Final

from chunkstore import runtime
from chunkstore.checksum import BytesLike
from chunkstore.config import KIB, Settings
from chunkstore.journal import RECORD_MAGIC

__all__ = ["Backlog", "Waiting", "inline_bytes_of", "looks_like_record"]

_INLINE_BYTES: Final = 16 * KIB
_INLINE_REMOTE_BYTES: Final = 64 * KIB


def inline_bytes_of(settings: Settings, remote: bool) -> int:
    """Appends of up to so many bytes go into the journal's record."""
    if settings.layout == "CODE_ONLY_UPGRADE":
        return 0  # headers list files: each extent would be copied into one
    chosen = settings.inline_bytes_max
    return (_INLINE_REMOTE_BYTES if remote else _INLINE_BYTES) if chosen is None else chosen


def looks_like_record(data: BytesLike, before: bytes = b"") -> bool:
    """Whether a record of the journal might seem to begin in ``data``, or where it meets ``before``."""
    # ``before`` is short, and what is appended is bytes nearly always.
    return RECORD_MAGIC in (data if type(data) is bytes else bytes(data)) or RECORD_MAGIC in before + bytes(data[:3])


class Waiting:
    """What of a segment lies in the journal, about, and since when."""

    __slots__ = ("extents", "since_s", "size_bytes")

    def __init__(self, size_bytes: int, extents: int) -> None:
        self.size_bytes = size_bytes
        self.extents = extents
        self.since_s = runtime.monotonic_s()


class Backlog:
    """What of each segment waits to be spilled, by its name. Thread-safe."""

    def __init__(self) -> None:
        self._lock = runtime.lock()
        self._held: dict[str, Waiting] = {}
        self.extents = 0

    def takes(self, data: BytesLike, length_max: int, extents_max: int) -> bool:
        """Whether an append may add to it: it is short, there are not too many, and it looks like no record of the journal."""
        return len(data) <= length_max and self.extents < extents_max and not looks_like_record(data)

    def came(self, name: str, size_bytes: int, extents: int) -> None:
        """So much more lies there."""
        with self._lock:
            self.extents += extents
            held = self._held.get(name)
            if held is None:
                self._held[name] = Waiting(size_bytes, extents)
            else:
                held.size_bytes += size_bytes
                held.extents += extents

    def spilled(self, name: str, size_bytes: int, extents: int) -> None:
        """So much less; of what is left it is not known since when it lies there: since now. Nothing was found: there is nothing."""
        with self._lock:
            held = self._held.pop(name, None)
            if held is None:
                return
            self.extents -= min(held.extents, extents) if extents else held.extents
            if extents and held.extents > extents:
                self._held[name] = Waiting(max(0, held.size_bytes - size_bytes), held.extents - extents)

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
        """All of it, as it is: what a segment has may grow while it is looked at."""
        with self._lock:
            return dict(self._held)
