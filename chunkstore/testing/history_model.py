"""The sequential object that a history must look like: segments and table rows, one call at a time (protocol 6.4).

Promises: ``step`` says which state a call leads to if it is answered as it was, or None if no state of the object allows that
answer; states are immutable, hashable and cheap to derive (contents share their bytes). It is written from the public
contract, not from the engine, so that the two can disagree.
Leaves out: order, time and unknown outcomes (the searches over it), attributes and sessions (no events speak of them).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from chunkstore.testing.events import Event

__all__ = [
    "EMPTY_STATE",
    "OBSERVERS",
    "Content",
    "Facts",
    "SegmentState",
    "State",
    "appended_data",
    "calls_of",
    "names_of",
    "outlived",
    "refused_rightly",
    "step",
    "table_name",
]

OBSERVERS = frozenset(("read", "final", "info", "exists", "list", "table_get"))
"""Kinds that change nothing and say something about the present."""


class _Track:
    """Bytes that grow; contents that are prefixes of one another share a track."""

    __slots__ = ("data", "forks")

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        self.forks: dict[tuple[int, bytes], _Track] = {}


class Content:
    """An immutable byte string with cheap append: the first ``length`` bytes of a track."""

    __slots__ = ("_track", "length")

    def __init__(self, track: _Track, length: int) -> None:
        self._track = track
        self.length = length

    def append(self, data: bytes) -> Content:
        track, end = self._track, self.length + len(data)
        if len(track.data) == self.length:
            track.data += data
        elif bytes(track.data[self.length : end]) != data:
            fork = track.forks.get((self.length, data))
            if fork is None:
                fork = track.forks[self.length, data] = _Track(bytes(track.data[: self.length]) + data)
            track = fork
        return Content(track, end)

    def slice(self, start: int, stop: int) -> bytes:
        return bytes(self._track.data[start : min(stop, self.length)])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Content) and other._track is self._track and other.length == self.length

    def __hash__(self) -> int:
        return hash((id(self._track), self.length))


class SegmentState(NamedTuple):
    """One segment. ``birth``: the index of the call that created it. ``torn``: the epoch of a last append that is there in part."""

    birth: int
    id: int | None
    content: Content
    start: int
    sealed: bool
    writers: tuple[tuple[bytes | str, int, int], ...] = ()
    """(writer, event number, offset), in order of the writers' first appends."""
    torn: int = 0

    def event_of(self, writer: bytes | str) -> tuple[int, int] | None:
        return next(((number, offset) for name, number, offset in self.writers if name == writer), None)


class State:
    """Everything at one moment. Never changed; ``with_segment`` and ``with_row`` make new ones."""

    __slots__ = ("_hash", "rows", "segments")

    def __init__(self, segments: Mapping[str, SegmentState], rows: Mapping[str, Any]) -> None:
        self.segments = segments
        self.rows = rows
        self._hash: int | None = None

    def with_segment(self, name: str, segment: SegmentState | None) -> State:
        segments = dict(self.segments)
        if segment is None:
            del segments[name]
        else:
            segments[name] = segment
        return State(segments, self.rows)

    def with_row(self, name: str, value: Any) -> State:
        rows = dict(self.rows)
        if value is None:
            rows.pop(name, None)
        else:
            rows[name] = value
        return State(self.segments, rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, State) and other.segments == self.segments and other.rows == self.rows

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash((frozenset(self.segments.items()), frozenset(self.rows.items())))
        return self._hash


class Facts(NamedTuple):
    """What is true whatever the order: ids that calls were told, and which value a version of a table row has.

    ``empty`` is the content that everything grows from, so that equal contents of one check share their bytes.
    """

    ids: frozenset[int]
    versions: Mapping[tuple[str, int], Any]
    empty: Content

    @classmethod
    def of(cls, events: Sequence[Event]) -> Facts:
        ids = set()
        versions: dict[tuple[str, int], Any] = {}
        for event in events:
            if event.outcome != "ok":
                continue
            if event.kind == "table_get" and event.result is not None:
                value, version = event.result
                versions.setdefault((table_name(event.args), version), value)
            for (kind, _, _), result in calls_of(event):
                if kind == "create" and isinstance(result, int):
                    ids.add(result)
        return cls(frozenset(ids), versions, Content(_Track(), 0))


def table_name(args: Sequence[Any]) -> str:
    """The name under which a row is known here: it cannot be a segment's."""
    return f"\0{args[0]}\0{args[1].hex() if isinstance(args[1], bytes) else args[1]}"


