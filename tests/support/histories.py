"""Histories that a correct store could have had: clients, each with one call at a time, on an object that is a few lines of Python.

The object is written here once more, with plain bytes, so that the checker is not judged by its own model. Each call takes place
at one moment between being made and being answered; one whose outcome is unknown at any later moment, or never.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from tests.judges.events import Event

NAMES = ("a", "b", "c")


class Stored(NamedTuple):
    """A record as the storage would have held it."""

    epoch: int
    written: int
    ops: list[tuple[Any, ...]]
    data: list[bytes | None]


class Refused(Exception):
    """What the object answers instead; the text is the class of the error."""


@dataclass
class Plain:
    """One segment."""

    id: int
    data: bytes = b""
    start: int = 0
    sealed: bool = False
    events: dict[str, tuple[int, int]] = field(default_factory=dict)


class PlainStore:
    """The object: every method takes place at once, or raises ``Refused``."""

    def __init__(self) -> None:
        self.segments: dict[str, Plain] = {}
        self.rows: dict[tuple[str, bytes], tuple[bytes, int]] = {}
        self.records: list[Stored] = []
        self.ops: list[tuple[Any, ...]] = []
        self.data: list[bytes | None] = []
        self.lsn = 0
        self.made = 0

    def of(self, name: str) -> Plain:
        if name not in self.segments:
            raise Refused("SegmentNotFound")
        return self.segments[name]

    def call(self, kind: str, name: str, args: tuple[Any, ...], now: int, *, join: bool = False) -> Any:
        """``join``: what changes goes into the last record, if there is one of the same moment."""
        self.lsn = len(self.records) + (not join)
        self.ops, self.data = [], []
        method: Callable[..., Any] = getattr(self, f"do_{kind}")
        result = method(name, *args)
        if self.ops and join:
            self.records[-1].ops.extend(self.ops)
            self.records[-1].data.extend(self.data)
        elif self.ops:
            self.records.append(Stored(1, now, self.ops, self.data))
        return result

    def op(self, *op: Any, data: bytes | None = None) -> None:
        """The call changes something."""
        self.ops.append(op)
        self.data.append(data)

    def do_create(self, name: str, _size: int) -> int:
        if name in self.segments:
            raise Refused("SegmentExists")
        self.made += 1
        self.segments[name] = Plain(self.made)
        self.op(1, self.made, name)
        return self.made

    def do_delete(self, name: str) -> None:
        self.op(5, self.of(name).id)
        del self.segments[name]

    def do_append(self, name: str, data: bytes, expected: int | None, writer: str | None, number: int | None) -> int:
        segment = self.of(name)
        if writer is not None and number is not None:
            known = segment.events.get(writer)
            if known is not None and number <= known[0]:
                return known[1]
        if segment.sealed:
            raise Refused("SegmentSealed")
        offset = len(segment.data)
        if expected is not None and expected != offset:
            raise Refused("BadOffset")
        if data:
            self.op(2, segment.id, offset, len(data), (), data=data)
        segment.data += data
        if writer is not None and number is not None and data:
            segment.events[writer] = (number, offset)
        return offset

    def do_append_many(self, name: str, buffers: tuple[bytes, ...], expected: int | None) -> int:
        return self.do_append(name, b"".join(buffers), expected, None, None)

    def do_read(self, name: str, offset: int, length: int, *_: Any) -> bytes:
        segment = self.of(name)
        if offset < segment.start:
            raise Refused("SegmentTruncated")
        if offset > len(segment.data):
            raise Refused("BadOffset")
        return segment.data[offset : offset + length]

    do_final = do_read

    def do_info(self, name: str) -> tuple[int, int, int, bool]:
        segment = self.of(name)
        return segment.id, segment.start, len(segment.data), segment.sealed

    def do_exists(self, name: str) -> bool:
        return name in self.segments

    def do_list(self, _name: str, prefix: str) -> tuple[tuple[Any, ...], ...]:
        return tuple((name, *self.do_info(name)) for name in sorted(self.segments) if name.startswith(prefix))

    def do_truncate(self, name: str, offset: int) -> None:
        segment = self.of(name)
        if offset > len(segment.data):
            raise Refused("BadOffset")
        if offset > segment.start:
            self.op(6, segment.id, offset)
        segment.start = max(segment.start, offset)

    def do_seal(self, name: str) -> None:
        segment = self.of(name)
        if not segment.sealed:
            self.op(3, segment.id)
        segment.sealed = True

    def do_unseal(self, name: str) -> None:
        segment = self.of(name)
        if not segment.sealed:
            raise Refused("SegmentNotSealed")
        self.op(4, segment.id)
        segment.sealed = False

    def do_concat(self, name: str, offset: int, source_name: str) -> None:
        target = self.of(name)
        if target.sealed:
            raise Refused("SegmentSealed")
        source = self.of(source_name)
        if not source.sealed:
            raise Refused("SegmentNotSealed")
        if source.start:
            raise Refused("SegmentTruncated")
        if offset != len(target.data):
            raise Refused("BadOffset")
        self.op(7, target.id, offset, source.id)
        target.data += source.data
        del self.segments[source_name]

    def do_commit(self, _name: str, changes: tuple[tuple[str, str, tuple[Any, ...]], ...]) -> tuple[Any, ...]:
        before = {name: Plain(**{**vars(plain), "events": dict(plain.events)}) for name, plain in self.segments.items()}
        rows = dict(self.rows)
        try:
            told = [(kind, getattr(self, f"do_{kind}")(name, *args)) for kind, name, args in changes]
            return tuple(None if kind == "create" else result for kind, result in told)
        except Refused:
            self.segments, self.rows = before, rows
            raise

    def do_table_put(self, _name: str, namespace: str, key: bytes, value: bytes, expected: int | None) -> None:
        known = self.rows.get((namespace, key))
        if expected is not None and expected != (0 if known is None else known[1]):
            raise Refused("Conflict")
        self.rows[namespace, key] = (value, self.lsn)
        self.op(10, namespace, key, data=value)

    def do_table_delete(self, _name: str, namespace: str, key: bytes, expected: int | None) -> None:
        known = self.rows.get((namespace, key))
        if expected is not None and expected != (0 if known is None else known[1]):
            raise Refused("Conflict")
        if self.rows.pop((namespace, key), None) is not None:
            self.op(11, namespace, key)

    def do_table_get(self, _name: str, namespace: str, key: bytes) -> tuple[bytes, int] | None:
        return self.rows.get((namespace, key))


def sealed_names(store: PlainStore) -> list[str]:
    return [name for name, segment in store.segments.items() if segment.sealed]


@dataclass
class _Call:
    process: str
    kind: str
    name: str
    args: tuple[Any, ...]
    invoked: int
    lost: bool
    """Whether its outcome gets lost."""
    waits: bool
    """Whether it has still to take place."""
    outcome: Any = "unknown"
    result: Any = None


class Scene:
    """Makes one history of ``calls`` calls by ``clients`` clients."""

    def __init__(
        self,
        chance: random.Random,
        *,
        clients: int = 3,
        calls: int = 10,
        unknown: float = 0.2,
        names: tuple[str, ...] = NAMES,
        unique: bool = True,
        wide: bool = True,
        final: bool = True,
    ) -> None:
        self.chance = chance
        self.store = PlainStore()
        self.names = names
        self.unknown = unknown
        self.unique = unique
        self.wide = wide
        self.number = 0
        self.events: list[Event] = []
        self.now = 0
        self._run(clients, calls)
        if final:
            self._finish()

    def _tag(self) -> bytes:
        self.number += 1
        if self.unique:
            return b"<%d%s>" % (self.number, b"." * self.chance.randrange(4))
        return self.chance.choice((b"x", b"y", b"xy", b"xx"))

    def _length(self, name: str) -> int:
        """A length that the segment has or had, most of the time."""
        segment = self.store.segments.get(name)
        length = 0 if segment is None else len(segment.data)
        return length if self.chance.random() < 0.7 else self.chance.randrange(length + 3)

    def _arguments(self, kind: str, name: str) -> tuple[Any, ...]:
        chance = self.chance
        if kind == "create":
            return (64,)
        if kind == "append":
            expected = self._length(name) if chance.random() < 0.3 else None
            if chance.random() < 0.3:
                self.number += 1
                number = max(1, self.number - chance.randrange(3))
                return (b"{%d}" % number if self.unique else b"x", None, "w", number)
            return (self._tag(), expected, None, None)
        if kind == "append_many":
            return ((self._tag(), self._tag()), None)
        if kind == "read":
            return (self._length(name) // 2, chance.randrange(30))
        if kind == "truncate":
            return (self._length(name) // 2,)
        if kind == "concat":
            return (self._length(name), chance.choice([other for other in self.names if other != name]))
        if kind == "list":
            return ("",)
        if kind == "table_put":
            return ("t", b"k", self._tag(), chance.choice((None, None, 0)))
        if kind == "table_delete":
            return ("t", b"k", None)
        if kind == "table_get":
            return ("t", b"k")
        return ()

    def _draw(self) -> tuple[str, str, tuple[Any, ...]]:
        chance = self.chance
        name = chance.choice(self.names)
        if name not in self.store.segments and chance.random() < 0.6:
            return "create", name, (64,)
        kinds = ["append"] * 6 + ["read"] * 3 + ["info", "info", "truncate", "seal", "seal", "unseal", "append_many"]
        kinds += ["delete", "exists", "create"]
        if self.wide and len(self.names) > 1:
            kinds += ["concat", "concat", "list", "commit", "table_put", "table_get", "table_delete"]
        kind = chance.choice(kinds)
        sealed = [other for other in sealed_names(self.store) if other != name]
        if self.wide and sealed and chance.random() < 0.3:
            return "concat", name, (self._length(name), chance.choice(sealed))
        if name in sealed_names(self.store) and chance.random() < 0.2:
            return "unseal", name, ()
        if kind == "commit":
            parts = []
            for _ in range(chance.randrange(1, 4)):
                other, of = chance.choice(("append", "append", "seal", "create", "truncate")), chance.choice(self.names)
                arguments = (self._tag(), None, None, None) if other == "append" else self._arguments(other, of)
                parts.append((other, of, arguments))
            return kind, "", (tuple(parts),)
        if kind == "list" or kind.startswith("table"):
            return kind, "", self._arguments(kind, name)
        return kind, name, self._arguments(kind, name)

    def _run(self, clients: int, calls: int) -> None:
        chance = self.chance
        idle = [f"p{number}" for number in range(clients)]
        calls_open: list[_Call] = []
        left = calls
        while left or any(not call.lost for call in calls_open):
            self.now += chance.randrange(3)
            if left and idle and chance.random() < 0.5:
                left -= 1
                process = idle.pop(chance.randrange(len(idle)))
                lost = chance.random() < self.unknown
                call = _Call(process, *self._draw(), self.now, lost, not lost or chance.random() < 0.6)
                if lost:
                    # The client goes on under another name, having been told that nobody knows, or having died.
                    self._record(call, self.now + 1 if chance.random() < 0.5 else None)
                    idle.append(f"{process}'")
                calls_open.append(call)
            elif calls_open:
                call = chance.choice(calls_open)
                if call.waits:
                    before = len(self.records)
                    self._take_place(call)
                    others = [other for other in calls_open if other.waits]
                    if others and len(self.records) > before and chance.random() < 0.3:
                        self._take_place(chance.choice(others), join=True)
                elif not call.lost:
                    self._record(call, self.now)
                    idle.append(call.process)
                if not call.waits and (call.lost or call.process in idle):
                    calls_open.remove(call)

    @property
    def records(self) -> list[Stored]:
        """What the storage holds."""
        return self.store.records

    def _take_place(self, call: _Call, *, join: bool = False) -> None:
        call.waits = False
        try:
            result, outcome = self.store.call(call.kind, call.name, call.args, self.now, join=join), "ok"
        except Refused as refused:
            result, outcome = str(refused), "failed"
        if not call.lost:
            call.result, call.outcome = result, outcome

    def _record(self, call: _Call, returned: int | None) -> None:
        self.events.append(
            Event(call.process, call.kind, call.name, call.args, call.invoked, returned, call.outcome, call.result, 1)
        )

    def _finish(self) -> None:
        for name in sorted(self.store.segments):
            segment = self.store.segments[name]
            self.now += 2
            length = len(segment.data) - segment.start
            args = (segment.start, length + 1, segment.id)
            data = segment.data[segment.start :]
            self.events.append(Event("end", "final", name, args, self.now, self.now + 1, "ok", data, 2))
            self.now += 2


def spoil(
    chance: random.Random, records: Sequence[Stored], events: Sequence[Event]
) -> tuple[list[Stored], list[Event]]:
    """The history with one or two small lies in it; most of them make it impossible, some do not."""
    stored, spoilt = list(records), list(events)
    for _ in range(chance.randrange(1, 3)):
        if stored and chance.random() < 0.3:
            _spoil_a_record(chance, stored, chance.randrange(len(stored)))
        elif spoilt:
            _spoil_one(chance, spoilt, chance.randrange(len(spoilt)))
    return stored, spoilt


def _spoil_a_record(chance: random.Random, stored: list[Stored], at: int) -> None:
    record, what = stored[at], chance.randrange(6)
    if what == 0:
        del stored[at]
    elif what == 1:
        stored.insert(at, record)
    elif what == 2 and at:
        stored[at - 1 : at + 1] = [record._replace(written=stored[at - 1].written), stored[at - 1]]
    elif what == 3:
        stored[at] = record._replace(ops=record.ops[:-1], data=record.data[:-1])
    elif what == 4:
        stored[at] = record._replace(written=max(0, record.written + chance.randrange(-4, 5)))
    else:
        data = [part and part[:-1] for part in record.data]
        cut = [(*op[:3], len(part), *op[4:]) if part else op for op, part in zip(record.ops, data, strict=True)]
        stored[at] = record._replace(ops=cut, data=data)


def _spoil_one(chance: random.Random, events: list[Event], at: int) -> None:
    event = events[at]
    what = chance.randrange(7)
    if what == 0:
        del events[at]
    elif event.outcome == "unknown":
        if what == 1:
            events[at] = replace(event, outcome="failed", result="StorageUnavailable", returned=event.invoked + 1)
    elif event.outcome == "ok" and event.returned is not None:
        if what == 2:
            moved = chance.randrange(-8, 9)
            events[at] = replace(event, invoked=event.invoked + moved, returned=event.returned + moved)
        elif what == 3:
            error = chance.choice(("SegmentSealed", "BadOffset", "SegmentNotFound", "SegmentTruncated", "Closed"))
            events[at] = replace(event, outcome="failed", result=error)
        elif what == 4:
            moment = chance.randrange(event.invoked, event.returned + 1)
            events[at] = replace(event, invoked=moment, returned=chance.randrange(moment, event.returned + 1))
        else:
            events[at] = replace(event, result=_another(chance, event))


def _another(chance: random.Random, event: Event) -> Any:
    result = event.result
    if isinstance(result, bool):
        return not result
    if isinstance(result, bytes):
        return chance.choice((result[:-1], result + b"x", result[1:] + b"y"))
    if isinstance(result, int) and event.kind != "create":
        return max(0, result + chance.choice((-1, 1, 2, 3)))
    if event.kind == "info":
        told = list(result)
        place = chance.randrange(1, 4)
        told[place] = not told[place] if place == 3 else max(0, told[place] + chance.choice((-1, 1)))
        return tuple(told)
    return result
