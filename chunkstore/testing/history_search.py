"""The plain search for an order: exact, obvious, exponential; for short histories (protocol 6.4).

Promises: ``find_order`` answers whether the calls of a history can be put into one order that respects real time and the
sequential object, after Wing and Gong (with the states already visited remembered): calls with an unknown outcome may be left
out. It knows nothing but ``history_model``, so the fast checker can be compared with it.
Leaves out: what is wrong with a history that has no order, replicas, long histories (beyond some twenty calls at a time).
"""

from __future__ import annotations

from collections.abc import Sequence

from chunkstore.testing.events import Event
from chunkstore.testing.history_model import (
    EMPTY_STATE,
    OBSERVERS,
    Facts,
    State,
    appended_data,
    calls_of,
    names_of,
    outlived,
    refused_rightly,
    step,
)

__all__ = ["find_order"]

_KINDS_IGNORED = frozenset(("open", "close", "replica_read"))


def find_order(events: Sequence[Event], *, lazy: bool = False, refusals: str = "reads") -> list[int] | None:
    """Indexes of the events in an order that explains the history, or None if there is none.

    ``lazy``: an append with an unknown outcome may have arrived in part. ``refusals``: whose refusals must have been right:
    those of "reads", of "all" calls, or of "none".
    """
    facts = Facts.of(events)
    chosen = [index for index, event in enumerate(events) if _counts(event, refusals)]
    return _Search(events, chosen, facts, lazy=lazy).run()


def _counts(event: Event, refusals: str) -> bool:
    if event.kind in _KINDS_IGNORED:
        return False
    if event.outcome == "unknown":
        return event.kind not in OBSERVERS
    return event.outcome == "ok" or refusals == "all" or (refusals == "reads" and event.kind in OBSERVERS)


class _Search:
    def __init__(self, events: Sequence[Event], chosen: list[int], facts: Facts, *, lazy: bool) -> None:
        self.events = events
        self.chosen = chosen
        self.facts = facts
        self.lazy = lazy
        every = sorted({name for event in events for (_, name, _), _ in calls_of(event) if name})
        self.names = [names_of(event, every) for event in events]
        self.must = sum(1 << place for place, index in enumerate(chosen) if events[index].outcome != "unknown")

    def run(self) -> list[int] | None:
        stack: list[tuple[int, State, tuple[int, ...]]] = [(0, EMPTY_STATE, ())]
        visited = {(0, EMPTY_STATE)}
        while stack:
            done, state, order = stack.pop()
            if done & self.must == self.must:
                return list(order)
            for place in self._possible(done):
                index = self.chosen[place]
                for after in self._after(state, index):
                    following = (done | 1 << place, after)
                    if following not in visited:
                        visited.add(following)
                        stack.append((*following, (*order, index)))
        return None

    def _possible(self, done: int) -> list[int]:
        """Those that no call still to come had to follow: none of them returned before they were invoked."""
        waiting = [place for place in range(len(self.chosen)) if not done >> place & 1]
        first_return: int | None = None
        for place in waiting:
            event = self.events[self.chosen[place]]
            if event.outcome != "unknown" and event.returned is not None:
                first_return = event.returned if first_return is None else min(first_return, event.returned)
        return [
            place
            for place in waiting
            if (first_return is None or self.events[self.chosen[place]].invoked <= first_return)
            and not self._is_over(self.chosen[place], done)
        ]

    def _is_over(self, index: int, done: int) -> bool:
        """Whether the call is a former owner's, and a later one has changed what it is about."""
        event = self.events[index]
        if event.outcome != "unknown":
            return False
        later = (other for place, other in enumerate(self.chosen) if done >> place & 1)
        return any(
            self.events[other].kind not in OBSERVERS
            and outlived(event, self.events[other])
            and not self.names[index].isdisjoint(self.names[other])
            for other in later
            if self.events[other].outcome == "ok"
        )

    def _after(self, state: State, index: int) -> list[State]:
        event = self.events[index]
        if event.outcome == "failed":
            return [state] if refused_rightly(state, event) else []
        if event.outcome == "ok":
            after = step(state, index, event, self.facts)
            return [] if after is None else [after]
        found = [step(state, index, event, self.facts, known=False)]
        if self.lazy:
            data = appended_data(event.kind, event.args) or b""
            found += [step(state, index, event, self.facts, kept, known=False) for kept in range(1, len(data))]
        return [after for after in found if after is not None]
