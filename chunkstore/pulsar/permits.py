"""``OffloadReadHandle`` (PIP-211): reads of ledgers within a number of bytes a second, for all handles of a process together.

Promises: a read that has to wait occupies no thread; reads begin in the order in which they were asked for. Bytes are counted after a read,
and while there is a limit one read is under way at a time: so the permits are exceeded by one read at most. Leaves out: limits for writing
(``Settings.write_bytes_per_s_max``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, Self

from chunkstore import runtime
from chunkstore.codec.pulsar.frames import Entry
from chunkstore.errors import Closed, InvalidArgument
from chunkstore.pulsar.offload_metrics import OffloadMetrics
from chunkstore.pulsar.read_handle import ReadHandle

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["FlowPermits", "OffloadReadHandle", "Scheduler", "ThreadScheduler"]

WINDOW_S: Final = 0.1
"""Permits that were not used are kept for so long."""
_TIMER_S: Final = 1.0
"""No timer is longer: permits may change meanwhile."""
_READ_ENTRIES: Final = 100


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

    def submit(self, read: _Read) -> None:
        """Run a read when it may be."""
        with self._lock:
            self._waiting.append(read)
        self._go_on()
        with self._lock:
            waits = read in self._waiting
        if waits:
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

    def _go_on(self) -> None:
        while True:
            with self._lock:
                read = self._next()
            if read is None:
                return
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
        if read.future.set_running_or_notify_cancel():
            try:
                result, size_bytes = read.call()
                done = partial(read.future.set_result, result)
            except Exception as error:  # noqa: BLE001  (handed to the caller through the future)
                done = partial(read.future.set_exception, error)
        with self._lock:
            self._settle()
            self._balance -= size_bytes
            self._under_way -= 1
        read.handle.record("ledger_offload_time", (runtime.monotonic_s() - read.asked_s) * 1e6)
        read.handle.record("ledger_reading_max_bytes", size_bytes)
        done()
        self._go_on()


class OffloadReadHandle(ReadHandle):
    """A ledger whose reads are limited by ``FlowPermits``; made by ``create``. Closing cancels what waits, and closes the ledger."""

    def __init__(
        self, inner: ReadHandle, permits: FlowPermits, scheduler: Scheduler, metrics: OffloadMetrics, topic: str
    ) -> None:
        self.ledger, self.last_add_confirmed = inner.ledger, inner.last_add_confirmed
        self.length, self.closed = inner.length, inner.closed
        self.scheduler = scheduler
        self._inner, self._permits, self._metrics, self._topic = inner, permits, metrics, topic
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
        """``read_handle`` within ``flow_permits``, which all handles of the process share; its reads are counted as of ``topic``."""
        return cls(read_handle, flow_permits, scheduler or ThreadScheduler(), metrics or OffloadMetrics(), topic)

    def read_async(self, first: int, last: int) -> runtime.Future[list[Entry]]:
        """The entries ``first`` to ``last``, both included, when permits allow it; errors as of ``read``. Raises ``Closed``."""
        return self._submit(partial(self._entries, first, last))

    def read(self, first: int, last: int) -> list[Entry]:
        entries: list[Entry] = self._wait(self.read_async(first, last))
        return entries

    def iter_entries(self, first: int = 0, last: int | None = None) -> Iterator[Entry]:
        for begin, end in self._pieces(first, last):
            yield from self.read(begin, end)

    def read_batches(self, first: int = 0, last: int | None = None) -> Iterator[pa.RecordBatch]:
        for begin, end in self._pieces(first, last):
            yield from self._wait(self._submit(partial(self._batches, begin, end)))

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._permits.cancel(self)
            self._inner.close()

    def record(self, name: str, value: float = 1) -> None:
        """Count what became of a read of this handle."""
        self._metrics.record(name, self._topic, value)

    def _entries(self, first: int, last: int) -> tuple[list[Entry], int]:
        entries = self._inner.read(first, last)
        return entries, sum(len(entry.payload) for entry in entries)

    def _batches(self, first: int, last: int) -> tuple[list[pa.RecordBatch], int]:
        batches = list(self._inner.read_batches(first, last))
        return batches, sum(batch.nbytes for batch in batches)

    def _pieces(self, first: int, last: int | None) -> Iterator[tuple[int, int]]:
        stop = self.last_add_confirmed if last is None else last
        for begin in range(first, max(stop, first) + 1, _READ_ENTRIES):
            yield begin, min(begin + _READ_ENTRIES - 1, stop)

    def _submit(self, call: Callable[[], tuple[Any, int]]) -> runtime.Future[Any]:
        if not self._is_open:
            raise Closed(f"the handle of ledger {self.ledger}")
        future = runtime.future()
        self._permits.submit(_Read(self, call, future, runtime.monotonic_s()))
        return future

    def _wait(self, future: runtime.Future[Any]) -> Any:
        try:
            return future.result()
        except Exception as error:
            if future.cancelled():
                raise Closed(f"the handle of ledger {self.ledger}") from error
            raise
