"""``python -m tests.simulator``: replay one seed, or run a campaign.

    python -m tests.simulator --seed 4711 [--trace] [--claims 24]
    python -m tests.simulator --seconds 600 --jobs 2 [--save benchmarks/results/simulate.json]

Exit status: 0 nothing was violated, 1 something was, 2 misuse.
"""

from __future__ import annotations

import argparse
import os
import pprint
import sys
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.simulator.campaign import (
    Tally,
    campaign,
    firing_rates,
    measure,
    save,
    sources_digest,
    totals,
)
from tests.simulator.drawing import draw_plan
from tests.simulator.lies import CLASSES, ENABLED
from tests.simulator.runs import Run

_OUT = Console()
_SAMPLE = range(1, 41)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    options = _parse(arguments)
    return _replay(options) if options.seed is not None else _campaign(options)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.simulator", description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, help="replay the run of this seed")
    parser.add_argument("--trace", action="store_true", help="with --seed: print every storage call and every answer")
    parser.add_argument("--plan", action="store_true", help="with --seed: print what was drawn for it")
    parser.add_argument("--claims", type=int, default=24, help="claims of one run")
    parser.add_argument("--level", choices=("none", "steps"), default="steps", help="how much is checked on the way")
    parser.add_argument(
        "--distrust",
        default=",".join(sorted(ENABLED)),
        help=f"which of {', '.join(CLASSES)} may be drawn, or all (default: %(default)s)",
    )
    parser.add_argument("--asks", action="store_true", help="somebody asks the owner in every run, and no lies")
    parser.add_argument("--upkeep", action="store_true", help="all verbs of upkeep in every run, and no lies")
    parser.add_argument("--seconds", type=float, help="how long a campaign lasts")
    parser.add_argument("--total", type=int, help="how many claims a campaign makes")
    parser.add_argument("--jobs", type=int, default=2, help="processes of a campaign")
    parser.add_argument("--first-seed", type=int, help="where a campaign begins; default: anywhere, and printed")
    parser.add_argument("--save", type=Path, help="a JSON file to which the campaign is added")
    options = parser.parse_args(arguments)
    named = CLASSES if options.distrust == "all" else filter(None, options.distrust.split(","))
    options.distrust = frozenset(named)
    if unknown := options.distrust - frozenset(CLASSES):
        parser.error(f"no such class: {', '.join(sorted(unknown))}")
    if options.seed is None and options.seconds is None and options.total is None:
        parser.error("say --seed, or --seconds or --total for a campaign")
    return options


def _replay(options: argparse.Namespace) -> int:
    upkeep, asks = options.upkeep or None, options.asks or None
    plan = draw_plan(options.seed, claims=options.claims, distrust=options.distrust, upkeep=upkeep, asks=asks)
    if options.plan:
        pprint.pprint(plan.describe(), stream=sys.stdout)  # noqa: T203  (asked for)
    run = Run(plan, level=options.level, trace=options.trace)
    result = run.run()
    for line in run.world.trace or ():
        sys.stdout.write(line + "\n")
    _OUT.print(
        f"seed {result.seed}: {result.kind}, {result.claims} claims, {result.served} served, "
        f"{result.points} scheduling points, {result.storage_calls} storage calls, {result.events} events, "
        f"{result.virtual_s:.1f} s of virtual time, trace {result.trace_hash}",
        highlight=False,
    )
    for violation in result.violations:
        _OUT.print(f"VIOLATED: {violation}", markup=False, highlight=False)
    return 1 if result.violations else 0


def _campaign(options: argparse.Namespace) -> int:
    first_seed = options.first_seed if options.first_seed is not None else int.from_bytes(os.urandom(5), "big")
    _OUT.print(f"first seed {first_seed}, {options.jobs} processes, {options.claims} claims a run", highlight=False)
    shown: set[int] = set()
    with Progress(
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=_OUT, transient=True
    ) as bar:
        task = bar.add_task("claims", total=options.total)

        def progress(tally: Tally) -> None:
            bar.update(task, completed=tally.claims, description=f"{tally.claims} claims, {tally.runs} runs")
            for item in tally.violations:
                if item["seed"] not in shown:
                    shown.add(item["seed"])
                    _OUT.print(f"VIOLATED: {item['what'][0]}\n  {item['replay']}", markup=False, highlight=False)

        tally = campaign(
            first_seed=first_seed,
            jobs=options.jobs,
            claims=options.claims,
            level=options.level,
            distrust=options.distrust,
            upkeep=options.upkeep,
            asks=options.asks,
            seconds=options.seconds,
            total_claims=options.total,
            progress=progress,
        )
    bare = measure(_SAMPLE, claims=options.claims, level="none")
    checked = measure(_SAMPLE, claims=options.claims, level="steps")
    _report(tally, bare, checked)
    if options.save is not None:
        rates = {
            "points_per_core_s_unchecked": round(bare.points / bare.cpu_s),
            "points_per_core_s_checked": round(checked.points / checked.cpu_s),
        }
        more = {name: True for name in ("upkeep", "asks") if getattr(options, name)}
        save(options.save, tally, first_seed=first_seed, jobs=options.jobs, level=options.level, **more, **rates)
        _OUT.print(f"all campaigns in {options.save}: {totals(options.save)}", highlight=False)
        _OUT.print(f"of them, of the present sources: {totals(options.save, sources_digest())}", highlight=False)
    return 1 if tally.violations else 0


def _report(tally: Tally, bare: Tally, checked: Tally) -> None:
    table = Table("fault class", "allowed in", "fired in", "share", title="Runs with each fault", title_justify="left")
    for name, allowed, fired in firing_rates(tally):
        rare = "  below 30%" if fired < 0.3 * allowed and allowed >= 20 else ""
        table.add_row(name, str(allowed), str(fired), f"{fired / allowed:.0%}{rare}")
    _OUT.print(table)
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(tally.claims_of.items()))
    _OUT.print(
        f"{tally.claims} claims ({kinds}) in {tally.runs} runs: {tally.served} served, {tally.events} calls of clients, "
        f"{tally.acknowledged} acknowledged\n"
        f"{tally.claims / tally.cpu_s * 3600:,.0f} claims an hour and core, {tally.points / tally.claims:,.0f} scheduling "
        f"points a claim\n"
        f"scheduling points a second and core: {bare.points / bare.cpu_s:,.0f} without checks, "
        f"{checked.points / checked.cpu_s:,.0f} with them (of which {checked.switches / checked.points:.0%} gave way)\n"
        f"violations: {len(tally.violations)}",
        highlight=False,
    )


if __name__ == "__main__":
    sys.exit(main())
