"""What upkeep has done since the container was opened, by part: counters for metrics, and the observer told of each run.

Promises: a run counts once, when it ends, with what it noted, or as an error. Leaves out: names and texts (``chunkstore.metrics``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from chunkstore import runtime
from chunkstore.errors import ChunkstoreError
from chunkstore.metrics import UPKEEP_COUNTERS, UPKEEP_PARTS
from chunkstore.observer import Observer

__all__ = ["UpkeepRuns"]


class UpkeepRuns:
    """One per container. Thread-safe."""

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
