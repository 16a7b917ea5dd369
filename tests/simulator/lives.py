"""The lives in a run: owners claim, serve and leave, replicas follow, and a nemesis strikes, stalls and wakes them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random
from typing import Final, Literal, NamedTuple

from chunkstore.engine.replica import Replica
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import ChunkstoreError, Closed, Damaged, SegmentNotFound, StorageUnavailable
from tests.judges.events import Event
from tests.simulator.checks import Checks
from tests.simulator.clients import Client, EventWriter, look_at
from tests.simulator.drawing import Plan
from tests.simulator.lies import Lies
from tests.simulator.recorder import Recorder
from tests.simulator.result import RunResult
from tests.simulator.scheduler import Scheduler, Task
from tests.simulator.world import Process, World

_NEVER: Final = 1 << 62
_VERBS_MIN: Final = 3
"""Verbs of a client before its owner may leave, so that what goes wrong meets somebody who looks."""

_Ending = Literal["wake", "crash", "power_cut"]


class _Stalled(NamedTuple):
    """Who stalls, until when, or until more than ``served`` claims have been served; and what becomes of it then."""

    process: Process
    until: int
    served: int = _NEVER
    ending: _Ending = "wake"


class Lives:
    """See the module. ``Run`` derives from it, and calls ``_start`` when all of this is there."""

    plan: Plan
    world: World
    scheduler: Scheduler
    random: Random
    result: RunResult
    writers: list[EventWriter]
    lies: Lies
    unit_ns: int

    def _start(self) -> None:
        self.recorder = Recorder(self.world)
        self.checks = Checks(self.world)
        self.recorder.listener = self.checks.told
        self.recorder.on_damage = self._damaged
        self.ending = False
        self.lives: list[Task] = []
        self._stalled: list[_Stalled] = []
        self._serving: dict[Process, tuple[Client, ChunkedSegmentStorage]] = {}

    def _damaged(self, error: Damaged, since: int) -> bool:
        return self.lies.excuses(error, since) or self.checks.damaged(error)

    @property
    def events(self) -> list[Event]:
        """The history so far."""
        return self.recorder.events

    # What the nemesis does

    def end(self) -> None:
        """Nobody begins anything any more, and who stalls wakes up."""
        self.ending = True
        while self._stalled:
            self._wake(self._stalled[0].process)

    def begin_somebody(self) -> list[Process]:
        """Another owner, if it is time for one. Returns those that were there before."""
        owners = [process for process in self.world.processes if not process.dead and process.name.startswith("o")]
        # A process may outlive what it had to do; it is nobody to wait for.
        awake = [life for life in self.lives if not life.finished and life.process in owners]
        awake = [life for life in awake if life.process.frozen is None]
        # Who stands still while nobody else comes is what a replica, or a power cut, may find him at.
        alone = not awake and self.random.random() < self.plan.haste
        if alone or (awake and len(owners) < self.plan.owners_max + 2 and self.random.random() < 0.6):
            self._begin_owner(owners)
        return owners

    def process(self, name: str, machine: str) -> Process:
        """A new process that works on this root."""
        return self.world.process(name, machine)

    def _machine_name(self) -> str:
        return f"host{self.random.randrange(self.plan.machines)}"

    def _begin_owner(self, owners: list[Process]) -> None:
        random = self.random
        # One too many must make room: a real machine would not hold them all.
        if len(owners) > self.plan.owners_max:
            victim = random.choice(owners)
            if victim.frozen is None or random.random() < 0.5:
                self.forget_stall(victim)
                victim.crash()
        process = self.process(f"o{len(self.world.processes)}", self._machine_name())
        # Of its own chance, so that everything else about a seed is what it was before this was drawn.
        clock = Random(f"clock {self.plan.seed} {process.name}")
        if clock.random() < 0.2:
            process.clock_rate = clock.choice((0.5, 0.9, 1.1, 2.0))
        self.lives.append(self.scheduler.spawn(process, lambda: self._live(process), "life"))

    def strike(self, owners: list[Process]) -> None:
        world, random = self.world, self.random
        faults = world.faults
        living = [process for process in owners if not process.dead]
        if not living:
            return
        victim = random.choice(living)
        if faults.chance("crash"):
            self.forget_stall(victim)
            victim.crash()
        elif faults.chance("stall"):
            self.stall(victim, int(self.unit_ns * 3 * random.random()))
        elif faults.chance("long_stall"):
            self.stall(victim, int(self.unit_ns * (5 + 40 * random.random())))
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
                    self.stall(process, int(self.unit_ns * (2 + 20 * random.random())))
                    break

    def strike_reader(self, process: Process) -> None:
        """What may befall a process that owns nothing."""
        random, faults = self.random, self.world.faults
        if faults.chance("crash"):
            self.forget_stall(process)
            process.crash()
        elif faults.chance("stall"):
            self.stall(process, int(self.unit_ns * (1 + 20 * random.random())))
        if faults.chance("clock_jump"):
            process.wall_offset_ns += int((random.random() - 0.5) * 10 ** random.randrange(9, 13))

    def _machine_strikes(self, victim: Process, *, lose: bool) -> None:
        """On a file system the machines are containers of one kernel: each has a cache to lose, and all lose power at once."""
        alone = self.plan.storage != "posix" or (lose and self.plan.machines > 1)
        for machine in [victim.machine] if alone else self.world.machines.values():
            for process in machine.processes():
                self.forget_stall(process)
        if not alone:
            self.world.power_cut()
        elif lose:
            victim.machine.lose()
        else:
            victim.machine.power_cut()

    # Stalling

    def stall(self, process: Process, duration_ns: int) -> None:
        """Not one step more for so long."""
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
        duration_ns = int(self.unit_ns * (40 if patient else random.choice((0.5, 2, 5)) * random.random()))
        endings: list[_Ending] = ["wake", "wake", "crash"]
        if weather.power_cut:
            endings += ["power_cut", "power_cut"]
        process.stall()
        successor = self.result.served if patient else _NEVER
        self._stalled.append(_Stalled(process, self.scheduler.now + duration_ns, successor, random.choice(endings)))
        self.world.log(f"{process.name} stalls at a call")

    def forget_stall(self, process: Process) -> None:
        """Nobody is to wake it."""
        self._stalled = [item for item in self._stalled if item.process is not process]

    def _wake(self, process: Process) -> None:
        self.forget_stall(process)
        if not process.dead:
            years = self.random.choice((0, 0, 0, 1, 3600, 10**8))
            self.world.log(f"{process.name} wakes {years} s later")
            process.wake(slept_s=years)
            self._look(process)

    def _look(self, process: Process, *, parts: bool = False) -> None:
        serving = self._serving.get(process)
        if serving is not None:
            client, store = serving
            self.scheduler.spawn(process, lambda: client.look_at_all(store, parts=parts), "look")

    def look_around(self) -> None:
        """Whoever serves is asked for some bytes of everything."""
        for process in self._serving:
            if not process.dead and process.frozen is None:
                self._look(process, parts=True)

    def wake_some(self) -> None:
        now = self.scheduler.now
        for item in list(self._stalled):
            process = item.process
            if process.dead:
                self.forget_stall(process)
            elif item.until <= now or item.served < self.result.served:
                if item.ending == "wake":
                    self._wake(process)
                    continue
                self.forget_stall(process)
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
            store = self.claim(process, random, f"{process.name}.{lives}")
            if store is None:
                if random.random() < 0.5:
                    return
                self.world.runtime.sleep_s(self.plan.latency_s * 20 * random.random())
                continue
            self._serve(process, random, f"{process.name}.{lives}", store)
            if random.random() < 0.6:
                return

    def _client(self, random: Random, name: str, owner: str) -> Client:
        return Client(self.world, self.plan, self.recorder, random, name, self.writers, owner=owner)

    def claim(self, process: Process, random: Random, name: str) -> ChunkedSegmentStorage | None:
        """Ask for the container; None: not won."""
        self.result.claims += 1
        wait_s = 0 if self.plan.settings.lease_s and random.random() < 0.3 else None
        opening = process.opening(wait_s=wait_s)
        opened: list[ChunkedSegmentStorage] = []

        def claim() -> int:
            opened.append(opening())
            return opened[0].epoch

        try:
            self.recorder.call(name, "open", "", (), lambda: opened[0].epoch if opened else 0, claim)
        except ChunkstoreError:
            return None  # judged by the recorder
        self.result.served += 1
        self.world.log(f"{name} serves as epoch {opened[0].epoch}")
        self.checks.after_take_over(process, opened[0])
        return opened[0]

    def _serve(self, process: Process, random: Random, name: str, store: ChunkedSegmentStorage) -> None:
        scheduler = self.scheduler
        end = scheduler.now + int(self.unit_ns * random.choice((1, 3, 10)) * random.random())
        leaving = False

        def should_stop(done: int) -> bool:
            return leaving or self.ending or (scheduler.now > end and done >= _VERBS_MIN)

        tasks = []
        for number in range(self.plan.clients):
            seed = Random(f"client {self.plan.seed} {name} {number}")
            client = self._client(seed, f"{name}.{number}", name)
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

    def begin_replicas(self, count: int) -> None:
        """New replicas."""
        for _ in range(count):
            process = self.process(f"r{len(self.world.processes)}", self._machine_name())
            self.scheduler.spawn(process, partial(self._follow, process), "replica")

    def _follow(self, process: Process) -> None:
        random = Random(f"replica {self.plan.seed} {process.name}")
        lives = 0
        while not self.ending:
            lives += 1
            since = self.recorder.now()
            try:
                replica = process.opening_replica()()
            except ChunkstoreError as error:
                self.recorder.judge("opening a replica", process.name, error, since)
                self.world.runtime.sleep_s(self.plan.latency_s * 50)
                continue
            life = self.scheduler.now + int(self.unit_ns * 10 * random.random())
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


def _working(client: Client, store: ChunkedSegmentStorage, should_stop: Callable[[int], bool]) -> Callable[[], None]:
    def work() -> None:
        with suppress(Closed):
            client.work(store, should_stop)

    return work


def follow(
    world: World, plan: Plan, recorder: Recorder, random: Random, name: str, replica: Replica, stop: Callable[[], bool]
) -> None:
    """A replica's reader: catches up and looks, again and again; or waits until it is shown more, at the pace that there is."""
    waits = Random(f"waits {plan.seed} {name}")
    waiting = waits.random() < 0.4
    met = False
    """An error: only who refreshes hears whether it is over."""
    while not stop():
        since = recorder.now()
        try:
            segment = f"s{random.randrange(plan.segments)}"
            if waiting and not met and replica.exists(segment):
                wait_for_more(world, plan, waits, replica, segment)
            else:
                replica.refresh()
                met = False
            look_at(recorder, random, name, replica, segment)
        except Closed:
            return
        except StorageUnavailable:
            pass
        except ChunkstoreError as error:
            met = True
            recorder.judge("replica", name, error, since)
        world.runtime.sleep_s(plan.latency_s * (2 + 30 * random.random()))


def wait_for_more(world: World, plan: Plan, random: Random, replica: Replica, segment: str) -> None:
    """Wait for bytes behind an end that is known. Raises what waiting raises."""
    limit_s = plan.latency_s * random.choice((5, 50, 500))
    end_s = world.runtime.monotonic_s() + limit_s
    try:
        offset = replica.info(segment).length
        info = replica.wait(segment, offset, limit_s)
    except SegmentNotFound:
        return
    if info.length <= offset and not info.sealed and world.runtime.monotonic_s() < end_s:
        world.fail(f"a replica of {segment!r} was told to go on without anything behind {offset}")
