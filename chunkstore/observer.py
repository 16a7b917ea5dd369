"""The observer port: what logs and metrics hang on; and the counters of upkeep, which tell it of each run.

Promises: every method is called after the fact, in the thread that did it, and must not wait. What it raises is
ignored: what it was called for has happened. The base class does nothing, so that an observer overrides what it wants to see.
Leaves out: storage calls (``chunkstore_bindings.wrappers`` counts those).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from chunkstore import runtime
from chunkstore.errors import ChunkstoreError
from chunkstore.journal import SnapshotReport, TakeOverReport
from chunkstore.metrics import UPKEEP_COUNTERS, UPKEEP_PARTS

__all__ = ["GuardedObserver", "Observer", "UpkeepRuns"]


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


class UpkeepRuns:
    """What upkeep has done since the container was opened, by part. One per container. Thread-safe.

    A run counts once, when it ends, with what it noted, or as an error."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._lock = runtime.lock()
        self._counts = {name: dict.fromkeys(UPKEEP_PARTS, 0) for name in UPKEEP_COUNTERS}

    @contextmanager
    def run(self, part: str) -> Iterator[dict[str, int]]:
        """Within this, one run of ``part``, one of ``UPKEEP_PARTS``; it notes in the dict what it did, by names of ``UPKEEP_COUNTERS``."""
        done: dict[str, int] = {}
        try:
            yield done
        except ChunkstoreError as error:
            self.ended(part, done, error)
            raise
        self.ended(part, done, None)

    def ended(self, part: str, done: Mapping[str, int], error: ChunkstoreError | None) -> None:
        """A run, or a step of one, has ended: with what it did, by names of ``UPKEEP_COUNTERS``, and why it failed, if it did."""
        with self._lock:
            for name, count in (("runs", 1), ("errors", int(error is not None)), *done.items()):
                counts = self._counts[name]
                counts[part] = counts.get(part, 0) + count
        self._observer.upkeep(part, done, error)

    def counts(self) -> dict[str, dict[str, float]]:
        """All counters: name, part, value."""
        with self._lock:
            return {name: dict(counts) for name, counts in self._counts.items()}
