"""The checker: were these answers right, given the history that the storage held (protocol 6.4, invariant 31)?

The records of history are the witness; nothing is searched for, and every run is decided.

Promises
* Each record's operations belong to exactly one call that could have led to them, made by the owner of the record's epoch before
  the record was written; folded from the *arguments* of those calls in the order of records, ``segment_model`` gives the states.
* A call that was acknowledged has one record, written before the answer, and the answer that the model gives; one that was refused
  has none; one with an unknown outcome has one or none.
* What has no record (reads, refusals with their fields, no-ops, answers to events repeated exactly once) was so in the state at
  some record between call and answer. A refusal of a change is not fenced: it may be of the last state that its owner's epoch had
  answered from, and an append's also of changes under way in its owner.
* Real time agrees with the order of records and of these states: what was answered before a call was made is not behind it.
* A replica shows the state at the record that it names, never goes back, and shows nothing newer than its answer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from itertools import accumulate
from math import inf, prod
from typing import Any, Final, NamedTuple, Protocol

from tests.judges.events import Event
from tests.judges.past_states import Past, StateAt
from tests.judges.segment_model import (
    APPEND,
    ATTACH,
    CHANGING,
    CREATE,
    DELETE,
    INFORMING,
    OBSERVING,
    TABLE_DELETE,
    TABLE_PUT,
    Call,
    Done,
    Key,
    Refused,
    Segment,
    appended,
    calls_of,
    fits,
    keys_of,
    perform,
)

_BY_KIND: Final = {
    "create": 1, "append": 2, "append_many": 2, "write": 2, "seal": 3, "unseal": 4, "delete": 5, "truncate": 6, "concat": 7,
    "table_put": 10, "table_delete": 11,
}  # fmt: skip


def call_of(event: Event) -> Call:
    return event.kind, event.segment, event.args


def answered_by(event: Event) -> float:
    """When a call was answered for certain."""
    return inf if event.returned is None or event.outcome == "unknown" else event.returned


def urgency_of(event: Event) -> tuple[float, float]:
    """Which of several calls takes a record first: whose answer came first, for each may need it."""
    repeatable = event.kind == "truncate"
    return (event.invoked if repeatable else answered_by(event)), event.invoked


def subject(call: Call) -> tuple[Any, ...]:
    kind, name, args = call
    if kind == "table_put":
        return TABLE_PUT, *args[:3]
    if kind == "table_delete":
        return TABLE_DELETE, *args[:2]
    data = appended(call)
    return (_BY_KIND[kind], name) if data is None else (ATTACH if kind == "attach" else APPEND, name, data)


def stored(op: Sequence[Any], data: bytes | None) -> tuple[Any, ...]:
    """An operation of a record as the model says it: what is not in its header is in what was stored with it."""
    if op[0] in (TABLE_PUT, APPEND, ATTACH):
        return (*op[: 3 if op[0] == TABLE_PUT else 4], data)
    return tuple(op)


def is_same(wanted: tuple[Any, ...], found: tuple[Any, ...]) -> bool:
    """Whether an operation of a record is the wanted one."""
    return wanted == found or (found[0] == TABLE_PUT and found[3] is None and wanted[:3] == found[:3])


ANOMALIES: Final = {
    "lost-ack": "a call was acknowledged and has no record",
    "duplicate": "a record repeats what another record has done for the same call",
    "invented": "a record that no call asked for",
    "torn": "a record with a part of the bytes of its call, or whose bytes the storage does not hold",
    "not-atomic": "a record with a part of the changes of a commit",
    "resurrected": "a record of a call that was told that nothing had happened",
    "foreign": "a record in the stream of an owner that was not asked, or later than its answer allows",
    "reordered": "real time and the order of records disagree",
    "forbidden": "a record that the state before it does not allow, such as an append to a sealed segment",
    "wrong-answer": "a call was told something else than its record has done",
    "stale-read": "an answer is right about an earlier record only",
    "phantom": "an answer is right about a later record only, or a replica went back or ahead",
    "wrong-read": "what was shown never was",
    "wrong-refusal": "a call was refused for a reason that did not exist",
    "two-owners": "two processes were told that they own the same epoch",
}
_UPKEEP: Final = frozenset((12, 13, 14, 15, 16))
"""Sessions, and operations of the owner itself: what changes nothing that is shown."""
_STAGED: Final = "\0staged/"
_ANOMALIES_MAX: Final = 20
_OTHERS_MAX: Final = 8
_ORDERS_MAX: Final = 1 << 12
_WEIGHT: Final = ("invented", "torn", "reordered", "foreign", "resurrected", "not-atomic", "forbidden", "wrong-answer")
"""Of several calls that a record does not fit, the one with the highest reason is named."""


class RecordSeen(Protocol):
    """What the checker needs of a record (``stored_history.Entry``)."""

    @property
    def epoch(self) -> int: ...
    @property
    def written(self) -> int: ...
    @property
    def ops(self) -> Sequence[Sequence[Any]]: ...
    @property
    def data(self) -> Sequence[bytes | None]: ...


class Anomaly(NamedTuple):
    """Something that cannot be; ``events`` are the indices of the calls that show it."""

    name: str
    segment: str
    message: str
    events: tuple[int, ...]


class Verdict(NamedTuple):
    """``anomalies``: what is wrong; ``lsns``: the record of each call that has one, by the call's index."""

    anomalies: tuple[Anomaly, ...]
    lsns: dict[int, int]

    @property
    def ok(self) -> bool:
        """Whether the history is sound."""
        return not self.anomalies


