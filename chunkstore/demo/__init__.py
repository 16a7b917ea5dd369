"""The demonstration: a year of real flights is offloaded, its writer killed in the middle, and not one acknowledged event is lost.

Everything shown has just happened: real data, a SIGKILL of a real process at a moment that follows from a seed, a recovery without the
metadata cache. Every step checks what it claims.
"""

from __future__ import annotations

import json
import sys
import tempfile

from rich.console import Console

from chunkstore import runtime
from chunkstore.demo.flights import FLIGHTS
from chunkstore.demo.stage import Stage, print_next, print_report
from chunkstore.errors import InvalidArgument
from chunkstore.registry import root_url

__all__ = ["run"]

_ROWS_LEAST = 2_000


def run(root: str | None, *, seed: int | None, as_json: bool, rows: int | None = None, spark: bool = True) -> None:
    """Run the demonstration under ``root`` (default: a new temporary directory, which stays for further play).

    ``rows``: only so many flights, 2,000 or more. ``spark``: let Spark count, too, where it can run.

    Raises ``DemoFailed`` if a promise does not hold, ``InvalidArgument`` for a root in memory or too few rows, ``Unsupported``
    where the flights are not installed, and what the store raises.
    """
    if root is not None and root.startswith("memory:"):
        raise InvalidArgument("a writer in another process cannot share memory://; use a file:// root", argument="ROOT")
    if rows is not None and not _ROWS_LEAST <= rows <= FLIGHTS:
        raise InvalidArgument(f"rows are {_ROWS_LEAST} to {FLIGHTS}, {rows} given", argument="--rows")
    console = Console(quiet=as_json, highlight=False)
    folder = tempfile.mkdtemp(prefix="chunkstore-demo-")
    seed = seed if seed is not None else int.from_bytes(runtime.token(4), "big")
    stage = Stage(root_url(root or f"{folder}/store"), folder, seed, rows or FLIGHTS, console)
    report = stage.play(spark=spark)
    if as_json:
        sys.stdout.write(json.dumps(report) + "\n")
    else:
        print_report(console, report)
        print_next(console, report, stage.longest_segment(), folder)
