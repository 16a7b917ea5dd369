"""Random runs: owners claim and lose a container, clients work, a nemesis lets everything go wrong, and all is judged.

A run is one seed. A *claim* lasts from the moment a process asks for the container until it serves, is fenced, or dies; a run
makes as many as its plan says. After the last one the faults stop, stalled processes wake up, a fresh process takes over, and
what it finds is compared with every recorded answer.

Promises: same seed, same run, to the last step (``RunResult.trace_hash``), whatever PYTHONHASHSEED says. Whatever is found
wrong is in ``RunResult.violations``, with the one line that replays it.
Leaves out: reducing a failing run; the checks themselves (``checks``).
"""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any, Final, Literal, NamedTuple

from chunkstore import runtime
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import (
    ChunkstoreError,
    Closed,
    ContainerBusy,
    Damaged,
    InvalidArgument,
    NotOwner,
    StorageUnavailable,
)
from chunkstore.storage import ChunkStorage
from chunkstore_bindings.wrappers.retrying import RetryingChunkStorage, RetryPolicy
from tests.judges.events import Event
from tests.simulator import finals
from tests.simulator.checks import Checks, Level
from tests.simulator.clients import Client, EventWriter, Recorder, follow
from tests.simulator.drawing import Plan, draw_plan
from tests.simulator.result import RunResult
from tests.simulator.scheduler import NS, SchedulerStuck, SimProcessState, Task
from tests.simulator.world import Process, World

__all__ = ["Run", "RunResult", "run_seed"]

_VIRTUAL_S_MAX: Final = 100_000.0
_NEVER: Final = 1 << 62
_VERBS_MIN: Final = 3
"""Verbs of a client before its owner may leave, so that what goes wrong meets somebody who looks."""
_PATIENCE: Final = 1000
"""Timeouts that everything under way has to end in, once there are no faults."""
_POLITE_S: Final = 10.0
"""On top of that where there are leases: a look at one takes two seconds by a slow clock, whatever the timeouts, and may follow another."""


_Ending = Literal["wake", "crash", "power_cut"]


class _Stalled(NamedTuple):
    """Who stalls, until when, or until more than ``served`` claims have been served; and what becomes of it then."""

    process: Process
    until: int
    served: int = _NEVER
    ending: _Ending = "wake"


def run_seed(
    seed: int, *, claims: int = 24, level: Level = "steps", trace: bool = False, lmdb: bool | None = None
) -> RunResult:
    """Run a seed."""
    return Run(draw_plan(seed, claims=claims, lmdb=lmdb), level=level, trace=trace).run()


