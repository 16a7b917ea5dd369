"""What crashes leave behind, and what one sweep leaves of it: ``python -m tests.simulator.orphans [--runs 1000] [--save]``.

Each run is a random story in which processes die, with all verbs of upkeep; its heir sweeps once. Counted are the chunks that were
deleted, those that are left though no row names them, and those that a segment names and that are not there. With ``--save`` the
figures go to ``benchmarks/results/orphans.json``. Exit status: 0, or 1 if anything is left or missing, or was violated.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from tests.simulator.checks import Swept
from tests.simulator.drawing import Plan, draw_plan
from tests.simulator.runs import Run
from tests.support.report import Report

__all__ = ["crash_story", "main", "tell"]


class Told(NamedTuple):
    """One story."""

    seed: int
    crashes: int
    swept: Swept | None
    violations: list[str]


def crash_story(seed: int) -> Plan:
    """The plan of a seed with all verbs of upkeep, in which processes die between and within their calls."""
    plan = draw_plan(seed, claims=12, upkeep=True)
    weather = plan.weather
    crash, at_call = max(weather.crash, 0.1), max(weather.crash_at_call, 0.003)
    return replace(plan, weather=replace(weather, crash=crash, crash_at_call=at_call))


def tell(seed: int) -> Told:
    """Run the story of a seed."""
    run = Run(crash_story(seed))
    result = run.run()
    crashes = sum(result.fired.get(name, 0) for name in ("crash", "crash_at_call", "power_cut"))
    return Told(seed, crashes, run.checks.sweep, result.violations)


def main(arguments: Sequence[str] | None = None) -> int:
    """See the module."""
    parser = argparse.ArgumentParser("python -m tests.simulator.orphans", description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=1000, help="stories (default: %(default)s)")
    parser.add_argument("--first-seed", type=int, help="where they begin; default: anywhere, and printed")
    parser.add_argument("--jobs", type=int, default=2, help="processes (default: %(default)s)")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/orphans.json")
    options = parser.parse_args(arguments)
    first = options.first_seed if options.first_seed is not None else int.from_bytes(os.urandom(5), "big")
    told: list[Told] = []
    with multiprocessing.get_context("spawn").Pool(options.jobs, maxtasksperchild=50) as pool:
        for story in pool.imap_unordered(tell, range(first, first + options.runs)):
            told.append(story)
            for violation in story.violations:
                print(f"VIOLATED, seed {story.seed}: {violation}", flush=True)
    swept = [story.swept for story in told if story.swept is not None]
    report = Report("orphans")
    report.add("stories with a sweep at their end", len(swept), "runs", at_least=options.runs, detail=f"seed {first}")
    report.add("processes that died, and power cuts", sum(story.crashes for story in told), "deaths")
    report.add("stories that left orphans behind", sum(item.deleted > 0 for item in swept), "runs")
    report.add("orphans deleted", sum(item.deleted for item in swept), "chunks")
    report.add("their bytes", sum(item.deleted_bytes for item in swept), "bytes")
    report.add("orphan bytes left behind one sweep", sum(item.left_bytes for item in swept), "bytes", at_most=0)
    report.add("chunks that the sweeper left itself", sum(item.own_bytes > 0 for item in swept), "runs")
    report.add("chunks that segments name", sum(item.named for item in swept), "chunks")
    report.add("of them missing", sum(item.missing for item in swept), "chunks", at_most=0)
    violated = sum(bool(story.violations) for story in told)
    report.add("stories with violations", violated, "runs", at_most=0)
    if options.save:
        report.save()
    return 1 if any(figure.met is False for figure in report.figures) else 0


if __name__ == "__main__":
    sys.exit(main())
