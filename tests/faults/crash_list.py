"""Everything that is interrupted, by name: operations and take-overs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.faults.crash_runs import Case, Interrupted, OpeningRun, OperationRun, all_cases
from tests.faults.ground import Place
from tests.faults.scenarios import OPENINGS, OPERATIONS
from tests.support.faulty import Outcome, When
from tests.support.worlds import Mode

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
    """The calls of a run, all its cases, and what a run with a fault is compared with."""

    calls: int
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
        return Enumerated(len(trace), all_cases(trace, place), expected)
    made = subject.make(place, mode, folder / "behind")
    try:
        trace = made.behind(subject.first)
    finally:
        made.close()
    assert trace, "nothing follows the first fault"
    return Enumerated(len(trace), all_cases(trace, place, subject.first), expected)


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
