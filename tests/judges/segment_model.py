"""The object that a container promises to be: segments and table rows, changed by one call at a time.

Promises: ``perform`` says what a call does in a state: which operations its record has, what changes, what it answers; or with
which error and fields it is refused. It is folded from the arguments of calls, never from stored rows, and is written from the
public contract, not from the engine, so that the two can disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol

from tests.judges.events import Event

Call = tuple[str, str, tuple[Any, ...]]
"""Kind, segment, arguments, as ``events`` lists them."""
Key = Any
"""What a state maps: a segment's name, or (namespace, key) of a table row."""

OBSERVING: Final = frozenset(("read", "final", "info", "exists", "list", "table_get", "last"))
CHANGING: Final = frozenset(
    (
        "create",
        "delete",
        "append",
        "append_many",
        "write",
        "truncate",
        "seal",
        "unseal",
        "concat",
        "commit",
        "table_put",
        "table_delete",
        "ask",
    )
)
INFORMING: Final = frozenset(
    (
        "SegmentNotFound",
        "SegmentExists",
        "SegmentSealed",
        "SegmentNotSealed",
        "SegmentTruncated",
        "BadOffset",
        "Conflict",
    )
)
"""Errors that say something about the state; all others say only that nothing happened."""
CREATE, APPEND, SEAL, UNSEAL, DELETE, TRUNCATE, CONCAT, ATTACH, TABLE_PUT, TABLE_DELETE = 1, 2, 3, 4, 5, 6, 7, 9, 10, 11

RETENTION: Final = "!retention"
"""The namespace of policies."""


class Content:
    """Immutable bytes with a cheap append: the first ``length`` bytes of a track that contents share."""

    __slots__ = ("_track", "length")

    def __init__(self, track: bytearray | None = None, length: int = 0) -> None:
        self._track = bytearray() if track is None else track
        self.length = length

    def append(self, data: bytes) -> Content:
        """These bytes, and ``data`` behind them."""
        track = self._track if len(self._track) == self.length else self._track[: self.length]
        track += data
        return Content(track, len(track))

    def slice(self, start: int, stop: int) -> bytes:
        """The bytes from ``start`` to ``stop``, as far as they go."""
        return bytes(memoryview(self._track)[start : min(stop, self.length)])


class Segment(NamedTuple):
    """One segment. ``writers``: (writer, event number, offset) of the last event of each exactly-once writer."""

    id: int
    content: Content
    start: int = 0
    sealed: bool = False
    writers: tuple[tuple[Any, int, int], ...] = ()


class State(Protocol):
    """Everything at one moment."""

    def get(self, key: Key) -> Any:
        """The ``Segment`` of a name, the (value, version) of a row, or None."""

    def names(self) -> Iterable[str]:
        """The names of all segments."""


class Refused(NamedTuple):
    """An error by its class, and its fields."""

    error: str
    fields: tuple[Any, ...]


class Done(NamedTuple):
    """What a call does: its operations ((opcode, argument, ...); what an append or a put brings behind), its changes and its answer."""

    ops: tuple[tuple[Any, ...], ...]
    changes: dict[Key, Any]
    result: Any


class _Change:
    """One call under way: reads through its own changes; ``ids`` are those that its creations get."""

    def __init__(self, state: State, lsn: int, ids: Iterator[int]) -> None:
        self.state = state
        self.lsn = lsn
        self.ids = ids
        self.ops: list[tuple[Any, ...]] = []
        self.changes: dict[Key, Any] = {}

    def get(self, key: Key) -> Any:
        return self.changes[key] if key in self.changes else self.state.get(key)

    def segment(self, name: str) -> Segment:
        found: Segment | None = self.get(name)
        if found is None:
            raise _Refusal("SegmentNotFound", name)
        return found

    def put(self, key: Key, value: Any, *op: Any) -> None:
        self.changes[key] = value
        if op:
            self.ops.append(op)


class _Refusal(Exception):
    pass


def perform(call: Call, state: State, *, lsn: int = 0, ids: Iterable[int] = ()) -> Done | Refused:
    """What ``call`` does in ``state``. ``lsn``: of its record, if it gets one; ``ids``: of the segments that it creates."""
    kind, name, args = call
    change = _Change(state, lsn, iter(ids))
    try:
        if kind == "commit":
            answers = [(verb, _VERBS[verb](change, of, *more)) for verb, of, more in args[0]]
            result: Any = tuple(None if verb == "create" else answer for verb, answer in answers)
        elif kind == "ask":
            result = _ask(change, *args)
        else:
            result = _VERBS[kind](change, name, *args)
    except _Refusal as refusal:
        return Refused(refusal.args[0], refusal.args[1:])
    return Done(tuple(change.ops), change.changes, result)


