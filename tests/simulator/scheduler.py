"""The seeded scheduler: tasks are greenlets, time is virtual, and chance decides who goes on at every scheduling point.

Promises
* One seed, one schedule: nothing here depends on real clocks, on hashes or on memory addresses. ``trace_hash`` folds every
  step that was taken.
* A *scheduling point* is a place where another task may go on: every use of a lock, a clock or a spawn, and every
  step of a storage call. At most of them chance lets the present task go on (``preempt_every`` is the mean number of points
  between two preemptions); whatever waits for time or for another task always gives way.
* A frozen process takes no step; what it waited for happens when it thaws. A dead process takes none at all: its tasks are
  unwound at once, and whatever their ``finally`` blocks ask of the runtime or of a storage is refused with ``GreenletExit``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from math import log
from random import Random
from typing import Any, Final

from greenlet import GreenletExit, getcurrent, greenlet

NS: Final = 1_000_000_000
_FRAMES_MAX: Final = 20_000
_MASK: Final = (1 << 64) - 1
_PRIME: Final = 0x100000001B3
_NEVER: Final = 1 << 62


class SchedulerStuck(RuntimeError):
    """Nothing can go on any more, or only without end: the code under test hangs."""


class TaskEscape(RuntimeError):
    """A task ended with an exception that nobody expected."""


class SimProcessState:
    """What the scheduler knows of a process. ``frozen`` holds what came due while it was stalled; None: it runs."""

    __slots__ = ("clock_base_ns", "clock_rate", "dead", "frozen", "name", "number", "tasks", "wall_offset_ns")

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number
        self.dead = False
        self.frozen: list[tuple[Task, int]] | None = None
        self.tasks: dict[Task, None] = {}
        self.clock_base_ns = 0
        self.clock_rate = 1.0
        self.wall_offset_ns = 0


class Task:
    """A greenlet with its place in the schedule. ``gen`` tells entries of the heap that are still true from old ones."""

    __slots__ = ("call", "error", "finished", "gen", "green", "name", "number", "process", "switch", "waiters", "woken")

    def __init__(self, process: SimProcessState, number: int, name: str) -> None:
        self.process = process
        self.number = number
        self.name = name
        self.gen = 0
        self.woken = False
        self.finished = False
        self.error: BaseException | None = None
        self.waiters: list[Task] = []
        self.green: Any = None
        self.switch: Callable[[], Any] = _not_started
        self.call: Callable[[], object] = _not_started


def _not_started() -> None:
    raise AssertionError("a task that has no greenlet")


class _Callback:
    """Something that happens at a time, in nobody's task. Must not raise and must not wait."""

    __slots__ = ("call", "gen", "process")

    def __init__(self, call: Callable[[], object], process: SimProcessState) -> None:
        self.call = call
        self.gen = -1
        self.process = process