def check_history(
    records: Sequence[RecordSeen],
    events: Sequence[Event],
    *,
    owners: Mapping[int, str] | None = None,
    tail: bool = False,
) -> Verdict:
    """Judge the events of one container that began empty by its records: number ``n`` of them has lsn ``n + 1``."""
    checker = _Checker(records, events, owners or {}, tail=tail)
    checker.check_owners()
    if checker.fold():
        checker.judge_answers()
    return Verdict(tuple(checker.anomalies[:_ANOMALIES_MAX]), checker.lsns)


class _Misfit(NamedTuple):
    """Why a call is not the one that a record is of."""

    name: str
    message: str
    events: tuple[int, ...]


class _Checker:
    def __init__(
        self,
        records: Sequence[RecordSeen],
        events: Sequence[Event],
        owners: Mapping[int, str],
        *,
        tail: bool = False,
    ) -> None:
        self._tail = tail
        self._records = records
        self._events = events
        self._owners = owners
        self.past = Past()
        self._names: dict[int, str] = {}
        self._calls: dict[tuple[Any, ...], list[int]] = defaultdict(list)
        self._touching: dict[Key, list[int]] = defaultdict(list)
        self._put = {
            data for item in records for op, data in zip(item.ops, item.data, strict=True) if op[0] == TABLE_PUT
        }
        self.lsns: dict[int, int] = {}
        self.anomalies: list[Anomaly] = []
        for index, event in enumerate(events):
            if event.kind in CHANGING:
                for call in calls_of(call_of(event)):
                    self._calls[subject(call)].append(index)
                for key in keys_of(call_of(event)):
                    self._touching[key].append(index)
        for places in self._calls.values():
            places.sort(key=lambda index: urgency_of(events[index]))

    def _found(self, name: str, segment: str, message: str, *events: int) -> None:
        self.anomalies.append(Anomaly(name, segment, message, events))

    def check_owners(self) -> None:
        """An epoch has one owner."""
        owners: dict[int, int] = {}
        for index, event in enumerate(self._events):
            if event.kind == "open" and event.outcome == "ok" and event.result:
                other = owners.setdefault(event.result, index)
                if other != index:
                    told = f"epoch {event.result} was won by {self._events[other].process} and by {event.process}"
                    self._found("two-owners", "", told, index, other)

    # Records and their calls

    def _candidates(self, op: tuple[Any, ...]) -> tuple[str, Sequence[int]]:
        """The segment that an operation is about, and the calls that ask for such a one."""
        if op[0] == TABLE_PUT and op[3] is None:
            # Put over in the same record, so its value is none that a record holds. One that expects a version comes first, or never.
            places = self._touching.get(op[1:3], [])
            calls = [(place, call) for place in places for call in calls_of(call_of(self._events[place]))]
            puts = [(call[2], place) for place, call in calls if call[0] == "table_put" and call[2][:2] == op[1:3]]
            puts = [put for put in puts if put[0][2] not in self._put]
            urgency = {place: (args[3] is None, *urgency_of(self._events[place])) for args, place in puts}
            return "", sorted(urgency, key=lambda place: urgency[place])
        name = "" if op[0] >= TABLE_PUT else op[2] if op[0] == CREATE else self._names.get(op[1], "")
        return name, self._calls.get(op if op[0] >= TABLE_PUT else (op[0], name, *op[4:]), ())

    def fold(self) -> bool:
        """Find the call of every operation. False: one has none, so that nothing is known of the states behind it."""
        for number, record in enumerate(self._records):
            ops = [
                stored(op, data)
                for op, data in zip(record.ops, record.data, strict=True)
                # What is staged and left over the owner deletes by itself; nobody sees that.
                if op[0] not in _UPKEEP and not (op[0] == DELETE and self._names.get(op[1], "").startswith(_STAGED))
            ]
            while ops:
                count = self._take(number, record, ops)
                if not count:
                    return False
                del ops[:count]
        return True

    def _take(self, number: int, record: RecordSeen, ops: list[tuple[Any, ...]]) -> int:
        """Find the call of the first of these operations, and let it happen; returns how many are its own."""
        lsn, op = number + 1, ops[0]
        name, candidates = self._candidates(op)
        if op[0] == APPEND and not candidates and (head := self._head(op, name)):
            ops[:1] = [(*op[:3], len(head), head), (*op[:2], op[2] + len(head), op[3] - len(head), op[4][len(head) :])]
            op = ops[0]
            name, candidates = self._candidates(op)
        ids = [item[1] for item in ops if item[0] == CREATE]
        misfits: list[_Misfit] = []
        best: tuple[int, Done] | None = None
        for index in candidates:
            found: _Misfit | Done | None = self._misfit(index, record)
            if found is None:
                found = self._done(
                    index, perform(call_of(self._events[index]), self.past.at(lsn), lsn=lsn, ids=ids), ops
                )
            if isinstance(found, _Misfit):
                misfits.append(found)
            elif best is None or len(found.ops) > len(best[1].ops):
                best = index, found
        if best is not None:
            index, done = best
            self.lsns[index] = lsn
            self.past.put(lsn, done.changes)
            self._names.update({item[1]: item[2] for item in done.ops if item[0] == CREATE})
            return len(done.ops)
        if op[0] in (APPEND, ATTACH) and not candidates:
            misfits = self._torn(op, name)
        worst = max(misfits, key=lambda item: _WEIGHT.index(item.name) if item.name in _WEIGHT else -1, default=None)
        if worst is None:
            worst = _Misfit("invented", "no call asked for it", ())
        self._found(worst.name, name, f"lsn {lsn}, {op!r:.200}: {worst.message}", *worst.events)
        return 0

    def _head(self, op: tuple[Any, ...], name: str) -> bytes | None:
        """Of what a buffering writer, or a record, has joined to one append, the bytes of the call that was first."""
        given = (self._events[index] for index in self._touching.get(name, ()) if index not in self.lsns)
        calls = [call for event in given if event.outcome != "failed" for call in calls_of(call_of(event))]
        heads = [data for data in map(appended, calls) if data and op[4] is not None and op[4].startswith(data)]
        return max(heads, key=len, default=None)

    def _misfit(self, index: int, record: RecordSeen) -> _Misfit | None:
        """Why a record cannot be of this call, whatever they do."""
        event, written = self._events[index], record.written
        if index in self.lsns:
            return _Misfit("duplicate", f"its call has lsn {self.lsns[index]}", (index,))
        if event.outcome == "failed":
            return _Misfit("resurrected", f"{event.process} was told {event.result}", (index,))
        owner = self._owners.get(record.epoch)
        asked = not event.owner or owner is None or f"{event.owner}.".startswith(f"{owner}.")
        if not asked or (event.outcome == "ok" and 0 < event.epoch < record.epoch):
            return _Misfit("foreign", f"epoch {record.epoch} is not of {event.owner or event.process}", (index,))
        if event.invoked > written or answered_by(event) < written:
            return _Misfit("reordered", f"written before {event.process} asked, or after the answer", (index,))
        return None

    def _done(self, index: int, outcome: Done | Refused, ops: Sequence[tuple[Any, ...]]) -> Done | _Misfit:
        """What the call does, if that is what these operations begin with and what it was told; else why not."""
        event = self._events[index]
        if isinstance(outcome, Refused):
            return _Misfit("forbidden", f"the state before it refuses {event.kind}: {outcome.error}", (index,))
        count = len(outcome.ops)
        if not count or not all(is_same(wanted, found) for wanted, found in zip(outcome.ops, ops, strict=False)):
            name = "not-atomic" if event.kind == "commit" else "forbidden"
            return _Misfit(name, f"{event.process} asked for {outcome.ops!r:.300}", (index,))
        if count > len(ops):
            return _Misfit("not-atomic", f"{count - len(ops)} changes of its commit are not there", (index,))
        if any(op[0] == CREATE and op[1] in self._names for op in outcome.ops):
            return _Misfit("forbidden", "the id was given before", (index,))
        if event.outcome == "ok" and not fits(event, outcome):
            return _Misfit("wrong-answer", f"told {event.result!r:.100}, and it is {outcome.result!r:.100}", (index,))
        return outcome

    def _torn(self, op: tuple[Any, ...], name: str) -> list[_Misfit]:
        """Calls that asked for more than a record holds, or for less."""
        if op[4] is None:
            return [_Misfit("torn", "the storage does not hold its bytes", ())]
        return [
            _Misfit("torn", f"{self._events[index].process} asked for {len(data)} bytes", (index,))
            for index in self._touching.get(name, ())
            for data in map(appended, calls_of(call_of(self._events[index])))
            if data and (data.startswith(op[4]) or op[4].startswith(data))
        ]

    # Answers

    def judge_answers(self) -> None:
        """In the order in which calls were made, each at the earliest record that explains its answer: that leaves most to others."""
        events = self._events
        asked = sorted((events[index].invoked, lsn) for index, lsn in self.lsns.items())
        self._asked_at = [invoked for invoked, _ in asked]
        self._first_later = [*accumulate((lsn for _, lsn in reversed(asked)), min)][::-1]
        self._written = [*accumulate((record.written for record in self._records), max)]
        floors: dict[int, int] = {}
        answered: list[tuple[float, int, int]] = []
        replicas: dict[str, int] = defaultdict(int)
        for index in sorted(range(len(events)), key=lambda index: events[index].invoked):
            event = events[index]
            while answered and answered[0][0] < event.invoked:
                _, seen, epoch = heappop(answered)
                floors[epoch] = max(seen, floors.get(epoch, 0))
            floor = max(floors.values(), default=0)
            lsn: int | None = self.lsns.get(index)
            if lsn is not None:
                if lsn <= floor:
                    told = f"{event.kind} has lsn {lsn}; lsn {floor} had been answered before it was asked"
                    self._found("reordered", event.segment, told, index)
            elif event.kind in ("replica_read", "replica_get"):
                self._judge_replica(index, event, replicas)
            elif (event.outcome == "ok" and event.kind in OBSERVING | CHANGING) or (
                event.outcome == "failed" and event.result in INFORMING and not event.about_session
            ):
                careless = event.outcome == "failed" and event.kind in CHANGING and event.kind != "ask"
                careless = careless or (self._tail and event.ends_inside)
                if event.outcome == "failed" and careless and any(event.repeats(other) for other in events):
                    continue
                if careless:
                    floor = max((lsn for epoch, lsn in floors.items() if epoch <= event.epoch), default=0)
                lsn = self._judge_answer(index, event, floor)
                if careless:
                    continue  # it tells others nothing of the order
            if lsn is not None and event.returned is not None and event.outcome != "unknown":
                # Who asks is told by whoever carried it out; what deposed owners know is not newer for it.
                epoch = (
                    self._records[lsn - 1].epoch if lsn and (event.kind == "ask" or not event.epoch) else event.epoch
                )
                heappush(answered, (event.returned, lsn, epoch))

    def _ceiling(self, returned: float, *, written: bool) -> int:
        """The last record that an answer may know of: no call was made later that has one before it, and it was written by then."""
        place = bisect_right(self._asked_at, returned)
        last = self._first_later[place] - 1 if place < len(self._asked_at) else len(self._records)
        return min(last, bisect_right(self._written, returned)) if written else last

    def _judge_answer(self, index: int, event: Event, floor: int) -> int | None:
        """The first record from ``floor`` on whose state explains an answer without a record."""
        call = call_of(event)
        appending = event.outcome == "failed" and event.kind in ("append", "append_many", "write")
        ceiling = self._ceiling(answered_by(event), written=not appending)
        if event.kind == "list":
            keys: set[Key] = {
                key for key in self.past.changes if isinstance(key, str) and key.startswith(event.args[0])
            }
        else:
            keys = keys_of(call)

        def explains(lsn: int) -> bool:
            outcome = perform(call, self.past.at(lsn), lsn=lsn)
            return fits(event, outcome) and not (isinstance(outcome, Done) and outcome.ops)

        for lsn in self.past.moments(keys, floor, ceiling) if floor <= ceiling else ():
            if explains(lsn):
                return lsn
        for lsn in range(floor, ceiling + 1) if appending else ():
            if self._refused_by_others(index, event, lsn):
                return lsn
        if event.outcome == "ok" and event.kind in CHANGING:
            self._found("lost-ack", event.segment, f"{event.kind} was acknowledged and has no record", index)
            return None
        name = "wrong-refusal" if event.outcome == "failed" else "wrong-read"
        if any(explains(lsn) for lsn in self.past.moments(keys, 0, floor - 1) if lsn < floor):
            name = "stale-read"
        elif any(explains(lsn) for lsn in self.past.moments(keys, ceiling + 1, len(self._records))):
            name = "phantom"
        told = f"{event.kind} answered {event.result!r:.200} {event.fields}, between lsn {floor} and {ceiling}"
        self._found(name, event.segment, told, index)
        return None

    def _refused_by_others(self, index: int, event: Event, lsn: int) -> bool:
        """Whether changes of its segment that were under way when an append was refused explain that: any of them, in any order."""
        waiting = [other for other in self._under_way(index, event) if self.lsns.get(other, lsn + 1) > lsn]
        alike = {other: self._alike(other) for other in waiting}
        appends = [other for other in waiting if appended(call_of(self._events[other])) is not None]
        if prod(count + 1 for count in Counter(alike.values()).values()) <= _ORDERS_MAX:
            appends = []  # few enough for any order of all; else appends are taken in the order of their calls
        others = frozenset([other for other in waiting if other not in appends][-_OTHERS_MAX if appends else 0 :])
        states = [(self.past.at(lsn), others, 0)]
        seen = set()
        for state, left, number in states:
            if fits(event, perform(call_of(event), state)):
                return True
            choices = [
                (other, left - {other}, number) for other in {alike[other]: other for other in sorted(left)}.values()
            ]
            if number < len(appends):
                states.append((state, left, number + 1))
                choices.append((appends[number], left, number + 1))
            for other, rest, following in choices:
                outcome = perform(call_of(self._events[other]), state, lsn=lsn)
                if not isinstance(outcome, Done):
                    continue
                after = StateAt(self.past, lsn, {**state.changes, **outcome.changes})
                known = _shape(after, event.segment), rest, following
                if known not in seen:
                    seen.add(known)
                    states.append((after, rest, following))
        return False

    def _alike(self, index: int) -> tuple[Any, ...]:
        """Equal for calls that are as good as each other for whom they hinder: appends of as many bytes with the same conditions."""
        kind, name, args = call = call_of(self._events[index])
        data = appended(call)
        return (index,) if data is None else (kind, name, len(data), *args[1:])

    def _under_way(self, index: int, event: Event) -> list[int]:
        found = [
            other
            for other in self._touching[event.segment]
            if other != index
            and (not event.owner or self._events[other].owner in ("", event.owner))
            and self._events[other].invoked <= answered_by(event)
            and answered_by(self._events[other]) >= event.invoked
        ]
        return sorted(found, key=lambda other: self._events[other].invoked)

    def _judge_replica(self, index: int, event: Event, replicas: dict[str, int]) -> None:
        if event.outcome != "ok":
            return
        lsn, before = event.args[3], replicas[event.process]
        replicas[event.process] = max(before, lsn)
        if lsn < before:
            self._found("phantom", event.segment, f"{event.process} was at lsn {before} and is at {lsn}", index)
        elif lsn > self._ceiling(answered_by(event), written=True):
            self._found("phantom", event.segment, f"{event.process} showed lsn {lsn} before it was", index)
        elif not fits(event, perform(call_of(event), self.past.at(lsn))):
            told = f"{event.process} showed {event.result!r:.200} at lsn {lsn}"
            self._found("wrong-read", event.segment, told, index)


def _shape(state: StateAt, name: str) -> tuple[int, bool] | None:
    """As much of a segment as refusals of appends depend on."""
    segment: Segment | None = state.get(name)
    return None if segment is None else (segment.content.length, segment.sealed)
