"""Hunting planted bugs: run seeds with each mutant in the code until something notices, and say what noticed it.

``python -m chunkstore.testing.simulator.hunt [--seeds N] [--jobs N] [NAME ...]``. Promises: a mutant counts as killed only by an
invariant or by the history of what clients were told, never because a process stumbled over it; the table says how many
runs it took. Leaves out: the bugs (``mutants``), the runs (``stories``).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from chunkstore.testing.simulator.drawing import draw_plan
from chunkstore.testing.simulator.mutants import MUTANTS, planted
from chunkstore.testing.simulator.stories import Story

__all__ = ["Hunted", "hunt", "main"]

STORIES = 12
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


def hunt(name: str, seeds: Iterable[int], *, stories: int = STORIES) -> Hunted:
    """Run the seeds that suit a mutant until one of them notices it. Raises ``RuntimeError`` for a seed that is not clean without."""
    mutant = MUTANTS[name]
    runs = stumbled = 0
    for seed in seeds:
        plan = draw_plan(seed, stories=stories, lmdb=False)
        if f"{plan.storage}-{plan.settings.journal_mode}" not in mutant.kinds:
            continue
        runs += 1
        with planted(mutant):
            violations = Story(plan).run().violations
        for violation in violations:
            killer = killer_of(violation)
            if killer:
                if Story(plan).run().violations:
                    raise RuntimeError(f"seed {seed} is not clean without a mutant: mend that first")
                return Hunted(name, killer, seed, runs, violation, stumbled)
        stumbled += bool(violations)
    return Hunted(name, "", -1, runs, "", stumbled)


def killer_of(violation: str) -> str:
    """The invariant or the anomaly that a violation names; empty for an exception that merely escaped."""
    head, _, _ = violation.partition(":")
    return head if head.startswith(("invariant ", "history ")) else ""


def _job(task: tuple[str, int, int, int]) -> Hunted:
    name, first, count, stories = task
    return hunt(name, range(first, first + count), stories=stories)


def _show(console: Console, found: Sequence[Hunted]) -> None:
    table = Table("mutant", "killed by", "runs", "seed", "what it is")
    for item in sorted(found, key=lambda item: (item.killer == "", item.runs)):
        style = "" if item.killer else "bold red"
        killer = item.killer or f"SURVIVED ({item.stumbled} runs stumbled)"
        table.add_row(item.name, killer, str(item.runs), str(item.seed), MUTANTS[item.name].what, style=style)
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Hunt them all, or those that are named; exit 1 if one survives."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants (default: all)")
    parser.add_argument("--seeds", type=int, default=400, help="seeds to try for each (default: %(default)s)")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--stories", type=int, default=STORIES, help="claims in a run (default: %(default)s)")
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
    tasks = [(name, options.first, options.seeds, options.stories) for name in names]
    with Progress(console=console, disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task("hunting", total=len(tasks))
        with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
            for item in pool.imap_unordered(_job, tasks):
                found.append(item)
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
    if options.save:
        document = {"mutants": [item._asdict() for item in sorted(found)], "stories_per_run": options.stories}
        options.save.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