class Scheduler:
    """See the module. Made and run in the greenlet that becomes the hub; one per run."""

    __slots__ = (
        "_bits", "_hub", "_preempt_every", "_seq", "_tasks_made", "current", "exhausted", "fuse", "hash", "heap",
        "killing", "now", "on_escape", "pause_ns_max", "rng", "stopping", "world",
    )  # fmt: skip

    def __init__(self, seed: int | str, *, preempt_every: float = 0.0) -> None:
        self.rng = Random(f"schedule {seed}")
        self._bits = self.rng.getrandbits
        self.heap: list[tuple[int, int, Any, int]] = []
        self.now = 0
        self.hash = 0
        self._seq = 0
        self._tasks_made = 0
        self._preempt_every = preempt_every
        self.pause_ns_max = 1_000_000
        self.killing = False
        self.stopping = False
        self.exhausted = False
        self.world = SimProcessState("world", 0)
        self._hub = Task(self.world, 0, "hub")
        self._hub.green = getcurrent()
        self._hub.switch = self._hub.green.switch
        self.current = self._hub
        self.on_escape: Callable[[Task, BaseException], None] = _raise_escape
        self.fuse = 0
        self._light()

    # Points

    @property
    def trace_hash(self) -> str:
        """Sixteen hex digits over every step so far."""
        return f"{self.hash:016x}"

    def _light(self) -> None:
        """Draw how many points pass until the next preemption: a geometric distribution, in one draw instead of many."""
        mean = self._preempt_every
        self.fuse = int(-log(1.0 - self.rng.random()) * mean) if mean else _NEVER

    def burnt(self) -> None:
        """The fuse has burnt down: give way, or end if this process is being killed."""
        if self.killing:
            raise GreenletExit
        self._light()
        if self.current is not self._hub:
            self.pause(int(self.rng.random() * self.pause_ns_max))

    def fold(self, value: int) -> None:
        """Make ``value`` part of the trace hash."""
        self.hash = ((self.hash ^ value) * _PRIME) & _MASK

    @contextmanager
    def atomic(self) -> Iterator[None]:
        """Nobody else goes on inside, and no time passes: for observers. Waiting inside is a programmer's error."""
        kept_fuse, kept_current, kept_now = self.fuse, self.current, self.now
        self.fuse = _NEVER
        self.current = self._hub
        try:
            yield
        finally:
            self.fuse, self.current, self.now = kept_fuse, kept_current, kept_now

    def in_hub(self) -> bool:
        """Whether no task is running: the caller is the program around the simulation, or an observer."""
        return self.current is self._hub

    # Time

    def pause(self, delay_ns: int) -> None:
        """Let ``delay_ns`` pass for the present task."""
        if self.killing:
            raise GreenletExit
        task = self.current
        self._seq += 1
        heappush(self.heap, (self.now + delay_ns, self._bits(24) << 40 | self._seq, task, task.gen))
        self.next()

    def at(self, delay_ns: int, call: Callable[[], object]) -> None:
        """Run ``call`` after ``delay_ns``, outside all tasks. It must neither raise nor wait."""
        self._seq += 1
        heappush(self.heap, (self.now + delay_ns, self._bits(24) << 40 | self._seq, _Callback(call, self.world), -1))

    def wait(self, timeout_ns: int | None) -> bool:
        """Wait until somebody wakes the present task; False when ``timeout_ns`` passed first."""
        if self.killing:
            raise GreenletExit
        task = self.current
        assert task is not self._hub, "nothing may wait outside of tasks"
        if timeout_ns is not None:
            self._seq += 1
            heappush(self.heap, (self.now + timeout_ns, self._bits(24) << 40 | self._seq, task, task.gen))
        task.woken = False
        self.next()
        return task.woken

    def wake(self, task: Task) -> None:
        """Let a waiting task go on; its timeout, if any, is void."""
        task.gen += 1
        task.woken = True
        self._seq += 1
        heappush(self.heap, (self.now, self._bits(24) << 40 | self._seq, task, task.gen))

    def next(self) -> None:
        """Give way: whoever is first in the heap goes on. Returns when the caller's turn has come again."""
        me = self.current
        heap = self.heap
        while not self.stopping:
            try:
                when, _, task, gen = heappop(heap)
            except IndexError:
                self.exhausted = self.stopping = True
                break
            if task.gen != gen:
                continue
            if when > self.now:  # noqa: PLR1730  (half the price of max, in the tightest loop)
                self.now = when
            if gen < 0:
                task.call()
                continue
            process = task.process
            if process.frozen is not None:
                process.frozen.append((task, gen))
                continue
            self.hash = ((self.hash ^ (self.now * 1024 + task.number)) * _PRIME) & _MASK
            if task is me:
                return
            self.current = task
            task.switch()
            return
        if me is not self._hub:
            self.current = self._hub
            self._hub.switch()

    # Running, from the hub

    def run(self) -> None:
        """Run until somebody calls ``stop``. Raises ``SchedulerStuck`` when nothing is left that could go on."""
        assert self.current is self._hub
        # A greenlet's frames count on from those of the one that first switched to it: those of tasks that begin one another add up.
        sys.setrecursionlimit(max(sys.getrecursionlimit(), _FRAMES_MAX))
        self.exhausted = self.stopping = False
        while not self.stopping:
            # A task that ends comes back here; one that gives way hands on to the next by itself.
            self.next()
            self.current = self._hub
        if self.exhausted:
            raise SchedulerStuck("nothing can go on: everything waits for something that nobody will do")

    def stop(self) -> None:
        """Make ``run`` return at the next step."""
        self.stopping = True

    # Tasks

    def spawn(self, process: SimProcessState, call: Callable[[], object], name: str) -> Task:
        """A new task of ``process``; it begins at some later step."""
        if self.killing or process.dead:
            raise GreenletExit
        self._tasks_made += 1
        task = Task(process, self._tasks_made, name)
        task.call = call
        task.green = greenlet(self._body, parent=self._hub.green)
        task.switch = lambda: task.green.switch(task)
        process.tasks[task] = None
        self._seq += 1
        heappush(self.heap, (self.now, self._bits(24) << 40 | self._seq, task, 0))
        return task

    def _body(self, task: Task) -> None:
        task.switch = task.green.switch
        try:
            task.call()
        except GreenletExit:
            pass
        except BaseException as error:  # noqa: BLE001  (whatever it is, it is told to whoever watches the run)
            if not task.process.dead:
                task.error = error
                self.on_escape(task, error)
        finally:
            task.finished = True
            task.gen += 1
            if task.process.dead:
                if self.killing and self.current is task:
                    self.killing = False
                    self._light()
            else:
                task.process.tasks.pop(task, None)
                for waiter in task.waiters:
                    self.wake(waiter)
            # What the task has seen must not live on in cycles until some collection.
            task.call = _not_started
            task.waiters = []

    # Processes

    def freeze(self, process: SimProcessState) -> None:
        """Stall every task of a process."""
        if process.frozen is None:
            process.frozen = []

    def thaw(self, process: SimProcessState) -> None:
        """Let a stalled process go on: whatever came due meanwhile happens now, in an order that chance decides."""
        frozen, process.frozen = process.frozen, None
        for task, gen in frozen or ():
            if task.gen == gen:
                self._seq += 1
                heappush(self.heap, (self.now, self._bits(24) << 40 | self._seq, task, gen))

    def kill(self, process: SimProcessState) -> None:
        """End every task of a process at once. Raises ``GreenletExit`` when the present task is one of them."""
        me = self.current
        tasks = list(process.tasks)
        process.dead = True
        process.frozen = None
        process.tasks.clear()
        for task in tasks:
            task.gen += 1
            if task is me or task.finished:
                continue
            self.current = task
            self.killing = True
            self.fuse = -1
            # Dead from here on, it must come back to us, and not to the hub.
            task.green.parent = getcurrent()
            task.green.throw(GreenletExit)
            task.finished = True
        self.current = me
        if me in tasks:
            self.killing = True
            self.fuse = -1
            raise GreenletExit
        self.killing = False
        self._light()


def _raise_escape(task: Task, error: BaseException) -> None:
    raise TaskEscape(f"task {task.name!r} of {task.process.name!r} ended with {error!r}") from error
