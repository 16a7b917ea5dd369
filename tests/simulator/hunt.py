"""Hunting planted bugs: run seeds with each bug in the product until an invariant or the history checker notices it.

``python -m tests.simulator.hunt [--jobs N] [NAME ...]``. An exception that a process stumbles over counts for nothing.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from itertools import count
from pathlib import Path
from typing import NamedTuple

from tests.simulator.mutants import MUTANTS, planted
from tests.simulator.runs import Run

RUNS_MAX = 500
CLAIMS = 12
"""Claims in one run of a hunt: short runs find a bug sooner, since every run has weather of its own."""


class Hunted(NamedTuple):
    """What became of one bug. ``killer`` is empty if it survived ``runs`` runs."""

    name: str
    what: str
    killer: str
    seed: int
    runs: int
    message: str
    cpu_s: float
    """Processor time of all runs up to the one that killed it."""


def hunt(name: str) -> Hunted:
    """Run seeds that suit a bug until one notices it."""
    mutant, runs, began_s = MUTANTS[name], 0, time.process_time()
    for seed in count(1):
        plan = mutant.plan(seed, CLAIMS)
        if not mutant.suits(plan):
            continue
        if runs == RUNS_MAX:
            break
        runs += 1
        run = Run(plan)  # a container is made by healthy code: a storage that breaks its word is refused by the probe
        with planted(mutant):
            violations = run.run().violations
        for violation in violations:
            if killer := killer_of(violation):
                without = Run(plan).run().violations
                assert not without, f"seed {seed} is not clean without {name}: {without}"
                cpu_s = round(time.process_time() - began_s, 1)
                return Hunted(name, mutant.what, killer, seed, runs, violation, cpu_s)
    return Hunted(name, mutant.what, "", -1, runs, "", round(time.process_time() - began_s, 1))


def killer_of(violation: str) -> str:
    """The invariant or the anomaly that a violation names; empty for an exception that merely escaped."""
    head, _, _ = violation.partition(":")
    return head if head.startswith(("invariant ", "history ")) else ""


def main() -> int:
    """Hunt them all, or those that are named; exit 1 if one survives."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="planted bugs (default: all)")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: %(default)s)")
    parser.add_argument("--save", type=Path, help="write the table to this JSON file")
    options = parser.parse_args()
    found: list[Hunted] = []
    with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
        for item in pool.imap_unordered(hunt, options.names or MUTANTS):
            found.append(item)
            print(
                f"{item.name:24}{item.killer or 'SURVIVED':24}{item.runs:4} runs {item.cpu_s:6} s  {item.what}",
                flush=True,
            )
    if options.save and not options.names:
        rows = [item._asdict() for item in sorted(found)]
        document = {"claims_per_run": CLAIMS, "mutants": rows}
        options.save.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0 if all(item.killer for item in found) else 1


if __name__ == "__main__":
    sys.exit(main())
