"""``chunkstore.runtime`` on the scheduler: virtual clocks, seeded tokens, and every primitive a scheduling point."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeout
from random import Random
from typing import Any, Final, TypeVar

from greenlet import GreenletExit

from chunkstore.runtime import Condition, Event, Lock, Pool, ProcessIdentity, Runtime
from chunkstore.runtime import Task as RuntimeTask
from tests.simulator.scheduler import NS, Scheduler, SimProcessState, Task

T = TypeVar("T")
EPOCH_MS: Final = 1_700_000_000_000
"""Where every wall clock begins: some day in 2023."""
_CLOCK_STEP_NS: Final = 1_000


class SimLock:
    """A lock: not re-entrant, may be released by anybody, unfair by chance."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._held = False
        self._waiters: list[Task] | None = None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        scheduler = self._scheduler
        scheduler.fuse -= 1
        if scheduler.fuse < 0:
            scheduler.burnt()
        if not self._held:
            self._held = True
            return True
        if not blocking or timeout == 0:
            return False
        return self._acquire_slowly(timeout)

    def _acquire_slowly(self, timeout: float) -> bool:
        scheduler = self._scheduler
        end_ns = None if timeout < 0 else scheduler.now + int(timeout * NS)
        if self._waiters is None:
            self._waiters = []
        me = scheduler.current
        while self._held:
            self._waiters.append(me)
            woken = scheduler.wait(None if end_ns is None else max(0, end_ns - scheduler.now))
            if not woken:
                if me in self._waiters:
                    self._waiters.remove(me)
                if self._held:
                    return False
        self._held = True
        return True

    def release(self) -> None:
        if not self._held:
            raise RuntimeError("release of a lock that nobody holds")
        self._held = False
        if self._waiters:
            self._wake_one()

    def _wake_one(self) -> None:
        scheduler, waiters = self._scheduler, self._waiters
        assert waiters is not None
        while waiters:
            place = int(scheduler.rng.random() * len(waiters)) if len(waiters) > 1 else 0
            task = waiters.pop(place)
            if not task.finished and not task.process.dead:
                scheduler.wake(task)
                return

    def locked(self) -> bool:
        return self._held

    def __enter__(self) -> bool:
        scheduler = self._scheduler
        scheduler.fuse -= 1
        if scheduler.fuse < 0:
            scheduler.burnt()
        if not self._held:
            self._held = True
            return True
        return self._acquire_slowly(-1)

    def __exit__(self, *_: object) -> None:
        self._held = False
        if self._waiters:
            self._wake_one()


class SimEvent:
    """An event. Its hash is its number, so that sets of events have an order that does not depend on addresses."""

    def __init__(self, scheduler: Scheduler, number: int) -> None:
        self._scheduler = scheduler
        self._number = number
        self._flag = False
        self._waiters: list[Task] = []

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other

    def set(self) -> None:
        self._flag = True
        if self._waiters:
            waiters, self._waiters = self._waiters, []
            for task in waiters:
                if not task.process.dead:
                    self._scheduler.wake(task)

    def is_set(self) -> bool:
        scheduler = self._scheduler
        scheduler.fuse -= 1
        if scheduler.fuse < 0:
            scheduler.burnt()
        return self._flag

    def wait(self, timeout: float | None = None) -> bool:
        scheduler = self._scheduler
        scheduler.fuse -= 1
        if scheduler.fuse < 0:
            scheduler.burnt()
        if self._flag:
            return True
        me = scheduler.current
        self._waiters.append(me)
        if not scheduler.wait(None if timeout is None else max(0, int(timeout * NS))) and me in self._waiters:
            self._waiters.remove(me)
        return self._flag


