"""What every benchmark shares: medians, alternating pairs, targets, a table on the terminal, results as JSON with versions.

Promises: nothing here asserts; a missed target is printed as such and saved. Leaves out: statistics beyond the median and
the range; the machines these run on are noisy, so only ratios within one run mean something.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from benchmarks.report import RESULTS, Figure, Report
from chunkstore import config

__all__ = [
    "RESULTS", "Figure", "Report", "anonymous_kib", "in_fresh_process", "median", "peak_resident_kib", "processor_s", "scratch", "time_s",
    "tuned",
]  # fmt: skip


def median(values: list[float]) -> float:
    """The median of at least one value."""
    return statistics.median(values)


def tuned(**given: Any) -> config.Settings:
    """Settings by one flat set of names, of a checkout that is compared with, too, which may be older than ``Tuning``."""
    made = getattr(config, "Tuning", None)
    names = {item.name for item in fields(made)} if made is not None else set()
    pace = {name: given.pop(name) for name in names & given.keys()}
    return config.Settings(**given, **({"tuning": made(**pace)} if made is not None else {}))


def time_s() -> float:
    """Wall clock for durations, in seconds."""
    return time.perf_counter()


@contextmanager
def scratch(where: str | None) -> Iterator[Path]:
    """A temporary directory (below ``where``, if given), removed afterwards."""
    path = Path(tempfile.mkdtemp(prefix="chunkstore-bench-", dir=where))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def in_fresh_process(module: str, *arguments: object) -> dict[str, float]:
    """What ``python -m module arguments`` prints as JSON in its last line."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def anonymous_kib() -> int:
    """Anonymous memory of this process in KiB (file pages, such as LMDB's map, are not counted)."""
    with open("/proc/self/smaps_rollup", encoding="ascii") as file:
        for line in file:
            if line.startswith("Anonymous:"):
                return int(line.split()[1])
    return 0


def processor_s() -> float:
    """Processor time of this process and all its descendants, those that ended included, in seconds (Linux)."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                text = Path("/proc", name, "stat").read_text(encoding="ascii", errors="replace")
            except OSError:
                continue
            fields = text.rpartition(")")[2].split()
            parents[int(name)] = int(fields[1])
            ticks[int(name)] = sum(map(int, fields[11:15]))
    total = 0
    for process, used in ticks.items():
        ancestor = process
        while ancestor in parents and ancestor != os.getpid():
            ancestor = parents[ancestor]
        total += used if ancestor == os.getpid() else 0
    return total / os.sysconf("SC_CLK_TCK")


def peak_resident_kib() -> int:
    """Peak resident memory of this process in KiB. Not ``ru_maxrss``: a child inherits its parent's."""
    with open("/proc/self/status", encoding="ascii") as file:
        for line in file:
            if line.startswith("VmHWM:"):
                return int(line.split()[1])
    return 0
