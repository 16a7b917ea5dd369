"""``python -m tests.chaos``: real processes fight for one container; exit 1 if anything acknowledged was lost.

For example thirty minutes with five hundred kills: ``--seconds 1800 --kills 500``.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys

from rich.console import Console

from tests.chaos.disk import NoDisk
from tests.chaos.report import Progress, print_outcomes, write_json
from tests.chaos.run import Options, run_chaos


def main() -> int:
    """Run and report. Exit codes: 0 nothing was violated, 1 something was, 2 misuse (also a full disk that cannot be had)."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="of the whole run (default %(default)s)")
    parser.add_argument("--kills", type=int, default=20, help="SIGKILLs in the whole run (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="what is drawn by chance (default: a fresh one)")
    parser.add_argument("--processes", type=int, default=4, help="contenders at a time (default %(default)s)")
    parser.add_argument("--root", help="folder for everything (default: a temporary one)")
    parser.add_argument("--mode", choices=("slot", "append", "both"), default="both", help="of the journal")
    parser.add_argument("--full-disk", choices=("auto", "yes", "no"), default="auto", help="fill a small disk, too")
    parser.add_argument("--keep", action="store_true", help="keep the folder in any case")
    parser.add_argument("--rate", type=float, default=100.0, help="operations a second (default %(default)s)")
    parser.add_argument(
        "--check-every", dest="check_every_s", type=float, default=45.0, metavar="SECONDS", help="between verdicts"
    )
    parser.add_argument(
        "--cast",
        choices=("applications", "upkeep"),
        default="applications",
        help="upkeep: the last two processes are `chunkstore serve` and a cron job with `chunkstore gc`",
    )
    parser.add_argument("--json", metavar="FILE", help="write the figures here")
    chosen = parser.parse_args()
    options = Options(**{item.name: getattr(chosen, item.name) for item in dataclasses.fields(Options)})
    console = Console()
    progress = Progress(console)
    try:
        with progress:
            result = run_chaos(options, begin=progress.begin, show=progress.show)
    except NoDisk as error:
        parser.error(f"no small disk to fill: {error}")
    print_outcomes(console, result.outcomes, result.notes)
    if result.evidence is not None:
        console.print(f"everything is kept in {result.evidence}", markup=False)
    if chosen.json:
        asked = {**dataclasses.asdict(options), "root": None}
        write_json(chosen.json, asked, result.outcomes, result.notes)
    return 1 if result.violated else 0


if __name__ == "__main__":
    sys.exit(main())
