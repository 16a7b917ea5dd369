"""The way between one process and the simulated storage: every call is sent, takes effect, and is answered."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from typing import Any, Final, Literal, NoReturn, Protocol, TypedDict, Unpack

from greenlet import GreenletExit

from chunkstore.config import Settings
from chunkstore.errors import ChunkstoreError, StorageUnavailable
from chunkstore.records.names import ContainerNames
from tests.simulator.faults import Faults
from tests.simulator.scheduler import Scheduler, SimProcessState

Stage = Literal["send", "apply", "reply"]
_SENT: Final = 0
_APPLIED: Final = 1


def rotten_bytes(rotten: dict[str, tuple[int, int]], name: str, offset: int, data: bytes) -> bytes:
    """What a read from ``offset`` shows of an object one byte of which may have rotted."""
    place, bits = rotten.get(name, (-1, 0))
    if not offset <= place < offset + len(data):
        return data
    at = place - offset
    return data[:at] + bytes((data[at] ^ bits,)) + data[at + 1 :]


class WiredProcess(SimProcessState):
    """A process as its calls see it: which of them are held (``gates``) and which are on their way."""

    def __init__(self, name: str, number: int) -> None:
        super().__init__(name, number)
        self.gates: list[Gate] = []
        self.inflight: dict[Call, None] = {}
        """Which root it works on: "", or the folder of a copy."""

    def crash(self) -> None:
        """Dead at once. What was on its way to the storage arrives or not, by chance."""
        raise NotImplementedError

    def stall_at_call(self) -> None:
        """Stop in the middle of a call, as the fault of that name has it."""
        raise NotImplementedError


class Backend(Protocol):
    """Which faults a simulated storage has, and what they do."""

    busy: bool

    def applies(self, fault: str, call: Call) -> bool: ...

    def busy_fault(self, call: Call) -> str: ...

    def suffer(self, wire: Wire, call: Call, fault: str) -> Any: ...


class Surroundings(Protocol):
    """What calls and storages need of the world."""

    scheduler: Scheduler
    faults: Faults
    latency_ns: int
    timeout_ns: int
    names: ContainerNames
    settings: Settings

    @property
    def backend(self) -> Backend: ...

    def apply(self, call: Call, *, late: bool = False) -> Any: ...

    def note_fault(self, fault: str, call: Call) -> None: ...


class Call:
    """One call on its way. ``op`` is the port's operation, ``step`` the request or system call it consists of.

    A directed test that holds it may: ``release`` it; ``drop`` it (it never takes effect; the caller hears of a timeout);
    ``drop_reply`` (the caller hears of a timeout; takes effect if it has not yet); ``delay`` it; let it ``outlive`` its caller;
    ``fail`` it with an error of the test's own.
    """

    def __init__(
        self,
        world: Surroundings,
        process: WiredProcess,
        op: str,
        step: str,
        name: str,
        apply: Callable[[], Any],
        data: bytes | None,
        changes: bool,
    ) -> None:
        self._world = world
        self.process = process
        self.op = op
        self.step = step
        self.name = name
        self.apply = apply
        self.data = data
        self.changes = changes
        self.state = _SENT
        self.held: Any = None
        self.verdict = ""
        self.error: BaseException | None = None

    def __repr__(self) -> str:
        return f"<{self.op}/{self.step} {self.name} of {self.process.name}>"

    @property
    def applied(self) -> bool:
        """Whether it has taken effect."""
        return self.state == _APPLIED

    def release(self) -> None:
        """Let a held call go on."""
        assert self.held is not None, f"{self!r} is not held"
        task, self.held = self.held, None
        self._world.scheduler.wake(task)

    def drop(self) -> None:
        """The request is lost; its caller times out."""
        self.verdict = "drop"
        self.release()

    def drop_reply(self) -> None:
        """The request takes effect, the reply is lost; its caller times out."""
        self.verdict = "drop_reply"
        self.release()

    def delay(self) -> Callable[[], object]:
        """Its caller times out now; the returned call makes the request take effect later, once for each time it is called."""
        self.verdict = "drop"
        self.release()
        return self.late

    def outlive(self) -> Callable[[], object]:
        """Its process dies now, with the request on its way; it takes effect whenever the returned call is made."""
        self.process.inflight.pop(self, None)
        self.process.crash()
        return self.late

    def fail(self, error: BaseException) -> None:
        """Its caller gets ``error``; it has no effect unless it had it already."""
        self.verdict = "fail"
        self.error = error
        self.release()

    def late(self) -> object:
        """Take effect now, for nobody: what a request does that arrives late, or twice. Whatever it answers is lost."""
        try:
            return self._world.apply(self, late=True)
        except Exception as refused:  # noqa: BLE001  (409, 412, 404: nobody hears it)
            return refused


class Patterns(TypedDict, total=False):
    """Shell patterns for calls."""

    op: str
    step: str
    name: str


class Matching(Patterns, total=False):
    """Which calls a gate is for: patterns, the stage, how many pass first, what must hold of the call besides."""

    stage: Stage
    skip: int
    where: Callable[[Call], bool] | None


class Gate:
    """Holds the first call that matches; see ``Matching``. Every pattern is "*", and the stage "apply", unless it is said."""

    def __init__(self, **matching: Unpack[Matching]) -> None:
        self.stage: Stage = matching.get("stage", "apply")
        self.op = matching.get("op", "*")
        self.step = matching.get("step", "*")
        self.name = matching.get("name", "*")
        self.skip = matching.get("skip", 0)
        self.predicate = matching.get("where")
        self.call: Call | None = None

    def wants(self, call: Call, stage: Stage) -> bool:
        if (
            self.call is not None
            or stage != self.stage
            or not fnmatch.fnmatchcase(call.op, self.op)
            or not fnmatch.fnmatchcase(call.step, self.step)
            or not fnmatch.fnmatchcase(call.name, self.name)
            or (self.predicate is not None and not self.predicate(call))
        ):
            return False
        if self.skip:
            self.skip -= 1
            return False
        return True


class Rule(Gate):
    """Decides calls of a process that match, until ``end``: each fails with ``error``, or is lost where there is none.

    ``every``: only each so-manieth of them. ``calls`` counts those that were decided.
    """

    def __init__(
        self,
        process: WiredProcess,
        *,
        error: BaseException | None = None,
        every: int = 1,
        **patterns: Unpack[Patterns],
    ) -> None:
        super().__init__(**patterns, stage="send", skip=every - 1)
        self.process = process
        self.error = error
        self.every = every
        self.calls = 0
        process.gates.append(self)

    def end(self) -> None:
        """Calls go through again."""
        self.process.gates.remove(self)

    def wants(self, call: Call, stage: Stage) -> bool:
        """Always no; a call that matches is decided."""
        if super().wants(call, stage):
            self.calls += 1
            self.skip = self.every - 1
            call.verdict = "drop" if self.error is None else "fail"
            call.error = self.error.copy() if isinstance(self.error, ChunkstoreError) else self.error
        return False


class Wire:
    """The calls of one process. One of it per simulated storage object."""

    def __init__(self, world: Surroundings, process: WiredProcess) -> None:
        self._world = world
        self._process = process
        self._scheduler = world.scheduler
        self._faults = world.faults
        self._latency_ns = world.latency_ns

    def call(
        self,
        op: str,
        step: str,
        name: str,
        apply: Callable[[], Any],
        *,
        data: bytes | None = None,
        changes: bool = False,
        remote: bool = True,
    ) -> Any:
        """Perform one request or system call. ``remote``: replies can be lost, and requests come late or twice."""
        scheduler = self._scheduler
        if scheduler.in_hub():
            return apply()
        world, process = self._world, self._process
        call = Call(world, process, op, step, name, apply, data, changes)
        scheduler.fuse -= 1
        if scheduler.fuse < 0:
            scheduler.burnt()
        fault = self._faults.draw() if self._faults.active else ""
        if fault and not world.backend.applies(fault, call):
            fault = ""
        if process.gates:
            self._hold(call, "send")
        inflight = process.inflight
        inflight[call] = None
        latency = self._latency_ns
        if fault or call.verdict or (remote and world.backend.busy):
            return self._call_in_bad_weather(call, fault)
        dice = self._faults.random.random()
        scheduler.pause(int(latency * (0.2 + dice)))
        if process.gates:
            self._hold(call, "apply")
            if call.verdict:
                return self._call_in_bad_weather(call, "")
        inflight.pop(call, None)
        try:
            result = world.apply(call)
        finally:
            if not scheduler.killing:
                scheduler.pause(int(latency * (1.2 - dice)))
                if process.gates:
                    self._hold(call, "reply")
                    if call.verdict:
                        self._judge(call)
        return result

    def _hold(self, call: Call, stage: Stage) -> None:
        for gate in self._process.gates:
            if gate.wants(call, stage):
                gate.call = call
                self._process.gates.remove(gate)
                call.held = self._scheduler.current
                self._scheduler.stop()
                self._scheduler.wait(None)
                return

    def _judge(self, call: Call) -> NoReturn:
        """What a directed test has decided about a call."""
        if call.verdict == "fail":
            assert call.error is not None
            raise call.error
        if call.verdict == "drop_reply" and not call.applied:
            call.late()
        raise self.timed_out(call)

    def _call_in_bad_weather(self, call: Call, fault: str) -> Any:
        world, process, scheduler = self._world, self._process, self._scheduler
        if call.verdict:
            process.inflight.pop(call, None)
            self._judge(call)
        fault = fault or world.backend.busy_fault(call)
        if not fault:
            return self._apply_slowly(call, self._latency_ns)
        world.note_fault(fault, call)
        if fault == "crash_at_call":
            scheduler.pause(self._latency_ns)
            if self._faults.random.random() < 0.5:
                process.inflight.pop(call, None)
                call.late()
            process.crash()
            raise GreenletExit
        if fault == "stall_at_call":
            return self._stall_at(call)
        if fault == "slow":
            return self._apply_slowly(call, int(self._latency_ns * (5 + 200 * self._faults.random.random() ** 3)))
        return world.backend.suffer(self, call, fault)

    def _apply_slowly(self, call: Call, travel_ns: int) -> Any:
        result = self.apply_after(call, travel_ns)
        self.pause()
        return result

    def _stall_at(self, call: Call) -> Any:
        """The process stops right before or right behind the effect, until somebody wakes it."""
        before = self._faults.random.random() < 0.5
        if before:
            self._process.stall_at_call()
        result = self.apply_after(call)
        # The weather may have cleared up meanwhile, and then nobody would wake it.
        if not before and self._faults.active:
            self._process.stall_at_call()
        self.pause()
        return result

    # What a backend's faults are made of

    def apply_after(self, call: Call, travel_ns: int | None = None) -> Any:
        """The request travels, then takes effect."""
        self._scheduler.pause(self._latency_ns if travel_ns is None else travel_ns)
        self._process.inflight.pop(call, None)
        return self._world.apply(call)

    def lose(self, call: Call) -> None:
        """The request is gone, and is nobody's any more."""
        self._process.inflight.pop(call, None)

    def pause(self) -> None:
        """One way of the network."""
        self._scheduler.pause(self._latency_ns)

    def timed_out(self, call: Call) -> StorageUnavailable:
        """What to raise when a call was not answered; comes after the client's patience has ended."""
        self._scheduler.pause(self._world.timeout_ns)
        return StorageUnavailable(f"{call.op} of {call.name}: no answer in time", object=call.name)
