"""Crash points (protocol 6.2): every storage call of every operation fails in every way, in every world.

For each operation the calls are recorded in one run without a fault; then the operation is repeated from the beginning for
each call and each outcome, somebody takes over afresh, and what is there is compared with what was promised:

* everything acknowledged before is there; the interrupted operation is there whole or not at all; there, if it was
  acknowledged; not there, if the caller was told that it did not happen;
* the deep check finds nothing; the state is the same from the cache and without it;
* an owner that survived goes on, and so does its successor.

By default a fixed share of the cases runs; ``CHUNKSTORE_FAULTS=full`` runs all of them.
"""

from __future__ import annotations

import gc
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import (
    DeadlineExceeded,
    NotOwner,
    OutcomeUnknown,
    StorageFull,
    StorageUnavailable,
)
from tests.faults.ground import FULL_RUN, Ground, State, fast_folder, observe, work
from tests.faults.scenarios import OPENINGS, OPERATIONS, Opening, Operation
from tests.support.faulty import Call, Dead, FaultyChunkStorage, Outcome, outcomes_of
from tests.support.worlds import VARIANT_IDS, VARIANTS, Kind, Mode

CASES_PER_TEST = 24
OUTAGES = frozenset(("append", "append-rolls-over", "table-put", "commit", "snapshot", "collect", "roll", "close"))
NOT_HAPPENED = (StorageUnavailable, StorageFull, NotOwner, DeadlineExceeded)

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")]


class Case(NamedTuple):
    number: int
    at: int
    call: Call
    outcome: Outcome

    @property
    def id(self) -> str:
        return f"call {self.at} ({self.call.operation} {' '.join(self.call.names)}): {self.outcome.value}"


def cases_of(trace: list[Call], salt: str) -> list[Case]:
    """All cases of a trace, or the share of them that runs by default: chosen by name, the same each time."""
    found = [
        Case(number, index, call, outcome)
        for number, (index, call, outcome) in enumerate(
            (index, call, outcome) for index, call in enumerate(trace) for outcome in outcomes_of(call)
        )
    ]
    if FULL_RUN or len(found) <= CASES_PER_TEST:
        return found

    def rank(case: Case) -> int:
        return zlib.crc32(f"{salt} {case.at} {case.outcome.value}".encode())

    return sorted(sorted(found, key=rank)[:CASES_PER_TEST])


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with fast_folder(tmp_path) as found:
        yield found


@pytest.fixture(params=VARIANTS, ids=VARIANT_IDS)
def variant(request: pytest.FixtureRequest) -> tuple[Kind, Mode]:
    kind, mode = request.param
    return kind, mode


class Promise(NamedTuple):
    """What a caller was told. ``before`` and ``after``: whether the operation may be absent, and present."""

    told: str
    before: bool
    after: bool


ACKNOWLEDGED = Promise("acknowledged", before=False, after=True)
EITHER = Promise("nothing, or outcome unknown", before=True, after=True)
FAILED = Promise("did not happen", before=True, after=False)


def perform(act: Callable[[], object]) -> tuple[Promise, BaseException | None]:
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


def clean(store: ChunkedSegmentStorage) -> None:
    assert store.check("deep") == []


class OperationRun:
    """One interrupted operation."""

    def __init__(self, operation: Operation, kind: Kind, mode: Mode, folder: Path, **settings: object) -> None:
        self.operation = operation
        self.ground = Ground(kind, mode, folder, **{**operation.settings, **settings})
        self.store = self.ground.open(self.ground.wire)
        self.prepared = operation.prepare(self.store)

    def act(self, store: ChunkedSegmentStorage) -> None:
        self.operation.act(store, self.prepared)

    def trace(self) -> tuple[list[Call], State, State]:
        before = observe(self.store)
        self.ground.wire.watch()
        self.act(self.store)
        trace = self.ground.wire.trace
        self.ground.wire.heal()
        self.store.close()
        with self.ground.open() as store:
            after = observe(store)
            clean(store)
        return trace, before, after

    def run(self, case: Case, before: State, after: State) -> None:
        ground, wire, store = self.ground, self.ground.wire, self.store
        wire.inject(case.at, case.outcome)
        promise, error = perform(lambda: self.act(store))
        assert wire.fired, "the operation made fewer calls than before"
        if wire.dead:
            ground.abandon(store)
            state = self.take_over(case.number % 2 == 0, promise, before, after)
        else:
            assert not isinstance(error, Dead)
            wire.heal()
            state = self.go_on(promise, before, after)
        with_cache = case.number % 4 < 2
        if not with_cache:
            ground.world.forget_cache()
        with ground.open() as successor:
            clean(successor)
            assert observe(successor) == state
            state = work(successor, state, "last")
            assert observe(successor) == state

    def take_over(self, with_cache: bool, promise: Promise, before: State, after: State) -> State:
        """Somebody else opens, finds out, finishes the operation, works, and closes."""
        if not with_cache:
            self.ground.world.forget_cache()
        with self.ground.open() as successor:
            clean(successor)
            state = judge(observe(successor), promise, before, after)
            return self.finish(successor, state, before, after)

    def go_on(self, promise: Promise, before: State, after: State) -> State:
        """The owner survived: it knows the state, and can do everything it could before."""
        store = self.store
        if store._core.closed:
            return self.take_over(False, promise, before, after)
        try:
            if promise is EITHER:
                # What is undecided is decided by the next change; until then reads may show the state before it.
                store.table("rows").delete(b"no such row")
            found = observe(store)
        except StorageUnavailable:
            # Its journal is broken, and it says so. A change mends it (so does the keeper, a little later).
            store.table("rows").delete(b"no such row")
            found = observe(store)
        state = judge(found, promise, before, after)
        state = self.finish(store, state, before, after)
        clean(store)
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


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_operation_is_all_or_nothing(
    operation: Operation, variant: tuple[Kind, Mode], folder: Path, record_property: Callable[[str, object], None]
) -> None:
    first = OperationRun(operation, *variant, folder / "trace")
    try:
        trace, before, after = first.trace()
    finally:
        first.close()
    assert trace
    cases = cases_of(trace, f"{operation.name} {variant}")
    for case in cases:
        run = OperationRun(operation, *variant, folder / str(case.number))
        try:
            run.run(case, before, after)
        except BaseException as error:
            error.add_note(case.id)
            raise
        finally:
            run.close()
    say(record_property, f"{operation.name} in {'-'.join(variant)}", len(trace), len(cases))


