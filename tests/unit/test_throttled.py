"""The token bucket and the storage behind it: rates, fairness, deadlines, and limits that change while calls wait."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from chunkstore import runtime
from chunkstore.errors import DeadlineExceeded, InvalidArgument
from chunkstore_bindings.memory import MemoryChunkStorage
from chunkstore_bindings.wrappers.throttled import ThrottledChunkStorage, ThrottleLimits, TokenBucket
from tests.simulator import World
from tests.support.clock import stopped_clock


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


def test_who_waits_is_served_at_a_new_rate(simulated: World) -> None:
    process = simulated.process("n")
    bucket = process.run(lambda: TokenBucket(1.0, burst_s=0.0))
    assert process.run(lambda: bucket.take(1000, 1))
    began_s = process.run(runtime.monotonic_s)
    waits = process.start(lambda: runtime.monotonic_s() - began_s if bucket.take(1, 2000) else 0.0)

    def faster() -> None:
        runtime.sleep_s(10)
        bucket.set_rate(99.0)

    process.start(faster).run_to_end()
    assert waits.result() == pytest.approx(20, abs=0.2)


# The storage


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
