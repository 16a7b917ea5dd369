"""Imports into a container that works, judged by what their source held: the records of each, and which call has ended it.

Promises: of an import nothing is shown before one record gives all of its segments their names; then they are what the source held at the
exported record, byte by byte, with its seals, start offsets and writers' last events, under new ids; with them come the rows that the
plan takes. Every record of an import is of somebody who has asked for that very state by that very plan, and whoever was told that
it is done has its last record. Sources are histories of calls (``Past``) or what was shown of another container, never stored rows.
Leaves out: whether the bytes of chunks are there (``stored_history``), counts of roots (``check``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from math import inf
from typing import Any, Final, NamedTuple

from tests.judges.events import Event
from tests.judges.past_states import Past
from tests.judges.segment_model import (
    APPEND,
    CREATE,
    DELETE,
    RETENTION,
    TABLE_DELETE,
    TABLE_PUT,
    Content,
    Key,
    Segment,
    State,
)

__all__ = ["AS_IT_IS", "ImportAsk", "Imports", "Plan", "Shown", "Wrong", "content_of", "merge_id"]

_MARKS: Final = "!import"
_OF_PRODUCT: Final = (_MARKS, "!roots", "!headers")
_HIDDEN: Final = "\0import/"


class Plan(NamedTuple):
    """Which segments, and what they are called then: as ``merge_file`` has it. ``names``: none are all."""

    names: tuple[str, ...] = ()
    renames: tuple[tuple[str, str], ...] = ()
    prefix: str = ""

    def takes(self, name: str) -> bool:
        """Whether a segment is chosen. Of what was staged nothing is."""
        fits = (name.startswith(item[:-1]) if item.endswith("*") else name == item for item in self.names)
        return name[:1] != "\0" and (not self.names or any(fits))

    def target(self, name: str) -> str:
        """What it is called then."""
        return dict(self.renames).get(name, self.prefix + name)

    def digest(self) -> bytes:
        """What tells plans apart, as the product's FORMAT.md has it."""
        if self == AS_IT_IS:
            return b""
        parts = (*self.names, "", *(text for pair in sorted(self.renames) for text in pair), "", self.prefix)
        return blake2b(b"".join(part.encode() + b"\0" for part in parts), digest_size=16).digest()


AS_IT_IS: Final = Plan()
"""Everything, under its own names."""


def merge_id(container: bytes, lsn: int, hash: bytes, plan: Plan) -> bytes:
    """The id of an import: of its state and its plan."""
    digest = plan.digest()
    identity = blake2b(hash + digest, digest_size=16).digest() if digest else hash
    return blake2b(container + lsn.to_bytes(8, "big") + identity, digest_size=16).digest()


class ImportAsk(NamedTuple):
    """What an import is asked for: the args of an event of kind ``import`` are one of these.

    ``source``: what was shown of another container at its record ``lsn``, or None: the judged history at that record. (Of what is shown,
    segments are by name; contents that were cut off are zeros.) ``adopts``: chunks stay where they are.
    """

    identity: bytes
    lsn: int
    hash: bytes
    plan: Plan
    source: Shown | None = None
    adopts: bool = False

    def __repr__(self) -> str:
        return f"import {self.identity.hex()[:8]} of lsn {self.lsn} by {self.plan}{' adopting' * self.adopts}"


class Shown(NamedTuple):
    """What another container showed, as a ``State``."""

    segments: Mapping[str, Segment]
    rows: Mapping[tuple[str, bytes], bytes]

    def get(self, key: Key) -> Any:
        """As ``State``."""
        if isinstance(key, str):
            return self.segments.get(key)
        return (self.rows[key], 0) if key in self.rows else None

    def names(self) -> Iterator[str]:
        """As ``State``."""
        return iter(self.segments)


class Wrong(Exception):
    """An anomaly: its name, and what is wrong."""


@dataclass(slots=True)
class _Hidden:
    """A segment without a name yet: its bytes from ``begin`` on."""

    identity: bytes
    begin: int
    data: bytes = b""


@dataclass(slots=True)
class _Ended:
    """The last record of an import."""

    lsn: int
    written: int
    epoch: int
    identity: bytes


