"""The end of a run: faults are over, everybody comes to an end, a fresh process takes over, and everything is looked at."""

from __future__ import annotations

from typing import Final

from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import NotOwner, StorageUnavailable
from tests.simulator import finals
from tests.simulator.finals import calmly
from tests.simulator.lives import Lives
from tests.simulator.world import Process

_PATIENCE: Final = 1000
"""Timeouts that everything under way has to end in, once there are no faults."""
_POLITE_S: Final = 10.0
"""On top of that where there are leases: a look at one takes two seconds by a slow clock, whatever the timeouts, and may follow another."""
_ASKING_S: Final = 600.0
"""On top of that where somebody asks: pauses between looks of either side are no settings."""


def judge(run: Lives) -> None:
    """Faults are over: a fresh process takes over, and everything is looked at."""
    world = run.world
    if world.failures or not _everybody_ends(run):
        return
    heir = run.process("heir", "host-of-the-heir")
    store = calmly(world, lambda: _inherit(run, heir), heir)
    if store is None:
        return
    calmly(world, lambda: finals.write(run.recorder, store), heir)
    found = calmly(world, lambda: run.checks.at_the_end(store, early=True), heir)
    run.recorder.events += found or ()
    # What is still on its way arrives, whoever was alive does its last things; nothing may change any more.
    world.advance(float(run.plan.timeout_s) * 1200)
    if world.failures:
        return
    calmly(world, lambda: run.checks.swept(store), heir)
    calmly(world, lambda: run.checks.at_the_end(store, early=False), heir)
    calmly(world, store.close, heir)
    follower = run.process("follower", "host-of-the-follower")
    calmly(world, lambda: run.checks.compare(follower.opening_replica()()), follower)
    run.checks.history(run.recorder.finish())


def _everybody_ends(run: Lives) -> bool:
    """Without faults, whatever is under way comes to an end in bounded time (invariant 33)."""
    patience_s = _PATIENCE * run.plan.timeout_s + (_POLITE_S if run.plan.settings.lease_s else 0.0)
    patience_s += _ASKING_S if run.plan.askers else 0.0
    for _ in range(_PATIENCE):
        busy = [life for life in run.lives if not life.finished and not life.process.dead]
        if not busy:
            return True
        run.world.advance(patience_s / _PATIENCE)
        if run.world.failures:
            return False
    names = ", ".join(life.process.name for life in busy)
    run.world.fail(f"invariant 33: without faults, {names} came to no end in {patience_s:g} s")
    return False


def _inherit(run: Lives, heir: Process) -> ChunkedSegmentStorage:
    """Claim until it succeeds: with no faults left, and nobody new, it has to in bounded time (invariant 33)."""
    for _ in range(len(run.world.processes) + 2):
        try:
            store = heir.opening(ask_s=0.0)()  # what was asked for late must not change what is compared
            run.checks.after_take_over(heir, store)
            return store
        except (NotOwner, StorageUnavailable) as error:
            # Somebody who was asleep, or in the middle of a claim, was faster: he cannot be for ever. A deadline may have been
            # drawn that has no time for a second claim.
            if isinstance(error, StorageUnavailable) and not error.message.startswith("lost every race"):
                raise
            run.world.runtime.sleep_s(run.plan.timeout_s)
    raise AssertionError("invariant 33: claimants without faults do not come to an end")
