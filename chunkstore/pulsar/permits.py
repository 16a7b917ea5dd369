"""``OffloadReadHandle`` (PIP-211): reads of ledgers within a number of bytes a second, for all handles of a process together.

Promises: a read that has to wait occupies no thread; reads begin in the order in which they were asked for. Bytes are counted after a read,
and while there is a limit one read is under way at a time: so the permits are exceeded by one read at most. Leaves out: limits for writing
(``Settings.write_bytes_per_s_max``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, Self, TypeVar

from chunkstore import runtime
from chunkstore.codec.pulsar.frames import Entry
from chunkstore.errors import Closed, InvalidArgument
from chunkstore.pulsar.offload_metrics import PROCESS_METRICS, OffloadMetrics
from chunkstore.pulsar.read_handle import ReadHandle, SteppedLedger

__all__ = ["BROKER_PERMITS", "FlowPermits", "OffloadReadHandle", "Scheduler", "ThreadScheduler"]

T = TypeVar("T")

WINDOW_S: Final = 0.1
"""Permits that were not used are kept for so long."""
_TIMER_S: Final = 1.0
"""No timer is longer: permits may change meanwhile."""


class Scheduler(Protocol):
    """Runs calls later, in threads of its own."""

    def call_later(self, delay_s: float, call: Callable[[], None]) -> None: ...


class ThreadScheduler:
    """The default one: a thread for each call. ``FlowPermits`` asks for one call at a time that has to wait, however many reads do."""

    def call_later(self, delay_s: float, call: Callable[[], None]) -> None:
        """Run ``call``, which raises nothing, after ``delay_s`` seconds."""

        def run() -> None:
            if delay_s > 0:
                runtime.sleep_s(delay_s)
            call()

        if runtime.spawn_if_possible(run, "chunkstore-permits") is None:
            run()


class _Read(NamedTuple):
    handle: OffloadReadHandle
    call: Callable[[], tuple[Any, int]]
    """Gives what was read, and its bytes."""
    future: runtime.Future[Any]
    asked_s: float


class FlowPermits:
    """How many bytes a second all reads together may take; 0: no limit. ``permits_bytes_per_s`` may be set at any time. Thread-safe."""

    def __init__(self, permits_bytes_per_s: float = 0) -> None:
        self._lock = runtime.lock()
        self._rate = 0.0
        self._balance = 0.0
        """Bytes that may be read now; below 0: so many were read too early."""
        self._at_s = 0.0
        self._timer_s: float | None = None
        self._under_way = 0
        self._waiting: deque[_Read] = deque()
        self.permits_bytes_per_s = permits_bytes_per_s

    @property
    def permits_bytes_per_s(self) -> float:
        """The limit. Setting it holds at once, for waiting reads, too. Raises ``InvalidArgument``."""
        return self._rate

    @permits_bytes_per_s.setter
    def permits_bytes_per_s(self, value: float) -> None:
        if not 0 <= value < 1 << 60:
            raise InvalidArgument(f"permits are 0 (no limit) or more bytes a second, not {value!r}", argument="permits")
        with self._lock:
            self._settle()
            self._balance = self._balance if self._rate else 0.0
            self._rate = value
        self._go_on()

    def submit(self, read: _Read, *, waits: bool) -> None:
        """Run a read when it may be; here, if the caller ``waits`` for it and it may be at once."""
        with self._lock:
            self._waiting.append(read)
        self._go_on(read if waits else None)
        with self._lock:
            is_limited = any(item is read for item in self._waiting)
        if is_limited:
            read.handle.record("ledger_offload_limited")

    def cancel(self, handle: OffloadReadHandle) -> None:
        """Cancel the waiting reads of one handle."""
        with self._lock:
            cancelled = [read for read in self._waiting if read.handle is handle]
            self._waiting = deque(read for read in self._waiting if read.handle is not handle)
        for read in cancelled:
            read.future.cancel()

    def _settle(self) -> None:
        now_s = runtime.monotonic_s()
        self._balance = min(self._balance + self._rate * (now_s - self._at_s), self._rate * WINDOW_S)
        self._at_s = now_s

    def _go_on(self, own: _Read | None = None) -> None:
        while True:
            with self._lock:
                read = self._next()
            if read is None:
                return
            if read is own:
                self._run(read)
            else:
                read.handle.scheduler.call_later(0, partial(self._run, read))

    def _next(self) -> _Read | None:
        """The next read that may begin; else there is a timer for it, if time is all that it waits for."""
        if not self._waiting or (self._rate and self._under_way):
            return None
        self._settle()
        if self._rate and self._balance <= -1:
            delay_s = min(-self._balance / self._rate, _TIMER_S)
            if self._timer_s is None or self._at_s + delay_s < self._timer_s:
                self._timer_s = self._at_s + delay_s
                self._waiting[0].handle.scheduler.call_later(delay_s, partial(self._ring, self._timer_s))
            return None
        self._under_way += 1
        return self._waiting.popleft()

    def _ring(self, timer_s: float) -> None:
        with self._lock:
            if self._timer_s == timer_s:
                self._timer_s = None
        self._go_on()

    def _run(self, read: _Read) -> None:
        size_bytes = 0
        done: Callable[[], object] = read.future.cancel
        begin_s = runtime.monotonic_s()
        if read.future.set_running_or_notify_cancel():
            try:
                result, size_bytes = read.call()
                done = partial(read.future.set_result, result)
            except Exception as error:  # noqa: BLE001  (handed to the caller through the future)
                read.handle.failed = True
                done = partial(read.future.set_exception, error)
        with self._lock:
            self._settle()
            self._balance -= size_bytes
            self._under_way -= 1
        end_s = runtime.monotonic_s()
        read.handle.record("read_ledger_latency", (end_s - begin_s) * 1e6)
        read.handle.record("ledger_offload_time", (end_s - read.asked_s) * 1e6)
        read.handle.record("ledger_reading_max_bytes", size_bytes)
        done()
        self._go_on()


BROKER_PERMITS: Final = FlowPermits()
"""The process's: ``ManagedLedgerConfig.managed_ledger_offload_broker_flow_permits`` sets them."""