@dataclass(slots=True)
class Imports:
    """Of one history. ``names``: of all segments by their ids, which the checker keeps."""

    events: Sequence[Event]
    past: Past
    names: dict[int, str]
    _hidden: dict[int, _Hidden] = field(default_factory=dict)
    _asks: dict[bytes, list[int]] = field(default_factory=dict)
    _ended: list[_Ended] = field(default_factory=list)

    def __post_init__(self) -> None:
        for index, event in enumerate(self.events):
            if event.kind == "import":
                self._asks.setdefault(event.args[0].identity, []).append(index)

    def begins(self, op: Sequence[Any]) -> bool:
        """Whether an operation is of an import, or of what the product remembers of one."""
        if op[0] in (TABLE_PUT, TABLE_DELETE):
            return op[1] in _OF_PRODUCT
        if op[0] == CREATE:
            return op[2].startswith(_HIDDEN) or op[1] in self._hidden
        return op[0] in (APPEND, DELETE) and op[1] in self._hidden

    def take(self, lsn: int, record: Any, ops: Sequence[tuple[Any, ...]]) -> int:
        """Let the import that these operations begin with happen; how many are its own. Raises ``Wrong``."""
        if ops[0][0] in (TABLE_PUT, TABLE_DELETE) and ops[0][1] != _MARKS:
            return 1
        count = next((number for number, op in enumerate(ops, 1) if _is_mark(op)), 0)
        if not count:
            raise Wrong("not-atomic", "a step of an import that moves no mark on")
        identity, ended = ops[count - 1][2], ops[count - 1][0] == TABLE_DELETE
        ask = self._ask_of(identity, record)
        state = self.past.at(ask.lsn) if ask.source is None else ask.source
        named: dict[str, Segment] = {}
        changes: dict[Key, Any] = {}
        dropped = False
        for op in ops[: count - 1]:
            if op[0] == CREATE and op[2].startswith(_HIDDEN):
                self._begin(op, identity, record)
            elif op[0] == CREATE:
                name, segment = self._named(op, identity, ask.plan, state)
                if self.past.at(lsn).get(op[2]) is not None or op[2] in changes:
                    raise Wrong("forbidden", f"{op[2]!r} is there already")
                named[name] = changes[op[2]] = segment
            elif op[0] == APPEND:
                self._append(op, identity)
            elif op[0] == DELETE:
                self._drop(op, identity)
                dropped = True
            else:
                changes[op[1], op[2]] = (self._row(op, ask.plan, state), lsn)
        self._whole(ask.plan, state, named, changes, lsn)
        self.past.put(lsn, changes)
        left = any(item.identity == identity for item in self._hidden.values())
        if ended and left:
            raise Wrong("not-atomic", "the import ends, and some of its segments have no names")
        if ended and not dropped and named:
            self._ended.append(_Ended(lsn, record.written, record.epoch, identity))
        return count

    def _ask_of(self, identity: bytes, record: Any) -> ImportAsk:
        asks = [self.events[index] for index in self._asks.get(identity, ())]
        if not any(event.invoked <= record.written for event in asks):
            raise Wrong("invented", f"nobody has asked for the import {identity.hex()} by then")
        ask: ImportAsk = asks[0].args[0]
        return ask

    def _begin(self, op: Sequence[Any], identity: bytes, record: Any) -> None:
        if op[1] in self.names or op[1] >> 32 != record.epoch:
            raise Wrong("forbidden", f"the id {op[1]} is none of a new segment of epoch {record.epoch}")
        if not op[2].startswith(f"{_HIDDEN}{identity.hex()}/"):
            raise Wrong("invented", f"{op[2]!r} is no name of this import")
        self.names[op[1]] = op[2]
        self._hidden[op[1]] = _Hidden(identity, -1)

    def _append(self, op: Sequence[Any], identity: bytes) -> None:
        found = self._hidden.get(op[1])
        if found is None or found.identity != identity:
            raise Wrong("invented", "it appends to what is none of its segments")
        if op[4] is None:
            raise Wrong("torn", "the storage does not hold the bytes that an import has brought")
        if found.begin < 0:
            found.begin = op[2]
        if op[2] != found.begin + len(found.data):
            raise Wrong("torn", f"bytes for {op[2]} come behind {found.begin + len(found.data)}")
        found.data += op[4]

    def _drop(self, op: Sequence[Any], identity: bytes) -> None:
        found = self._hidden.pop(op[1], None)
        if found is None or found.identity != identity:
            raise Wrong("invented", "it deletes what is none of its segments")

    def _named(self, op: Sequence[Any], identity: bytes, plan: Plan, state: State) -> tuple[str, Segment]:
        """A segment gets its name: it is what it was at its source."""
        found = self._hidden.pop(op[1], None)
        if found is None or found.identity != identity:
            raise Wrong("invented", "it names what is none of its segments")
        hidden = self.names[op[1]]
        name = next(
            (name for name in state.names() if plan.takes(name) and _hidden_name(identity, name) == hidden), None
        )
        if name is None or plan.target(name) != op[2]:
            raise Wrong("invented", f"{op[2]!r} is no segment of the source, by its plan")
        source: Segment = state.get(name)
        content, begin = source.content, found.begin if found.begin >= 0 else source.content.length
        if begin > max(source.start, 0) and begin < content.length:
            raise Wrong("torn", f"{name!r} begins at {source.start}, and is taken in from {begin} on")
        if begin + len(found.data) != content.length:
            raise Wrong("torn", f"{name!r} ends at {content.length}, and is taken in up to {begin + len(found.data)}")
        skip = max(0, source.start - begin)
        if found.data[skip:] != content.slice(begin + skip, content.length):
            raise Wrong("torn", f"{name!r} is taken in with other bytes than it had")
        self.names[op[1]] = op[2]
        return name, source._replace(id=op[1])

    def _row(self, op: Sequence[Any], plan: Plan, state: State) -> bytes:
        """A row of a table comes along: it says what it said."""
        namespace, key, value = op[1], op[2], op[3]
        if namespace == RETENTION and key[:1] == b"=":
            olds = [name for name in state.names() if plan.takes(name) and plan.target(name).encode() == key[1:]]
            row = state.get((RETENTION, b"=" + olds[0].encode())) if olds else None
        else:
            row = state.get((namespace, key)) if not plan.names else None
        if row is None or value not in (None, row[0]):
            raise Wrong("invented", f"the row {namespace!r} {key!r} is none that the source had")
        found: bytes = row[0]
        return found

    def _whole(
        self, plan: Plan, state: State, named: Mapping[str, Segment], changes: Mapping[Key, Any], lsn: int
    ) -> None:
        """Once names are given, all are; with them come all rows of clients' tables, if everything is taken in."""
        if not named:
            return
        chosen = {name for name in state.names() if plan.takes(name)}
        if chosen != named.keys():
            raise Wrong("not-atomic", f"of {sorted(chosen)} only {sorted(named)} are shown")
        rows = state.rows if isinstance(state, Shown) else {key for key in self.past.changes if isinstance(key, tuple)}
        before = self.past.at(lsn)
        for key in rows:
            wanted = state.get(key) if not plan.names and not key[0].startswith("!") else None
            found = changes.get(key) or before.get(key)
            if wanted is not None and (found is None or found[0] != wanted[0]):
                raise Wrong("not-atomic", f"the row {key} does not come along")

    def answers(self) -> Iterator[tuple[int, int | None]]:
        """The call of each import that has ended, and the lsn of its last record; of a call that was told so wrongly: None."""
        free = list(self._ended)
        calls = [(index, event) for index, event in enumerate(self.events) if event.kind == "import"]
        calls = [call for call in calls if call[1].outcome == "ok"]
        for index, event in sorted(calls, key=lambda call: call[1].returned or 0):
            fit = [item for item in free if _could_be(event, item)]
            if fit:
                free.remove(fit[0])
            yield index, fit[0].lsn if fit else None
        for item in free:
            others = (index for index in self._asks[item.identity] if self.events[index].outcome == "unknown")
            found = next((index for index in others if _could_be(self.events[index], item)), None)
            if found is None:
                raise Wrong(
                    "resurrected", f"lsn {item.lsn} ends the import {item.identity.hex()} of nobody who may think so"
                )


def _is_mark(op: Sequence[Any]) -> bool:
    return op[0] in (TABLE_PUT, TABLE_DELETE) and op[1] == _MARKS


def _hidden_name(identity: bytes, name: str) -> str:
    return f"{_HIDDEN}{identity.hex()}/{blake2b(name.encode(), digest_size=16).hexdigest()}"


def _could_be(event: Event, item: _Ended) -> bool:
    ends = inf if event.returned is None or event.outcome == "unknown" else event.returned
    return event.args[0].identity == item.identity and event.invoked <= item.written <= ends


def content_of(start: int, data: bytes) -> Content:
    """What begins at ``start``, and shows nothing of what is before it."""
    return Content().append(bytes(start) + data)
