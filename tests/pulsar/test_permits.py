"""Reads within flow permits (PIP-211): how much is read in ten seconds, in which order, and what closing does. The clock is driven."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from chunkstore import runtime
from chunkstore.codec.pulsar.frames import Entry
from chunkstore.errors import Closed, InvalidArgument
from chunkstore.pulsar import MemorySource
from chunkstore.pulsar import permits as permits_module
from chunkstore.pulsar.permits import FlowPermits, OffloadReadHandle
from tests.support.clock import StoppedClock, stopped_clock

READ_BYTES = 100 * 1000
RATE = 1_000_000


class _LaterError(Exception):
    """A pause is longer than the test's time."""


class Driven:
    """Threads run in the one that drives them, and time passes in their pauses alone."""

    def __init__(self, clock: StoppedClock) -> None:
        self.clock = clock
        self.threads: list[Callable[[], None]] = []
        self._end_s = clock.now_s

    def spawn(self, run: Callable[[], None], name: str) -> object:
        self.threads.append(run)
        return run

    def pause(self, state: object, delay_s: float) -> None:
        if self.clock.now_s + delay_s > self._end_s:
            raise _LaterError
        self.clock.now_s += delay_s

    def run_until(self, end_s: float) -> None:
        self._end_s, paused = end_s, list[Callable[[], None]]()
        while self.threads:
            run = self.threads.pop(0)
            try:
                run()
            except _LaterError:
                paused.append(run)
        self.threads, self.clock.now_s = paused, end_s


@pytest.fixture
def driven(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driven]:
    with stopped_clock() as clock:
        found = Driven(clock)
        monkeypatch.setattr(permits_module, "pause", found.pause)
        monkeypatch.setattr(runtime, "spawn_if_possible", found.spawn)
        yield found


class Reader:
    """Reads 100 entries of 1000 bytes again and again; how many reads ended, and when they began."""

    def __init__(self, permits: FlowPermits, ledger: int, log: list[int]) -> None:
        source = MemorySource({ledger: [bytes(1000)] * 100})
        self.handle = OffloadReadHandle.create(source.open(ledger), permits)
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
def test_as_many_bytes_are_read_in_ten_seconds_as_permitted(handles: int, driven: Driven) -> None:
    permits, log = FlowPermits(RATE), list[int]()
    for ledger in range(handles):
        Reader(permits, ledger, log).go_on()
    driven.run_until(1010.0 - 0.001)
    assert len(log) * READ_BYTES == 10 * RATE
    assert log == [at % handles for at in range(100)]  # in turn
    driven.run_until(1020.0 - 0.001)
    assert len(log) * READ_BYTES == 20 * RATE


def test_permits_change_at_once_for_reads_that_wait(driven: Driven) -> None:
    permits, log = FlowPermits(1), list[int]()
    Reader(permits, 1, log).go_on()
    driven.run_until(1001.0)
    assert log == [1]  # the next one would be due after more than a day
    permits.permits_bytes_per_s = RATE
    driven.run_until(1001.05)
    assert log == [1]
    driven.run_until(1001.15)
    assert log == [1, 1]
    permits.permits_bytes_per_s = 0
    driven.run_until(1001.15)
    assert len(log) == 500  # no limit
    permits.permits_bytes_per_s = RATE
    Reader(permits, 2, log).go_on()
    driven.run_until(1001.15)
    assert log[500:] == [2]  # a new limit begins without a debt
    for wrong in (-1, 1 << 60, float("nan")):
        with pytest.raises(InvalidArgument):
            permits.permits_bytes_per_s = wrong


def test_closing_cancels_what_waits_and_nothing_else(driven: Driven) -> None:
    permits = FlowPermits(RATE)
    source = MemorySource({1: [bytes(READ_BYTES)], 2: [b"other"]})
    inner = source.open(1)
    closed = OffloadReadHandle.create(inner, permits)
    other = OffloadReadHandle.create(source.open(2), permits)
    first, second, third = closed.read_async(0, 0), closed.read_async(0, 0), other.read_async(0, 0)
    driven.run_until(1000.0)
    closed.close()
    closed.close()
    assert (first.done(), second.cancelled()) == (True, True)
    with pytest.raises(Closed):
        inner.read(0, 0)
    driven.run_until(1001.0)
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
