"""Crash points (protocol 6.2): every storage call of every operation fails in every way, on every ground.

For each operation the calls are recorded in one run without a fault; then the operation is repeated from the beginning for
each call and each outcome, somebody takes over afresh, and what is there is compared with what was promised:

* everything acknowledged before is there; the interrupted operation is there whole or not at all; there, if it was
  acknowledged; not there, if the caller was told that it did not happen;
* the deep check finds nothing; the state is the same from the cache and without it;
* an owner that survived goes on, and so does its successor.

On the disk every system call is a crash point, and the power may go at each: of what was not synced nothing is kept, or names
without contents, or contents without names, or what chance likes.

By default a fixed share of the cases runs, each operation on half of the grounds, with either journal;
``make crash-points`` (``CHUNKSTORE_FAULTS=full``) runs all of them.
"""

from __future__ import annotations

import gc
import time
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.faults.crash_runs import Case, Interrupted, OpeningRun, OperationRun, all_cases
from tests.faults.ground import FULL_RUN, GROUNDS, Place
from tests.faults.scenarios import OPENINGS, OPERATIONS, Operation
from tests.support.faulty import Outcome, When
from tests.support.worlds import USUAL, Mode

Make = Callable[[Place, Mode, Path], Interrupted]


class Subject(NamedTuple):
    """One thing that is interrupted. ``first``: a fault that belongs to it; the cases lie behind that."""

    name: str
    make: Make
    first: tuple[When, Outcome] | None = None


SUBJECTS: tuple[Subject, ...] = (
    *(Subject(item.name, partial(OperationRun, item), item.first) for item in OPERATIONS),
    *(Subject(f"open {item.name}", partial(OpeningRun, item)) for item in OPENINGS),
)


class Enumerated(NamedTuple):
    """All cases of a run, and what a run with a fault is compared with."""

    cases: list[Case]
    expected: object


def enumerate_cases(subject: Subject, place: Place, mode: Mode, folder: Path) -> Enumerated:
    """Record a run, and list everything that can happen to it."""
    made = subject.make(place, mode, folder / "trace")
    try:
        trace, expected = made.trace()
    finally:
        made.close()
    assert trace
    if subject.first is None:
        return Enumerated(all_cases(trace, place), expected)
    made = subject.make(place, mode, folder / "behind")
    try:
        trace = made.behind(subject.first)
    finally:
        made.close()
    assert trace, "nothing follows the first fault"
    return Enumerated(all_cases(trace, place, subject.first), expected)


def run_case(subject: Subject, place: Place, mode: Mode, folder: Path, case: Case, expected: object) -> bool:
    """Run one case; its name is added to what it raises. Returns whether all its faults happened."""
    run = subject.make(place, mode, folder)
    try:
        run.run(case, expected)
    except BaseException as error:
        error.add_note(f"{subject.name} in {place}-{mode}, {case.id}")
        raise
    finally:
        run.close()
    return run.reached(case)


CASES_PER_TEST = {"memory": 2, "filesystem": 1, "disk": 2}
OUTAGES = frozenset(("append", "append-rolls-over", "table-put", "commit", "snapshot", "collect", "roll", "close"))

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


def share_of(cases: list[Case], place: Place, salt: str) -> list[Case]:
    """All cases, or the share of them that runs by default: chosen by name, the same each time."""
    if FULL_RUN or len(cases) <= CASES_PER_TEST[place]:
        return cases

    def rank(case: Case) -> int:
        return zlib.crc32(f"{salt} {case.at} {case.outcome.value}".encode())

    return sorted(sorted(cases, key=rank)[: CASES_PER_TEST[place]], key=lambda case: case.number)


@pytest.fixture
def variant(request: pytest.FixtureRequest) -> tuple[Place, Mode]:
    place, mode = request.param
    return place, mode


def grounds_of(subject: Subject) -> list[tuple[Place, Mode]]:
    """All grounds, or by default every place once: two of them with one journal, the third with the other, chosen by name."""
    if FULL_RUN:
        return list(GROUNDS)
    slots = [ground for ground in GROUNDS if ground[1] == "slot"]
    appends = [ground for ground in GROUNDS if ground[1] == "append"]
    mixed = 1 + zlib.crc32(subject.name.encode()) % 6  # neither 0b000 nor 0b111
    return [pair[mixed >> at & 1] for at, pair in enumerate(zip(slots, appends, strict=True))]


def marks_of(subject: Subject, ground: tuple[Place, Mode]) -> list[pytest.MarkDecorator]:
    """``make test`` runs a subject in one place, chosen by its name; ``make proofs`` in the others."""
    grounds = grounds_of(subject)
    chosen = grounds[zlib.crc32(f"place of {subject.name}".encode()) % len(grounds)]
    return [] if FULL_RUN or ground == chosen else [pytest.mark.proof]


CHOSEN = [
    pytest.param(subject, ground, id=f"{'-'.join(ground)}-{subject.name}", marks=marks_of(subject, ground))
    for subject in SUBJECTS
    for ground in grounds_of(subject)
]


@pytest.mark.parametrize(("subject", "variant"), CHOSEN, indirect=["variant"])
def test_all_or_nothing(subject: Subject, variant: tuple[Place, Mode], folder: Path) -> None:
    found = enumerate_cases(subject, *variant, folder)
    cases = share_of(found.cases, variant[0], f"{subject.name} {variant}")
    reached = sum(run_case(subject, *variant, folder / str(case.number), case, found.expected) for case in cases)
    assert reached >= 0.8 * len(cases) - 1, "where the machine is slow a keeper's call may come between"
    gc.collect()


@pytest.mark.parametrize("variant", USUAL, ids="-".join, indirect=True)
@pytest.mark.parametrize("operation", [item for item in OPERATIONS if item.name in OUTAGES], ids=lambda item: item.name)
def test_outage_ends_within_the_deadline_and_is_survived(
    operation: Operation, variant: tuple[Place, Mode], folder: Path
) -> None:
    """From some call on nothing answers any more; the caller hears so in time, and goes on once the storage is back."""
    short: dict[str, Any] = {"op_deadline_s": 0.05, "undecided_s_max": 0.05}
    first = OperationRun(operation, *variant, folder / "trace")
    try:
        trace, expected = first.trace()
    finally:
        first.close()
    chosen = list(enumerate(trace))[:: 1 if FULL_RUN else 4]
    for index, call in chosen:
        run = OperationRun(operation, *variant, folder / str(index), **short)
        try:
            began_s = time.monotonic()
            run.run(Case(index, index, call, Outcome.OUTAGE), expected)
            assert time.monotonic() - began_s < 60
        except BaseException as error:
            error.add_note(f"outage from call {index} on: {call}")
            raise
        finally:
            run.close()
    gc.collect()
