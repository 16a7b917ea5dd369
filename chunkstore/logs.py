"""Log lines of the standard ``logging``: one logger per layer, and the observer that every owner has for them.

Promises: loggers are ``chunkstore.<layer>`` (docs/guide-operate.md has the table), silent until the program adds a handler. A line is a
sentence and ``name=value`` pairs; each record has the attributes ``FIELDS``, None where there is no such thing. Text is made only for
lines that are wanted. No credentials: of a root its user, password and query are left out.
Leaves out: handlers and levels, which are the program's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final
from urllib.parse import urlsplit

from chunkstore.errors import ChunkstoreError, Damaged, NotOwner
from chunkstore.journal import SnapshotReport, TakeOverReport
from chunkstore.observer import Observer

__all__ = ["FIELDS", "LoggingObserver", "log_event", "without_credentials"]

FIELDS: Final = ("root", "container", "epoch", "lsn", "segment", "chunk")
"""Attributes of every record."""
_ROOT: Final = "chunkstore"


def without_credentials(url: str) -> str:
    """A root's URL as people may see it: without user, password, query and fragment."""
    try:
        parts = urlsplit(url)
    except ValueError:  # brackets in the name of a root in memory
        return url.partition("?")[0].rpartition("@")[2]
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


class _Text:
    """A sentence and its fields, put together when a handler asks."""

    def __init__(self, sentence: str, fields: Mapping[str, object]) -> None:
        self._sentence = sentence
        self._fields = fields

    def __str__(self) -> str:
        pairs = [f"{name}={_shown(value)}" for name, value in self._fields.items() if value is not None and value != ""]
        return " ".join((self._sentence, *pairs))


def _shown(value: object) -> str:
    text = str(value)
    return text if text.isprintable() and not set(text) & set(' "=') else repr(text)


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
        return logging.getLogger(f"{_ROOT}.journal").isEnabledFor(logging.DEBUG)

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


def log_event(layer: str, level: int, sentence: str, **given: object) -> None:
    """A line of ``chunkstore.<layer>``. ``root`` is without credentials. Raises nothing."""
    logger = logging.getLogger(f"{_ROOT}.{layer}")
    if logger.isEnabledFor(level):
        fields = {**dict.fromkeys(FIELDS), **given}
        logger.log(level, "%s", _Text(sentence, fields), extra={name: fields[name] for name in FIELDS})


def _of_error(error: ChunkstoreError) -> dict[str, object]:
    found = error.to_fields()
    names = {"segment": found.get("segment"), "chunk": found.get("object")}
    return {**names, "error": type(error).__name__, "message": error.message}
