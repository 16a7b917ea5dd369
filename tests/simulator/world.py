"""A simulated world: machines, processes, one storage, and the directed way to make things happen in it.

While a world is open it is ``chunkstore.runtime``. Production code runs in tasks of processes, and nothing runs unless the test
lets it (``run``, ``open``, ``until``, ``advance``). Same seed and same steps, same run.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any, Generic, Literal, Self, TypeVar, Unpack
from zlib import crc32

from greenlet import GreenletExit

from chunkstore import runtime
from chunkstore.assembly import open_store_on
from chunkstore.config import Settings
from chunkstore.engine.replica import Replica
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import ChunkstoreError
from chunkstore.following import open_replica_on
from chunkstore.metadata.lmdb import LmdbMetadataCache
from chunkstore.metadata.lmdb.environment import abandon
from chunkstore.metadata.memory import MemoryMetadataCache, MemoryShelf
from chunkstore.metadata.port import Head, MetadataCache
from chunkstore.records.names import ContainerNames
from chunkstore.runtime import ProcessIdentity
from chunkstore.storage import ChunkStorage
from chunkstore_bindings.wrappers.probe import ServerBacked, probe_storage
from chunkstore_journal.container import create_container
from chunkstore_journal.objects import ContainerFormat
from tests.simulator.bound_hdfs import BoundHdfsBackend
from tests.simulator.bound_posix import BoundPosixBackend
from tests.simulator.bound_s3 import BoundS3Backend
from tests.simulator.faults import CLASSES, Faults, Weather
from tests.simulator.posix import PosixBackend
from tests.simulator.s3 import S3Backend
from tests.simulator.scheduler import NS, Scheduler, Task
from tests.simulator.virtual import VirtualRuntime
from tests.simulator.wire import Call, Gate, Matching, Stage, WiredProcess
from tests.support.closing import Closing
from tests.support.settings import tuned

T = TypeVar("T")


class Job(Generic[T]):
    """A call that runs in a task of a process."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.task: Task | None = None
        self.done = False
        self.value: T | None = None
        self.error: BaseException | None = None

    def run_to_end(self) -> Self:
        """Let the world go on until this is done, or its process is dead or stalled for good."""
        self._world.run_until(lambda: self.done or self.task is None or self.task.process.dead)
        return self

    def result(self) -> T:
        """Run it to its end and return what it returned, or raise what it raised (``ProcessDied`` if its process died)."""
        self.run_to_end()
        if self.error is not None:
            raise self.error
        if not self.done:
            raise ProcessDied("the process died before it answered")
        return self.value  # type: ignore[return-value]

    def failure(self) -> BaseException:
        """Run it to its end and return what it raised. Raises ``AssertionError`` if it succeeded."""
        self.run_to_end()
        assert self.done, "the process died before it answered"
        assert self.error is not None, f"it succeeded with {self.value!r}"
        return self.error


class ProcessDied(RuntimeError):
    """Asked for the answer of a process that is dead."""


_USUAL = tuned(op_deadline_s=5.0, lease_s=0, io_workers=4, collect_s=0, ask_s=0, inline_bytes_max=0)
StorageKind = Literal["s3", "posix", "hdfs"]
Observer = Callable[[Call, Any, bool], None]
"""Told of every call that has taken effect: the call, its result (or the exception), and whether it came late."""