def calls_of(event: Event) -> list[tuple[tuple[str, str, tuple[Any, ...]], Any]]:
    """The single calls of an event with their results (None where none is known): several for a commit."""
    if event.kind != "commit":
        return [((event.kind, event.segment, event.args), event.result)]
    changes = event.args[0]
    results = event.result if event.outcome == "ok" and event.result is not None else (None,) * len(changes)
    return [
        ((kind, segment, tuple(args)), result) for (kind, segment, args), result in zip(changes, results, strict=True)
    ]


def outlived(event: Event, other: Event) -> bool:
    """Whether ``other``, which took place, belongs to a later owner: then the call took place before it, or never will.

    An owner may raise its own epoch, and another one's epochs are all above or all below its own.
    """
    return bool(event.owner) and bool(other.owner) and event.owner != other.owner and 0 < event.epoch < other.epoch


def names_of(event: Event, every: Sequence[str]) -> frozenset[str]:
    """The segments and rows that the event touches; ``every`` are all names there are, for listings."""
    found: set[str] = set()
    for (kind, segment, args), _ in calls_of(event):
        if kind == "list":
            found.update(name for name in every if name.startswith(args[0] if args else ""))
        elif kind in ("table_put", "table_delete", "table_get"):
            found.add(table_name(args))
        else:
            found.add(segment)
            if kind == "concat":
                found.add(args[1])
    return frozenset(found)


def appended_data(kind: str, args: tuple[Any, ...]) -> bytes | None:
    """The bytes that an append brings, or None for other kinds."""
    if kind == "append":
        return bytes(args[0])
    if kind == "append_many":
        return b"".join(bytes(piece) for piece in args[0])
    return None


def step(
    state: State, index: int, event: Event, facts: Facts, keep_bytes: int | None = None, *, known: bool = True
) -> State | None:
    """The state after ``event`` (number ``index`` of the history) took place, or None if it cannot with this answer.

    ``known``: whether the answer counts (an ``ok``); otherwise any answer would do. ``keep_bytes``: of an append, only so
    many bytes arrived (lazy lengths).
    """
    after: State | None = state
    for (kind, segment, args), result in calls_of(event):
        assert after is not None
        after = _STEPS[kind](_Call(after, index, segment, args, result, known, event.epoch, facts, keep_bytes))
        if after is None:
            return None
    return after


class _Call(NamedTuple):
    state: State
    index: int  # type: ignore[assignment]
    name: str
    args: tuple[Any, ...]
    result: Any
    known: bool
    epoch: int
    facts: Facts
    keep_bytes: int | None

    @property
    def segment(self) -> SegmentState | None:
        return self.state.segments.get(self.name)

    def argument(self, number: int) -> Any:
        return self.args[number] if len(self.args) > number else None

    def put(self, segment: SegmentState | None) -> State:
        return self.state.with_segment(self.name, segment)

    def is_id(self, identity: Any, segment: SegmentState) -> bool:
        """Whether the segment may have this id: one of an unknown creation may have any that nobody else was given."""
        return identity == segment.id if segment.id is not None else identity not in self.facts.ids

    def describes(self, told: Sequence[Any], segment: SegmentState) -> bool:
        identity, start, length, sealed = told
        right = (start, length, bool(sealed)) == (segment.start, segment.content.length, segment.sealed)
        return right and self.is_id(identity, segment)


def _create(call: _Call) -> State | None:
    if call.segment is not None:
        return None
    return call.put(SegmentState(call.index, call.result if call.known else None, call.facts.empty, 0, False))


def _delete(call: _Call) -> State | None:
    return None if call.segment is None else call.put(None)


def _append(call: _Call) -> State | None:
    return _append_bytes(call, bytes(call.args[0]), call.argument(1), call.argument(2), call.argument(3))


def _append_many(call: _Call) -> State | None:
    return _append_bytes(call, b"".join(bytes(piece) for piece in call.args[0]), call.argument(1), None, None)


def _append_bytes(call: _Call, data: bytes, expected: int | None, writer: Any, number: int | None) -> State | None:
    segment = call.segment
    if segment is None:
        return None
    if writer is not None:
        before = segment.event_of(writer)
        if before is not None and number is not None and number <= before[0]:
            # The retry of an event: nothing is written, the recorded offset is answered.
            return call.state if not call.known or call.result == before[1] else None
    offset = segment.content.length
    wrong = segment.sealed or (expected is not None and expected != offset) or (call.known and call.result != offset)
    if wrong or (segment.torn and call.epoch and call.epoch <= segment.torn):
        return None
    if not data:
        return call.state
    whole = call.keep_bytes is None or call.keep_bytes >= len(data)
    written = data if whole else data[: call.keep_bytes]
    writers = segment.writers
    if writer is not None and whole:
        writers = (*(item for item in writers if item[0] != writer), (writer, number or 0, offset))
    torn = segment.torn if whole else max(1, call.epoch)
    return call.put(segment._replace(content=segment.content.append(written), writers=writers, torn=torn))


