"""All crash points, and pairs of faults: ``python -m tests.faults [--pairs N] [--minutes M] [--processes N] [--save]``.

Every case of every subject on every ground runs. With ``--pairs`` each subject gets N more on each ground, chosen by chance (the
seed is printed): after a fault that the process survives, a second one at any later call. What fails is printed, with
the words that repeat it: ``--subject NAME --ground disk-slot --only TEXT``. With ``--minutes`` the run ends then, having taken the
subjects in an order that the seed chooses; what is saved says how many of how many.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import time
from collections import Counter

from tests.faults.crash_list import SUBJECTS
from tests.faults.crash_worker import Done, Unit, run_unit
from tests.faults.ground import GROUNDS
from tests.support.report import Report


def _units(options: argparse.Namespace) -> list[Unit]:
    units = [
        Unit(subject.name, place, mode, options.pairs, options.seed, options.only)
        for subject in SUBJECTS
        for place, mode in GROUNDS
        if (not options.subject or subject.name in options.subject)
        and (not options.ground or f"{place}-{mode}" in options.ground)
    ]
    if options.minutes is not None:
        random.Random(options.seed).shuffle(units)
    return units


def _save(done: list[Done], units: int, seconds: float, seed: int) -> None:
    report = Report("crash-points")
    single = sum(sum(item.outcomes.values()) for item in done)
    report.add("subjects on grounds", len(done), "runs", detail=f"of {units}, seed {seed}")
    report.add("calls recorded", sum(item.calls for item in done), "calls")
    report.add("cases, every one run", single, "cases")
    outcomes: Counter[str] = Counter()
    for item in done:
        outcomes += item.outcomes
    for name, count in sorted(outcomes.items()):
        report.add(f"  {name}", count, "cases")
    for place, mode in GROUNDS:
        here = [item for item in done if (item.unit.place, item.unit.mode) == (place, mode)]
        report.add(f"  on {place}-{mode}", sum(sum(item.outcomes.values()) for item in here), "cases")
    report.add("  whose fault did not happen", sum(item.missed for item in done), "cases")
    pairs = sum(item.pairs for item in done)
    report.add("pairs of faults", pairs, "pairs", detail=f"seed {seed}")
    report.add("  whose second fault was not reached", sum(item.pairs_unreached for item in done), "pairs")
    report.add("failures", sum(len(item.failures) for item in done), "cases", at_most=0)
    report.add("duration", seconds, "s")
    report.save()


def main() -> int:
    """See the module; 1 where a case failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--pairs", type=int, default=0, help="pairs of faults for each subject on each ground")
    parser.add_argument("--seed", type=int, default=1, help="chooses the pairs")
    parser.add_argument("--minutes", type=float, help="end after so long (default: when everything has run)")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--subject", action="append", default=[])
    parser.add_argument("--ground", action="append", default=[])
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/crash-points.json")
    options = parser.parse_args()
    units = _units(options)
    began = time.monotonic()
    done: list[Done] = []
    with multiprocessing.get_context("spawn").Pool(options.processes, maxtasksperchild=8) as pool:
        for item in pool.imap_unordered(run_unit, units):
            done.append(item)
            unit = item.unit
            cases = sum(item.outcomes.values())
            print(
                f"[{len(done)}/{len(units)}] {unit.subject} in {unit.place}-{unit.mode}: {item.calls} calls, {cases} cases, "
                f"{item.pairs} pairs, {item.seconds:.0f} s",
                flush=True,
            )
            for failure in item.failures:
                print(f"FAILED {failure}", flush=True)
            if options.minutes is not None and time.monotonic() - began > options.minutes * 60:
                print(f"time is up: {len(done)} of {len(units)}", flush=True)
                break
    seconds = time.monotonic() - began
    failures = sum(len(item.failures) for item in done)
    single = sum(sum(item.outcomes.values()) for item in done)
    print(f"{single:,} cases and {sum(item.pairs for item in done):,} pairs in {seconds:,.0f} s; failures: {failures}")
    if options.save:
        _save(done, len(units), seconds, options.seed)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
