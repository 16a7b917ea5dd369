"""A plain search for an order of a few calls, to test the checker against: every order is tried, nothing is clever.

Promises: ``can_be_ordered`` says whether the calls can be put into an order that respects real time, in which the changes are the
records, each record at one moment, and every answer is the one that ``segment_model`` gives. Exponential: for histories of up to 20
calls. Leaves out: replicas, owners, refusals because of changes under way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import Any

from tests.judges.calls import stored
from tests.judges.checker import RecordSeen
from tests.judges.events import Event
from tests.judges.segment_model import CHANGING, INFORMING, OBSERVING, Done, Key, fits, perform

__all__ = ["can_be_ordered"]


class _State(dict[Key, Any]):
    def names(self) -> Iterator[str]:
        return (key for key, value in self.items() if isinstance(key, str) and value is not None)


def can_be_ordered(records: Sequence[RecordSeen], events: Sequence[Event]) -> bool:
    """Whether an order exists."""
    return _Search(records, events).go(_State(), 0, frozenset())


class _Search:
    def __init__(self, records: Sequence[RecordSeen], events: Sequence[Event]) -> None:
        self._records = records
        self._events = [
            event
            for event in events
            if (event.outcome == "ok" and event.kind in OBSERVING | CHANGING)
            or (event.outcome == "failed" and event.result in INFORMING)
            or (event.outcome == "unknown" and event.kind in CHANGING)
        ]
        self._needed = frozenset(number for number, event in enumerate(self._events) if event.outcome != "unknown")
        self._tried: set[tuple[int, frozenset[int]]] = set()

    def go(self, state: _State, lsn: int, placed: frozenset[int]) -> bool:
        """Whether the rest can follow ``lsn`` records and the calls that were placed."""
        if lsn == len(self._records) and placed >= self._needed:
            return True
        if (lsn, placed) in self._tried:
            return False
        self._tried.add((lsn, placed))
        possible = [number for number in range(len(self._events)) if self._may_be_next(number, placed)]
        for number in possible:
            event = self._events[number]
            outcome = perform((event.kind, event.segment, event.args), state, lsn=lsn)
            seen = all(record.written <= _answered(event) for record in self._records[:lsn])
            explained = seen and fits(event, outcome) and not (isinstance(outcome, Done) and outcome.ops)
            if number in self._needed and explained and self.go(state, lsn, placed | {number}):
                return True
        if lsn == len(self._records):
            return False
        record = self._records[lsn]
        ops = [stored(op, data) for op, data in zip(record.ops, record.data, strict=True)]
        return any(self.go(after, lsn + 1, taken) for after, taken in self._consume(state, lsn, ops, possible, placed))

    def _may_be_next(self, number: int, placed: frozenset[int]) -> bool:
        invoked = self._events[number].invoked
        waiting = self._needed - placed - {number}
        return number not in placed and all(_answered(self._events[other]) >= invoked for other in waiting)

    def _consume(
        self, state: _State, lsn: int, ops: list[tuple[Any, ...]], possible: list[int], placed: frozenset[int]
    ) -> Iterator[tuple[_State, frozenset[int]]]:
        if not ops:
            yield state, placed
            return
        ids = [op[1] for op in ops if op[0] == 1]
        for number in possible:
            event, written = self._events[number], self._records[lsn].written
            if number in placed or event.outcome == "failed" or not event.invoked <= written <= _answered(event):
                continue
            outcome = perform((event.kind, event.segment, event.args), state, lsn=lsn + 1, ids=ids)
            if not isinstance(outcome, Done) or not outcome.ops or list(outcome.ops) != ops[: len(outcome.ops)]:
                continue
            if event.outcome == "unknown" or fits(event, outcome):
                after, rest = _State({**state, **outcome.changes}), ops[len(outcome.ops) :]
                yield from self._consume(after, lsn, rest, possible, placed | {number})


def _answered(event: Event) -> float:
    return inf if event.returned is None or event.outcome == "unknown" else event.returned
