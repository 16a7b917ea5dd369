"""The observer port: what logs and metrics hang on.

Promises: every method is called after the fact, in the thread that did it, and must not wait. What it raises is
ignored: what it was called for has happened. The base class does nothing, so that an observer overrides what it wants to see.
Leaves out: storage calls (``chunkstore_bindings.wrappers`` counts those).
"""

from __future__ import annotations

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

    def upkeep(
        self, job: str, requests: int, moved_bytes: int, freed_bytes: int, error: ChunkstoreError | None
    ) -> None:
        """A step of the optimiser has ended: what it asked of the storage, about, what it moved and freed; and why it failed, if it did."""

    def failed(self, error: ChunkstoreError) -> None:
        """A commit, a take-over, or something in the background failed; the epoch may have ended."""


class GuardedObserver(Observer):
    """Keeps what another observer raises from the operation that called it."""

    def __init__(self, inner: Observer) -> None:
        self._inner = inner

    def committed(self, lsn: int) -> None:
        with suppress(Exception):
            self._inner.committed(lsn)

    def took_over(self, report: TakeOverReport) -> None:
        with suppress(Exception):
            self._inner.took_over(report)

    def collected(self, chunks: int, chunk_bytes: int) -> None:
        with suppress(Exception):
            self._inner.collected(chunks, chunk_bytes)

    def snapshot_taken(self, report: SnapshotReport) -> None:
        with suppress(Exception):
            self._inner.snapshot_taken(report)

    def upkeep(
        self, job: str, requests: int, moved_bytes: int, freed_bytes: int, error: ChunkstoreError | None
    ) -> None:
        with suppress(Exception):
            self._inner.upkeep(job, requests, moved_bytes, freed_bytes, error)

    def failed(self, error: ChunkstoreError) -> None:
        with suppress(Exception):
            self._inner.failed(error)
