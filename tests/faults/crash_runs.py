"""One interrupted operation or take-over: how it is recorded, repeated with a fault, and judged.

Every kind records the storage calls of one run without a fault; each call (on the disk: each system call) and each outcome is
a case; a call that is made tomorrow lengthens the enumeration by itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import DeadlineExceeded, NotOwner, OutcomeUnknown, StorageFull, StorageUnavailable
from tests.faults.ground import AMPLE_S, Ground, Place, State, Wire, observe, work
from tests.faults.scenarios import LAST_WORDS, Opening, Operation
from tests.support.data import problems
from tests.support.disk import POWER_CUTS
from tests.support.faulty import Call, Dead, Outcome, When, outcomes_of
from tests.support.hooked import within
from tests.support.worlds import Mode

NOT_HAPPENED = (StorageUnavailable, StorageFull, NotOwner, DeadlineExceeded)
END = Call("the end", (), tearable=False, step="the end")


class Case(NamedTuple):
    """Call number ``at`` has ``outcome``; where there is a ``first`` fault, ``at`` counts the calls behind that one."""

    number: int
    at: int
    call: Call
    outcome: Outcome
    first: tuple[int | When, Outcome] | None = None

    @property
    def id(self) -> str:
        what = f"call {self.at} ({self.call.step or self.call.operation} {' '.join(self.call.names)}): {self.outcome.value}"
        if self.first is None:
            return what
        when, outcome = self.first
        return f"{outcome.value} at {'the record' if callable(when) else f'call {when}'}, then {what}"


def all_cases(trace: list[Call], place: Place, first: tuple[int | When, Outcome] | None = None) -> list[Case]:
    """Every call with everything that can happen to it; on a disk the power may go behind the last one, too."""
    begin = 0 if first is None else 1
    found = [(begin + at, call, outcome) for at, call in enumerate(trace) for outcome in outcomes_of(call)]
    if place == "disk" and first is None:
        found += [(len(trace), END, outcome) for outcome in POWER_CUTS]
    return [Case(number, at, call, outcome, first) for number, (at, call, outcome) in enumerate(found)]


class Promise(NamedTuple):
    """What a caller was told. ``before`` and ``after``: whether the operation may be absent, and present."""

    told: str
    before: bool
    after: bool


ACKNOWLEDGED = Promise("acknowledged", before=False, after=True)
EITHER = Promise("nothing, or outcome unknown", before=True, after=True)
FAILED = Promise("did not happen", before=True, after=False)


def perform(act: Callable[[], object]) -> tuple[Promise, BaseException | None]:
    """Do it, and say what its caller knows."""
    try:
        act()
    except Dead as error:
        return EITHER, error
    except OutcomeUnknown as error:
        return EITHER, error
    except NOT_HAPPENED as error:
        return FAILED, error
    return ACKNOWLEDGED, None


def judge(found: State, promise: Promise, before: State, after: State) -> State:
    """Which of the allowed states it is."""
    if promise.before and found == before:
        return before
    if promise.after and found == after:
        return after
    raise AssertionError(f"told: {promise.told}\nfound  {found}\nbefore {before}\nafter  {after}")


def clean(store: ChunkedSegmentStorage, *, power_cut: bool = False) -> None:
    """The deep check finds nothing. Deletions are not synced: after a power cut a part of what was collected may be back."""
    found = [item for item in problems(store.check("deep")) if not (power_cut and item.severity == "warning")]
    assert found == [], found


def recover(store: ChunkedSegmentStorage) -> None:
    """A change that changes nothing: what is undecided is decided by it, and a journal that is broken is taken over."""
    store.table("rows").delete(b"no such row")


class Interrupted(ABC):
    """Something that is interrupted, on a ground of its own. ``close`` it in any case."""

    ground: Ground
    power_cut = False
    armed: Wire | None = None

    def clean(self, store: ChunkedSegmentStorage) -> None:
        """See ``clean``."""
        clean(store, power_cut=self.power_cut)

    @abstractmethod
    def trace(self) -> tuple[list[Call], Any]:
        """Do it without a fault: the calls, and what ``run`` needs to know about how it should be."""

    @abstractmethod
    def run(self, case: Case, expected: Any) -> None:
        """Do it with a fault; ``expected`` is from ``trace``. Raises ``AssertionError`` where a promise is broken."""

    def behind(self, first: tuple[int | When, Outcome]) -> list[Call]:
        """The calls behind a first fault: where a second one may happen. Empty where that kills the process."""
        return []

    def close(self) -> None:
        """Let go of everything."""
        self.ground.close()

    def reached(self, case: Case) -> bool:
        """Whether all faults of a case that was run have happened: threads may change the order and number of calls."""
        assert self.armed is not None
        return case.call is END or (self.armed.fired if case.first is None else self.armed.fired_twice)

    def arm(self, wire: Wire, case: Case) -> None:
        """Let the case happen."""
        self.armed = wire
        self.power_cut = case.outcome in POWER_CUTS or (case.first is not None and case.first[1] in POWER_CUTS)
        if case.first is None:
            wire.inject(case.at if case.call is not END else 1 << 30, case.outcome)
        else:
            wire.inject(*case.first)
            wire.second(case.at, case.outcome)

    def end_by_power(self, wire: Wire, case: Case, stores: list[ChunkedSegmentStorage]) -> None:
        """The power goes when all is said and done."""
        wire.kill()
        for store in stores:
            if not store._container.closed:
                self.ground.abandon(store)
        self.ground.power_cut(case.outcome, case.number)


class OperationRun(Interrupted):
    """One interrupted operation."""

    def __init__(self, operation: Operation, kind: Place, mode: Mode, folder: Path, **settings: object) -> None:
        self.operation = operation
        self.ground = Ground(kind, mode, folder, **{**operation.settings, **settings})
        self.store = self.ground.open(self.ground.wire)
        with within(self.store, AMPLE_S):
            self.prepared = operation.prepare(self.store)

    def act(self, store: ChunkedSegmentStorage) -> None:
        self.operation.act(store, self.prepared)

    def trace(self) -> tuple[list[Call], tuple[State, State]]:
        with within(self.store, AMPLE_S):
            before = observe(self.store)
            self.ground.wire.watch()
            self.act(self.store)
        trace = self.ground.wire.trace
        self.ground.wire.heal()
        self.store.close()
        with self.ground.open() as store:
            after = observe(store)
            self.clean(store)
        return trace, (before, after)

    def behind(self, first: tuple[int | When, Outcome]) -> list[Call]:
        wire = self.ground.wire
        wire.inject(*first)
        perform(lambda: self.act(self.store))
        if not wire.dead and not self.store._container.closed:
            perform(lambda: recover(self.store))
        found = wire.trace[wire.fired_at + 1 :] if wire.fired and not wire.dead else []
        wire.heal()
        return found

    def run(self, case: Case, expected: tuple[State, State]) -> None:
        before, after = expected
        ground, wire, store = self.ground, self.ground.wire, self.store
        self.arm(wire, case)
        promise, error = perform(lambda: self.act(store))
        if case.first is not None and not (wire.dead or wire.fired_twice or store._container.closed):
            perform(lambda: recover(store))
        if case.call is END:
            self.end_by_power(wire, case, [store])
            state = self.take_over(False, promise, before, after)
        elif wire.dead:
            ground.abandon(store)
            with_cache = case.number % 2 == 0 and case.outcome not in POWER_CUTS
            state = self.take_over(with_cache, promise, before, after)
        else:
            assert not isinstance(error, Dead)
            wire.heal()
            with within(store, AMPLE_S):
                state = self.go_on(promise, before, after)
        with_cache = case.number % 4 < 2
        if not with_cache:
            ground.world.forget_cache()
        with ground.open() as successor:
            self.clean(successor)
            assert observe(successor) == state
            state = work(successor, state, "last")
            assert observe(successor) == state

    def take_over(self, with_cache: bool, promise: Promise, before: State, after: State) -> State:
        """Somebody else opens, finds out, finishes the operation, works, and closes."""
        if not with_cache:
            self.ground.world.forget_cache()
        with self.ground.open() as successor:
            self.clean(successor)
            state = judge(observe(successor), promise, before, after)
            return self.finish(successor, state, before, after)

    def go_on(self, promise: Promise, before: State, after: State) -> State:
        """The owner survived: it knows the state, and can do everything it could before."""
        store = self.store
        if store._container.closed:
            return self.take_over(False, promise, before, after)
        try:
            if promise is EITHER:
                # What is undecided is decided by the next change; until then reads may show the state before it.
                recover(store)
            found = observe(store)
        except StorageUnavailable:
            # Its journal is broken, and it says so. A change mends it (so does the keeper, a little later).
            recover(store)
            found = observe(store)
        state = judge(found, promise, before, after)
        state = self.finish(store, state, before, after)
        self.clean(store)
        store.close()
        return state

    def finish(self, store: ChunkedSegmentStorage, state: State, before: State, after: State) -> State:
        if state == before and self.operation.repeatable:
            try:
                self.act(store)
            except StorageUnavailable:
                # Allowed once: the journal had to be taken over first, and the call says so.
                self.act(store)
            state = observe(store)
            assert state == after
        state = work(store, state, "then")
        assert observe(store) == state
        return state

    def close(self) -> None:
        if self.ground.wire.dead and self.store in self.ground.world._open:
            self.ground.abandon(self.store)
        self.ground.wire.heal()
        self.ground.close()


class OpeningRun(Interrupted):
    """One interrupted take-over."""

    def __init__(self, opening: Opening, kind: Place, mode: Mode, folder: Path) -> None:
        self.opening = opening
        self.ground = Ground(kind, mode, folder, **opening.settings)
        if opening.leave is not None:
            store = self.ground.open(self.ground.wire)
            opening.prepare(store)
            opening.leave(self.ground, store)

    def trace(self) -> tuple[list[Call], State]:
        wire = self.ground.new_wire()
        wire.watch()
        store = self.ground.open(wire)
        trace = wire.trace
        wire.heal()
        state = observe(store)
        self.clean(store)
        store.close()
        return trace, state

    def run(self, case: Case, expected: State) -> None:
        state = expected
        ground = self.ground
        wire = ground.new_wire()
        self.arm(wire, case)
        opened: list[ChunkedSegmentStorage] = []
        promise, _ = perform(lambda: opened.append(self.ground.open(wire)))
        if case.call is END:
            self.end_by_power(wire, case, opened)
            ground.world.forget_cache()
        elif wire.dead:
            for store in opened:
                ground.abandon(store)
            if case.outcome in POWER_CUTS:
                ground.world.forget_cache()
        else:
            wire.heal()
            if not opened:
                assert promise is FAILED
                opened.append(self.ground.open(wire))
            state = self.use(opened[0], state, "same")
        if case.number % 2:
            ground.world.forget_cache()
        with ground.open() as store:
            if self.opening.undecided and case.outcome in POWER_CUTS and case.call is not END:
                # A record that nobody has decided may go with the power: whoever opens next decides.
                state = self.decided(observe(store), state)
            state = self.use(store, state, "next")
        if case.number % 2 == 0:
            ground.world.forget_cache()
        with ground.open() as store:
            self.use(store, state, "last")

    @staticmethod
    def decided(found: State, state: State) -> State:
        log = state.segments["log"]
        if not log.data.endswith(LAST_WORDS):
            return state
        without = log._replace(data=log.data.removesuffix(LAST_WORDS))
        return found if found in (state, state._replace(segments={**state.segments, "log": without})) else state

    def use(self, store: ChunkedSegmentStorage, state: State, tag: str) -> State:
        assert observe(store) == state
        self.clean(store)
        state = work(store, state, tag)
        assert observe(store) == state
        store.close()
        return state
