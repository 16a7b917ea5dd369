"""Regressions of time labels: a clock that jumped must cost no more than time."""

from __future__ import annotations

import pytest

import chunkstore
from chunkstore import runtime
from tests.support.clock import JumpingClock, jumping_clock
from tests.support.data import pattern, problems
from tests.support.worlds import World

YEAR_MS = 366 * 86_400_000


@pytest.mark.parametrize("reopen", [False, True])
def test_garbage_from_a_clock_that_ran_ahead_is_collected(
    world: World, monkeypatch: pytest.MonkeyPatch, reopen: bool
) -> None:
    """Removed while the clock was years ahead: kept for the grace period from when that is noticed, not for years."""
    with jumping_clock() as clock:
        store = world.open(gc_grace_s=100)
        store.create("s")
        store.append("s", b"data")
        real = runtime.now_ms
        monkeypatch.setattr(runtime, "now_ms", lambda: real() + 10 * YEAR_MS)
        store.delete("s")
        monkeypatch.setattr(runtime, "now_ms", real)
        if reopen:
            store.close()
            store = world.open(gc_grace_s=100)
        report = store.collect()
        assert (report.chunks, report.waiting) == (0, 1)
        clock.jump(101)
        assert store.collect().chunks == 1
        assert world.chunks() == []


def test_a_clock_set_back_under_an_owner_does_not_shorten_the_grace(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was removed by an owner older than the grace got a label of long ago, and its objects were deleted at once."""
    with jumping_clock() as clock:
        store = world.open(gc_grace_s=100)
        store.create("s")
        store.append("s", b"data")
        clock.jump(101)
        real = runtime.now_ms
        monkeypatch.setattr(runtime, "now_ms", lambda: real() - YEAR_MS)
        store.delete("s")
        report = store.collect()
        assert (report.chunks, report.waiting) == (0, 1)
        clock.jump(101)
        assert store.collect().chunks == 1


@pytest.mark.parametrize("jump_s", [-1000, -10 * 366 * 86_400], ids=["minutes", "years"])
def test_a_clock_before_1970_is_the_beginning_of_1970(world: World, jump_s: int) -> None:
    """A machine without a battery starts there; records take no time below 0, so that nothing could be opened."""

    def before_1970(clock: JumpingClock) -> None:
        clock.jump(jump_s - runtime.now_ms() // 1000)

    with jumping_clock() as clock:
        before_1970(clock)
        assert runtime.now_ms() == 0
        store = world.open(gc_grace_s=100)
        store.create("s", rolling=chunkstore.RollingPolicy(chunk_size_bytes_max=4))
        store.append("s", pattern(0, 10))
        assert store.info("s").created_at == store.info("s").modified_at == 0
        assert store.offset_at("s", 0) == 8
        with store.session("me"):
            pass
        assert store.snapshot().rows > 0
        store.delete("s")
        assert store.collect().waiting == 3
        assert problems(store.check("deep")) == []
        store.close()
        world.forget_cache()
        store = world.open(gc_grace_s=100)
        assert store.collect().waiting == 3
        clock.jump(101)
        assert store.collect().chunks == 3