class OffloadReadHandle(SteppedLedger):
    """A ledger whose reads are limited by ``FlowPermits``; made by ``create``. Closing cancels what waits, and closes the ledger."""

    def __init__(
        self, inner: ReadHandle, permits: FlowPermits, scheduler: Scheduler, metrics: OffloadMetrics, topic: str
    ) -> None:
        super().__init__(inner)
        self.scheduler = scheduler
        self.failed = False
        """Whether a read has failed."""
        self._permits, self._metrics, self._topic = permits, metrics, topic
        self._is_open = True

    @classmethod
    def create(
        cls,
        read_handle: ReadHandle,
        flow_permits: FlowPermits,
        scheduler: Scheduler | None = None,
        *,
        metrics: OffloadMetrics | None = None,
        topic: str = "",
    ) -> Self:
        """``read_handle`` within ``flow_permits``, which all handles of the process share; its reads are counted as of ``topic``.

        ``scheduler``: runs reads that have to wait, and those of ``read_async``; None: threads of its own.
        """
        return cls(read_handle, flow_permits, scheduler or ThreadScheduler(), metrics or PROCESS_METRICS, topic)

    def read_async(self, first: int, last: int) -> runtime.Future[list[Entry]]:
        """The entries ``first`` to ``last``, both included, when permits allow it; errors as of ``read``. Raises ``Closed``."""
        return self._submit(lambda: self._entries(first, last), waits=False)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._permits.cancel(self)
            super().close()

    def record(self, name: str, value: float = 1) -> None:
        """Count what became of a read of this handle."""
        self._metrics.record(name, self._topic, value)

    def _submit(self, call: Callable[[], tuple[list[T], int]], *, waits: bool) -> runtime.Future[list[T]]:
        if not self._is_open:
            raise Closed(f"the handle of ledger {self.ledger}")
        future = runtime.future()
        self._permits.submit(_Read(self, call, future, runtime.monotonic_s()), waits=waits)
        return future

    def _step(self, call: Callable[[], tuple[list[T], int]]) -> list[T]:
        future = self._submit(call, waits=True)
        try:
            return future.result()
        except Exception as error:
            if future.cancelled():
                raise Closed(f"the handle of ledger {self.ledger}") from error
            raise
