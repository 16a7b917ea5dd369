"""How the steps of a real binding, system calls or requests, become calls of the simulated process that makes them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol, TypeVar

from chunkstore.storage import ChunkStorage
from tests.simulator.scheduler import Task
from tests.simulator.wire import Surroundings, Wire, WiredProcess

S = TypeVar("S", bound=ChunkStorage)


class _Remote(Protocol):
    busy: bool


class Port:
    """The calls of all processes to one backend. ``usual``: the operation of steps that a thread of the binding's own makes."""

    def __init__(self, world: Surroundings, backend: _Remote, usual: dict[str, str]) -> None:
        self._world = world
        self._backend = backend
        self._usual = usual
        self._operations: dict[Task, str] = {}
        self._wires: dict[WiredProcess, Wire] = {}

    def bind(self, process: WiredProcess, make: Callable[[], S]) -> S:
        """A storage of one process, made outside of all tasks."""
        self._wires[process] = Wire(self._world, process)
        with self._world.scheduler.atomic():
            made = make()
        for name in dir(made):
            if name.startswith("do_"):
                setattr(made, name, partial(self._operate, name.removeprefix("do_"), getattr(made, name)))
        return made

    def _operate(self, operation: str, call: Callable[..., Any], *arguments: Any) -> Any:
        task = self._world.scheduler.current
        before = self._operations.get(task)
        self._operations[task] = operation
        try:
            return call(*arguments)
        finally:
            if before is None:
                self._operations.pop(task, None)
            else:
                self._operations[task] = before

    def wire(self) -> Wire | None:
        """That of the present process; None: an observer calls, to whom nothing happens."""
        process = self._world.scheduler.current.process
        return self._wires[process] if isinstance(process, WiredProcess) else None

    def step(
        self,
        step: str,
        name: str,
        apply: Callable[[], Any],
        *,
        data: bytes | None = None,
        changes: bool = True,
        remote: bool | None = None,
    ) -> Any:
        """One step of the present process. ``remote``: as ``Wire.call`` has it; while the backend has a bad time, if nothing is said."""
        wire = self.wire()
        if wire is None:
            return apply()
        operation = self._operations.get(self._world.scheduler.current) or self._usual.get(step, step)
        if step == "unlink" and operation != "delete":
            operation = "remove"
        remote = self._backend.busy if remote is None else remote
        return wire.call(operation, step, name, apply, data=data, changes=changes, remote=remote)