class SimCondition:
    """A condition variable with its own lock."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._lock = SimLock(scheduler)
        self._waiters: list[Task] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        return self._lock.acquire(blocking, timeout)

    def release(self) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        scheduler = self._scheduler
        me = scheduler.current
        self._waiters.append(me)
        self._lock.release()
        try:
            woken = scheduler.wait(None if timeout is None else max(0, int(timeout * NS)))
            if not woken and me in self._waiters:
                self._waiters.remove(me)
        finally:
            self._lock.acquire()
        return woken

    def notify(self, n: int = 1) -> None:
        scheduler = self._scheduler
        while n > 0 and self._waiters:
            place = int(scheduler.rng.random() * len(self._waiters)) if len(self._waiters) > 1 else 0
            task = self._waiters.pop(place)
            if not task.process.dead:
                scheduler.wake(task)
                n -= 1

    def notify_all(self) -> None:
        self.notify(len(self._waiters))

    def __enter__(self) -> bool:
        return self._lock.__enter__()

    def __exit__(self, *_: object) -> None:
        self._lock.__exit__()


class SimTask:
    """What ``runtime.spawn`` returns."""

    def __init__(self, scheduler: Scheduler, task: Task) -> None:
        self._scheduler = scheduler
        self._task = task

    def join(self, timeout: float | None = None) -> None:
        if not self._task.finished:
            self._task.waiters.append(self._scheduler.current)
            woken = self._scheduler.wait(None if timeout is None else int(timeout * NS))
            if not woken and self._scheduler.current in self._task.waiters:
                self._task.waiters.remove(self._scheduler.current)

    def is_alive(self) -> bool:
        return not self._task.finished


class SimFuture(Future[T]):
    """A future whose waiting is a wait of the simulation."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        self._done_event = SimEvent(scheduler, 0)
        self.add_done_callback(lambda _future: self._done_event.set())

    def _wait_done(self, timeout: float | None) -> None:
        if not self.done() and not self._done_event.wait(timeout) and not self.done():
            raise FutureTimeout
        if self.cancelled():
            raise CancelledError

    def result(self, timeout: float | None = None) -> T:
        self._wait_done(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._wait_done(timeout)
        return super().exception(0)


class _Job:
    def __init__(self, call: Callable[[], Any]) -> None:
        self.call = call
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self.call()
        except GreenletExit:
            raise
        except BaseException as error:  # noqa: BLE001  (raised again by whoever waits for the pool)
            self.error = error


class SimPool:
    """Calls run as tasks of the process, at most ``workers`` at a time beside the caller's own."""

    def __init__(self, scheduler: Scheduler, name: str, workers: int) -> None:
        self._scheduler = scheduler
        self._name = name
        self._workers = workers

    def run_all(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        scheduler = self._scheduler
        if len(calls) == 1:
            return [calls[0]()]
        jobs = [_Job(call) for call in calls]
        if scheduler.in_hub():
            for job in jobs:
                job.run()
        else:
            self._run_beside(jobs)
        for job in jobs:
            if job.error is not None:
                raise job.error
        return [job.result for job in jobs]

    def _run_beside(self, jobs: list[_Job]) -> None:
        scheduler = self._scheduler
        process = scheduler.current.process
        pending = deque(jobs[1:])

        def work() -> None:
            while pending:
                pending.popleft().run()

        tasks = [scheduler.spawn(process, work, self._name) for _ in range(min(len(jobs) - 1, self._workers))]
        if jobs:
            jobs[0].run()
        work()
        me = scheduler.current
        for task in tasks:
            while not task.finished:
                task.waiters.append(me)
                scheduler.wait(None)

    def close(self) -> None:
        return None


class VirtualRuntime(Runtime):
    """The door to time, chance and tasks, for as long as it is installed (``chunkstore.runtime.install``)."""

    def __init__(self, scheduler: Scheduler, seed: int | str) -> None:
        self._scheduler = scheduler
        self._tokens = Random(f"tokens {seed}")
        self._events_made = 0
        self.identities: dict[SimProcessState, ProcessIdentity] = {}
        self._no_owner = ProcessIdentity("observer", 1, "observer")
        self.told_ms: dict[int, int] = {}
        """When a process was first told that it is so many milliseconds since 1970."""

    def _point(self) -> SimProcessState:
        scheduler = self._scheduler
        scheduler.fuse -= 1
        if scheduler.fuse < 0:
            scheduler.burnt()
        return scheduler.current.process

    def now_ns(self) -> int:
        process = self._point()
        scheduler = self._scheduler
        scheduler.now += _CLOCK_STEP_NS
        told_ns = EPOCH_MS * 1_000_000 + process.wall_offset_ns + int(scheduler.now * process.clock_rate)
        self.told_ms.setdefault(told_ns // 1_000_000, scheduler.now)
        return told_ns

    def monotonic_s(self) -> float:
        process = self._point()
        scheduler = self._scheduler
        # A clock never stands still: who asks without end must see its deadline pass.
        scheduler.now += _CLOCK_STEP_NS
        return (process.clock_base_ns + scheduler.now * process.clock_rate) / NS

    def sleep_s(self, seconds: float) -> None:
        scheduler = self._scheduler
        scheduler.fuse -= 1
        scheduler.pause(int(seconds * NS / scheduler.current.process.clock_rate))

    def token(self, size_bytes: int) -> bytes:
        # No scheduling point: nobody waits for chance, and the metadata cache asks for it inside of transactions.
        return self._tokens.randbytes(size_bytes)

    def lock(self) -> Lock:
        return SimLock(self._scheduler)

    def event(self) -> Event:
        self._events_made += 1
        return SimEvent(self._scheduler, self._events_made)

    def condition(self) -> Condition:
        return SimCondition(self._scheduler)

    def future(self) -> Future[Any]:
        return SimFuture(self._scheduler)

    def spawn(self, call: Callable[[], None], name: str) -> RuntimeTask:
        process = self._point()
        return SimTask(self._scheduler, self._scheduler.spawn(process, call, name))

    def pool(self, name: str, workers: int) -> Pool:
        return SimPool(self._scheduler, name, workers)

    def identity(self) -> ProcessIdentity:
        return self.identities.get(self._scheduler.current.process, self._no_owner)
