"""A share of ``make simulate`` in every run of the tests: fixed seeds, fresh ones, and one seed that is always one run.

A run that fails names the line that replays it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter

import pytest

from tests.simulator.drawing import draw_plan
from tests.simulator.faults import CLASSES
from tests.simulator.lies import CLASSES as LIES
from tests.simulator.result import RunResult
from tests.simulator.runs import run_seed

# Together they allow every fault class and every lie several times, in every kind of world.
FIXED = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 15, 23, 24, 27, 30, 35, 43, 51, 89, 109, 147, 153, 159)
FRESH, FRESH_CLAIMS = 10, 8
UPKEEP = (41, 44, 54, 84, 97)
DETERMINED = (8, 9, 12, 14, 17, 42)


def _fail_of(result: RunResult, extra: str = "") -> str:
    return "\n".join((f"seed {result.seed} is not clean; replay it: {result.replay()}{extra}", *result.violations[:5]))


@pytest.mark.parametrize("seed", FIXED)
def test_a_fixed_seed_is_clean(seed: int) -> None:
    result = run_seed(seed)
    assert not result.violations, _fail_of(result)
    assert result.claims >= 24
    assert result.events > 0


@pytest.mark.parametrize("seed", UPKEEP)
def test_a_fixed_seed_with_all_verbs_of_upkeep_is_clean(seed: int) -> None:
    result = run_seed(seed, claims=FRESH_CLAIMS)
    assert not result.violations, _fail_of(result, f" --claims {FRESH_CLAIMS}")


@pytest.mark.parametrize("number", range(FRESH))
def test_a_fresh_seed_is_clean(number: int) -> None:
    seed = int.from_bytes(os.urandom(5), "big")
    result = run_seed(seed, claims=FRESH_CLAIMS)
    assert not result.violations, _fail_of(result, f" --claims {FRESH_CLAIMS}")


def test_the_fixed_seeds_allow_every_fault_in_every_world() -> None:
    plans = [draw_plan(seed) for seed in FIXED]
    allowed = Counter(name for plan in plans for name in CLASSES if getattr(plan.weather, name))
    assert [name for name in CLASSES if allowed[name] < 3] == []
    distrusted = Counter(name for plan in plans for name, _ in plan.distrust)
    assert [name for name in LIES if distrusted[name] < 3] == []
    worlds: Counter[tuple[str, str, bool]] = Counter(
        (plan.storage, plan.settings.journal_mode, plan.bindings) for plan in plans
    )
    assert (
        min(worlds[kind, mode, False] for kind, mode in (("s3", "slot"), ("posix", "slot"), ("posix", "append"))) >= 5
    )
    bound = (("s3", "slot"), ("hdfs", "slot"), ("posix", "slot"), ("posix", "append"))
    assert min(worlds[kind, mode, True] for kind, mode in bound) >= 2
    assert sum(plan.askers > 0 for plan in plans) >= 3


def test_the_fixed_seeds_with_all_verbs_of_upkeep_have_them_and_some_pin_across_spills() -> None:
    mixes = [dict(draw_plan(seed).mix) for seed in UPKEEP]
    assert all({"collect", "truncate", "pin", "unpin"} <= set(mix) for mix in mixes)
    assert sum({"merge", "policy", "retention", "sweep"} <= set(mix) for mix in mixes) >= 3
    assert sum(mix["pin"] == 3 for mix in mixes) >= 2


def test_some_of_the_runs_that_are_told_apart_use_the_bindings() -> None:
    bound = {draw_plan(seed).storage for seed in DETERMINED if draw_plan(seed).bindings}
    assert bound == {"s3", "hdfs", "posix"}


def _hashes_in_another_interpreter(hash_seed: str) -> list[str]:
    program = (
        "from tests.simulator.runs import run_seed\n"
        f"for seed in {DETERMINED!r}: print(run_seed(seed, claims=4).trace_hash)"
    )
    path = os.pathsep.join(entry for entry in sys.path if entry)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=280,
        check=True,
    )
    return done.stdout.split()


def test_one_seed_is_one_run_whatever_the_hash_seed() -> None:
    here = [run_seed(seed, claims=4).trace_hash for seed in DETERMINED]
    assert len(set(here)) == len(DETERMINED), "the trace hash does not tell one run from another"
    assert [run_seed(seed, claims=4).trace_hash for seed in DETERMINED] == here
    assert _hashes_in_another_interpreter("4242") == here
