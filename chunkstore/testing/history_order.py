"""The fast search for an order: calls take place as late as they can, and bytes that are known decide (protocol 6.4).

Promises: as exact as ``history_search``, and near-linear where histories are like those of real clients: time is walked
once; a call is given its place when its answer must have been true, the latest possible moment; calls on segments that no call
under way connects are never tried in each other's order; what a call with an unknown outcome may have appended is tried only
where the known bytes agree. All states that remain possible are carried along; usually it is one.
Leaves out: what is wrong where no state remains (``history``); replicas, which may lag (``history_replicas``).
Sources: Wing and Gong 1993; Lowe, "Testing for linearizability" (2017), for the latest moment.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from chunkstore.testing.events import Event
from chunkstore.testing.history_contents import Contents
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
from chunkstore.testing.history_needs import Needs

__all__ = ["NoOrder", "OrderSearch", "Undecided"]

_KINDS_IGNORED = frozenset(("open", "close", "replica_read"))
_NOTHING: frozenset[int] = frozenset()


class NoOrder(Exception):
    """No state explains the answer of call ``index``; ``states`` are all that were possible when it had to be true."""

    def __init__(self, index: int, states: list[State]) -> None:
        super().__init__(f"call {index} cannot have had this answer")
        self.index = index
        self.states = states


class Undecided(Exception):
    """More states than ``states_max`` had to be looked at for call ``index``."""

    def __init__(self, index: int) -> None:
        super().__init__(f"too many orders are possible at call {index}")
        self.index = index


class _Path(NamedTuple):
    """A state that is possible now. ``done``: changes under way that took place; ``seen``: observers that had their moment."""

    state: State
    done: frozenset[int]
    seen: frozenset[int]


class _Visited:
    """Paths that one search has come to. One that used more and saw no more than another to come to the same state is not new."""

    def __init__(self, open_calls: Collection[int]) -> None:
        self._open = open_calls
        self._paths: dict[tuple[State, frozenset[int]], list[_Path]] = defaultdict(list)

    def is_new(self, path: _Path) -> bool:
        key = (path.state, frozenset(index for index in path.done if index in self._open))
        known = self._paths[key]
        if any(other.done <= path.done and other.seen >= path.seen for other in known):
            return False
        known.append(path)
        return True


class OrderSearch:
    """One pass over a history; ``run`` raises ``NoOrder`` or ``Undecided``, or returns with ``paths``, the final states.

    ``halves``: the calls of which ``events`` has no more than the part that arrived, as they were made (``history_parts``).
    """

    def __init__(
        self,
        events: Sequence[Event],
        contents: Contents,
        *,
        lazy: bool,
        refusals: str,
        states_max: int = 5_000,
        halves: Mapping[int, Event],
    ) -> None:
        self._events = events
        self._contents = contents
        self._lazy = lazy
        self._refusals = refusals
        self._states_max = states_max
        self._halves = halves
        self._facts = Facts.of(events)
        every = sorted({name for event in events for (_, name, _), _ in calls_of(event) if name})
        self._names = [names_of(event, every) for event in events]
        self._open: dict[int, None] = {}
        self._watching: dict[int, None] = {}
        self._maybe: dict[int, None] = {}
        self._wide: dict[int, None] = {}
        self._lost: dict[str, dict[int, dict[bytes, list[int]]]] = defaultdict(dict)
        """Unknown appends by segment, length and bytes: where the bytes behind a segment's end are known, few can be meant."""
        self._alike: dict[int, object] = {}
        self._newest: dict[str, int] = {}
        """By name: of the changes that were answered, one of the highest epoch."""
        self._over: set[int] = set()
        """Unknown calls of former owners: where they did not take place by now, they never will."""
        self._needs = Needs(events, contents, self._facts, refusals=refusals)
        self.paths: dict[_Path, None] = {_Path(EMPTY_STATE, _NOTHING, _NOTHING): None}

    def run(self) -> None:
        """Walk through time. Raises ``NoOrder``, ``Undecided``."""
        for when, is_answer, index in self._moments():
            self._needs.now = when
            if is_answer:
                self._answer(index)
            else:
                self._ask(index)

    def _moments(self) -> list[tuple[int, bool, int]]:
        found: list[tuple[int, bool, int]] = []
        for index, event in enumerate(self._events):
            observes = event.kind in OBSERVERS
            if event.kind in _KINDS_IGNORED:
                continue
            if event.outcome == "unknown":
                if not observes:
                    found.append((event.invoked, False, index))
                continue
            if event.outcome == "failed" and not (self._refusals == "all" or (self._refusals == "reads" and observes)):
                continue
            assert event.returned is not None
            found += [(event.invoked, False, index), (event.returned, True, index)]
        return sorted(found)

    # Time

    def _ask(self, index: int) -> None:
        event = self._events[index]
        if len(self._names[index]) > 1:
            self._wide[index] = None
        if event.outcome == "unknown":
            if any(outlived(event, self._events[newest]) for newest in self._newest_of(index)):
                self._over.add(index)
                self._wide.pop(index, None)
                return
            data = appended_data(event.kind, event.args)
            if data and not self._lazy:
                self._lost[event.segment].setdefault(len(data), {}).setdefault(data, []).append(index)
            else:
                self._maybe[index] = None
                self._alike[index] = self._kind_of(index)
            return
        if event.outcome == "failed" or event.kind in OBSERVERS:
            self._watching[index] = None
            fresh: dict[_Path, None] = {}
            for path in self.paths:
                fresh[path._replace(seen=path.seen | {index}) if self._holds(path.state, index) else path] = None
            self.paths = fresh
            return
        self._open[index] = None

    def _answer(self, index: int) -> None:
        fresh: dict[_Path, None] = {}
        budget = [self._states_max]
        looked_at: list[State] = [path.state for path in self.paths]
        for path in self.paths:
            if index in path.done or index in path.seen:
                fresh[_Path(path.state, path.done - {index}, path.seen - {index})] = None
            else:
                for found in self._explain(path, index, budget, looked_at):
                    fresh[found] = None
        if not fresh:
            raise NoOrder(index, list(dict.fromkeys(looked_at)))
        for group in (self._open, self._watching, self._wide):
            group.pop(index, None)
        self._outlive(index)
        self.paths = self._forget(self._best(fresh))

    def _newest_of(self, index: int) -> Iterator[int]:
        for name in self._names[index]:
            if name in self._newest:
                yield self._newest[name]

    def _outlive(self, index: int) -> None:
        """A change was answered: calls of former owners on its names came before it, or never. All ways on which they came before
        it are among the paths; of observers that is not so, for they have their moment when they fit."""
        event, names = self._events[index], self._names[index]
        if event.kind in OBSERVERS or event.outcome != "ok" or not event.owner:
            return
        if all(name in self._newest and self._events[self._newest[name]].epoch >= event.epoch for name in names):
            return
        for name in names:
            if name not in self._newest or self._events[self._newest[name]].epoch < event.epoch:
                self._newest[name] = index
        lost = [
            other
            for name in names
            for group in self._lost[name].values()
            for calls in group.values()
            for other in calls
        ]
        for other in (*self._maybe, *lost):
            if not names.isdisjoint(self._names[other]) and outlived(self._events[other], event):
                self._over.add(other)
                self._drop(other)

    def _drop(self, index: int) -> None:
        """An unknown call need not be thought of any more."""
        self._maybe.pop(index, None)
        self._wide.pop(index, None)
        event = self._events[index]
        data = appended_data(event.kind, event.args)
        if data and not self._lazy:
            calls = self._lost[event.segment][len(data)][data]
            if index in calls:
                calls.remove(index)

    def _best(self, paths: dict[_Path, None]) -> dict[_Path, None]:
        """The paths without those that another one can do all the same for: it saw as much, used less, and can use the rest now."""
        if len(paths) == 1:
            return paths
        groups: dict[frozenset[int], list[_Path]] = defaultdict(list)
        for path in paths:
            groups[frozenset(index for index in path.done if index in self._open)].append(path)
        kept: dict[_Path, None] = {}
        for group in groups.values():
            group.sort(key=lambda path: (len(path.done), -len(path.seen)))
            best: list[_Path] = []
            for path in group:
                if not any(self._serves(other, path) for other in best):
                    best.append(path)
            kept.update(dict.fromkeys(best))
        return kept

    def _serves(self, path: _Path, other: _Path) -> bool:
        if not (path.done <= other.done and path.seen >= other.seen):
            return False
        if path.state == other.state:
            return True
        rest = other.done - path.done
        if len(rest) != 1:
            return False
        return any(following.state == other.state for following in self._tries(path, next(iter(rest))))

    def _forget(self, paths: dict[_Path, None]) -> dict[_Path, None]:
        """Calls with unknown outcomes that took place on every path need not be thought of any more."""
        common: frozenset[int] | None = None
        for path in paths:
            common = path.done if common is None else common & path.done
            if not common:
                return paths
        settled = {index for index in common or () if self._events[index].outcome == "unknown"}
        if not settled:
            return paths
        for index in settled:
            self._drop(index)
        return {path._replace(done=path.done - settled): None for path in paths}

    def _around(self, index: int, path: _Path) -> list[int]:
        """Changes that might have to take place before the call: those on names that calls under way connect with its own."""
        names = set(self._names[index])
        wide = [self._names[other] for other in self._wide if other not in path.done and other not in path.seen]
        grown = True
        while grown and wide:
            grown = False
            for group in wide:
                if not names.isdisjoint(group) and not names.issuperset(group):
                    names |= group
                    grown = True
        found = [
            other
            for other in self._open
            if other != index and other not in path.done and not names.isdisjoint(self._names[other])
        ]
        tried: set[object] = set()
        for other in (*self._maybe, *self._fitting(path.state, names)):
            if other in path.done or names.isdisjoint(self._names[other]):
                continue
            # Of equal calls that may have happened it does not matter which did: the earliest could have whenever others could.
            kind = self._alike.get(other)
            if kind is None or kind not in tried:
                tried.add(kind)
                found.append(other)
        return found

    def _fitting(self, state: State, names: set[str]) -> list[int]:
        """Appends with unknown outcomes whose bytes can be those behind the ends of the segments."""
        found: list[int] = []
        for name in names:
            segment, lengths = state.segments.get(name), self._lost.get(name)
            if segment is None or not lengths:
                continue
            life = self._contents.by_birth.get((name, segment.birth))
            offset = segment.content.length
            for length, group in lengths.items():
                known = None if life is None else life.canvas.slice(offset, offset + length)
                if known is None:
                    found += [index for calls in group.values() for index in calls]
                else:
                    found += group.get(known, ())
        return sorted(found)

    def _kind_of(self, index: int) -> object:
        """What makes unknown calls equal, or None for one that has no equal."""
        event = self._events[index]
        if event.kind == "create":
            life = self._contents.by_birth.get((event.segment, index))
            return None if life is not None and life.told else ("create", event.segment)
        if event.kind in ("seal", "unseal", "delete", "truncate", "table_delete"):
            return (event.kind, event.segment, event.args)
        return None

    def _explain(self, path: _Path, index: int, budget: list[int], looked_at: list[State]) -> Iterator[_Path]:
        """Ways on which the call takes place last."""
        limits = self._limits(index)
        stack, visited = [path], _Visited(self._open)
        visited.is_new(path)
        while stack:
            here = stack.pop()
            after = self._take(here, index)
            if after is not None:
                yield _Path(after.state, after.done - {index}, after.seen - {index})
            for other in self._around(index, here):
                if limits and self._exceeds(here.state, other, limits):
                    continue
                for following in self._tries(here, other):
                    if not visited.is_new(following):
                        continue
                    budget[0] -= 1
                    if budget[0] < 0:
                        raise Undecided(index)
                    looked_at.append(following.state)
                    if index in following.seen:
                        yield _Path(following.state, following.done, following.seen - {index})
                    else:
                        stack.append(following)

    def _limits(self, index: int) -> dict[str, int]:
        """How long segments can be when the call takes place, where its answer says so and nothing can make them anew before."""
        limits: dict[str, int] = {}
        event = self._events[index]
        if event.outcome != "ok":
            return limits
        for (kind, name, args), result in calls_of(event):
            if name in limits:
                continue
            if appended_data(kind, args) is not None and result is not None and (len(args) < 3 or args[2] is None):
                limits[name] = result
            elif kind in ("read", "final") and len(result) < args[1]:
                limits[name] = args[0] + len(result)
            elif kind == "info":
                limits[name] = result[2]
        if not limits:
            return limits
        for other in (*self._open, *self._maybe):
            for (kind, name, _), _ in calls_of(self._events[other]):
                if kind == "create":
                    limits.pop(name, None)
        return limits

    def _exceeds(self, state: State, index: int, limits: dict[str, int]) -> bool:
        """Whether a change makes a segment longer than it may be. Of a writer's event that was answered nobody knows: it may be a retry."""
        event = self._events[index]
        for (kind, name, args), _ in calls_of(event):
            data, segment = appended_data(kind, args), state.segments.get(name)
            if not data or segment is None or name not in limits or self._lazy:
                continue
            retried = event.outcome == "ok" and len(args) > 2 and args[2] is not None
            return not retried and segment.content.length + len(data) > limits[name]
        return False

    def _take(self, path: _Path, index: int) -> _Path | None:
        if index in self._watching:
            return None  # it looked at every state on the way, and at this one
        state = step(path.state, index, self._events[index], self._facts)
        return None if state is None else self._moved(path, state, index)

    def _tries(self, path: _Path, index: int) -> Iterator[_Path]:
        event = self._events[index]
        if event.outcome == "ok":
            after = self._take(path, index)
            if after is not None:
                yield after
            return
        if index in self._over or self._comes_too_late(path, index):
            return
        if not self._agrees(path.state, event):
            return
        made = self._halves.get(index, event)
        sizes = self._sizes(path.state, event) if made is event else [len(appended_data(event.kind, event.args) or b"")]
        for kept in sizes:
            state = step(path.state, index, made, self._facts, kept, known=False)
            # What may have happened and changes nothing explains nothing.
            if state is not None and state != path.state:
                yield self._moved(path, state, index)

    def _comes_too_late(self, path: _Path, index: int) -> bool:
        """Whether a later owner has changed on this path what the unknown call is about."""
        event, names = self._events[index], self._names[index]
        return any(
            outlived(event, self._events[other])
            and self._events[other].outcome == "ok"
            and not names.isdisjoint(self._names[other])
            for other in path.done
        )

    def _moved(self, path: _Path, state: State, index: int) -> _Path:
        seen = path.seen
        if state is not path.state:
            names = self._names[index]
            for watcher in self._watching:
                if watcher not in seen and not names.isdisjoint(self._names[watcher]) and self._holds(state, watcher):
                    seen = seen | {watcher}
        return _Path(state, path.done | {index}, seen)

    def _holds(self, state: State, index: int) -> bool:
        event = self._events[index]
        if event.outcome == "failed":
            return refused_rightly(state, event)
        return step(state, index, event, self._facts) is not None

    # Known bytes

    def _agrees(self, state: State, event: Event) -> bool:
        """Whether the call explains anything, and what it would append can stand where the segment ends, as far as that is known."""
        if not self._needs.is_useful(event, state):
            return False
        met: set[str] = set()
        for (kind, name, args), _ in calls_of(event):
            segment = state.segments.get(name)
            if name in met or segment is None:
                continue
            met.add(name)  # of a commit only the first change of a segment begins where the segment ends now
            data = appended_data(kind, args)
            life = self._contents.by_birth.get((name, segment.birth))
            if not data or life is None:
                continue
            first = data[:1] if self._lazy else data
            if life.canvas.differs(segment.content.length, first) is not None:
                return False
        return True

    def _sizes(self, state: State, event: Event) -> list[int | None]:
        """How much of an append with an unknown outcome to try: all of it; where lengths are lazy, parts that end somewhere."""
        data = appended_data(event.kind, event.args)
        segment = state.segments.get(event.segment)
        if not self._lazy or not data or segment is None:
            return [None]
        offset = segment.content.length
        life = self._contents.by_birth.get((event.segment, segment.birth))
        parts = [end - offset for end in sorted(self._needs.offsets[event.segment]) if 0 < end - offset < len(data)]
        sizes: list[int | None] = [None, *parts]
        if life is None:
            return sizes
        return [size for size in sizes if life.canvas.differs(offset, data if size is None else data[:size]) is None]
