"""One worker's share of the long run: every case of a subject on a ground, and some pairs of faults."""

from __future__ import annotations

import gc
import random
import shutil
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from tests.faults.crash_list import SUBJECTS, Subject, enumerate_cases, run_case
from tests.faults.crash_runs import Case, all_cases
from tests.faults.ground import Place
from tests.support.faulty import Outcome
from tests.support.worlds import Mode

__all__ = ["Done", "Unit", "run_unit"]

SURVIVED = (Outcome.ERROR_BEFORE, Outcome.ERROR_AFTER, Outcome.SHORT, Outcome.FULL)


class Unit(NamedTuple):
    """What one worker does: a subject on a ground."""

    subject: str
    place: Place
    mode: Mode
    pairs: int
    seed: int
    only: str


class Done(NamedTuple):
    """What came of it."""

    unit: Unit
    calls: int
    outcomes: Counter[str]
    missed: int
    """Cases whose fault did not happen: there were fewer calls this time."""
    pairs: int
    pairs_unreached: int
    failures: list[str]
    seconds: float


def _subject(name: str) -> Subject:
    return next(item for item in SUBJECTS if item.name == name)


def _folder() -> Path:
    shared = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix="chunkstore-faults-", dir=shared if shared.is_dir() else None))


def run_unit(unit: Unit) -> Done:
    began = time.monotonic()
    subject = _subject(unit.subject)
    folder = _folder()
    outcomes: Counter[str] = Counter()
    failures: list[str] = []
    unreached = pairs = missed = 0

    def attempt(case: Case, expected: object) -> bool:
        if unit.only and unit.only not in case.id:
            return True
        try:
            return run_case(subject, unit.place, unit.mode, folder / "case", case, expected)
        except BaseException as error:  # noqa: BLE001  (also what stands for the death of a process)
            text = "".join(traceback.format_exception(error, limit=-3))
            failures.append(f"{subject.name} in {unit.place}-{unit.mode}, {case.id}\n{text}")
            return True
        finally:
            shutil.rmtree(folder / "case", ignore_errors=True)

    try:
        found = enumerate_cases(subject, unit.place, unit.mode, folder)
        for case in found.cases:
            outcomes[case.outcome.value] += 1
            missed += not attempt(case, found.expected)
        if unit.pairs and subject.first is None:
            for case in _pairs(unit, subject, found.cases, folder):
                pairs += 1
                unreached += not attempt(case, found.expected)
        return Done(unit, found.calls, outcomes, missed, pairs, unreached, failures, time.monotonic() - began)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        gc.collect()


def _pairs(unit: Unit, subject: Subject, cases: list[Case], folder: Path) -> list[Case]:
    """Some pairs: a first fault that is survived, and any second one behind it."""
    chance = random.Random(f"{unit.seed} {unit.subject} {unit.place} {unit.mode}")
    firsts = [case for case in cases if case.outcome in SURVIVED]
    chance.shuffle(firsts)
    chosen: list[Case] = []
    each = 5
    for first in firsts[: -(-unit.pairs // each)]:
        made = subject.make(unit.place, unit.mode, folder / "behind")
        try:
            behind = made.behind((first.at, first.outcome))
        finally:
            made.close()
            shutil.rmtree(folder / "behind", ignore_errors=True)
        seconds = all_cases(behind, unit.place, (first.at, first.outcome))
        chosen += chance.sample(seconds, min(each, len(seconds)))
    return chosen[: unit.pairs]
