"""Every state of a small model of the protocol, breadth first: no schedule is left out, and the first violation found is
one of the shortest.

A model is three functions over immutable, hashable states: where it begins, which steps lead where, and what is wrong with
a state. Steps that are named like a fault (crash, power cut) count like any other. The models say in their own docstrings
what they leave out; they are written from the protocol, not from the code.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Hashable, Iterator
from typing import Generic, NamedTuple, Protocol, TypeVar

S = TypeVar("S", bound=Hashable)
T = TypeVar("T")


class Model(Protocol[S]):
    """What ``explore`` needs. States that differ only by a renaming of equals should be one: fewer states, same proof."""

    def initial(self) -> S:
        """Where every run begins."""
        ...

    def steps(self, state: S) -> Iterator[tuple[str, S]]:
        """Every step that may come next, by name, and where it leads."""
        ...

    def violation(self, state: S) -> str | None:
        """What is wrong with the state, or None."""
        ...


class Exploration(NamedTuple):
    """``states`` that were looked at; ``violation`` and the ``trace`` of steps that leads to it, where there is one.

    ``kinds`` are the names of all steps that were taken: a step that never happens proves nothing.
    """

    states: int
    violation: str | None
    trace: tuple[str, ...]
    kinds: frozenset[str]
    seconds: float

    def __str__(self) -> str:
        verdict = "no violation" if self.violation is None else f"{self.violation} after {len(self.trace)} steps"
        return f"{self.states:,} states in {self.seconds:.1f} s: {verdict}"


class _Seen(Generic[S]):
    """Where each state was reached from."""

    def __init__(self, first: S) -> None:
        self.origins: dict[S, tuple[S, str] | None] = {first: None}

    def trace(self, state: S) -> tuple[str, ...]:
        names: list[str] = []
        origin = self.origins[state]
        while origin is not None:
            state, name = origin
            names.append(name)
            origin = self.origins[state]
        return tuple(reversed(names))


def explore(model: Model[S], *, states_max: int = 5_000_000) -> Exploration:
    """All states that can be reached. Ends at the first violation. Raises ``AssertionError`` beyond ``states_max``."""
    began = time.perf_counter()
    first = model.initial()
    seen = _Seen(first)
    origins = seen.origins
    queue = deque([first])
    kinds: set[str] = set()
    states = 0
    while queue:
        state = queue.popleft()
        states += 1
        wrong = model.violation(state)
        if wrong is not None:
            return Exploration(states, wrong, seen.trace(state), frozenset(kinds), time.perf_counter() - began)
        assert states <= states_max, f"more than {states_max} states: the scope is too large to be exhausted"
        for name, following in model.steps(state):
            kinds.add(name)
            if following not in origins:
                origins[following] = (state, name)
                queue.append(following)
    return Exploration(states, None, (), frozenset(kinds), time.perf_counter() - began)


def replaced(items: tuple[T, ...], at: int, item: T) -> tuple[T, ...]:
    """``items`` with another one at ``at``."""
    return (*items[:at], item, *items[at + 1 :])