class Machine:
    """A host: its shelf of metadata caches survives its processes, but not the loss of its power or of the machine."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.shelf = MemoryShelf()
        self.boots = 1

    @property
    def boot_id(self) -> str:
        """Changes when the machine has restarted."""
        return f"{self.name}-boot-{self.boots}"

    def processes(self) -> list[Process]:
        """Those that live on it."""
        return [process for process in self.world.processes if process.machine is self and not process.dead]

    def seen(self, address: str) -> Head | None:
        """The furthest end that its owners of a root have seen, with caches in memory."""
        return self.shelf.seen((self.world.format.uuid, address, "owner"))

    def power_cut(self) -> None:
        """All its processes die; on a file system, whose machines are one kernel's, those of all others, too, and what was not synced is
        kept, lost or torn by chance."""
        if self.world.kind == "posix":
            self.world.power_cut()
            return
        for process in self.processes():
            process.crash()
        self.boots += 1
        self.shelf.clear()

    def lose(self) -> None:
        """Processes and cache are gone for good."""
        for process in self.processes():
            process.crash()
        self.shelf.clear()


class Process(WiredProcess):
    """A process on a machine. Everything it does begins with ``start`` (or ``run``, ``open``, ``replica``)."""

    def __init__(self, world: World, machine: Machine, name: str, number: int) -> None:
        super().__init__(name, number)
        self.world = world
        self.machine = machine
        self.storage: ChunkStorage = world.wrap(world.backend.client(self))

    # Doing something

    def start(self, call: Callable[[], T], name: str = "job") -> Job[T]:
        """Begin a call; it goes on whenever the world does."""
        job: Job[T] = Job(self.world)

        def body() -> None:
            try:
                job.value = call()
            except GreenletExit:
                raise
            except BaseException as error:  # noqa: BLE001  (kept for whoever asks)
                job.error = error
            job.done = True
            if self.world.watching:
                self.world.scheduler.stop()

        job.task = self.world.scheduler.spawn(self, body, name)
        return job

    def run(self, call: Callable[[], T], name: str = "job") -> T:
        """Begin a call and let the world go on until it has answered."""
        return self.start(call, name).result()

    def cache(self, role: str = "owner") -> MetadataCache:
        """The machine's metadata cache, as this process opens it."""
        return self.world.make_cache(self, role)

    def opening(self, **changes: Any) -> Callable[[], ChunkedSegmentStorage]:
        """The call that opens the container as an owner, for ``start``."""
        wait_s, accept_rollback = changes.pop("wait_s", None), changes.pop("accept_rollback", False)
        settings = self.world.settings_with(changes)
        world = self.world
        return lambda: open_store_on(
            self.storage,
            container=world.container,
            create=False,
            settings=settings,
            wait_s=wait_s,
            take_over=wait_s is None,
            accept_rollback=accept_rollback,
            cache=self.cache("owner"),
        )

    def open(self, **changes: Any) -> ChunkedSegmentStorage:
        """Claim the container and serve it; returns when it serves. ``changes``: settings that differ; ``wait_s``, ``accept_rollback``."""
        return self.run(self.opening(**changes), "open")

    def opening_replica(self, **changes: Any) -> Callable[[], Replica]:
        """The call that opens a replica, for ``start``."""
        settings = self.world.settings_with(changes)
        return lambda: open_replica_on(
            self.storage,
            container=self.world.container,
            settings=settings,
            cache=self.cache("replica"),
        )

    def replica(self, **changes: Any) -> Replica:
        """Follow the container."""
        return self.run(self.opening_replica(**changes), "replica")

    # Holding calls

    def gate(self, **matching: Unpack[Matching]) -> Gate:
        """Hold this process's next call that matches, as ``Gate`` has it."""
        gate = Gate(**matching)
        self.gates.append(gate)
        return gate

    def until(self, **matching: Unpack[Matching]) -> Call:
        """Let the world go on until this process reaches such a call; it is held there. See ``Call`` for what to do with it."""
        return self.world.reach(self.gate(**matching))

    def until_record(self, stage: Stage = "apply", *, skip: int = 0) -> Call:
        """Let the world go on until this process is about to write a record into its journal."""
        if self.world.mode == "append":
            return self.until(op="write", step="pwrite", name="*/log.a", stage=stage, skip=skip)
        step = {"s3": "PUT*", "posix": "link", "hdfs": "RENAME"}[self.world.kind]
        return self.until(op="create_if_absent", step=step, name="*/j/*/*.s", stage=stage, skip=skip)

    # What happens to it

    def stall(self) -> None:
        """Not one step more until ``wake``."""
        self.world.scheduler.freeze(self)

    def stall_at_call(self) -> None:
        self.world.on_stall(self)

    def wake(self, *, slept_s: float = 0.0) -> None:
        """Go on. ``slept_s``: by how much its monotonic clock has run on beyond the time that passed (years, say)."""
        self.world.slept = self.world.slept or slept_s > 0
        self.clock_base_ns += int(slept_s * NS)
        self.wall_offset_ns += int(slept_s * NS)
        self.world.scheduler.thaw(self)

    def crash(self) -> None:
        if not self.dead:
            self.world.crash(self)


