"""Retention policies: whose they are, what applying them truncates, and what stops it. The planner: ``tests/unit/test_retention.py``."""

from __future__ import annotations

import pytest

from chunkstore import RetentionPolicy
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.upkeep import retention
from tests.support.clock import jumping_clock
from tests.support.data import pattern
from tests.support.worlds import World

HOUR = 3600


def fill(store: ChunkedSegmentStorage, *names: str, chunks: int = 10) -> None:
    """Segments of so many chunks of ten bytes."""
    for name in names:
        store.create(name)
        store.append(name, pattern(0, 10 * chunks))


def starts(store: ChunkedSegmentStorage) -> dict[str, int]:
    return {info.name: info.start_offset for info in store.segments()}


def of_size(size_bytes: int) -> RetentionPolicy:
    return RetentionPolicy(size_bytes_max=size_bytes)


def test_policies_are_kept_and_shown(world: World) -> None:
    store = world.open()
    assert store.retention() == {}
    policies = {
        "*": of_size(7),
        "orders-*": RetentionPolicy(age_s_max=0.25),
        "orders-0": RetentionPolicy(size_bytes_max=5, age_s_max=86_400),
        "\u00e4\u00f6*": of_size(9),
    }
    for name, policy in policies.items():
        store.set_retention(name, policy)
    store.set_retention("orders-0", policies["orders-0"])
    store.set_retention("gone-*", of_size(1))
    store.set_retention("gone-*", None)
    store.set_retention("gone-*", None)
    assert store.retention() == policies
    assert list(store.retention()) == ["*", "orders-*", "\u00e4\u00f6*", "orders-0"]
    assert world.replica().retention() == policies
    store.snapshot()
    world.crash(store)
    world.forget_cache()
    assert world.open().retention() == policies


def test_by_size_whole_chunks_go_and_enough_stays(world: World) -> None:
    store = world.open(rolling=10, gc_grace_s=0)
    fill(store, "a", "b")
    store.truncate("a", 13)
    store.set_retention("a", of_size(25))
    due = retention.RetentionCut("a", store.info("a").id, 13, 70, 6)
    assert store.apply_retention(dry_run=True) == ((due,), 1, (), ())
    replica = world.replica()
    assert replica.due_retention() == ((due,), 1, (), ())
    assert starts(store) == {"a": 13, "b": 0}
    report = store.apply_retention()
    assert (report.cuts, report.size_bytes, report.chunks) == ((due,), 57, 6)
    assert store.read("a", 70, 99) == pattern(70, 30)
    assert store.usage("a").dead_head_bytes == 0
    assert store.apply_retention() == ((), 1, (), ())
    # The last chunk of a segment that grows stays.
    store.set_retention("a", of_size(1))
    assert [cut.offset for cut in store.apply_retention().cuts] == [90]
    store.collect()
    assert store.check("deep") == []


@pytest.mark.parametrize("what", ["no policy", "its own policy", "a wider prefix"])
def test_what_is_acknowledged_between_plan_and_truncation_counts(world: World, what: str) -> None:
    store = world.open(rolling=10)
    fill(store, "a", "b")
    store.set_retention("*", of_size(25))

    def between() -> bool:
        if what == "its own policy":
            store.set_retention("b", of_size(95))
        else:
            store.set_retention("*", None)
        return True

    if what == "a wider prefix":
        store.set_retention("b", of_size(25))
    step = retention.apply_step(store._container, store._context, None, between)
    wanted = 70 if what == "a wider prefix" else 0
    assert starts(store) == {"a": 70, "b": wanted}
    assert {cut.segment: cut.offset for cut in step.cuts} == {"a": 70} | ({"b": 70} if wanted else {})
    store.apply_retention()
    assert starts(store) == {"a": 70, "b": wanted}


def test_by_age(world: World) -> None:
    with jumping_clock() as clock:
        store = world.open(rolling=10)
        store.create("a")
        for number in range(4):
            store.append("a", pattern(10 * number, 10))
            clock.jump(HOUR)
        # Made 4, 3, 2 and 1 hours ago.
        store.set_retention("a", RetentionPolicy(age_s_max=4.5 * HOUR))
        assert store.apply_retention().cuts == ()
        store.set_retention("a", RetentionPolicy(age_s_max=2.5 * HOUR))
        # The first was written when the second was made; when the second was, nothing tells before the third.
        assert [cut.offset for cut in store.apply_retention().cuts] == [10]
        store.set_retention("a", RetentionPolicy(age_s_max=0.5 * HOUR))
        assert [cut.offset for cut in store.apply_retention().cuts] == [30]
        store.seal("a")
        assert store.apply_retention().cuts == ()
        clock.jump(HOUR)
        assert [cut.offset for cut in store.apply_retention().cuts] == [40]
        assert store.info("a").chunk_count == 0
        assert store.apply_retention().cuts == ()
        assert store.check("deep") == []
