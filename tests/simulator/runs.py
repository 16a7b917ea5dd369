"""Random runs: owners claim and lose a container, clients work, a nemesis lets everything go wrong, and all is judged.

A run is one seed. A *claim* lasts from the moment a process asks for the container until it serves, is fenced, or dies; a run
makes as many as its plan says. After the last one the faults stop, stalled processes wake up, a fresh process takes over, and
what it finds is compared with every recorded answer.
"""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from random import Random
from typing import Final

from chunkstore import runtime
from chunkstore.storage import ChunkStorage
from chunkstore_bindings.wrappers.retrying import RetryingChunkStorage, RetryPolicy
from tests.simulator.askers import Askers
from tests.simulator.clients import EventWriter
from tests.simulator.drawing import Plan, draw_plan
from tests.simulator.ending import judge
from tests.simulator.lies import Lies
from tests.simulator.lives import Lives
from tests.simulator.result import RunResult
from tests.simulator.scheduler import NS, SchedulerStuck, SimProcessState
from tests.simulator.virtual import EPOCH_MS
from tests.simulator.world import World

_VIRTUAL_S_MAX: Final = 100_000.0


def run_seed(
    seed: int,
    *,
    claims: int = 24,
    trace: bool = False,
) -> RunResult:
    """Run a seed."""
    return Run(draw_plan(seed, claims=claims), trace=trace).run()


def settle() -> None:
    """Take what lives to the end out of the sight of the collections of garbage that end each run."""
    gc.collect()
    gc.freeze()


class Run(Lives):
    """One run; see the module. ``run`` may be called once."""

    def __init__(self, plan: Plan, *, trace: bool = False) -> None:
        self.plan = plan
        self.random = Random(f"story {plan.seed}")
        self._folder = tempfile.mkdtemp(prefix="chunkstore-simulated-", dir=_fast_folder()) if plan.lmdb else None
        self.world = World(
            plan.seed,
            plan.storage,
            settings=plan.settings,
            weather=plan.weather,
            preempt_every=plan.preempt_every,
            # An operation of HDFS is a handful of requests.
            latency_s=plan.latency_s / 6 if plan.storage == "hdfs" else plan.latency_s,
            timeout_s=plan.timeout_s,
            wrap=self._wrap if plan.retrying else None,
            fence_by_stat=plan.fence_by_stat,
            remote=plan.remote,
            bindings=plan.bindings,
            lmdb_folder=self._folder,
        )
        if not plan.bindings:
            # That of the processes, or one that has never been set: to them everything is old then. Of its own chance.
            self.world.backend.clock_ms = Random(f"storage clock {plan.seed}").choice((0, EPOCH_MS))
        self.world.trace = [] if trace else None
        self.scheduler = self.world.scheduler
        kind = f"{plan.storage} {self.world.mode}" + " bound" * plan.bindings + " lmdb" * plan.lmdb
        allowed = [name for name in plan.weather.__slots__ if getattr(plan.weather, name)]
        self.result = RunResult(plan.seed, kind, (*allowed, *dict(plan.distrust)))
        self.writers = [EventWriter(f"w{number}", f"s{number % plan.segments}") for number in range(3)]
        self.world.on_stall = self._stall_at_call
        self.unit_ns = int(plan.latency_s * plan.pace * NS)
        self.lies = Lies(self.world, plan.seed, plan.distrust, self.unit_ns)
        self._start()
        self._askers = Askers(self)

    def _wrap(self, storage: ChunkStorage) -> ChunkStorage:
        unit = self.plan.latency_s
        policy = RetryPolicy(tries_max=4, budget_s=self.plan.timeout_s * 3, pause_s_first=unit, pause_s_max=unit * 20)
        return RetryingChunkStorage(storage, policy)

    # The run

    def run(self) -> RunResult:
        """Run it to its end and judge it."""
        collecting = gc.isenabled()
        gc.disable()
        try:
            self._run()
        finally:
            self.world.close()
            runtime.install(None)
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
            if collecting:
                gc.enable()
        return self.result

    def _run(self) -> None:
        world, scheduler = self.world, self.scheduler
        world.faults.active = True
        nemesis = SimProcessState("nemesis", 0)
        scheduler.spawn(nemesis, self._nemesis, "nemesis")
        scheduler.at(int(_VIRTUAL_S_MAX * NS), lambda: world.fail("no end within a day of virtual time"))
        try:
            scheduler.run()
            if not world.failures and not world.escaped:
                judge(self)
        except SchedulerStuck as error:
            world.fail(str(error))
        except Exception as error:  # noqa: BLE001  (a finding of this seed, and no end of a whole campaign)
            if not any(error is escaped for _, escaped in world.escaped):
                world.fail(f"judging it ended with {error!r}")
        self._sum_up()

    def _sum_up(self) -> None:
        world, scheduler, result = self.world, self.scheduler, self.result
        events = self.recorder.finish()
        result.violations += world.failures
        result.violations += [f"{who} ended with {error!r}" for who, error in world.escaped]
        result.storage_calls = world.storage_calls
        result.trace_hash = scheduler.trace_hash
        result.fired = dict(world.faults.fired)
        result.events = len(events)
        result.acknowledged = sum(event.outcome == "ok" for event in events)

    # The nemesis

    def _nemesis(self) -> None:
        world, random = self.world, self.random
        self.begin_replicas(self.plan.replicas)
        while self.result.claims < self.plan.claims:
            owners = self.begin_somebody()
            scheduler_pause = int(self.unit_ns * (0.1 + 2 * random.random()))
            self.scheduler.pause(scheduler_pause)
            self.strike(owners)
            self.wake_some()
            if self.lies.turn(self.checks.referenced_chunks):
                self.look_around()
            self._askers.turn()
        self.scheduler.pause(int(self.unit_ns * 2 * random.random()))
        self.lies.end()
        world.faults.clear_up()
        self.end()
        self._askers.end()
        self.scheduler.stop()


def _fast_folder() -> str | None:
    """Where files cost no disk, if there is such a place."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
