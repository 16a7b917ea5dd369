"""Calls that run in tasks of simulated processes, and what became of them. See ``world``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, Self, TypeVar

from tests.simulator.scheduler import Task

T = TypeVar("T")


class _World(Protocol):
    def run_until(self, condition: Callable[[], bool], /) -> None: ...


class Job(Generic[T]):
    """A call that runs in a task of a process."""

    def __init__(self, world: _World) -> None:
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
