"""Log lines of an owner: an observer that hands what it is told to the standard ``logging``.

Promises: loggers are ``chunkstore.<part>``: ``commit`` (DEBUG), ``epoch``, ``snapshot``, ``upkeep`` and ``space`` (INFO, WARNING),
``fault`` (ERROR). A line is a sentence and ``name=value`` pairs; each record has the attributes ``FIELDS``, None where there is no such
thing. Text is made only for lines that are wanted. No credentials: of a root its user, password and query are left out.
Leaves out: handlers and levels, which are the program's.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from chunkstore.errors import ChunkstoreError
from chunkstore.journal import SnapshotReport, TakeOverReport
from chunkstore.observer import Observer

__all__ = ["FIELDS", "LoggingObserver", "without_credentials"]

FIELDS: Final = ("root", "container", "epoch", "lsn", "segment", "chunk")
"""Attributes of every record."""
_ROOT: Final = "chunkstore"


def without_credentials(url: str) -> str:
    """A root's URL as people may see it: without user, password, query and fragment."""
    parts = urlsplit(url)
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
    """``chunkstore.open(root, container=name, observer=LoggingObserver(root, name))``."""

    def __init__(self, root: str = "", container: str = "default") -> None:
        self._root = without_credentials(root)
        self._container = container
        self._epoch: int | None = None
        self._lsn: int | None = None

    def committed(self, lsn: int) -> None:
        self._lsn = lsn
        self._log("commit", logging.DEBUG, "record committed")

    def took_over(self, report: TakeOverReport) -> None:
        self._epoch = report.epoch
        level = logging.WARNING if report.tail_cut is not None or report.findings else logging.INFO
        more = {"source": report.source, "replayed_records": report.replayed_records, "previous": report.previous_epoch}
        self._log("epoch", level, "epoch begun", findings="; ".join(report.findings), **more)

    def snapshot_taken(self, report: SnapshotReport) -> None:
        self._log(
            "snapshot",
            logging.INFO,
            "snapshot written",
            lsn=report.lsn,
            object=report.name,
            size_bytes=report.size_bytes,
        )

    def upkeep(self, part: str, done: Mapping[str, int], error: ChunkstoreError | None) -> None:
        if error is None:
            self._log("upkeep", logging.INFO, f"{part} done", **done)
        else:
            self._log("upkeep", logging.WARNING, f"{part} failed", **{**done, **_of_error(error)})

    def safe_mode(self, reason: str) -> None:
        if reason:
            self._log("space", logging.WARNING, "safe mode began", reason=reason)
        else:
            self._log("space", logging.INFO, "safe mode ended")

    def failed(self, error: ChunkstoreError) -> None:
        self._log("fault", logging.ERROR, "failed", **_of_error(error))

    def _log(self, part: str, level: int, sentence: str, **more: object) -> None:
        logger = logging.getLogger(f"{_ROOT}.{part}")
        if logger.isEnabledFor(level):
            given = {"root": self._root, "container": self._container, "epoch": self._epoch, "lsn": self._lsn}
            fields = {**dict.fromkeys(FIELDS), **given, **more}
            logger.log(level, "%s", _Text(sentence, fields), extra={name: fields[name] for name in FIELDS})


def _of_error(error: ChunkstoreError) -> dict[str, object]:
    found = error.to_fields()
    names = {"segment": found.get("segment"), "chunk": found.get("object")}
    return {**names, "error": type(error).__name__, "message": error.message}
