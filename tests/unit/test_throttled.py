"""The token bucket and the storage behind it: rates, fairness, deadlines, and limits that change while calls wait."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest

from chunkstore import runtime
from chunkstore.deadline import until
from chunkstore.errors import DeadlineExceeded, InvalidArgument
from chunkstore.storage import ChunkHandle, ChunkRange
from chunkstore_bindings.memory import MemoryChunkStorage, forget_memory
from chunkstore_bindings.wrappers.throttled import ThrottledChunkStorage, ThrottleLimits, TokenBucket
from tests.simulator import World
from tests.support.clock import stopped_clock
from tests.support.forwarding import Carrying


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
        assert storage.read_into(handle, 0, bytearray(70)) == 70
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
