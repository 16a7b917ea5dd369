"""The observer port, the counters of upkeep that report to it, and the observer that every owner has for its log lines.

Every method is called after the fact, in the thread that did it, and must not wait. What it raises is ignored: what it was called for
has happened. Calls of the storage are counted elsewhere (``chunkstore_bindings.wrappers``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from chunkstore import runtime
from chunkstore.errors import ChunkstoreError, Damaged, NotOwner
from chunkstore.journal import SnapshotReport, TakeOverReport
from chunkstore.metrics import UPKEEP_COUNTERS, UPKEEP_PARTS
from chunkstore.records.logs import ROOT, log_event, without_credentials

__all__ = ["GuardedObserver", "LoggingObserver", "Observer", "UpkeepRuns"]


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
    def reported(self: GuardedObserver, *what: object) -> None:
        for inner in self._inner:
            with suppress(Exception):
                getattr(inner, name)(*what)

    return reported


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


class LoggingObserver(Observer):
    """Every owner has one. ``observer=LoggingObserver(root, name)`` replaces it, to show another root or name."""

    def __init__(self, root: str = "", container: str = "default") -> None:
        self._root = without_credentials(root)
        self._container = container
        self._epoch: int | None = None
        self.lsn: Callable[[], int | None] = lambda: None
        """The last record, as the container says."""

    @property
    def notes_commits(self) -> bool:
        """Whether lines of commits are wanted: asked once, for calls that each append makes are dear."""
        return logging.getLogger(f"{ROOT}.journal").isEnabledFor(logging.DEBUG)

    def committed(self, lsn: int) -> None:
        self._log("journal", logging.DEBUG, "record committed", lsn=lsn)

    def took_over(self, report: TakeOverReport) -> None:
        sentence = "opened" if self._epoch is None else "epoch begun"
        self._epoch = report.epoch
        level = logging.WARNING if report.tail_cut is not None or report.findings else logging.INFO
        more = {"source": report.source, "replayed_records": report.replayed_records, "previous": report.previous_epoch}
        findings = "; ".join(report.findings)
        self._log("engine", level, sentence, previous_owner=report.previous_owner, findings=findings, **more)

    def snapshot_taken(self, report: SnapshotReport) -> None:
        self._log(
            "journal",
            logging.INFO,
            "snapshot written",
            lsn=report.lsn,
            object=report.name,
            size_bytes=report.size_bytes,
        )

    def upkeep(self, part: str, done: Mapping[str, int], error: ChunkstoreError | None) -> None:
        if error is None and done.get("findings"):
            self._log("upkeep", logging.WARNING, f"{part} found damage", **done)
        elif error is None:
            self._log("upkeep", logging.INFO, f"{part} done", **done)
        else:
            self._log("upkeep", logging.WARNING, f"{part} failed", **{**done, **_of_error(error)})

    def safe_mode(self, reason: str) -> None:
        if reason:
            self._log("engine", logging.WARNING, "safe mode began", reason=reason)
        else:
            self._log("engine", logging.INFO, "safe mode ended")

    def failed(self, error: ChunkstoreError) -> None:
        if isinstance(error, NotOwner):
            self._log("engine", logging.WARNING, "deposed", owner=error.owner)
        else:
            sentence = "damage found" if isinstance(error, Damaged) else "failed"
            self._log("engine", logging.ERROR, sentence, **_of_error(error))

    def closed(self) -> None:
        self._log("engine", logging.INFO, "closed")

    def _log(self, layer: str, level: int, sentence: str, **more: object) -> None:
        given = {"root": self._root, "container": self._container, "epoch": self._epoch, "lsn": self.lsn()}
        log_event(layer, level, sentence, **{**given, **more})


def _of_error(error: ChunkstoreError) -> dict[str, object]:
    found = error.to_fields()
    names = {"segment": found.get("segment"), "chunk": found.get("object")}
    return {**names, "error": type(error).__name__, "message": error.message}
