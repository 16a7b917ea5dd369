"""A job on Spark against the plain command, per core, in the same run: offload of lines.

``python -m benchmarks.bench_spark_jobs [--dir DIR] [--quick]``; needs Java 17 or newer and the extra ``spark``. Spark has two cores
(``local[2]``), all of which count, and its whole job does: planning, starting tasks, the commit. A plain command has one process, which
counts as the cores that it kept busy, at least one. Every round does each once, in random order; a figure is the median of the rounds.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import chunkstore
from benchmarks.harness import Report, median, processor_s, time_s
from benchmarks.on_spark import measured
from chunkstore.cli import main as command
from chunkstore.config import MIB
from chunkstore.spark import jobs

__all__ = ["main"]

CORES = 2
LINE = b"x" * 1023 + b"\n"
LEAST = 0.8


class Ground:
    """A container of 64 chunks, files with lines of 1 KiB, and what is made of them."""

    def __init__(self, spark: Any, path: Path, total: int) -> None:
        self.spark = spark
        self.path = path
        self.total = total
        self.root = f"file://{path}/root"
        self.made = 0
        os.environ["XDG_CACHE_HOME"] = str(path / "cache")
        settings = chunkstore.Settings(cache_dir=str(path / "owner"), gc_grace_s=0)
        self.store = chunkstore.open(self.root, settings=settings)
        for number in range(4):
            self.store.create(f"s{number}", rolling=chunkstore.RollingPolicy(chunk_size_bytes_max=total // 64))
            for _ in range(total // 4 // (4 * MIB)):
                self.store.append(f"s{number}", os.urandom(4 * MIB))
        (path / "in").mkdir()
        for number in range(4):
            with open(path / "in" / f"{number}", "wb") as file:
                for _ in range(total // 16 // MIB):
                    file.write(LINE * 1024)

    def new(self) -> str:
        self.made += 1
        return f"file://{self.path}/new-{self.made}"

    def tidy(self) -> None:
        for made in self.path.glob("new-*"):
            shutil.rmtree(made)
        for info in list(self.store.segments(prefix="offload/")):
            self.store.delete(info.name)
        self.store.collect()

    def ways(self) -> dict[str, tuple[Callable[[], object], Callable[[], object], int]]:
        """By name: the job, the plain command, and the bytes of each."""
        return {
            "offload of lines": (self._offload, self._plain_offload, self.total // 4),
        }

    def _offload(self) -> None:
        self.made += 1
        jobs.offload(self.spark, str(self.path / "in"), self.root, f"topic-{self.made}")

    def _plain_offload(self) -> None:
        root = self.new()
        for number in range(4):
            arguments = ["offload", root, str(self.path / "in" / str(number)), "--topic", "t", "--ledger", str(number)]
            with redirect_stdout(StringIO()):
                assert command([*arguments, "--take-over", "--json"]) == 0


def measure(report: Report, ground: Ground, rounds: int) -> None:
    """All jobs."""
    for name, (job, plain, size_bytes) in ground.ways().items():
        taken: dict[str, list[tuple[float, float]]] = {"job": [], "plain": []}
        for number in range(rounds + 1):
            for which in random.Random(number).sample(list(taken), 2):
                began_s, used_s = time_s(), processor_s()
                (job if which == "job" else plain)()
                if number:  # the first round warms up
                    taken[which].append((time_s() - began_s, processor_s() - used_s))
                ground.tidy()
        pairs = list(zip(taken["job"], taken["plain"], strict=True))
        ours, theirs = (median([used for _, used in taken[which]]) for which in taken)
        detail = f"{size_bytes / ours / 1e6:.0f} MB/s, plain {size_bytes / theirs / 1e6:.0f} MB/s"
        ratio = median([other[1] / one[1] for one, other in pairs])
        what = f"{name} on Spark, plain command's processor time to ours"
        report.add(what, ratio, "ratio", at_least=LEAST, detail=detail)
        # A plain command is one process, of the cores that it kept busy.
        ratio = median([clock * max(1.0, used / clock) / (own * CORES) for (own, _), (clock, used) in pairs])
        report.add(f"{name} on Spark, speed a core to the plain command's", ratio, "ratio", at_least=LEAST)


def main() -> None:
    """Run all and save ``results/spark_jobs.json``."""
    measured(__doc__, "spark_jobs", _run)


def _run(report: Report, spark: Any, path: Path, quick: bool) -> None:
    ground = Ground(spark, path, (256 if quick else 4096) * MIB)
    measure(report, ground, 1 if quick else 3)
    ground.store.close()


if __name__ == "__main__":
    main()
