"""Reads within flow permits (PIP-211): how much is read in ten seconds, in which order, and what closing does. The clock is driven."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Any

import pytest

from chunkstore.codec.pulsar.frames import Entry
from chunkstore.errors import Closed, InvalidArgument
from chunkstore.pulsar import MemorySource
from chunkstore.pulsar.permits import FlowPermits, OffloadReadHandle
from tests.support.clock import StoppedClock, stopped_clock

READ_BYTES = 100 * 1000
RATE = 1_000_000


class DrivenScheduler:
    """Runs calls in the thread that drives it, in the order in which they are due."""

    def __init__(self, clock: StoppedClock) -> None:
        self.clock = clock
        self.later: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def call_later(self, delay_s: float, call: Callable[[], None]) -> None:
        heappush(self.later, (self.clock.now_s + delay_s, next(self._numbers), call))

    def run_until(self, end_s: float) -> None:
        while self.later and self.later[0][0] <= end_s:
            due_s, _, call = heappop(self.later)
            self.clock.now_s = max(self.clock.now_s, due_s)
            call()
        self.clock.now_s = end_s


@pytest.fixture
def scheduler() -> Iterator[DrivenScheduler]:
    with stopped_clock() as clock:
        yield DrivenScheduler(clock)


class Reader:
    """Reads 100 entries of 1000 bytes again and again; how many reads ended, and when they began."""

    def __init__(self, permits: FlowPermits, scheduler: DrivenScheduler, ledger: int, log: list[int]) -> None:
        source = MemorySource({ledger: [bytes(1000)] * 100})
        self.handle = OffloadReadHandle.create(source.open(ledger), permits, scheduler)
        self.log = log

    def go_on(self, _future: Any = None) -> None:
        future = self.handle.read_async(0, 99)
        future.add_done_callback(self.ended)

    def ended(self, future: Any) -> None:
        assert len(future.result()) == 100
        self.log.append(self.handle.ledger)
        if len(self.log) < 500:
            self.go_on()


@pytest.mark.parametrize("handles", [1, 8])
def test_as_many_bytes_are_read_in_ten_seconds_as_permitted(handles: int, scheduler: DrivenScheduler) -> None:
    permits, log = FlowPermits(RATE), list[int]()
    for ledger in range(handles):
        Reader(permits, scheduler, ledger, log).go_on()
    scheduler.run_until(1010.0 - 0.001)
    assert len(log) * READ_BYTES == 10 * RATE
    assert log == [at % handles for at in range(100)]  # in turn
    scheduler.run_until(1020.0 - 0.001)
    assert len(log) * READ_BYTES == 20 * RATE


def test_permits_change_at_once_for_reads_that_wait(scheduler: DrivenScheduler) -> None:
    permits, log = FlowPermits(1), list[int]()
    Reader(permits, scheduler, 1, log).go_on()
    scheduler.run_until(1001.0)
    assert log == [1]  # the next one would be due after more than a day
    assert [due_s for due_s, *_ in scheduler.later] == [1002.0]  # but no thread sleeps so long
    permits.permits_bytes_per_s = RATE
    scheduler.run_until(1001.05)
    assert log == [1]
    scheduler.run_until(1001.15)
    assert log == [1, 1]
    permits.permits_bytes_per_s = 0
    scheduler.run_until(1001.15)
    assert len(log) == 500  # no limit
    permits.permits_bytes_per_s = RATE
    Reader(permits, scheduler, 2, log).go_on()
    scheduler.run_until(1001.15)
    assert log[500:] == [2]  # a new limit begins without a debt
    for wrong in (-1, 1 << 60, float("nan")):
        with pytest.raises(InvalidArgument):
            permits.permits_bytes_per_s = wrong


def test_closing_cancels_what_waits_and_nothing_else(scheduler: DrivenScheduler) -> None:
    permits = FlowPermits(RATE)
    source = MemorySource({1: [bytes(READ_BYTES)], 2: [b"other"]})
    inner = source.open(1)
    closed = OffloadReadHandle.create(inner, permits, scheduler)
    other = OffloadReadHandle.create(source.open(2), permits, scheduler)
    first, second, third = closed.read_async(0, 0), closed.read_async(0, 0), other.read_async(0, 0)
    scheduler.run_until(1000.0)
    closed.close()
    closed.close()
    assert (first.done(), second.cancelled()) == (True, True)
    with pytest.raises(Closed):
        inner.read(0, 0)
    scheduler.run_until(1001.0)
    assert third.result() == [Entry(2, 0, b"other")]
    for call in (partial(closed.read, 0, 0), partial(closed.read_async, 0, 0), closed.iter_entries):
        with pytest.raises(Closed):
            call()


def test_a_thread_that_waits_hears_of_new_permits() -> None:
    permits = FlowPermits(1)
    handle = OffloadReadHandle.create(MemorySource({1: [bytes(READ_BYTES)]}).open(1), permits)
    first, second = handle.read_async(0, 0), handle.read_async(0, 0)
    assert first.result(60)
    assert not second.done()
    permits.permits_bytes_per_s = 1 << 50
    assert second.result(60) == handle.read(0, 0)
