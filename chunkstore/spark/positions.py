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
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from chunkstore.errors import ChunkstoreError, Damaged, Unsupported
from chunkstore.spark.options import ReadOptions

__all__ = ["Limit", "Reached", "StreamOffset", "TopicReached", "lose", "share_out"]

_VERSION: Final = 1
_MOST: Final = (1 << 63) - 1
_UUID = re.compile(r"[0-9a-f]{32}")
_ID = re.compile(r"([0-9a-f]{32})?")


class Reached(NamedTuple):
    """Of a segment: see the module."""

    identity: int
    at: int
    done: bool = False
    begin: int | None = None


class TopicReached(NamedTuple):
    """Of a topic: see the module. ``identity``: empty at the beginning of a topic that has nothing."""

    sequence: int
    identity: str
    at: int
    done: bool = False
    begin: tuple[int, int] | None = None


class StreamOffset(NamedTuple):
    """See the module."""

    segments: Mapping[str, Reached] = {}
    topics: Mapping[str, TopicReached] = {}
    container: str = ""
    epoch: int = 0
    lsn: int = 0
    lost_bytes: int = 0
    lost_segments: int = 0

    @property
    def positions(self) -> tuple[object, ...]:
        """What makes another batch."""
        segments = {name: reached._replace(begin=None) for name, reached in self.segments.items()}
        topics = {name: reached._replace(begin=None) for name, reached in self.topics.items()}
        return segments, topics, self.lost_bytes, self.lost_segments

    def beginning_at(self, start: StreamOffset) -> StreamOffset:
        """The end of a batch that says itself where it begins."""
        segments, topics = dict(self.segments), dict(self.topics)
        for name, before in start.segments.items():
            if name in segments and segments[name].begin is None:
                segments[name] = segments[name]._replace(begin=before.at)
        for name, came in start.topics.items():
            if name in topics and topics[name].begin is None:
                topics[name] = topics[name]._replace(begin=(came.sequence, came.at))
        return self._replace(segments=segments, topics=topics)

    def began(self, end: StreamOffset) -> StreamOffset:
        """Where the first batch began, as its end says; this is where the query would begin now."""
        segments, topics = dict(self.segments), dict(self.topics)
        for name, reached in end.segments.items():
            if reached.begin is not None:
                segments[name] = Reached(reached.identity, reached.begin)
        for topic, came in end.topics.items():
            before = topics.get(topic)
            if came.begin is not None and (before is None or (before.sequence, before.at) != came.begin):
                sequence, at = came.begin
                topics[topic] = TopicReached(sequence, came.identity if sequence == came.sequence else "", at)
        return self._replace(segments=segments, topics=topics)

    def to_json(self) -> dict[str, Any]:
        """Plain data; the same for the same positions, down to the order of keys."""
        document: dict[str, Any] = {
            "version": _VERSION,
            "container": self.container,
            "epoch": self.epoch,
            "lsn": self.lsn,
            "segments": {name: _plain(self.segments[name]) for name in sorted(self.segments)},
        }
        if self.topics:
            document["topics"] = {name: _plain_topic(self.topics[name]) for name in sorted(self.topics)}
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
        return cls(
            {name: _reached(value) for name, value in segments.values.items()},
            {name: _topic(value) for name, value in topics.values.items()},
            whole.text("container", _UUID),
            whole.number("epoch"),
            whole.number("lsn"),
            lost.number("bytes"),
            lost.number("segments"),
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
        raise _damaged(f"{begin} is after {reached.at}")
    return reached


def _plain_topic(reached: TopicReached) -> dict[str, Any]:
    document: dict[str, Any] = {"sequence": reached.sequence, "id": reached.identity, "at": reached.at}
    if reached.done:
        document["done"] = True
    if reached.begin is not None:
        document["from"] = list(reached.begin)
    return document


def _topic(document: object) -> TopicReached:
    fields = _Fields(document)
    begin: tuple[int, int] | None = None
    if "from" in fields.values:
        given = fields.values["from"]
        if not isinstance(given, (list, tuple)) or len(given) != 2:
            raise _damaged(f"'from' is {given!r:.200}")
        begin = _Fields({"sequence": given[0]}).number("sequence"), _Fields({"at": given[1]}).number("at")
    return TopicReached(
        fields.number("sequence"),
        fields.text("id", _ID),
        fields.number("at"),
        fields.values.get("done") is True,
        begin,
    )


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


_LOG = logging.getLogger("chunkstore.spark")


class Limit(NamedTuple):
    """Of one batch; None: none. What has something new gives one row (of a topic: one block) at least."""

    size_bytes: int | None = None


def share_out(backlog: Mapping[str, int], limit: Limit, go_on: Callable[[str, Limit], int]) -> None:
    """Call ``go_on`` for each name, the smallest backlog first, with its equal share of what is left; it answers with how many bytes it
    took."""
    busy = sum(size > 0 for size in backlog.values())
    left = limit.size_bytes
    for size, name in sorted((size, name) for name, size in backlog.items()):
        if size <= 0:
            go_on(name, Limit(left))
            continue
        took = go_on(name, Limit(None if left is None else max(1, left // busy)))
        left = None if left is None else max(0, left - took)
        busy -= 1


def lose(options: ReadOptions, error: ChunkstoreError) -> None:
    """Data that no one has read is gone: raise ``error`` unless that is allowed."""
    if options.fail_on_data_loss:
        error.add_note(
            "The stream had not seen it sealed and read to its end. Option failOnDataLoss=false continues, and counts the lost bytes."
        )
        raise error
    _LOG.warning("a stream continues without the lost bytes: %s", error.message)
