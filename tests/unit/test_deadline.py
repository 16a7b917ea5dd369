"""The end of the operation under way: nested, reset, and inherited by the calls of a pool."""

from __future__ import annotations

import threading

import pytest

from chunkstore import runtime
from chunkstore.deadline import left_s, until
from tests.support.clock import stopped_clock


def test_nothing_said_is_no_bound() -> None:
    assert left_s(7.5) == 7.5


def test_the_earliest_end_counts_and_is_forgotten_afterwards() -> None:
    with stopped_clock() as clock:
        with until(clock.now_s + 10):
            assert left_s(60) == 10
            assert left_s(3) == 3
            with until(clock.now_s + 2):
                assert left_s(60) == 2
                with until(clock.now_s + 5):
                    assert left_s(60) == 2
            clock.now_s += 9
            assert left_s(60) == 1
            clock.now_s += 9
            assert left_s(60) == 0
        assert left_s(60) == 60
        with pytest.raises(KeyError), until(clock.now_s):
            raise KeyError
        assert left_s(60) == 60


def test_a_pool_works_for_the_same_operation() -> None:
    pool = runtime.pool("test", 4)
    start = threading.Barrier(3)

    def look() -> tuple[float, int]:
        start.wait(60)
        return left_s(60), threading.get_ident()

    with until(runtime.monotonic_s() + 50):
        seen = pool.run_all([look] * 3)
    assert len({thread for _, thread in seen}) == 3
    assert all(left <= 50 for left, _ in seen)
    assert [left for left, _ in pool.run_all([look] * 3)] == [60] * 3
    pool.close()