def fits(event: Event, outcome: Done | Refused) -> bool:
    """Whether the event was answered so. (Fields that were not recorded are not compared.)"""
    if isinstance(outcome, Refused):
        return (event.outcome, event.result) == ("failed", outcome.error) and event.fields in ((), outcome.fields)
    if event.kind == "create" and event.result is None:
        return event.outcome == "ok"
    return event.outcome == "ok" and bool(outcome.result == event.result)


def calls_of(call: Call) -> Sequence[Call]:
    """The single calls of a call: several for a commit, and for one that is asked for."""
    if call[0] == "ask":
        changes, once = call[2]
        return changes if once is None else (("table_put", "", once), *changes)
    return call[2][0] if call[0] == "commit" else (call,)


def appended(call: Call) -> bytes | None:
    """The bytes that an append brings; None for other kinds."""
    kind, _, args = call
    if kind in ("append", "write", "attach"):
        return bytes(args[0])
    return b"".join(map(bytes, args[0])) if kind == "append_many" else None


def keys_of(call: Call) -> set[Key]:
    """The keys that an answer depends on (a listing depends on more)."""
    found: set[Key] = set()
    for kind, name, args in calls_of(call):
        if kind.startswith("table"):
            found.add((args[0], args[1]))
        else:
            found.update((name, args[1]) if kind == "concat" else (name,))
    return found


def _create(change: _Change, name: str, _size: Any = None) -> int:
    if change.get(name) is not None:
        raise _Refusal("SegmentExists", name)
    identity = next(change.ids, 0)
    change.put(name, Segment(identity, Content()), CREATE, identity, name)
    return identity


def _delete(change: _Change, name: str) -> None:
    change.put(name, None, DELETE, change.segment(name).id)


def _append(
    change: _Change, name: str, data: bytes, expected: int | None = None, writer: Any = None, number: int | None = None
) -> int:
    segment = change.segment(name)
    known = next((item for item in segment.writers if item[0] == writer), None)
    if writer is not None and known is not None and (number or 0) <= known[1]:
        return known[2]
    offset = segment.content.length
    if segment.sealed:
        raise _Refusal("SegmentSealed", name)
    if expected is not None and expected != offset:
        raise _Refusal("BadOffset", name, offset, expected)
    if not data:
        return offset
    writers = segment.writers
    if writer is not None:
        writers = (*(item for item in writers if item is not known), (writer, number or 0, offset))
    after = segment._replace(content=segment.content.append(bytes(data)), writers=writers)
    change.put(name, after, APPEND, segment.id, offset, len(data), bytes(data))
    return offset


def _attach(change: _Change, name: str, data: bytes, expected: int | None) -> int:
    """Chunks of a session, by their bytes."""
    segment = change.segment(name)
    offset = segment.content.length
    if segment.sealed:
        raise _Refusal("SegmentSealed", name)
    if expected is not None and expected != offset:
        raise _Refusal("BadOffset", name, offset, expected)
    after = segment._replace(content=segment.content.append(data))
    change.put(name, after, ATTACH, segment.id, offset, len(data), data)
    return offset


def _ask(change: _Change, changes: Sequence[Call], once: tuple[str, bytes, bytes, int] | None) -> int:
    """The version of the row ``once``: of what was done, or of what had been done before. Without one: 0, of a segment that is staged."""
    row = change.get(changes[0][1] if once is None else once[:2])
    if once is None:
        if row is not None:
            return 0
    elif row is not None and row[0] == once[2] and row[1] != once[3]:
        return int(row[1])
    else:
        _table_put(change, "", *once)
    for verb, of, more in changes:
        _VERBS[verb](change, of, *more)
    return change.lsn if once is not None else 0


def _append_many(change: _Change, name: str, buffers: Sequence[bytes], expected: int | None = None) -> int:
    return _append(change, name, b"".join(map(bytes, buffers)), expected)


def _write(change: _Change, name: str, data: bytes, identity: int) -> int:
    if change.segment(name).id != identity:
        raise _Refusal("SegmentNotFound", name)
    return _append(change, name, data)


