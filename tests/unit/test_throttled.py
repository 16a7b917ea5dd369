"""The token bucket and the storage behind it: rates, fairness, deadlines, and limits that change while calls wait."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest

from chunkstore import runtime
from chunkstore.deadline import until
from chunkstore.errors import DeadlineExceeded, InvalidArgument
from chunkstore.storage import ChunkHandle, ChunkRange, ReadRange
from chunkstore_bindings.memory import MemoryChunkStorage, forget_memory
from chunkstore_bindings.wrappers.throttled import ThrottledChunkStorage, ThrottleLimits, TokenBucket
from tests.simulator import World
from tests.support.clock import stopped_clock
from tests.support.forwarding import Carrying
from tests.support.hooked import wait_for


def test_a_bucket_fills_at_its_rate() -> None:
    with stopped_clock() as clock:
        bucket = TokenBucket(10.0)
        # A second's worth is there, and the first that overdraws it goes whole.
        assert [bucket.take(5, 0) for _ in range(4)] == [True, True, True, False]
        clock.now_s += 0.49
        assert not bucket.take(5, 0)
        clock.now_s += 0.02
        assert bucket.take(5, 0)
        clock.now_s += 3600
        # However long nothing happened, no more than a second's worth was saved.
        assert [bucket.take(5, 0) for _ in range(4)] == [True, True, True, False]


def test_what_is_larger_than_the_bucket_goes_whole_and_is_paid_for() -> None:
    with stopped_clock() as clock:
        bucket = TokenBucket(10.0)
        assert bucket.take(1000, 0)
        assert not bucket.take(1, 98.9)
        clock.now_s += 98.9
        assert not bucket.take(1, 0)
        clock.now_s += 0.2
        assert bucket.take(1, 0)


def test_paying_afterwards() -> None:
    with stopped_clock() as clock:
        bucket = TokenBucket(10.0)
        assert bucket.take(0, 0)
        bucket.pay(30)
        assert not bucket.take(0, 1.9)
        clock.now_s += 2.01
        assert bucket.take(0, 0)
        bucket.pay(50)
        bucket.pay(-50)
        assert bucket.take(0, 0)


def test_no_limit() -> None:
    bucket = TokenBucket(0)
    assert all(bucket.take(10**12, 0) for _ in range(100))
    bucket.set_rate(10)
    bucket.take(10, 0)
    assert not bucket.take(100, 0) or not bucket.take(1, 0)


@pytest.mark.parametrize("bad", [-1, float("inf"), float("nan"), "7", None, True])
def test_bad_numbers(bad: Any) -> None:
    with pytest.raises(InvalidArgument):
        TokenBucket(bad)
    with pytest.raises(InvalidArgument):
        TokenBucket(1).set_rate(bad)
    storage = ThrottledChunkStorage(MemoryChunkStorage("memory://never"), ThrottleLimits(read_bytes_per_s=5))
    with pytest.raises(InvalidArgument):
        storage.set_limits(ThrottleLimits(7, 7, bad, 7))
    assert storage.limits == ThrottleLimits(read_bytes_per_s=5)


def run(calls: list[Callable[[], object]]) -> list[threading.Thread]:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    return threads


def end(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_the_rate_holds_for_many_threads() -> None:
    bucket = TokenBucket(2000.0, burst_s=0.0)
    start = threading.Barrier(8)
    done: list[bool] = []
    began_s = time.monotonic()

    def client() -> None:
        start.wait(60)
        done.extend(bucket.take(5, 60) for _ in range(20))

    end(run([client] * 8))
    assert done == [True] * 160
    # The last one goes whole.
    assert (160 * 5 - 5) / 2000 <= time.monotonic() - began_s < 60


# Who is served when depends on who comes when: in virtual time, where nobody is taken off his processor in between.


@pytest.fixture
def simulated() -> Iterator[World]:
    with World(1) as world:
        yield world


def test_the_rate_holds_and_nobody_starves(simulated: World) -> None:
    process = simulated.process("n")
    bucket = process.run(lambda: TokenBucket(2000.0, burst_s=0.0))
    began_s = process.run(runtime.monotonic_s)
    ends: list[float] = []

    def client() -> None:
        for _ in range(20):
            assert bucket.take(5, 10)
        ends.append(runtime.monotonic_s() - began_s)

    for job in [process.start(client) for _ in range(8)]:
        job.run_to_end()
    assert max(ends) == pytest.approx((160 * 5 - 5) / 2000, abs=0.001)
    # First come, first served: nobody is done long before the others.
    assert min(ends) > 0.9 * max(ends)


def test_first_come_first_served(simulated: World) -> None:
    process = simulated.process("n")
    bucket = process.run(lambda: TokenBucket(20.0, burst_s=0.0))
    order: list[int] = []
    assert process.run(lambda: bucket.take(12, 0))

    def client(number: int, amount: int) -> None:
        assert bucket.take(amount, 5)
        order.append(number)

    jobs = []
    for number, amount in enumerate((8, 2, 2, 4, 2)):
        jobs.append(process.start(partial(client, number, amount)))
        simulated.advance(0.001)
    for job in jobs:
        job.run_to_end()
    assert order == [0, 1, 2, 3, 4]


def test_a_higher_rate_helps_those_who_wait() -> None:
    bucket = TokenBucket(0.001, burst_s=0.0)
    assert bucket.take(1, 0)
    done = threading.Event()
    threads = run([lambda: bucket.take(1, 2000) and done.set()])  # type: ignore[func-returns-value]
    assert not done.wait(0.05)
    bucket.set_rate(1e9)
    assert done.wait(60)
    end(threads)


def test_a_lower_rate_ends_waits_that_became_hopeless() -> None:
    bucket = TokenBucket(10.0, burst_s=0.0)
    assert bucket.take(600, 0)
    answers: list[bool] = []
    threads = run([lambda: answers.append(bucket.take(5000, 120.0))])
    wait_for(lambda: bucket._taken == 5600, 30)
    bucket.set_rate(0.001)
    end(threads)
    assert answers == [False]
    # What it had reserved is free again: only the first six hundred are to be paid for.
    bucket.set_rate(6000.0)
    assert bucket.take(1, 0.5)


# The storage


@pytest.fixture
def binding() -> Iterator[MemoryChunkStorage]:
    url = f"memory://{uuid.uuid4()}"
    yield MemoryChunkStorage(url)
    forget_memory(url)


def test_reads_and_writes_are_limited_apart(binding: MemoryChunkStorage) -> None:
    with stopped_clock() as clock:
        storage = ThrottledChunkStorage(
            binding, ThrottleLimits(read_bytes_per_s=100, write_bytes_per_s=1000), wait_s_max=0.0
        )
        handle = storage.create("a", bytes(5000))
        with pytest.raises(DeadlineExceeded, match="before write of a"):
            storage.write(handle, 5000, b"x")
        # Asking for much costs nothing; what comes back does.
        assert storage.read(handle, 4950, 1 << 24) == bytes(50)
        assert storage.read_into(handle, 0, bytearray(40)) == 40
        assert storage.read_ranges(handle, [ReadRange(0, 30), ReadRange(7, 80)]) == [bytes(30), bytes(80)]
        with pytest.raises(DeadlineExceeded):
            storage.stat("a")
        storage.sync(["a"])
        storage.harden("a")
        clock.now_s += 1.1
        assert storage.stat("a").length == 5000
        with pytest.raises(DeadlineExceeded):
            storage.delete("a")
        clock.now_s += 4
        storage.delete("a")


def test_requests_are_limited(binding: MemoryChunkStorage) -> None:
    with stopped_clock() as clock:
        storage = ThrottledChunkStorage(
            binding, ThrottleLimits(read_requests_per_s=3, write_requests_per_s=1), wait_s_max=0.0
        )
        for _ in range(4):
            assert not storage.exists("a")
        with pytest.raises(DeadlineExceeded):
            storage.list()
        storage.put("a", b"x")
        storage.put("a", b"x")
        with pytest.raises(DeadlineExceeded):
            storage.put("a", b"x")
        clock.now_s += 1.01
        storage.put("a", b"x")
        storage.set_limits(ThrottleLimits())
        for _ in range(1000):
            storage.put("a", b"x")


def test_a_refused_call_leaves_nothing_behind(binding: MemoryChunkStorage) -> None:
    """Its request is given back when its bytes cannot be had in time; nothing was sent."""
    with stopped_clock():
        storage = ThrottledChunkStorage(
            binding, ThrottleLimits(write_bytes_per_s=10, write_requests_per_s=5), wait_s_max=0.0
        )
        storage.put("a", bytes(1000))
        for _ in range(50):
            with pytest.raises(DeadlineExceeded) as caught:
                storage.create_if_absent("b", b"x")
        assert caught.value.deadline_s == 0.0
        assert not storage.exists("b")
        storage.set_limits(ThrottleLimits(write_requests_per_s=5))
        for _ in range(5):
            storage.put("a", b"x")


def test_who_may_not_wait_needs_not_wait(binding: MemoryChunkStorage) -> None:
    """On a clock that goes: asking for the second turn takes some of the time that the first one left."""
    storage = ThrottledChunkStorage(binding, ThrottleLimits(), wait_s_max=0.0)
    for _ in range(100):
        storage.put("a", b"x")
    assert storage.exists("a")


def test_the_operation_under_way_sets_an_end(binding: MemoryChunkStorage) -> None:
    storage = ThrottledChunkStorage(binding, ThrottleLimits(write_bytes_per_s=1))
    storage.put("a", bytes(1000))
    began_s = time.monotonic()
    with until(began_s + 600), pytest.raises(DeadlineExceeded):
        storage.put("b", b"x")
    assert time.monotonic() - began_s < 60  # hopeless is said at once
    assert storage.read(ChunkHandle("a", False), 0, 1) == b"\0"


def test_what_composing_carries_is_paid_for_behind_it() -> None:
    """It goes in and out again; what the storage copies by itself costs a request and no more."""
    inner = Carrying(MemoryChunkStorage("memory://composed"))
    inner.create("a", bytes(1000))
    limits = ThrottleLimits(read_bytes_per_s=100, write_bytes_per_s=200)
    with stopped_clock() as clock:
        storage = ThrottledChunkStorage(inner, limits, wait_s_max=0)
        storage.compose("b", [ChunkRange("a", 0, 1000)])
        storage.compose("c", [ChunkRange("a", 0, 1000)])
        storage.stat("c")
        inner.carried_bytes = 1000
        storage.compose("d", [ChunkRange("a", 0, 1000)])
        # A second's worth was there.
        writing, reading = partial(storage.put, "hint", b""), partial(storage.stat, "a")
        for passes_s, is_due, call in (
            (3.99, False, writing),
            (0.02, True, writing),
            (4.97, False, reading),
            (0.04, True, reading),
        ):
            clock.now_s += passes_s
            with nullcontext() if is_due else pytest.raises(DeadlineExceeded):
                call()
    forget_memory("memory://composed")
