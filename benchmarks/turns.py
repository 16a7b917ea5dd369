"""Contenders take turns: each is a process that runs a slice of operations when told, and ratios are of neighbours in time.

Promises: every contender runs one slice a round, in random order; the first round only warms up. A ratio is the median over rounds of
two slices of the same round, with its quartiles. A contender may run the sources of another checkout. Leaves out: what happens less
than once in a few slices; longer slices show it. Contenders are killed in the end: nothing of theirs is kept.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median, quantiles
from typing import Any, TypeAlias

from benchmarks.harness import Report, scratch
from tests.support.profile_append import calls_of

__all__ = ["Contender", "Operation", "Turns", "add_ratio", "parse_options", "take_turns", "with_others", "work"]

ROOT = Path(__file__).resolve().parents[1]
# The engine is loaded from the working directory; only then do benchmarks and tests come from here.
_CHILD = f"""import sys, chunkstore, chunkstore_bindings, chunkstore_journal
sys.path.insert(0, {str(ROOT)!r})
from benchmarks.turns import work
work(*sys.argv[1:])"""

Operation: TypeAlias = Callable[[int], object]
"""One operation by the thread of this number."""


@dataclass(frozen=True)
class Contender:
    """``make(path, **arguments)`` of a module of benchmarks prepares below an empty folder, and returns the operation."""

    make: Callable[..., Operation]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    threads: int = 1
    each: int = 128
    checkout: Path = ROOT

    def start(self, path: Path) -> subprocess.Popen[str]:
        """The process; it prints how many Python functions an operation calls, then what each slice took."""
        module = f"benchmarks.{Path(self.make.__code__.co_filename).stem}"
        return subprocess.Popen(
            [sys.executable, "-c", _CHILD, module, self.make.__name__, path, json.dumps(self.arguments), str(self.threads)],
            cwd=self.checkout,
            env=os.environ | {"PYTHONPATH": f"{self.checkout}/bindings:{self.checkout}/journal"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip


def work(module: str, make: str, path: str, arguments: str, threads: str) -> None:
    """A contender's process: a slice for each line of standard input."""
    operation: Operation = getattr(import_module(module), make)(Path(path), **json.loads(arguments))
    print(min(len(calls_of(partial(operation, 0))) for _ in range(8)), flush=True)
    with ThreadPoolExecutor(int(threads)) as pool:
        for line in sys.stdin:
            left = iter(range(int(line)))

            def take(thread: int, left: Any = left) -> None:
                for _ in left:
                    operation(thread)

            began_s, began_processor_s = time.perf_counter(), time.process_time()
            list(pool.map(take, range(int(threads))))
            took_s = time.perf_counter() - began_s, time.process_time() - began_processor_s
            print(json.dumps([seconds / int(line) for seconds in took_s]), flush=True)


def add_ratio(
    report: Report, figure: str, over: list[float], under: list[float], detail: str = "", **target: float | None
) -> None:
    """The median of the rounds' ratios as a figure, with its quartiles."""
    ratios = [a / b for a, b in zip(over, under, strict=True)]
    low, _, high = quantiles(ratios, n=4)
    report.add(figure, median(ratios), "ratio", detail=f"quartiles {low:.3g} to {high:.3g}{detail}", **target)


@dataclass(frozen=True)
class Turns:
    """Seconds of an operation by the clock and by the processor, of each contender and round; and its Python calls."""

    wall_s: dict[str, list[float]]
    processor_s: dict[str, list[float]]
    calls: dict[str, int]

    def _detail(self, *names: str) -> str:
        return "".join(
            f"; {name} {median(self.wall_s[name]) * 1e6:.4g} us, processor {median(self.processor_s[name]) * 1e6:.4g} us"
            for name in names
        )

    def speed(self, report: Report, figure: str, name: str, peer: str, **target: float | None) -> None:
        """How many operations in the time in which the peer makes one: more is better."""
        add_ratio(report, figure, self.wall_s[peer], self.wall_s[name], self._detail(name, peer), **target)

    def cost(self, report: Report, figure: str, name: str, peer: str, **target: float | None) -> None:
        """The processor time of an operation to the peer's: less is better."""
        figure = f"{figure}, processor time"
        add_ratio(report, figure, self.processor_s[name], self.processor_s[peer], self._detail(name, peer), **target)


def take_turns(where: Path, contenders: Mapping[str, Contender], rounds: int) -> Turns:
    """Run all of them below ``where``. Raises ``SystemExit`` when one ends early."""
    order = random.Random(1)
    turns = Turns({name: [] for name in contenders}, {name: [] for name in contenders}, {})
    with scratch(str(where)) as path, ExitStack() as stack:
        processes: dict[str, subprocess.Popen[str]] = {}

        def answer(name: str) -> Any:
            line = processes[name].stdout.readline()  # type: ignore[union-attr]
            if not line:
                raise SystemExit(f"{name} ended early")
            return json.loads(line)

        for number, (name, contender) in enumerate(contenders.items()):
            folder = path.resolve() / str(number)
            folder.mkdir()
            processes[name] = stack.enter_context(contender.start(folder))
            stack.callback(processes[name].kill)
            turns.calls[name] = answer(name)
        for number in range(rounds + 1):
            for name in order.sample(list(contenders), len(contenders)):
                print(contenders[name].each, file=processes[name].stdin, flush=True)
                wall_s, processor_s = answer(name)
                if number:
                    turns.wall_s[name].append(wall_s)
                    turns.processor_s[name].append(processor_s)
    return turns


def with_others(contenders: dict[str, Contender], others: Mapping[str, Path]) -> dict[str, Contender]:
    """These, and the same of each other checkout: ``NAME of COMMIT``."""
    return contenders | {
        f"{name} of {commit}": replace(contender, checkout=root)
        for name, contender in contenders.items()
        for commit, root in others.items()
    }


def parse_options(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """With ``--dir``, ``--quick`` and ``--against``; ``others`` are the other checkouts by their commits."""
    parser.add_argument("--dir", help="a directory on the disk to measure")
    parser.add_argument("--quick", action="store_true", help="a small share of the work, to see that it runs")
    parser.add_argument("--against", metavar="CHECKOUT", type=Path, nargs="+", default=[], help="they take turns, too")
    options = parser.parse_args()
    options.others = {}
    for root in options.against:
        command = ["git", "-C", root, "rev-parse", "--short=8", "HEAD"]
        commit = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        options.others[commit] = root.resolve()
    return options
