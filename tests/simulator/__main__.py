"""``python -m tests.simulator``: run one seed again, or many seeds on several cores (``make simulate``).

Every seed that violates something is printed with the line that replays it. Exit status: 1 if one did.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.simulator.drawing import draw_plan
from tests.simulator.result import RunResult
from tests.simulator.runs import Run, run_seed, settle

_RUNS_OF_A_WORKER: Final = 40
"""A process grows by a MiB a run: the memory of a run's stacks comes back in pieces that fit no other run."""
_COUNTED: Final = ("claims", "served", "storage_calls", "events", "acknowledged")


def _campaign(seconds: float, jobs: int, claims: int, save: Path | None) -> int:
    seed = first = int.from_bytes(os.urandom(5), "big")
    print(f"first seed {first}, {jobs} processes, {claims} claims a run", flush=True)
    end_s = time.monotonic() + seconds
    sums: Counter[str] = Counter()
    fired: Counter[str] = Counter()
    violated: list[RunResult] = []
    # Fresh interpreters: what a fork would inherit (locks, environments) is no part of a run.
    context = multiprocessing.get_context("spawn")
    with context.Pool(jobs, initializer=settle, maxtasksperchild=_RUNS_OF_A_WORKER) as pool:
        while not sums or time.monotonic() < end_s:
            seeds = range(seed, seed + jobs * 8)
            seed = seeds.stop
            for result in pool.imap_unordered(partial(run_seed, claims=claims), seeds):
                sums.update({name: getattr(result, name) for name in _COUNTED}, runs=1)
                fired.update(name for name in result.allowed if result.fired.get(name))
                if result.violations:
                    violated.append(result)
                    print(f"VIOLATED: {result.violations[0]}\n  {result.replay()} --claims {claims}", flush=True)
    print(", ".join(f"{name} fired in {count} runs" for name, count in sorted(fired.items())))
    print(f"{dict(sums)}; violations: {len(violated)}")
    if save is not None:
        found = [{"seed": result.seed, "what": result.violations[:5]} for result in violated]
        _add_to(save, {"first_seed": first, "claims_per_run": claims, **sums, "fired": fired, "violations": found})
    return 1 if violated else 0


def _add_to(path: Path, campaign: dict[str, Any]) -> None:
    """Add a campaign to the file; above the campaigns it says what they come to."""
    saved = json.loads(path.read_text(encoding="utf-8"))["campaigns"] if path.exists() else []
    saved.append(campaign)
    whole: dict[str, int] = {name: sum(item[name] for item in saved) for name in ("claims", "runs")}
    whole["violations"] = sum(len(item["violations"]) for item in saved)
    path.write_text(json.dumps({"all": whole, "campaigns": saved}, indent=1) + "\n", encoding="utf-8")


def _replay(seed: int, claims: int, *, trace: bool) -> int:
    plan = draw_plan(seed, claims=claims)
    run = Run(plan, trace=trace)
    result = run.run()
    for line in run.world.trace or ():
        print(line)
    print(plan, result, sep="\n")
    for violation in result.violations:
        print(f"VIOLATED: {violation}")
    return 1 if result.violations else 0


def main() -> int:
    """Run the command; returns its exit status."""
    parser = argparse.ArgumentParser("python -m tests.simulator", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay the run of this seed")
    parser.add_argument("--trace", action="store_true", help="with --seed: print every storage call and every answer")
    parser.add_argument("--claims", type=int, default=24, help="claims of one run (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long a campaign lasts (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=2, help="processes of a campaign (default: %(default)s)")
    parser.add_argument("--save", type=Path, help="a JSON file to which the campaign is added")
    options = parser.parse_args()
    if options.seed is not None:
        return _replay(options.seed, options.claims, trace=options.trace)
    return _campaign(options.seconds, options.jobs, options.claims, options.save)


if __name__ == "__main__":
    sys.exit(main())
