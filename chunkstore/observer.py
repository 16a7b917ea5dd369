"""The observer port: what logs and metrics hang on.

Promises: every method is called after the fact, in the thread that did it, and must not wait. What it raises is
ignored: what it was called for has happened. The base class does nothing, so that an observer overrides what it wants to see.
Leaves out: storage calls (``chunkstore_bindings.wrappers`` counts those).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

from chunkstore.errors import ChunkstoreError
from chunkstore.journal import SnapshotReport, TakeOverReport

__all__ = ["GuardedObserver", "Observer"]


class Observer:
    """Called with what an owned container did; see the module."""

    def committed(self, lsn: int) -> None:
        """A record was committed, and its callers have been answered."""

    def took_over(self, report: TakeOverReport) -> None:
        """An epoch of ours has begun to serve: at open, after a failure of the journal, or by a roll."""

    def collected(self, chunks: int, chunk_bytes: int) -> None:
        """A collection deleted so many chunks."""

    def snapshot_taken(self, report: SnapshotReport) -> None:
        """A snapshot was written, validated and noted."""

    def upkeep(self, part: str, done: Mapping[str, int], error: ChunkstoreError | None) -> None:
        """A run of one of ``metrics.UPKEEP_PARTS`` ended: what it did, by names of ``UPKEEP_COUNTERS``, and why it failed, if it did."""

    def safe_mode(self, reason: str) -> None:
        """Safe mode began, and why; empty: it has ended."""

    def failed(self, error: ChunkstoreError) -> None:
        """A commit, a take-over, or something in the background failed; the epoch may have ended. ``NotOwner``: we were deposed."""

    def closed(self) -> None:
        """The container was closed, and everything is released."""


class GuardedObserver(Observer):
    """Calls other observers, and keeps what they raise from the operation that called it."""

    def __init__(self, *inner: Observer) -> None:
        self._inner = inner


def _guarded(name: str) -> Callable[..., None]:
    def told(self: GuardedObserver, *what: object) -> None:
        for inner in self._inner:
            with suppress(Exception):
                getattr(inner, name)(*what)

    return told


for _name in [name for name in vars(Observer) if not name.startswith("_")]:
    setattr(GuardedObserver, _name, _guarded(_name))
