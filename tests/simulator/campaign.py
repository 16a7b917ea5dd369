"""Many seeds on several cores: ``make simulate``. Every seed that violates something is printed with the line that replays it."""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import pprint
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.simulator.drawing import draw_plan
from tests.simulator.result import RunResult
from tests.simulator.runs import Run

_RUNS_OF_A_WORKER: Final = 40
"""A process grows by a MiB a run: the memory of a run's stacks comes back in pieces that fit no other run."""
_COUNTED: Final = ("claims", "served", "points", "storage_calls", "events", "acknowledged")


def run_of(options: argparse.Namespace, seed: int) -> Run:
    """The run of a seed."""
    upkeep, asks = options.upkeep or None, options.asks or None
    plan = draw_plan(seed, claims=options.claims, distrust=options.distrust, upkeep=upkeep, asks=asks)
    if options.plan:
        pprint.pprint(plan.describe(), stream=sys.stdout)  # noqa: T203  (asked for)
    return Run(plan, trace=options.trace)


def _settle() -> None:
    # Each run ends with a collection of garbage: a third of what it walked through were modules, which never become any.
    gc.collect()
    gc.freeze()


def _job(options: argparse.Namespace, seed: int) -> tuple[RunResult, float]:
    began_s = time.process_time()
    return run_of(options, seed).run(), time.process_time() - began_s


def campaign(options: argparse.Namespace) -> int:
    """Run seeds until the time is over or so many claims were made; 1 if anything was violated."""
    first = options.first_seed if options.first_seed is not None else int.from_bytes(os.urandom(5), "big")
    extra = " --upkeep" * options.upkeep + " --asks" * options.asks
    print(f"first seed {first}, {options.jobs} processes, {options.claims} claims a run", flush=True)
    began_s, cpu_s, seed = time.monotonic(), 0.0, first
    sums: Counter[str] = Counter()
    fired: Counter[str] = Counter()
    violations: list[dict[str, Any]] = []

    def is_over() -> bool:
        late = options.seconds is not None and time.monotonic() >= began_s + options.seconds
        return late or (options.total is not None and sums["claims"] >= options.total)

    # Fresh interpreters: what a fork would inherit (locks, environments) is no part of a run.
    context = multiprocessing.get_context("spawn")
    with context.Pool(options.jobs, initializer=_settle, maxtasksperchild=_RUNS_OF_A_WORKER) as pool:
        while not sums or not is_over():
            seeds = range(seed, seed + options.jobs * 8)
            seed = seeds.stop
            for result, took_s in pool.imap_unordered(partial(_job, options), seeds):
                cpu_s += took_s
                sums.update({name: getattr(result, name) for name in _COUNTED}, runs=1)
                fired.update(name for name in result.allowed if result.fired.get(name))
                if result.violations:
                    violations.append(
                        {"seed": result.seed, "what": result.violations[:5], "replay": result.replay(extra)}
                    )
                    print(f"VIOLATED: {result.violations[0]}\n  {result.replay(extra)}", flush=True)
    print(", ".join(f"{name} fired in {count} runs" for name, count in sorted(fired.items())))
    print(f"{dict(sums)} in {cpu_s:.0f} s of processor time; violations: {len(violations)}")
    if options.save is not None:
        at = datetime.now(UTC).isoformat(timespec="seconds")
        campaign = {"at": at, "first_seed": first, "claims_per_run": options.claims, "options": extra.strip(), **sums}
        _save(options.save, {**campaign, "cpu_s": round(cpu_s, 1), "fired": dict(fired), "violations": violations})
    return 1 if violations else 0


def _save(path: Path, campaign: dict[str, Any]) -> None:
    """Add a campaign to the file; above the campaigns it says what they come to."""
    saved = json.loads(path.read_text(encoding="utf-8"))["campaigns"] if path.exists() else []
    saved.append(campaign)
    sums = {name: round(sum(item[name] for item in saved), 1) for name in ("claims", "runs", "cpu_s")}
    whole = {"campaigns": len(saved), **sums, "violations": sum(len(item["violations"]) for item in saved)}
    path.write_text(json.dumps({"all": whole, "campaigns": saved}, indent=1) + "\n", encoding="utf-8")
