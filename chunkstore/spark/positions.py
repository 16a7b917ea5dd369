"""How far a stream has come, as Spark keeps it in its checkpoint: a JSON object (decision 0027).

    {"version": 1, "container": "<uuid, 32 hex digits>", "epoch": 3, "lsn": 120,
     "segments": {"orders": {"id": 7, "at": 4096}, "refunds": {"id": 9, "at": 12, "done": true, "from": 5}},
     "lost": {"bytes": 0, "segments": 0}, "consumer": "<16 hex digits>"}

``epoch`` and ``lsn``: a point of history that had all of it. ``at``: all below it was given out, of the segment with this id; ``done``: it
was sealed, and that is all; ``from``: where this batch begins, where that is not the ``at`` of the one before. ``lost`` counts what was
gone before it was read, where that is allowed; ``consumer`` names a stream that holds a pin. Both are left out where there is none.

Promises: what was encoded is decoded to the same; anything else is a typed error. Leaves out: what positions mean (``stream``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from chunkstore.errors import Damaged, Unsupported

__all__ = ["Reached", "StreamOffset"]

_VERSION: Final = 1
_MOST: Final = (1 << 63) - 1
_UUID = re.compile(r"[0-9a-f]{32}")
_CONSUMER = re.compile(r"([0-9a-f]{16})?")


class Reached(NamedTuple):
    """Of a segment: see the module."""

    identity: int
    at: int
    done: bool = False
    begin: int | None = None


class StreamOffset(NamedTuple):
    """See the module."""

    container: str
    epoch: int
    lsn: int
    segments: Mapping[str, Reached]
    lost_bytes: int = 0
    lost_segments: int = 0
    consumer: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain data; the same for the same positions, down to the order of keys."""
        document: dict[str, Any] = {
            "version": _VERSION,
            "container": self.container,
            "epoch": self.epoch,
            "lsn": self.lsn,
            "segments": {name: _plain(self.segments[name]) for name in sorted(self.segments)},
        }
        if self.lost_bytes or self.lost_segments:
            document["lost"] = {"bytes": self.lost_bytes, "segments": self.lost_segments}
        if self.consumer:
            document["consumer"] = self.consumer
        return document

    @classmethod
    def from_json(cls, document: object) -> StreamOffset:
        """Raises ``Damaged``, and ``Unsupported`` of another version."""
        whole = _Fields(document)
        if whole.number("version") != _VERSION:
            raise Unsupported(
                f"the checkpoint's offsets are of version {whole.number('version')}, this program's of {_VERSION}",
                feature="version of offsets",
            )
        segments = _Fields(whole.values.get("segments"))
        lost = _Fields(whole.values.get("lost", {"bytes": 0, "segments": 0}))
        return cls(
            whole.text("container", _UUID),
            whole.number("epoch"),
            whole.number("lsn"),
            {name: _reached(value) for name, value in segments.values.items()},
            lost.number("bytes"),
            lost.number("segments"),
            whole.text("consumer", _CONSUMER) if "consumer" in whole.values else "",
        )


def _plain(reached: Reached) -> dict[str, Any]:
    document: dict[str, Any] = {"id": reached.identity, "at": reached.at}
    if reached.done:
        document["done"] = True
    if reached.begin is not None:
        document["from"] = reached.begin
    return document


def _reached(document: object) -> Reached:
    fields = _Fields(document)
    begin = fields.number("from") if "from" in fields.values else None
    reached = Reached(fields.number("id"), fields.number("at"), fields.values.get("done") is True, begin)
    if begin is not None and begin > reached.at:
        raise _damaged(f"{begin} lies behind {reached.at}")
    return reached


class _Fields:
    def __init__(self, document: object) -> None:
        if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
            raise _damaged(f"an object was expected, not {document!r:.200}")
        self.values: dict[str, Any] = document

    def number(self, name: str) -> int:
        value = self.values.get(name)
        if type(value) is not int or not 0 <= value <= _MOST:
            raise _damaged(f"{name!r} is {value!r:.200}")
        return value

    def text(self, name: str, form: re.Pattern[str]) -> str:
        value = self.values.get(name)
        if not isinstance(value, str) or form.fullmatch(value) is None:
            raise _damaged(f"{name!r} is {value!r:.200}")
        return value


def _damaged(what: str) -> Damaged:
    return Damaged(f"not an offset of a chunkstore stream: {what}", object="offset in the checkpoint")
