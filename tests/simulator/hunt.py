"""Hunting planted bugs: run seeds with each mutant in the code until something notices, and say what noticed it.

``python -m tests.simulator.hunt [--seeds N] [--jobs N] [NAME ...]``. Promises: a mutant counts as killed only by an
invariant or by the history of what clients were told, never because a process stumbled over it; the table says how many
runs it took.
Leaves out: the bugs (``mutants``), the runs (``runs``).
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tests.simulator.mutants import MUTANTS, planted
from tests.simulator.runs import Run

__all__ = ["Hunted", "hunt", "killer_of", "main", "save"]

CLAIMS = 12
"""Claims in one run of a hunt: short runs find a bug sooner, since every run has weather of its own."""


class Hunted(NamedTuple):
    """What became of one mutant. ``killer`` is empty if it survived ``runs`` runs."""

    name: str
    killer: str
    seed: int
    runs: int
    message: str
    stumbled: int
    """Runs in which only an exception of a process's own was seen, which does not count."""
    cpu_s: float
    """Processor time of all runs up to the one that killed it."""
    unclean: tuple[int, ...]
    """Seeds that are not clean without the mutant: they count for nothing, and each is a finding of its own."""


def hunt(name: str, seeds: Iterable[int], *, claims: int = CLAIMS, seconds_max: float = math.inf) -> Hunted:
    """Run the seeds that suit a mutant until one of them notices it, or until ``seconds_max`` have passed."""
    mutant = MUTANTS[name]
    runs = stumbled = 0
    unclean: list[int] = []
    began_s, end_s = time.process_time(), time.monotonic() + seconds_max
    for seed in seeds:
        plan = mutant.plan(seed, claims)
        if not mutant.suits(plan):
            continue
        if time.monotonic() > end_s:
            break
        runs += 1
        run = Run(plan)  # a container is made by healthy code: a storage that breaks its word is refused by the probe
        with planted(mutant):
            violations = run.run().violations
        for violation in violations:
            killer = killer_of(violation)
            if killer:
                if Run(plan).run().violations:
                    unclean.append(seed)
                    break
                cpu_s = round(time.process_time() - began_s, 1)
                return Hunted(name, killer, seed, runs, violation, stumbled, cpu_s, tuple(unclean))
        else:
            stumbled += bool(violations)
    return Hunted(name, "", -1, runs, "", stumbled, round(time.process_time() - began_s, 1), tuple(unclean))


def killer_of(violation: str) -> str:
    """The invariant or the anomaly that a violation names; empty for an exception that merely escaped."""
    head, _, _ = violation.partition(":")
    return head if head.startswith(("invariant ", "history ")) else ""


def _job(task: tuple[str, int, int, int, float]) -> Hunted:
    name, first, count, claims, seconds_max = task
    return hunt(name, range(first, first + count), claims=claims, seconds_max=seconds_max)


def _show(console: Console, found: Sequence[Hunted]) -> None:
    table = Table("mutant", "killed by", "runs", "seed", "processor s", "what it is")
    for item in sorted(found, key=lambda item: (item.killer == "", item.runs)):
        style = "" if item.killer else "bold red"
        killer = item.killer or f"SURVIVED ({item.stumbled} runs stumbled)"
        row = (item.name, killer, str(item.runs), str(item.seed), f"{item.cpu_s:g}", MUTANTS[item.name].what)
        table.add_row(*row, style=style)
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Hunt them all, or those that are named; exit 1 if one survives."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants (default: all)")
    parser.add_argument("--seeds", type=int, default=20_000, help="seeds to try for each (default: %(default)s)")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--claims", type=int, default=CLAIMS, help="claims in a run (default: %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=600, help="give a mutant up after so long (default: %(default)s)"
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: %(default)s)")
    parser.add_argument("--save", type=Path, help="write the table to this JSON file")
    options = parser.parse_args(arguments)
    unknown = sorted(set(options.names) - set(MUTANTS))
    if unknown:
        parser.error(f"no such mutant: {', '.join(unknown)}; there are {', '.join(MUTANTS)}")
    names = options.names or list(MUTANTS)
    console = Console()
    began_s = time.monotonic()
    found: list[Hunted] = []
    tasks = [(name, options.first, options.seeds, options.claims, options.seconds) for name in names]
    with Progress(console=console, disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task("hunting", total=len(tasks))
        with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
            for item in pool.imap_unordered(_job, tasks):
                found.append(item)
                if options.save:
                    save(options.save, [item], claims=options.claims)
                progress.console.print(
                    f"{item.name}: {item.killer or 'not noticed'} after {item.runs} runs", highlight=False
                )
                progress.advance(bar)
    _show(console, found)
    survivors = [item.name for item in found if not item.killer]
    console.print(
        f"{len(found) - len(survivors)} of {len(found)} killed in {time.monotonic() - began_s:.0f} s"
        + (f"; survived: {', '.join(survivors)}" if survivors else "")
    )
    unclean = sorted({seed for item in found for seed in item.unclean})
    if unclean:
        console.print(f"not clean without any mutant, each a finding of its own: {unclean}")
    return 1 if survivors or unclean else 0


def save(path: Path, found: Iterable[Hunted], *, claims: int) -> None:
    """Write what became of mutants; those in the file that were not hunted this time, and still exist, stay."""
    rows: dict[str, dict[str, object]] = {}
    if path.exists():
        known = json.loads(path.read_text(encoding="utf-8"))["mutants"]
        rows = {row["name"]: row for row in known if row["name"] in MUTANTS}
    for item in found:
        rows[item.name] = {**item._asdict(), "what": MUTANTS[item.name].what, "claims_per_run": claims}
    document = {"mutants": [rows[name] for name in sorted(rows)]}
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
