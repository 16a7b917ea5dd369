"""Files of the simulated file system: visible bytes, durable bytes, and what a power cut makes of the difference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_SECTOR: Final = 64
"""Bytes that a power cut keeps or loses together; small, because simulated files are."""


class Inode:
    """``data`` is what reads see; ``synced`` bytes of it are durable, but for ``lost`` ranges that no sync brought to disk.

    ``errors``: how often a sync has lost something. Whoever had it open before is told so by a sync of his own.
    """

    __slots__ = ("data", "errors", "lost", "modified_ns", "number", "synced")

    def __init__(self, number: int, now: int) -> None:
        self.number = number
        self.data = bytearray()
        self.synced = 0
        self.lost: list[tuple[int, int]] = []
        self.errors = 0
        self.modified_ns = now

    def sync(self) -> None:
        """All that is visible is durable now."""
        self.synced = len(self.data)

    def sync_fails(self) -> None:
        """The dirty pages are marked clean without having been written."""
        if len(self.data) > self.synced:
            self.lost.append((self.synced, len(self.data)))
            self.errors += 1
        self.synced = len(self.data)

    def stored(self, offset: int, length: int) -> bytes:
        """What is read past the page cache: no sync brought the ``lost`` ranges to disk."""
        data = bytearray(self.data[offset : offset + length])
        for start, stop in self.lost:
            begin, end = max(start - offset, 0), min(stop - offset, len(data))
            data[begin:end] = bytes(max(end - begin, 0))
        return bytes(data)

    def tear(self, random: Callable[[], float]) -> None:
        """The power is cut: what was not synced is kept, lost or torn by chance; zeros may stand in its midst."""
        data = self.data
        if self.lost:
            for start, stop in self.lost:
                if stop >= len(data) and random() < 0.5:
                    del data[start:]
                else:
                    data[start:stop] = bytes(len(data[start:stop]))
            self.lost.clear()
        unsynced = len(data) - self.synced
        if unsynced > 0:
            dice = random()
            kept = 0 if dice < 0.3 else unsynced if dice < 0.5 else int(random() * (unsynced + 1))
            del data[self.synced + kept :]
            if random() < 0.3:
                for start in range(self.synced, len(data), _SECTOR):
                    if random() < 0.5:
                        stop = min(len(data), start + _SECTOR)
                        data[start:stop] = bytes(stop - start)
        self.synced = len(data)
