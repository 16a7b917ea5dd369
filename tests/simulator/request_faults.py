"""What can go wrong with the requests to a simulated server, whoever makes them."""

from __future__ import annotations

from typing import Any, Final

from chunkstore.errors import StorageUnavailable
from tests.simulator.wire import Call, Surroundings, Wire

_ANY_CALL: Final = frozenset(("unavailable", "lost_reply", "burst", "slow", "crash_at_call"))
_CHANGING: Final = frozenset(("late_apply", "very_late_apply", "duplicate"))


class RequestFaults:
    """``busy``: nearly every request fails for a while. ``causes``: what errors may name as theirs.
    ``clock_ms``: what the storage's clock said when the run began."""

    causes: tuple[type[BaseException], ...] = ()
    clock_ms = 0

    def __init__(self, world: Surroundings) -> None:
        self._world = world
        self.busy = False

    def applies(self, fault: str, call: Call) -> bool:
        """Whether a fault of this class can hit this call."""
        if fault in _ANY_CALL:
            return True
        if fault in _CHANGING:
            return call.changes
        if fault == "stall_at_call":
            return call.changes and not call.name.startswith(self._world.names.data_prefix())
        return fault == "conflict" and call.step in ("PUT*", "DELETE")

    def busy_fault(self, call: Call) -> str:
        """The fault that a bad time brings to a call that had none of its own."""
        faults = self._world.faults
        if self._world.scheduler.now >= faults.burst_until:
            self.busy = False
            return ""
        return ("unavailable", "unavailable", "lost_reply", "")[int(faults.random.random() * 4)]

    def refusal(self, call: Call, status: int) -> Exception:
        """What the client of a call is told that was not carried out."""
        text = "409 ConditionalRequestConflict, nothing decided" if status == 409 else "503 Slow Down"
        return StorageUnavailable(f"{call.op} of {call.name}: {text}", object=call.name)

    def suffer(self, wire: Wire, call: Call, fault: str) -> Any:
        """Let a fault happen to a call."""
        world = self._world
        random = world.faults.random
        if fault == "burst":
            world.faults.burst_until = world.scheduler.now + int(world.timeout_ns * (0.5 + 8 * random.random()))
            self.busy = True
            fault = "unavailable"
        if fault in ("unavailable", "conflict"):
            wire.pause()
            wire.lose(call)
            wire.pause()
            raise self.refusal(call, 409 if fault == "conflict" else 503)
        if fault == "lost_reply":
            wire.pause()
            wire.lose(call)
            call.late()
            raise wire.timed_out(call)
        if fault == "duplicate":
            result = wire.apply_after(call)
            world.scheduler.at(int(world.timeout_ns * 20 * random.random()), call.late)
            wire.pause()
            return result
        # Late: on its way, and nobody's any more, whatever becomes of its sender.
        wire.lose(call)
        patience = world.timeout_ns
        delay = patience * (5 * random.random() if fault == "late_apply" else 50 * 20 ** random.random())
        world.scheduler.at(int(delay), call.late)
        raise wire.timed_out(call)

    def die_with(self, call: Call) -> None:
        """The sender of a call on its way has died: the request arrives now, later or never."""
        world = self._world
        dice = world.faults.random.random()
        if dice < 0.35:
            call.late()
        elif dice < 0.65 and call.changes:
            world.scheduler.at(int(world.timeout_ns * 30 * world.faults.random.random()), call.late)