def _truncate(
    change: _Change, name: str, offset: int, identity: int | None = None, policy: bytes | None = None
) -> None:
    """``policy``: the one that asks for it; another one, or another segment, does not."""
    if policy is not None:
        found: Segment | None = change.get(name)
        if found is None or found.id != identity or _policy_of(change, name) != policy:
            return
    segment = change.segment(name)
    if offset > segment.content.length:
        raise _Refusal("BadOffset", name, segment.content.length, offset)
    if offset > segment.start:
        change.put(name, segment._replace(start=offset), TRUNCATE, segment.id, offset)


def _policy_of(change: _Change, name: str) -> bytes | None:
    """The stored retention policy of a segment: its own, or that of the longest prefix."""
    encoded = name.encode()
    keys = [b"=" + encoded, *(b"*" + encoded[:length] for length in range(len(encoded), -1, -1))]
    return next((row[0] for key in keys if (row := change.get((RETENTION, key))) is not None), None)


def _seal(change: _Change, name: str) -> None:
    segment = change.segment(name)
    if not segment.sealed:
        change.put(name, segment._replace(sealed=True), SEAL, segment.id)


def _unseal(change: _Change, name: str) -> None:
    segment = change.segment(name)
    if not segment.sealed:
        raise _Refusal("SegmentNotSealed", name)
    change.put(name, segment._replace(sealed=False), UNSEAL, segment.id)


def _concat(change: _Change, name: str, offset: int | None, source_name: str) -> None:
    target = change.segment(name)
    if target.sealed:
        raise _Refusal("SegmentSealed", name)
    source = change.segment(source_name)
    if not source.sealed:
        raise _Refusal("SegmentNotSealed", source_name)
    if source.start:
        raise _Refusal("SegmentTruncated", source_name, source.start, 0)
    length = target.content.length
    if offset is not None and offset != length:
        raise _Refusal("BadOffset", name, length, offset)
    content = target.content.append(source.content.slice(0, source.content.length))
    change.put(source_name, None)
    change.put(name, target._replace(content=content), CONCAT, target.id, length, source.id)


def _read(change: _Change, name: str, offset: int, length: int, identity: int | None = None, _lsn: int = 0) -> bytes:
    segment = change.segment(name)
    if identity is not None and identity != segment.id:
        raise _Refusal("SegmentNotFound", name)
    if offset < segment.start:
        raise _Refusal("SegmentTruncated", name, segment.start, offset)
    if offset > segment.content.length:
        raise _Refusal("BadOffset", name, segment.content.length, offset)
    return segment.content.slice(offset, offset + length)


def _info(change: _Change, name: str) -> tuple[int, int, int, bool]:
    segment = change.segment(name)
    return segment.id, segment.start, segment.content.length, segment.sealed


def _exists(change: _Change, name: str) -> bool:
    return change.get(name) is not None


def _list(change: _Change, _name: str, prefix: str = "") -> tuple[tuple[Any, ...], ...]:
    names = sorted(name for name in change.state.names() if name.startswith(prefix) and name[:1] != "\0")
    return tuple((name, *_info(change, name)) for name in names)


def _expect(change: _Change, key: Key, expected: int | None) -> Any:
    row = change.get(key)
    found = 0 if row is None else row[1]
    if expected is not None and expected != found:
        raise _Refusal("Conflict", expected, found)
    return row


def _table_put(
    change: _Change, _name: str, namespace: str, key: bytes, value: bytes, expected: int | None = None
) -> None:
    _expect(change, (namespace, key), expected)
    change.put((namespace, key), (value, change.lsn), TABLE_PUT, namespace, key, value)


def _table_delete(change: _Change, _name: str, namespace: str, key: bytes, expected: int | None = None) -> None:
    if _expect(change, (namespace, key), expected) is not None:
        change.put((namespace, key), None, TABLE_DELETE, namespace, key)


def _last(change: _Change, name: str, writer: Any) -> int:
    return next((number for known, number, _ in change.segment(name).writers if known == writer), 0)


def _table_get(change: _Change, _name: str, namespace: str, key: bytes, *_: Any) -> Any:
    return change.get((namespace, key))


_VERBS: Final[dict[str, Callable[..., Any]]] = {
    "create": _create,
    "delete": _delete,
    "append": _append,
    "append_many": _append_many,
    "attach": _attach,
    "write": _write,
    "truncate": _truncate,
    "seal": _seal,
    "unseal": _unseal,
    "concat": _concat,
    "read": _read,
    "final": _read,
    "replica_read": _read,
    "info": _info,
    "exists": _exists,
    "list": _list,
    "table_put": _table_put,
    "table_delete": _table_delete,
    "table_get": _table_get,
    "replica_get": _table_get,
    "last": _last,
}