@pytest.mark.parametrize("operation", [item for item in OPERATIONS if item.name in OUTAGES], ids=lambda item: item.name)
def test_outage_ends_within_the_deadline_and_is_survived(
    operation: Operation, variant: tuple[Kind, Mode], folder: Path, record_property: Callable[[str, object], None]
) -> None:
    """From some call on nothing answers any more; the caller hears so in time, and goes on once the storage is back."""
    short: dict[str, Any] = {"op_deadline_s": 0.05, "undecided_s_max": 0.05}
    first = OperationRun(operation, *variant, folder / "trace")
    try:
        trace, before, after = first.trace()
    finally:
        first.close()
    for index, call in enumerate(trace):
        run = OperationRun(operation, *variant, folder / str(index), **short)
        try:
            began_s = time.monotonic()
            run.run(Case(index, index, call, Outcome.OUTAGE), before, after)
            assert time.monotonic() - began_s < 5
        except BaseException as error:
            error.add_note(f"outage from call {index} on: {call}")
            raise
        finally:
            run.close()
    say(record_property, f"outage in {operation.name} in {'-'.join(variant)}", len(trace), len(trace))


def say(record_property: Callable[[str, object], None], what: str, calls: int, cases: int) -> None:
    record_property("fault_cases", cases)
    print(f"{what}: {calls} storage calls, {cases} cases")
    gc.collect()


class OpeningRun:
    """One interrupted take-over."""

    def __init__(self, opening: Opening, kind: Kind, mode: Mode, folder: Path) -> None:
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
        clean(store)
        store.close()
        return trace, state

    def run(self, case: Case, state: State) -> None:
        ground = self.ground
        wire = ground.new_wire()
        wire.inject(case.at, case.outcome)
        opened: list[ChunkedSegmentStorage] = []
        promise, _ = perform(lambda: opened.append(ground.open(wire)))
        assert wire.fired, "opening made fewer calls than before"
        if wire.dead:
            for store in opened:
                ground.abandon(store)
        else:
            wire.heal()
            if not opened:
                assert promise is FAILED
                opened.append(ground.open(wire))
            state = self.use(opened[0], wire, state, "same")
        if case.number % 2:
            ground.world.forget_cache()
        with ground.open() as store:
            state = self.use(store, None, state, "next")
        if case.number % 2 == 0:
            ground.world.forget_cache()
        with ground.open() as store:
            self.use(store, None, state, "last")

    @staticmethod
    def use(store: ChunkedSegmentStorage, wire: FaultyChunkStorage | None, state: State, tag: str) -> State:
        assert observe(store) == state
        clean(store)
        state = work(store, state, tag)
        assert observe(store) == state
        store.close()
        return state

    def close(self) -> None:
        self.ground.close()


@pytest.mark.parametrize("opening", OPENINGS, ids=lambda opening: opening.name)
def test_take_over_loses_nothing(
    opening: Opening, variant: tuple[Kind, Mode], folder: Path, record_property: Callable[[str, object], None]
) -> None:
    first = OpeningRun(opening, *variant, folder / "trace")
    try:
        trace, state = first.trace()
    finally:
        first.close()
    cases = cases_of(trace, f"{opening.name} {variant}")
    for case in cases:
        run = OpeningRun(opening, *variant, folder / str(case.number))
        try:
            run.run(case, state)
        except BaseException as error:
            error.add_note(case.id)
            raise
        finally:
            run.close()
    say(record_property, f"opening {opening.name} in {'-'.join(variant)}", len(trace), len(cases))
