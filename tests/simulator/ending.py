"""The end of a run: faults are over, everybody comes to an end, a fresh process takes over, and everything is looked at."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import ChunkstoreError, DeadlineExceeded, NotOwner, OutcomeUnknown, StorageUnavailable
from tests.simulator.checks import ATTEMPTS, patiently
from tests.simulator.clients import KEYS, TABLE
from tests.simulator.lives import Lives
from tests.simulator.recorder import Recorder
from tests.simulator.world import Process, World


def write(recorder: Recorder, store: ChunkedSegmentStorage) -> None:
    """Append to every segment that is open, and put a row: without faults each is acknowledged in bounded time (invariant 33)."""

    def insist(kind: str, name: str, key: bytes) -> None:
        for attempt in range(ATTEMPTS):
            data = b"<heir.%s.%d>" % (key, attempt)
            if kind == "append":
                args: tuple[Any, ...] = (data, None, None, None)
                call: Callable[[], Any] = partial(store.append, name, data)
            else:
                args, call = (TABLE, key, data, None), partial(store.table(TABLE).put, key, data)
            try:
                recorder.call("heir", kind, name, args, lambda: store.epoch, call, owner="heir")
                return
            except (DeadlineExceeded, OutcomeUnknown):
                # The drawn deadline may be shorter than any commit takes here: then it is enough that it stands.
                if _stands(store, kind, name, key, data):
                    return
            except ChunkstoreError as error:
                raise AssertionError(
                    f"invariant 33: without faults, {kind} of {name!r} was answered {error!r}"
                ) from error
        raise AssertionError(f"invariant 33: without faults, {kind} of {name!r} was never acknowledged")

    for info in patiently(lambda: list(store.segments())):
        if not info.sealed:
            insist("append", info.name, info.name.encode())
    insist("table_put", "", KEYS[0])


def _stands(store: ChunkedSegmentStorage, kind: str, name: str, key: bytes, data: bytes) -> bool:
    if kind == "append":
        info = patiently(lambda: store.info(name))
        return data in patiently(lambda: store.read(name, info.start_offset, 1 << 20))
    row = patiently(lambda: store.table(TABLE).get(key))
    return row is not None and row.value == data


def calmly(world: World, call: Callable[[], Any], process: Process) -> Any:
    """A call of a process that nothing stands in the way of: its answer, or None and a failure of the run."""
    job = process.start(call, "judge")
    try:
        job.run_to_end()
    except AssertionError as error:
        world.fail(f"invariant 33: without faults, {error}")
        return None
    if isinstance(job.error, AssertionError) and str(job.error).startswith(("invariant ", "history ")):
        world.fail(str(job.error))
        return None
    if job.error is not None:
        world.fail(f"after all faults: {job.error!r}")
        return None
    return job.value


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
    calmly(world, lambda: write(run.recorder, store), heir)
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
