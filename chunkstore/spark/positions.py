"""How far a stream has come, as Spark keeps it in its checkpoint: a JSON object.

    {"version": 1, "container": "<uuid, 32 hex digits>", "epoch": 3, "lsn": 120,
     "segments": {"orders": {"id": 7, "at": 4096}, "refunds": {"id": 9, "at": 12, "done": true, "from": 5}},
     "topics": {"a/b/c": {"sequence": 2, "id": "<uuid, 32 hex digits>", "at": 8192, "done": true, "from": [2, 0]}},
     "lost": {"bytes": 0, "segments": 0}}

``epoch`` and ``lsn``: a point of history that had all of it. ``at``: all below it was given out, of the segment with this id; ``done``: it
was sealed, and that is all; ``from``: where this batch begins, where that is not the ``at`` of the one before, which no one keeps of the
first batch. Of a topic: the offload segments below ``sequence``, and all below ``at`` of the data of that one, which has this id; ``done``:
it is complete, and that is all.
``lost`` counts what was gone before it was read, where that is allowed. ``topics`` and ``lost`` are left out where there are none.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from chunkstore.errors import ChunkstoreError, Damaged, Unsupported
from chunkstore.spark.options import ReadOptions

__all__ = ["Limit", "Position", "Reached", "Shares", "StreamOffset", "lose"]

_VERSION: Final = 1
_MOST: Final = (1 << 63) - 1
_UUID = re.compile(r"[0-9a-f]{32}")
_ID = re.compile(r"([0-9a-f]{32})?")
_LOG = logging.getLogger("chunkstore.spark")
Position: TypeAlias = tuple[int, int]
"""The number of an offload segment, 0 in a raw segment, and a byte there."""


class Reached(NamedTuple):
    """Of a raw segment, or of a topic, whose ``identity`` is a string, empty at the beginning of one that has nothing; see the module."""

    identity: int | str
    at: Position
    done: bool = False
    begin: Position | None = None


class StreamOffset(NamedTuple):
    """See the module. ``reached``: by name."""

    reached: Mapping[str, Reached] = {}
    container: str = ""
    epoch: int = 0
    lsn: int = 0
    lost_bytes: int = 0
    lost_segments: int = 0

    @property
    def positions(self) -> tuple[object, ...]:
        """What makes another batch."""
        reached = {name: reached._replace(begin=None) for name, reached in self.reached.items()}
        return reached, self.lost_bytes, self.lost_segments

    def beginning_at(self, start: StreamOffset) -> StreamOffset:
        """The end of a batch that says itself where it begins."""
        reached = dict(self.reached)
        for name, before in start.reached.items():
            if name in reached and reached[name].begin is None:
                reached[name] = reached[name]._replace(begin=before.at)
        return self._replace(reached=reached)

    def began(self, end: StreamOffset) -> StreamOffset:
        """Where the first batch began, as its end says; this is where the query would begin now."""
        reached = dict(self.reached)
        for name, came in end.reached.items():
            before = reached.get(name)
            if came.begin is not None and (before is None or before.at != came.begin):
                same = isinstance(came.identity, int) or came.begin[0] == came.at[0]
                reached[name] = Reached(came.identity if same else "", came.begin)
        return self._replace(reached=reached)

    def to_json(self) -> dict[str, Any]:
        """Plain data; the same for the same positions, down to the order of keys."""
        plain = {name: _plain(self.reached[name]) for name in sorted(self.reached)}
        topics = {name: each for name, each in plain.items() if "sequence" in each}
        document: dict[str, Any] = {
            "version": _VERSION,
            "container": self.container,
            "epoch": self.epoch,
            "lsn": self.lsn,
            "segments": {name: each for name, each in plain.items() if name not in topics},
        }
        if topics:
            document["topics"] = topics
        if self.lost_bytes or self.lost_segments:
            document["lost"] = {"bytes": self.lost_bytes, "segments": self.lost_segments}
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
        topics = _Fields(whole.values.get("topics", {}))
        lost = _Fields(whole.values.get("lost", {"bytes": 0, "segments": 0}))
        reached = {name: _reached(value, of_topic=False) for name, value in segments.values.items()}
        reached |= {name: _reached(value, of_topic=True) for name, value in topics.values.items()}
        return cls(
            reached,
            whole.text("container", _UUID),
            whole.number("epoch"),
            whole.number("lsn"),
            lost.number("bytes"),
            lost.number("segments"),
        )


def _plain(reached: Reached) -> dict[str, Any]:
    of_topic, (sequence, at) = isinstance(reached.identity, str), reached.at
    document: dict[str, Any] = {"sequence": sequence} if of_topic else {}
    document |= {"id": reached.identity, "at": at}
    if reached.done:
        document["done"] = True
    if reached.begin is not None:
        document["from"] = list(reached.begin) if of_topic else reached.begin[1]
    return document


def _reached(document: object, *, of_topic: bool) -> Reached:
    fields = _Fields(document)
    at = fields.number("sequence") if of_topic else 0, fields.number("at")
    begin: Position | None = None
    if "from" in fields.values:
        given = fields.values["from"] if of_topic else (0, fields.values["from"])
        if not isinstance(given, list | tuple) or len(given) != 2:
            raise _damaged(f"'from' is {given!r:.200}")
        begin = _Fields({"from": given[0]}).number("from"), _Fields({"from": given[1]}).number("from")
        if begin > at:
            raise _damaged(f"{begin} is after {at}")
    identity = fields.text("id", _ID) if of_topic else fields.number("id")
    return Reached(identity, at, fields.values.get("done") is True, begin)


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


class Limit(NamedTuple):
    """Of one batch; None: there is none. A row is what a batch reads as one, a line or an entry of a ledger among them."""

    size_bytes: int | None = None
    rows: int | None = None


class Shares:
    """Equal shares of a batch's limit for each name, the smallest backlog first.

    What has something new gives one row (of a topic: one block) at least. ``take`` after each one says what it took.
    """

    def __init__(self, backlog: Mapping[str, int], limit: Limit) -> None:
        self._backlog = backlog
        self._left = limit

    def __iter__(self) -> Iterator[tuple[str, Limit]]:
        busy = sum(size > 0 for size in self._backlog.values())
        for size, name in sorted((size, name) for name, size in self._backlog.items()):
            yield name, Limit(*(None if most is None else max(1, most // max(1, busy)) for most in self._left))
            busy -= size > 0

    def take(self, *taken: int) -> None:
        """So many bytes and rows less are left for the others."""
        left = zip(self._left, taken, strict=True)
        self._left = Limit(*(None if most is None else max(0, most - took) for most, took in left))


def lose(options: ReadOptions, error: ChunkstoreError) -> None:
    """Data that no one has read is gone: raise ``error`` unless that is allowed."""
    if options.fail_on_data_loss:
        error.add_note(
            "The stream had not seen it sealed and read to its end. Option failOnDataLoss=false continues, and counts the lost bytes."
        )
        raise error
    _LOG.warning("a stream continues without the lost bytes: %s", error.message)