class World(Closing):
    """See the module. A context manager: leaving it gives the door to time and chance back to production.

    Arguments:
      seed: decides everything that is left to chance.
      storage: "s3", "posix", or "hdfs" (with its binding only).
      settings: those of every store; ``container`` is created with them, in fine weather, before anything else.
      weather: the faults; none by default.
      preempt_every: mean number of scheduling points between two preemptions; 0: only who waits gives way.
      latency_s, timeout_s: one way of a call, and a client's patience with a call that does not answer.
      wrap: put a wrapper (retries, say) around each process's storage.
      remote: the object store says that it is behind a network, as real ones do: nobody works for others in his own thread.
      bindings: processes use the binding for real, over a simulated system below it.
      lmdb_folder: keep the metadata caches in LMDB under this folder instead of memory.
    """

    def __init__(
        self,
        seed: int | str = 0,
        storage: StorageKind = "s3",
        *,
        settings: Settings | None = None,
        weather: Weather | None = None,
        preempt_every: float = 0.0,
        latency_s: float | None = None,
        timeout_s: float = 1.0,
        container: str = "c",
        wrap: Callable[[ChunkStorage], ChunkStorage] | None = None,
        append_journal: bool = True,
        fence_by_stat: bool = True,
        remote: bool = False,
        bindings: bool = False,
        lmdb_folder: str | None = None,
    ) -> None:
        self.seed = seed
        self.kind: StorageKind = storage
        self.scheduler = Scheduler(seed, preempt_every=preempt_every)
        self.scheduler.on_escape = self._escaped
        self.runtime = VirtualRuntime(self.scheduler, seed)
        runtime.install(self.runtime)
        self.faults = Faults(weather or Weather(), seed)
        self.faults.active = False
        self.latency_ns = int((latency_s if latency_s is not None else 0.0002 if storage == "posix" else 0.02) * NS)
        self.timeout_ns = int(timeout_s * NS)
        self.container = container
        self.names = ContainerNames(container)
        self.settings = settings or _USUAL
        self.wrap: Callable[[ChunkStorage], ChunkStorage] = wrap or (lambda storage: storage)
        self.backend: S3Backend | PosixBackend | BoundPosixBackend | BoundHdfsBackend
        if storage == "hdfs":
            self.backend = BoundHdfsBackend(self)
        elif storage == "s3":
            self.backend = BoundS3Backend(self) if bindings else S3Backend(self, remote=remote)
        else:
            posix = BoundPosixBackend if bindings else PosixBackend
            self.backend = posix(self, append_journal=append_journal, fence_by_stat=fence_by_stat)
        self.lmdb_folder = lmdb_folder
        self.on_stall: Callable[[Process], None] = Process.stall
        """Called when a process stalls in the middle of a call; sees to it that it wakes."""
        self.processes: list[Process] = []
        self.machines: dict[str, Machine] = {}
        self.observers: list[Observer] = []
        self.failures: list[str] = []
        self.slept = False
        """Whether some process has had more time pass than the others: for it, ages are older than they are."""
        self.escaped: list[tuple[str, BaseException]] = []
        self.watching = False
        self.storage_calls = 0
        self.trace: list[str] | None = None
        self.format = self._create_container()

    def close(self) -> None:
        """End every process; give the runtime back to production."""
        for process in self.processes:
            if not process.dead:
                self.scheduler.kill(process)
        self.scheduler.heap.clear()
        self.observers.clear()
        if isinstance(self.backend, BoundPosixBackend | BoundS3Backend):
            self.backend.close()
        runtime.install(None)
        gc.collect()
        if self.lmdb_folder is not None:
            abandon(self.lmdb_folder)

    def _create_container(self) -> ContainerFormat:
        """In fine weather; the probe of put-if-absent only for bindings that will ask for its result."""
        founder = Process(self, Machine(self, "nowhere"), "founder", 0)
        storage = self.backend.client(founder)
        if isinstance(storage, ServerBacked):
            return founder.run(lambda: create_container(storage, self.names, self.settings, probe=probe_storage))
        return create_container(storage, self.names, self.settings)

    @property
    def mode(self) -> str:
        """The container's journal mode: "slot" or "append"."""
        return self.format.mode

    # Who is there

    def machine(self, name: str = "host") -> Machine:
        """The machine of this name; made when asked for first."""
        found = self.machines.get(name)
        if found is None:
            found = self.machines[name] = Machine(self, name)
        return found

    def process(self, name: str | None = None, machine: str | Machine = "host") -> Process:
        """A new process. Its name should be unique in the run."""
        host = machine if isinstance(machine, Machine) else self.machine(machine)
        number = len(self.processes) + 1
        process = Process(self, host, name or f"p{number}", number)
        self.processes.append(process)
        self.runtime.identities[process] = ProcessIdentity(host.name, 1000 + number, host.boot_id)
        return process

    def settings_with(self, changes: dict[str, Any]) -> Settings:
        """The world's settings with some changed."""
        return tuned(self.settings, **changes)

    def make_cache(self, process: Process, role: str) -> MetadataCache:
        """A machine's metadata cache: in memory, or LMDB under ``lmdb_folder``."""
        if self.lmdb_folder is None:
            return MemoryMetadataCache(self.format.uuid, process.storage.address, role, shelf=process.machine.shelf)
        folder = f"{self.lmdb_folder}/{process.machine.boot_id}"
        return LmdbMetadataCache(folder, self.format.uuid, process.storage.address, role, settings=self.settings)

    # Letting it go on

    def run_until(self, condition: Callable[[], bool], *, at_most_s: float = 3600.0) -> None:
        """Let the world go on until ``condition`` holds (asked whenever a job has ended or a call is held)."""
        reached = False

        def timer() -> None:
            nonlocal reached
            reached = True
            self.scheduler.stop()

        if condition():
            return
        self.scheduler.at(int(at_most_s * NS), timer)
        self.watching = True
        try:
            while not condition():
                assert not reached, f"{at_most_s} s of virtual time were not enough"
                self.scheduler.run()
                if self.escaped:
                    raise self.escaped[0][1]
        finally:
            self.watching = False

    def advance(self, seconds: float) -> None:
        """Let so much virtual time pass, whatever happens in it."""
        done: list[bool] = []

        def timer() -> None:
            done.append(True)
            self.scheduler.stop()

        self.scheduler.at(int(seconds * NS), timer)
        while not done:
            self.scheduler.run()
        if self.escaped:
            raise self.escaped[0][1]

    def reach(self, gate: Gate) -> Call:
        """Let the world go on until the gate holds a call."""
        self.run_until(lambda: gate.call is not None)
        assert gate.call is not None
        return gate.call

    # What happens

    def crash(self, process: Process) -> None:
        """A process dies; what it had on its way arrives or not."""
        inflight = list(process.inflight)
        process.inflight.clear()
        process.gates.clear()
        for call in inflight:
            self.backend.die_with(call)
        self.scheduler.kill(process)

    def power_cut(self) -> None:
        """Power fails everywhere at once: what a file system of one kernel dies of, however many caches its processes have."""
        for machine in self.machines.values():
            for process in machine.processes():
                process.crash()
            machine.boots += 1
            machine.shelf.clear()
        self.backend.power_cut()

    def note_fault(self, fault: str, call: Call) -> None:
        """A fault happens to a call."""
        if fault in CLASSES:
            self.faults.note(fault)
        if self.trace is not None:
            self._log(f"{call!r} suffers {fault}")

    def apply(self, call: Call, *, late: bool = False) -> Any:
        """A call takes effect: the one place where the storage changes."""
        self.storage_calls += 1
        call.state = 1
        scheduler = self.scheduler
        scheduler.fold(crc32(call.name.encode(), len(call.step)))
        if call.data is not None:
            scheduler.fold(crc32(call.data))
        result: Any
        try:
            result = call.apply()
        except ChunkstoreError as error:
            result = error
        if self.trace is not None:
            self._log(f"{call!r} {'late ' if late else ''}-> {_brief(result)}")
        try:
            for observer in self.observers:
                observer(call, result, late)
        except Exception as error:
            # Who called would take it for the storage's, and go on without the judge.
            self.fail(f"looking at {call!r} ended with {error!r}")
            raise
        if isinstance(result, ChunkstoreError):
            raise result
        return result

    def _log(self, line: str) -> None:
        assert self.trace is not None
        self.trace.append(f"{self.scheduler.now / NS:12.6f} {line}")

    def log(self, line: str) -> None:
        """A line for the trace, if one is kept."""
        if self.trace is not None:
            self._log(line)

    def _escaped(self, task: Task, error: BaseException) -> None:
        self.escaped.append((f"{task.name} of {task.process.name}", error))
        self.scheduler.stop()

    def fail(self, what: str) -> None:
        """Something that must not happen has happened: the run ends at the next step."""
        self.failures.append(what)
        self.scheduler.stop()

    # Looking on, outside of everything

    def observer_storage(self) -> ChunkStorage:
        """The visible storage, for observers: calls cost no time and suffer no faults (use it outside of tasks, or within
        ``scheduler.atomic``)."""
        return self.backend.client(Process(self, Machine(self, "nowhere"), "observer", 0))


def _brief(result: object) -> str:
    text = repr(result)
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)})"
