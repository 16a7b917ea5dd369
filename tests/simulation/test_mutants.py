"""Planted bugs are noticed, by random runs and by the named schedules that are there for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from chunkstore.errors import Damaged, SegmentNotFound
from tests.simulation import test_schedules_claims as claims
from tests.simulation import test_schedules_fence as fence
from tests.simulation import test_schedules_garbage as garbage
from tests.simulation import test_schedules_slots as slots
from tests.simulation import test_schedules_snapshots as snapshots
from tests.simulation import test_schedules_tail as tail
from tests.simulation.scene import scene_of
from tests.simulator.hunt import hunt, killer_of
from tests.simulator.mutants import MUTANTS, planted

QUICK = ("early-answer", "fence-ignored", "tail-forgotten", "derived-row-differs", "delete-before-commit")
BITES: tuple[tuple[str, str, Callable[..., None], dict[str, Any]], ...] = (
    ("fence-ignored", "posix-append", fence.test_01_zombie_append_after_tail, {"held": "record"}),
    ("fence-before-sync", "posix-append", fence.test_01_zombie_append_after_tail, {"held": "record"}),
    ("fence-ignored", "posix-append", fence.test_02_zombie_append_during_tail, {"kept": 0.5}),
    ("slot-overwritten", "s3-slot", fence.test_01_zombie_append_after_tail, {"held": "record"}),
    ("tail-forgotten", "posix-append", fence.test_03_check_then_claim, {}),
    ("tail-forgotten", "posix-append", tail.test_18_power_cut_after_adopt, {}),
    ("tail-forgotten", "posix-append", tail.test_20_fsync_eio_then_ok, {"where": "record"}),
    ("early-answer", "posix-append", claims.test_38_claim_storm, {"seed": 0}),
    ("slot-overwritten", "s3-slot", slots.test_08_delayed_seal_on_live_stream, {"first": "seal"}),
    ("replay-skipped", "s3-slot", snapshots.test_15_bootstrap_vs_gc, {"told": True}),
    ("own-epoch-swept", "s3-slot", garbage.test_31_sweep_vs_inflight, {}),
)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.proof) for name in MUTANTS]
)
def test_random_runs_notice_every_planted_bug(name: str) -> None:
    found = hunt(name)
    assert found.killer, f"{name} survived {found.runs} runs: make the simulator stronger"


@pytest.mark.parametrize(
    ("name", "kind", "schedule", "arguments"), BITES, ids=[f"{bite[2].__name__[5:]}-{bite[0]}" for bite in BITES]
)
def test_with_a_planted_bug_the_schedule_fails(
    name: str, kind: str, schedule: Callable[..., None], arguments: dict[str, Any]
) -> None:
    bug = MUTANTS[name]
    assert kind in bug.kinds
    # Damage that recovery itself finds is as good a verdict as the judge's, and so is a segment that is gone.
    with planted(bug), pytest.raises((AssertionError, pytest.fail.Exception, Damaged, SegmentNotFound)):
        if "kind" in schedule.__annotations__:
            schedule(kind, **arguments)
        else:
            with scene_of(kind) as scene:
                schedule(scene, **arguments)


def test_what_merely_escapes_kills_nothing() -> None:
    assert killer_of("invariant 7: acknowledged and not in history") == "invariant 7"
    assert killer_of("append of 's0' was answered Damaged('...')") == ""
