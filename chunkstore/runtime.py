"""The only access to time, chance and threads.

Promises: production code gets the real clock, ``secrets`` and real threads; a simulator may install another
``Runtime`` before any store is opened, and the very same blocking code then runs under its scheduler.
Lint forbids ``time``, ``random``, ``uuid``, ``threading`` and ``os.urandom`` elsewhere.
Leaves out: asyncio (a facade may wrap the engine), process management.

The functions below resolve the installed runtime at each call, so that modules may import them by name.
"""

from __future__ import annotations

import _thread
import os
import secrets
import signal
import socket
import sys
import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from contextvars import copy_context
from types import FrameType, TracebackType
from typing import Any, Protocol, TypeVar

from chunkstore.processes import pid_namespace, read_boot_id

__all__ = [
    "Condition", "Event", "Future", "LastStep", "Lock", "Pool", "ProcessIdentity", "Runtime", "Task", "active",
    "condition", "defer_interrupt", "event", "future", "identity", "install", "interruptible_lock", "label_ms",
    "lock", "monotonic_s", "now_ms", "pool", "run_with_timeout", "sleep_s", "spawn", "spawn_if_possible", "token",
]  # fmt: skip

T = TypeVar("T")


class Lock(Protocol):
    """A mutual exclusion lock (not re-entrant)."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...
    def release(self) -> None: ...
    def locked(self) -> bool: ...
    def __enter__(self) -> bool: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class Event(Protocol):
    """A flag that threads can wait for."""

    def set(self) -> None: ...
    def is_set(self) -> bool: ...
    def wait(self, timeout: float | None = None) -> bool: ...


class Condition(Protocol):
    """A condition variable with its own lock."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...
    def release(self) -> None: ...
    def wait(self, timeout: float | None = None) -> bool: ...
    def notify(self, n: int = 1) -> None: ...
    def notify_all(self) -> None: ...
    def __enter__(self) -> bool: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...


class Task(Protocol):
    """A running background task."""

    def join(self, timeout: float | None = None) -> None: ...
    def is_alive(self) -> bool: ...


