"""What the invariants of steps see of a simulated world: every call that takes effect, every answer, every power cut."""

from __future__ import annotations

from typing import Any

from chunkstore.engine.replica import Replica
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import Closed
from tests.judges.events import Event
from tests.judges.step_invariants import StepInvariants
from tests.simulator.wire import Call
from tests.simulator.world import Process, World

_WHOLE = frozenset(("PUT", "PUT*", "RENAME", "link", "rename", "creat"))
_LABEL_NS = 2_000_000
"""A label is no finer, and a clock's step no smaller."""
_DELETING = frozenset(("DELETE", "unlink"))


class Watch:
    """The invariants of a world, from now on. Made right after the world, before anything happens in it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._owners: dict[Process, ChunkedSegmentStorage] = {}
        self._replicas: dict[Process, Replica] = {}
        self.invariants = StepInvariants(
            world.names, world.format, world.backend.content, self._violated, lambda: world.scheduler.now
        )
        self.invariants.kept_until = self._kept_until
        self.invariants.fence_at_tail = world.settings.read_fence == "tail"
        self.invariants.fence_by_stat = world.backend.capabilities.fence_by_stat
        world.observers.append(self._observe)
        self._cut = world.backend.power_cut
        setattr(world.backend, "power_cut", self._power_cut)  # noqa: B010  (of this one backend)

    def _violated(self, invariant: int, message: str) -> None:
        self._world.fail(f"invariant {invariant}: {message}")

    def _power_cut(self) -> None:
        self._cut()
        self.invariants.power_cut()

    def _kept_until(self, process: str, label_ms: int, written_ns: int) -> int:
        """Grace counts from a record's label, which is older than its write, on the clock of whoever deletes."""
        deleting = next(each for each in self._world.processes if each.name == process)
        if self._world.slept or deleting.clock_base_ns:
            return 0
        labelled_ns = min(written_ns, self._world.runtime.told_ms.get(label_ms, written_ns))
        return labelled_ns + max(0, int(self._world.settings.gc_grace_s * 1e9 / deleting.clock_rate) - _LABEL_NS)

    def _observe(self, call: Call, result: Any, late: bool) -> None:
        step, name = call.step, call.name
        if step in _WHOLE:
            if not isinstance(result, BaseException):
                process = call.process.name
                self.invariants.put(process, name, call.data, done=result is not False, late=late)
        elif step == "pwrite":
            if call.data is not None and not isinstance(result, BaseException):
                self.invariants.write(call.process.name, name, call.data)
        elif step in _DELETING:
            if call.op == "remove":
                self.invariants.withdrawn(name)
            elif not isinstance(result, BaseException):
                self.invariants.delete(call.process.name, name)

    # What the run tells

    def serving(self, process: Process, store: ChunkedSegmentStorage) -> None:
        """A process has opened the container; call it in a task of that process."""
        self._owners[process] = store
        epoch = store.epoch
        with self._world.scheduler.atomic():
            self.invariants.taken_over(process.name, epoch, store._container.current.store.head())
            with store._container.current.store.view() as view:
                self.invariants.rows_at(process.name, view)

    def following(self, process: Process, replica: Replica) -> None:
        """A replica has begun to follow. One that is opened anew may begin further back than the one before it stood."""
        self.invariants.forget_replica(process.name)
        self._replicas[process] = replica

    def told(self, event: Event) -> None:
        """A call was answered; then every cache and replica must stand at a point of history."""
        self.invariants.answered(event)
        self.look()

    def look(self) -> None:
        """Look where every cache and every replica stands."""
        with self._world.scheduler.atomic():
            for process, store in list(self._owners.items()):
                try:
                    if process.dead:
                        raise Closed("its process")
                    self.invariants.cache_at(process.name, store._container.current.store.head())
                except Closed:
                    del self._owners[process]
            for process, replica in list(self._replicas.items()):
                try:
                    if process.dead:
                        raise Closed("its process")
                    follower: Any = replica._follower
                    store_of_replica = follower._store
                    if store_of_replica is None:
                        raise Closed("the replica")
                    head = store_of_replica.head()
                except Closed:
                    del self._replicas[process]
                    continue
                self.invariants.replica_at(process.name, head)
