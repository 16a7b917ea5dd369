"""``python -m tests.simulator``: replay one seed, or run a campaign.

    python -m tests.simulator --seed 4711 [--trace] [--claims 24]
    python -m tests.simulator --seconds 600 --jobs 2 [--save benchmarks/results/simulate.json]

A campaign prints every seed that violates something, with the line that replays it. Exit status: 0 nothing was violated,
1 something was, 2 misuse.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.simulator.campaign import campaign, run_of
from tests.simulator.lies import CLASSES, ENABLED


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    options = _parse(arguments)
    return _replay(options) if options.seed is not None else campaign(options)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.simulator", description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, help="replay the run of this seed")
    parser.add_argument("--trace", action="store_true", help="with --seed: print every storage call and every answer")
    parser.add_argument("--plan", action="store_true", help="with --seed: print what was drawn for it")
    parser.add_argument("--claims", type=int, default=24, help="claims of one run")
    parser.add_argument(
        "--distrust",
        default=",".join(sorted(ENABLED)),
        help=f"which of {', '.join(CLASSES)} may be drawn (default: %(default)s)",
    )
    parser.add_argument("--asks", action="store_true", help="somebody asks the owner in every run, and no lies")
    parser.add_argument("--upkeep", action="store_true", help="all verbs of upkeep in every run, and no lies")
    parser.add_argument("--seconds", type=float, help="how long a campaign lasts")
    parser.add_argument("--total", type=int, help="how many claims a campaign makes")
    parser.add_argument("--jobs", type=int, default=2, help="processes of a campaign")
    parser.add_argument("--first-seed", type=int, help="where a campaign begins; default: anywhere, and printed")
    parser.add_argument("--save", type=Path, help="a JSON file to which the campaign is added")
    options = parser.parse_args(arguments)
    options.distrust = frozenset(filter(None, options.distrust.split(",")))
    if unknown := options.distrust - frozenset(CLASSES):
        parser.error(f"no such class: {', '.join(sorted(unknown))}")
    if options.seed is None and options.seconds is None and options.total is None:
        parser.error("say --seed, or --seconds or --total for a campaign")
    return options


def _replay(options: argparse.Namespace) -> int:
    run = run_of(options, options.seed)
    result = run.run()
    for line in run.world.trace or ():
        print(line)
    print(
        f"seed {result.seed}: {result.kind}, {result.claims} claims, {result.served} served, "
        f"{result.points} scheduling points, {result.storage_calls} storage calls, {result.events} events, "
        f"{result.virtual_s:.1f} s of virtual time, trace {result.trace_hash}"
    )
    for violation in result.violations:
        print(f"VIOLATED: {violation}")
    return 1 if result.violations else 0


if __name__ == "__main__":
    sys.exit(main())