class Pool(Protocol):
    """A bounded pool for parallel chunk I/O."""

    def run_all(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Run all calls, the first in the caller's own thread, and return their results in order. All see the caller's
        context variables.

        If some fail, the first failure (in order) is raised after all have ended.
        """
        ...

    def close(self) -> None: ...


class ProcessIdentity:
    """Who we are, for claims and the lease hint: ``host``, ``pid``, ``boot_id`` (of the machine's boot, and after ``/`` of the PID
    namespace, for numbers mean something within both only; each is empty where the system does not tell)."""

    __slots__ = ("boot_id", "host", "pid")

    def __init__(self, host: str, pid: int, boot_id: str) -> None:
        self.host: str = host
        self.pid: int = pid
        self.boot_id: str = boot_id


class Runtime(ABC):
    """What an installed runtime provides; see the module's functions of the same names."""

    interruptible = False
    """Whether Ctrl-C may interrupt the main thread."""

    @abstractmethod
    def now_ns(self) -> int: ...
    @abstractmethod
    def monotonic_s(self) -> float: ...
    @abstractmethod
    def sleep_s(self, seconds: float) -> None: ...
    @abstractmethod
    def token(self, size_bytes: int) -> bytes: ...
    @abstractmethod
    def lock(self) -> Lock: ...
    @abstractmethod
    def event(self) -> Event: ...
    @abstractmethod
    def condition(self) -> Condition: ...
    @abstractmethod
    def spawn(self, call: Callable[[], None], name: str) -> Task: ...
    @abstractmethod
    def pool(self, name: str, workers: int) -> Pool: ...
    @abstractmethod
    def identity(self) -> ProcessIdentity: ...

    def future(self) -> Future[Any]:
        """A fresh future; waiting for it must be a wait of this runtime."""
        return Future()

    def forgotten(self, what: str, close: Callable[[], None]) -> None:  # noqa: B027  (not to be overridden by a simulator)
        """Called by the garbage collector for what it takes unclosed. Nothing: a simulated machine that fails closes nothing."""


class _Call:
    __slots__ = ("call", "context", "done", "error", "result")

    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call
        # The caller's context variables (its deadline) hold in the threads that work for it, too.
        self.context = copy_context()
        self.result: object = None
        self.error: BaseException | None = None
        self.done = threading.Lock()
        self.done.acquire()

    def run(self) -> None:
        try:
            self.result = self.context.run(self.call)
        except BaseException as error:  # noqa: BLE001  (carried to the waiting thread)
            self.error = error
        finally:
            self.done.release()


class _ThreadPool:
    """Threads start on demand; ``run_all`` never deadlocks on itself because the caller works too."""

    def __init__(self, name: str, workers: int) -> None:
        self._workers = workers
        self._executor = ThreadPoolExecutor(max_workers=workers, thread_name_prefix=name)

    def run_all(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        if len(calls) < 2:
            return [call() for call in calls]
        pending: deque[_Call] = deque()
        jobs = [_Call(call) for call in calls]
        for job in jobs[1:]:
            pending.append(job)
        taken = threading.Lock()

        def work() -> None:
            while True:
                with taken:
                    if not pending:
                        return
                    job = pending.popleft()
                job.run()

        try:
            # Each goes on until nothing is pending: more of them than threads would find nothing to do.
            for _ in range(min(len(jobs) - 1, self._workers)):
                self._executor.submit(work)
        except RuntimeError:
            pass  # closed meanwhile, or no more threads to be had: the caller does the rest alone
        jobs[0].run()
        work()
        results: list[T] = []
        failure: BaseException | None = None
        for job in jobs:
            job.done.acquire()
            if job.error is not None and failure is None:
                failure = job.error
            results.append(job.result)  # type: ignore[arg-type]
        if failure is not None:
            raise failure
        return results

    def close(self) -> None:
        self._executor.shutdown(wait=True)


# Below the module's own functions, whose enums cost ten times what they do.
_signals: Any = sys.modules.get("_signal", signal)
_SIGINT = int(signal.SIGINT)
_default_handler = signal.default_int_handler
_INTERRUPTIBLE_STEP_S = 0.25
"""Ctrl-C interrupts a wait for a lock after this time at most."""


_main_thread = threading.main_thread().ident


def _after_fork_in_child() -> None:
    global _main_thread
    _main_thread = threading.get_ident()


os.register_at_fork(after_in_child=_after_fork_in_child)


class _DeferInterrupt(AbstractContextManager[None]):
    """See ``defer_interrupt``. One of it for each use."""

    # On the class, because making one is part of every append and a constructor costs more than all the rest.
    _installed = _kept = False

    def __enter__(self) -> None:
        # Only Python's own handler, which raises wherever the main thread happens to be: a handler of the
        # application stays. Within another of these there is nothing to do.
        if (
            threading.get_ident() == _main_thread
            and _active.interruptible
            and _signals.getsignal(_SIGINT) is _default_handler
        ):
            self._installed = True
            try:
                _signals.signal(_SIGINT, self._keep)
            except ValueError:
                self._installed = False  # in a sub-interpreter, which gets no signals

    def _keep(self, number: int, frame: FrameType | None) -> None:
        if self._kept:
            # The second one is raised at once.
            self._kept = False
            signal.default_int_handler(number, frame)
        self._kept = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        if self._installed:
            _signals.signal(_SIGINT, _default_handler)
            if self._kept:
                raise KeyboardInterrupt


class _Production(Runtime):
    interruptible = True

    def __init__(self) -> None:
        self._boot_id = read_boot_id()

    # Bare, because every append asks several times.
    monotonic_s = staticmethod(time.monotonic)
    now_ns = staticmethod(time.time_ns)

    def sleep_s(self, seconds: float) -> None:
        time.sleep(seconds)

    def token(self, size_bytes: int) -> bytes:
        return secrets.token_bytes(size_bytes)

    def lock(self) -> Lock:
        return threading.Lock()

    def event(self) -> Event:
        return threading.Event()

    def condition(self) -> Condition:
        return threading.Condition(threading.Lock())

    def spawn(self, call: Callable[[], None], name: str) -> Task:
        thread = threading.Thread(target=call, name=name, daemon=True)
        thread.start()
        return thread

    def pool(self, name: str, workers: int) -> Pool:
        return _ThreadPool(name, workers)

    def identity(self) -> ProcessIdentity:
        return ProcessIdentity(socket.gethostname(), os.getpid(), f"{self._boot_id}/{pid_namespace()}")

    def forgotten(self, what: str, close: Callable[[], None]) -> None:
        thread = threading.Thread(target=close, name="chunkstore-forgotten", daemon=True)
        with suppress(RuntimeError):  # the interpreter ends
            # Not by us: ``start`` takes locks that the interrupted thread may hold.
            _thread.start_new_thread(thread.start, ())
        warnings.warn(f"unclosed {what}", ResourceWarning, stacklevel=3)


_production: Runtime = _Production()
_active = _production


def install(runtime: Runtime | None) -> None:
    """Make ``runtime`` the source for everything created from now on; ``None`` brings production back."""
    global _active
    _active = runtime if runtime is not None else _production


def active() -> Runtime:
    """The runtime that is installed."""
    return _active


def now_ms() -> int:
    """Wall clock in milliseconds since 1970. A label: nothing about safety depends on it."""
    return max(0, _active.now_ns()) // 1_000_000


def label_ms(time_ns: int) -> int:
    """A time of a machine's clock, from nanoseconds. A clock that shows a time before 1970 was never set: it shows 0, because
    records take no time below it."""
    return max(0, time_ns) // 1_000_000


def monotonic_s() -> float:
    """Monotonic clock in seconds, for deadlines and grace periods."""
    return _active.monotonic_s()


def sleep_s(seconds: float) -> None:
    """Sleep for ``seconds``."""
    _active.sleep_s(seconds)


def token(size_bytes: int) -> bytes:
    """Unpredictable bytes, for identities."""
    return _active.token(size_bytes)


def lock() -> Lock:
    """A new lock."""
    return _active.lock()


def event() -> Event:
    """A new event."""
    return _active.event()


def condition() -> Condition:
    """A new condition variable with its own lock."""
    return _active.condition()


def future() -> Future[Any]:
    """A new future."""
    return _active.future()


def spawn(call: Callable[[], None], name: str) -> Task:
    """Run ``call`` in the background; it must end by itself when its owner closes."""
    return _active.spawn(call, name)


def spawn_if_possible(call: Callable[[], None], name: str) -> Task | None:
    """As ``spawn``; None where the system gives no more threads; the caller does it itself then."""
    try:
        return spawn(call, name)
    except RuntimeError:
        return None


def run_with_timeout(call: Callable[[], T], name: str, wait_s: float) -> list[T]:
    """What ``call`` returns, in a list, from a thread of its own, where the system gives one: a caller inside a call that hangs could not
    keep its deadline. Empty: it goes on after ``wait_s``. Raises what it raises by then."""
    ended: list[T] = []
    failures: list[Exception] = []

    def work() -> None:
        try:
            ended.append(call())
        except Exception as error:  # noqa: BLE001  (handed to the waiting thread)
            failures.append(error)

    task = spawn_if_possible(work, name)
    if task is None:
        return [call()]  # perhaps it does not hang
    task.join(wait_s)
    if failures:
        raise failures[0]
    return ended


class LastStep:
    """A last step of a close, begun at once in a thread of its own: errors are ignored, and what hangs is abandoned.

    After an interrupt ``wait`` may be called again. Where no thread can be started, the constructor does the step.
    """

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self._interrupted: list[BaseException] = []
        self._task = spawn_if_possible(self._run, "chunkstore-last")
        if self._task is None:
            with suppress(Exception):
                call()

    def _run(self) -> None:
        try:
            self._call()
        except Exception:  # noqa: BLE001, S110
            pass
        except BaseException as error:  # noqa: BLE001  (carried to the waiting thread)
            self._interrupted.append(error)

    def wait(self, wait_s: float) -> None:
        """Wait for its end, no longer than ``wait_s``."""
        if self._task is not None:
            self._task.join(wait_s)
        if self._interrupted:
            raise self._interrupted.pop()


def pool(name: str, workers: int) -> Pool:
    """A bounded pool of ``workers`` for parallel I/O."""
    return _active.pool(name, workers)


defer_interrupt = _DeferInterrupt
"""``with defer_interrupt():`` Ctrl-C waits for its end, and is raised then; the second one is raised at once.

For what must not end between two steps in the main thread, where Python would raise ``KeyboardInterrupt`` between any two of
them. Leaves alone what an application has installed for SIGINT, and other signals whose handlers raise. Under another runtime
it does nothing.
"""


class interruptible_lock:  # noqa: N801  (reads as a word, as ``until`` does)
    """A lock that may be waited for wherever Ctrl-C may interrupt. ``got``: whether it is held::

        held = runtime.interruptible_lock(lock)
        try:
            if not held.wait(30.0):
                ...
        finally:
            if held.got:
                held.lock.release()

    The end is written out, and no call of ours: between its beginning and its first step Python would raise ``KeyboardInterrupt``, too.
    """

    __slots__ = ("got", "lock")

    def __init__(self, lock: Lock) -> None:
        self.lock: Lock = lock
        self.got: bool = False

    def wait(self, wait_s: float) -> bool:
        """Take it, waiting ``wait_s`` seconds at most; whether it is held now."""
        end_s = monotonic_s() + wait_s
        while True:
            left_s = max(0.0, end_s - monotonic_s())
            # Ctrl-C waits for the end of each step: between having the lock and saying so, it would be held for ever.
            with defer_interrupt():
                self.got = self.lock.acquire(timeout=min(left_s, _INTERRUPTIBLE_STEP_S))
            if self.got or left_s <= _INTERRUPTIBLE_STEP_S:
                return self.got


def identity() -> ProcessIdentity:
    """Host, pid and boot id of this process."""
    return _active.identity()
