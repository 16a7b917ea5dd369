"""Log lines of the standard ``logging``: one logger per layer.

Loggers are ``chunkstore.<layer>`` (docs/guide-operate.md has the table), silent until the program adds a handler. A line is a sentence
and ``name=value`` pairs; each record has the attributes ``FIELDS``, None where there is no such thing. Only wanted lines cost their
text. Lines contain no credentials: of a root its user, password and query are left out.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Final

__all__ = ["FIELDS", "ROOT", "log_event", "without_credentials"]

FIELDS: Final = ("root", "container", "epoch", "lsn", "segment", "chunk")
"""Attributes of every record."""
ROOT: Final = "chunkstore"
_OPTIONS: Final = re.compile("[?#]")
_SECRET: Final = re.compile(r":(?!\d*$)[^@\]]*$")
"""After the last @ a host has at most a port."""


def without_credentials(url: str) -> str:
    """A root's URL as people may see it: without user, password, query and fragment."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    rest = _OPTIONS.split(rest, maxsplit=1)[0]
    host, slash, path = rest.partition("/")
    if _SECRET.search(host) and "@" in path:  # a password with a slash
        return f"{scheme}://{rest.rpartition('@')[2]}"
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


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


def log_event(layer: str, level: int, sentence: str, **given: object) -> None:
    """A line of ``chunkstore.<layer>``. ``root`` is without credentials. Raises nothing."""
    logger = logging.getLogger(f"{ROOT}.{layer}")
    if logger.isEnabledFor(level):
        fields = {**dict.fromkeys(FIELDS), **given}
        logger.log(level, "%s", _Text(sentence, fields), extra={name: fields[name] for name in FIELDS})