def _truncate(call: _Call) -> State | None:
    segment, offset = call.segment, call.args[0]
    if segment is None or offset > segment.content.length:
        return None
    return call.state if offset <= segment.start else call.put(segment._replace(start=offset))


def _seal(call: _Call) -> State | None:
    segment = call.segment
    if segment is None:
        return None
    return call.state if segment.sealed else call.put(segment._replace(sealed=True))


def _unseal(call: _Call) -> State | None:
    segment = call.segment
    return None if segment is None or not segment.sealed else call.put(segment._replace(sealed=False))


def _concat(call: _Call) -> State | None:
    offset, source_name = call.args
    target, source = call.segment, call.state.segments.get(source_name)
    if target is None or source is None or target is source or target.sealed or not source.sealed or source.start:
        return None
    if offset is not None and offset != target.content.length:
        return None
    content = target.content
    if source.content.length:
        content = content.append(source.content.slice(0, source.content.length))
    return call.put(target._replace(content=content)).with_segment(source_name, None)


def _read(call: _Call) -> State | None:
    segment, offset, length = call.segment, call.args[0], call.args[1]
    if segment is None or not segment.start <= offset <= segment.content.length:
        return None
    identity = call.argument(2)
    if identity is not None and not call.is_id(identity, segment):
        return None
    return call.state if call.result == segment.content.slice(offset, offset + length) else None


def _info(call: _Call) -> State | None:
    segment = call.segment
    return call.state if segment is not None and call.describes(call.result, segment) else None


def _exists(call: _Call) -> State | None:
    return call.state if call.result == (call.segment is not None) else None


def _list(call: _Call) -> State | None:
    prefix = call.argument(0) or ""
    told = {name: rest for name, *rest in call.result}
    here = {name: segment for name, segment in call.state.segments.items() if name.startswith(prefix)}
    if told.keys() != here.keys():
        return None
    return call.state if all(call.describes(told[name], segment) for name, segment in here.items()) else None


def _version_fits(call: _Call, name: str, expected: int | None) -> bool:
    if expected is None:
        return True
    value = call.state.rows.get(name)
    if expected == 0:
        return value is None
    return value is not None and call.facts.versions.get((name, expected), value) == value


def _table_put(call: _Call) -> State | None:
    name = table_name(call.args)
    if not _version_fits(call, name, call.argument(3)):
        return None
    return call.state.with_row(name, call.args[2])


def _table_delete(call: _Call) -> State | None:
    name = table_name(call.args)
    if not _version_fits(call, name, call.argument(2)):
        return None
    return call.state if name not in call.state.rows else call.state.with_row(name, None)


def _table_get(call: _Call) -> State | None:
    value = call.state.rows.get(table_name(call.args))
    told = None if call.result is None else call.result[0]
    return call.state if value == told else None


_STEPS = {
    "create": _create,
    "delete": _delete,
    "append": _append,
    "append_many": _append_many,
    "truncate": _truncate,
    "seal": _seal,
    "unseal": _unseal,
    "concat": _concat,
    "read": _read,
    "final": _read,
    "info": _info,
    "exists": _exists,
    "list": _list,
    "table_put": _table_put,
    "table_delete": _table_delete,
    "table_get": _table_get,
}
EMPTY_STATE = State({}, {})


def refused_rightly(state: State, event: Event) -> bool:
    """Whether ``event``, which failed, could have been refused in this state. Errors that say nothing about it always could."""
    if event.kind == "commit":
        return True
    segment, args, error = state.segments.get(event.segment), event.args, event.result
    source = state.segments.get(args[1]) if event.kind == "concat" else None
    if error == "SegmentNotFound":
        return segment is None or (event.kind == "concat" and source is None)
    if error == "SegmentExists":
        return segment is not None
    if error == "SegmentSealed":
        return segment is not None and segment.sealed
    if error == "SegmentNotSealed":
        return (source is not None and not source.sealed) or (segment is not None and not segment.sealed)
    if error == "SegmentTruncated":
        if event.kind == "concat":
            return source is not None and source.start > 0
        return segment is not None and event.kind in ("read", "final") and bool(args[0] < segment.start)
    if error == "BadOffset" and segment is not None:
        length = segment.content.length
        if event.kind in ("append", "append_many"):
            return len(args) > 1 and bool(args[1] != length)
        if event.kind == "concat":
            return bool(args[0] != length)
        return event.kind in ("read", "final", "truncate") and bool(args[0] > length)
    return bool(error != "BadOffset")