class Run:
    """One run; see the module. ``run`` may be called once."""

    def __init__(self, plan: Plan, *, level: Level = "steps", trace: bool = False) -> None:
        self.plan = plan
        self.level: Level = level
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
        self.world.trace = [] if trace else None
        self.scheduler = self.world.scheduler
        self.recorder = Recorder(self.world)
        self.checks = Checks(self.world, level)
        self.recorder.listener = self.checks.told
        self.recorder.on_damage = self.checks.damaged
        self.result = RunResult(plan.seed, plan.storage, self.world.mode, lmdb=plan.lmdb, bindings=plan.bindings)
        self.result.allowed = tuple(name for name in plan.weather.__slots__ if getattr(plan.weather, name))
        self.writers = [EventWriter(f"w{number}", f"s{number % plan.segments}") for number in range(3)]
        self.ending = False
        self._lives: list[Task] = []
        self._stalled: list[_Stalled] = []
        self._serving: dict[Process, tuple[Client, ChunkedSegmentStorage]] = {}
        self.world.on_stall = self._stall_at_call
        self._unit_ns = int(plan.latency_s * plan.pace * NS)

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
                self._judge()
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
        result.points = scheduler.points
        result.switches = scheduler.switches
        result.storage_calls = world.storage_calls
        result.virtual_s = scheduler.now / NS
        result.trace_hash = scheduler.trace_hash
        result.fired = dict(world.faults.fired)
        result.events = len(events)
        result.acknowledged = sum(event.outcome == "ok" for event in events)
        result.unknown = sum(event.outcome == "unknown" for event in events)

    @property
    def events(self) -> list[Event]:
        """The history so far."""
        return self.recorder.events

    # The nemesis

    def _nemesis(self) -> None:
        world, random = self.world, self.random
        for number in range(self.plan.replicas):
            self._begin_replica(number)
        while self.result.claims < self.plan.claims:
            owners = [process for process in world.processes if not process.dead and process.name.startswith("o")]
            # A process may outlive what it had to do; it is nobody to wait for.
            awake = [life for life in self._lives if not life.finished and life.process in owners]
            awake = [life for life in awake if life.process.frozen is None]
            # Who stands still while nobody else comes is what a replica, or a power cut, may find him at.
            alone = not awake and random.random() < self.plan.haste
            if alone or (awake and len(owners) < self.plan.owners_max + 2 and random.random() < 0.6):
                self._begin_owner(owners)
            scheduler_pause = int(self._unit_ns * (0.1 + 2 * random.random()))
            self.scheduler.pause(scheduler_pause)
            self._strike(owners)
            self._wake_some()
        self.scheduler.pause(int(self._unit_ns * 2 * random.random()))
        self.ending = True
        world.faults.clear_up()
        while self._stalled:
            self._wake(self._stalled[0].process)
        self.scheduler.stop()

    def _machine_name(self) -> str:
        return f"host{self.random.randrange(self.plan.machines)}"

    def _begin_owner(self, owners: list[Process]) -> None:
        random = self.random
        # One too many must make room: a real machine would not hold them all.
        if len(owners) > self.plan.owners_max:
            victim = random.choice(owners)
            if victim.frozen is None or random.random() < 0.5:
                self._forget_stall(victim)
                victim.crash()
        process = self.world.process(f"o{len(self.world.processes)}", self._machine_name())
        # Of its own chance, so that everything else about a seed is what it was before this was drawn.
        clock = Random(f"clock {self.plan.seed} {process.name}")
        if clock.random() < 0.2:
            process.clock_rate = clock.choice((0.5, 0.9, 1.1, 2.0))
        self._lives.append(self.scheduler.spawn(process, lambda: self._live(process), "life"))

    def _strike(self, owners: list[Process]) -> None:
        world, random = self.world, self.random
        faults = world.faults
        living = [process for process in owners if not process.dead]
        if not living:
            return
        victim = random.choice(living)
        if faults.chance("crash"):
            self._forget_stall(victim)
            victim.crash()
        elif faults.chance("stall"):
            self._stall(victim, int(self._unit_ns * 3 * random.random()))
        elif faults.chance("long_stall"):
            self._stall(victim, int(self._unit_ns * (5 + 40 * random.random())))
        elif faults.chance("power_cut"):
            self._machine_strikes(victim, lose=False)
        elif faults.chance("machine_lost"):
            self._machine_strikes(victim, lose=True)
        if faults.chance("clock_jump"):
            victim.wall_offset_ns += int((random.random() - 0.5) * 10 ** random.randrange(9, 17))
            if random.random() < 0.3:
                victim.clock_base_ns += int(random.random() * 10 ** random.randrange(8, 13))
        if faults.chance("hang"):
            for process in reversed(living):
                if process.frozen is None:
                    # The youngest: most likely in the middle of its claim.
                    self._stall(process, int(self._unit_ns * (2 + 20 * random.random())))
                    break

    def _machine_strikes(self, victim: Process, *, lose: bool) -> None:
        """On a file system the machines are containers of one kernel: each has a cache to lose, and all lose power at once."""
        alone = self.plan.storage != "posix" or (lose and self.plan.machines > 1)
        for machine in [victim.machine] if alone else self.world.machines.values():
            for process in machine.processes():
                self._forget_stall(process)
        if not alone:
            self.world.power_cut()
        elif lose:
            victim.machine.lose()
        else:
            victim.machine.power_cut()

    # Stalling

    def _stall(self, process: Process, duration_ns: int) -> None:
        if process.frozen is None and not process.dead:
            process.stall()
            self._stalled.append(_Stalled(process, self.scheduler.now + duration_ns))
            self.world.log(f"{process.name} stalls")

    def _stall_at_call(self, process: Process) -> None:
        """A process stalls in the middle of a call that decides something: until somebody else serves, or for a while; then it goes
        on, or dies, or all lose power."""
        if process.frozen is not None or process.dead:
            return
        random, weather = self.random, self.plan.weather
        patient = random.random() < 0.6
        duration_ns = int(self._unit_ns * (40 if patient else random.choice((0.5, 2, 5)) * random.random()))
        endings: list[_Ending] = ["wake", "wake", "crash"]
        if weather.power_cut:
            endings += ["power_cut", "power_cut"]
        process.stall()
        successor = self.result.served if patient else _NEVER
        self._stalled.append(_Stalled(process, self.scheduler.now + duration_ns, successor, random.choice(endings)))
        self.world.log(f"{process.name} stalls at a call")

    def _forget_stall(self, process: Process) -> None:
        self._stalled = [item for item in self._stalled if item.process is not process]

    def _wake(self, process: Process) -> None:
        self._forget_stall(process)
        if not process.dead:
            years = self.random.choice((0, 0, 0, 1, 3600, 10**8))
            self.world.log(f"{process.name} wakes {years} s later")
            process.wake(slept_s=years)
            serving = self._serving.get(process)
            if serving is not None:
                client, store = serving
                self.scheduler.spawn(process, lambda: client.look_at_all(store), "look")

    def _wake_some(self) -> None:
        now = self.scheduler.now
        for item in list(self._stalled):
            process = item.process
            if process.dead:
                self._forget_stall(process)
            elif item.until <= now or item.served < self.result.served:
                if item.ending == "wake":
                    self._wake(process)
                    continue
                self._forget_stall(process)
                self.world.faults.note(item.ending)
                if item.ending == "crash":
                    process.crash()
                else:
                    self._machine_strikes(process, lose=False)

    # Owners

    def _live(self, process: Process) -> None:
        """The life of an owner process: claims, serves until it is fenced or tired, perhaps claims again."""
        random = Random(f"life {self.plan.seed} {process.name}")
        lives = 0
        while not self.ending and self.result.claims < self.plan.claims:
            lives += 1
            store = self._claim(process, random, f"{process.name}.{lives}")
            if store is None:
                if random.random() < 0.5:
                    return
                self.world.runtime.sleep_s(self.plan.latency_s * 20 * random.random())
                continue
            self._serve(process, random, f"{process.name}.{lives}", store)
            if random.random() < 0.6:
                return

    def _claim(self, process: Process, random: Random, name: str) -> ChunkedSegmentStorage | None:
        self.result.claims += 1
        wait_s = self.plan.timeout_s if self.plan.settings.lease_s and random.random() < 0.3 else 0
        opening = process.opening(wait_s=wait_s)
        opened: list[ChunkedSegmentStorage] = []

        def claim() -> int:
            opened.append(opening())
            return opened[0].epoch

        try:
            self.recorder.call(name, "open", "", (), lambda: opened[0].epoch if opened else 0, claim)
        except (NotOwner, ContainerBusy):
            return None
        except ChunkstoreError as error:
            if isinstance(error, Damaged | InvalidArgument):
                self.world.fail(f"opening was answered {error!r}")
            return None
        self.result.served += 1
        self.world.log(f"{name} serves as epoch {opened[0].epoch}")
        self.checks.after_take_over(process, opened[0])
        return opened[0]

    def _serve(self, process: Process, random: Random, name: str, store: ChunkedSegmentStorage) -> None:
        scheduler = self.scheduler
        end = scheduler.now + int(self._unit_ns * random.choice((1, 3, 10)) * random.random())
        leaving = False

        def should_stop(done: int) -> bool:
            return leaving or self.ending or (scheduler.now > end and done >= _VERBS_MIN)

        tasks = []
        for number in range(self.plan.clients):
            seed = Random(f"client {self.plan.seed} {name} {number}")
            client = Client(self.world, self.plan, self.recorder, seed, f"{name}.{number}", self.writers, owner=name)
            self._serving[process] = (client, store)
            tasks.append(self.world.runtime.spawn(_working(client, store, should_stop), "client"))
        for task in tasks:
            while task.is_alive():
                task.join(1000.0)
        leaving = True
        dice = random.random()
        if dice < 0.5:
            self.recorder.call(name, "close", "", (), lambda: store.epoch, store.close)
        elif dice < 0.75:
            process.crash()

    # Replicas

    def _begin_replica(self, number: int) -> None:
        process = self.world.process(f"r{number}", self._machine_name())
        self.scheduler.spawn(process, lambda: self._follow(process), "replica")

    def _follow(self, process: Process) -> None:
        random = Random(f"replica {self.plan.seed} {process.name}")
        lives = 0
        while not self.ending:
            lives += 1
            try:
                replica = process.opening_replica()()
            except ChunkstoreError as error:
                if isinstance(error, Damaged | InvalidArgument):
                    self.world.fail(f"opening replica {process.name} was answered {error!r}")
                self.world.runtime.sleep_s(self.plan.latency_s * 50)
                continue
            life = self.scheduler.now + int(self._unit_ns * 10 * random.random())
            self.checks.watch_replica(process, replica)
            follow(
                self.world,
                self.plan,
                self.recorder,
                random,
                f"{process.name}.{lives}",  # one that is opened anew may begin further back
                replica,
                lambda life=life: self.ending or self.scheduler.now > life,  # type: ignore[misc]
            )
            replica.close()

    # The end

    def _judge(self) -> None:
        """Faults are over: a fresh process takes over, and everything is looked at."""
        world = self.world
        if not self._everybody_ends():
            return
        heir = world.process("heir", "host-of-the-heir")
        store = self._calmly(lambda: self._inherit(heir), heir)
        if store is None:
            return
        self._calmly(lambda: finals.write(self.recorder, store), heir)
        found = self._calmly(lambda: self.checks.at_the_end(store, early=True), heir)
        self.recorder.events += found or ()
        # What is still on its way arrives, whoever was alive does its last things; nothing may change any more.
        world.advance(float(self.plan.timeout_s) * 1200)
        if world.failures:
            return
        self._calmly(lambda: self.checks.at_the_end(store, early=False), heir)
        self._calmly(store.close, heir)
        follower = world.process("follower", "host-of-the-follower")
        self._calmly(lambda: self.checks.compare(follower.opening_replica()()), follower)
        self.checks.history(self.recorder.finish())

    def _everybody_ends(self) -> bool:
        """Without faults, whatever is under way comes to an end in bounded time (invariant 33)."""
        patience_s = _PATIENCE * self.plan.timeout_s + (_POLITE_S if self.plan.settings.lease_s else 0.0)
        for _ in range(_PATIENCE):
            busy = [life for life in self._lives if not life.finished and not life.process.dead]
            if not busy:
                return True
            self.world.advance(patience_s / _PATIENCE)
            if self.world.failures:
                return False
        names = ", ".join(life.process.name for life in busy)
        self.world.fail(f"invariant 33: without faults, {names} came to no end in {patience_s:g} s")
        return False

    def _inherit(self, heir: Process) -> ChunkedSegmentStorage:
        """Claim until it succeeds: with no faults left, and nobody new, it has to in bounded time (invariant 33)."""
        for _ in range(len(self.world.processes) + 2):
            try:
                store = heir.opening()()
                self.checks.after_take_over(heir, store)
                return store
            except (NotOwner, StorageUnavailable) as error:
                # Somebody who was asleep, or in the middle of a claim, was faster: he cannot be for ever. A deadline may have been
                # drawn that has no time for a second claim.
                if isinstance(error, StorageUnavailable) and not error.message.startswith("lost every race"):
                    raise
                self.world.runtime.sleep_s(self.plan.timeout_s)
        raise AssertionError("invariant 33: claimants without faults do not come to an end")

    def _calmly(self, call: Callable[[], Any], process: Process) -> Any:
        job = process.start(call, "judge")
        try:
            job.run_to_end()
        except AssertionError as error:
            self.world.fail(f"invariant 33: without faults, {error}")
            return None
        if isinstance(job.error, AssertionError) and str(job.error).startswith("invariant "):
            self.world.fail(str(job.error))
            return None
        if job.error is not None:
            self.world.fail(f"after all faults: {job.error!r}")
            return None
        return job.value


def _fast_folder() -> str | None:
    """Where files cost no disk, if there is such a place."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _working(client: Client, store: ChunkedSegmentStorage, should_stop: Callable[[int], bool]) -> Callable[[], None]:
    def work() -> None:
        with suppress(Closed):
            client.work(store, should_stop)

    return work
