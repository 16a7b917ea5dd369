"""Snapshots, collections, rolls and heartbeats: work that users never have to think of."""

from __future__ import annotations

import random

from tests.support.clock import jumping_clock
from tests.support.data import pattern
from tests.support.hooked import wait_for
from tests.support.worlds import World


def test_snapshot_collect_and_recovery_without_a_cache(world: World) -> None:
    expected: dict[str, bytes] = {}
    chance = random.Random(5)
    for round_ in range(8):
        store = world.open(rolling=16, gc_grace_s=0, snapshots_kept=1)
        for name, content in expected.items():
            info = store.info(name)
            assert store.read(name, info.start_offset, 1 << 20) == content
        for number in range(4):
            name = f"{round_}-{number}"
            store.create(name)
            expected[name] = chance.randbytes(chance.randrange(1, 60))
            store.append(name, expected[name])
        for name in chance.sample(sorted(expected), min(len(expected), 5)):
            if chance.random() < 0.5:
                store.delete(name)
                del expected[name]
            else:
                info = store.info(name)
                cut = chance.randrange(info.start_offset, info.length + 1)
                store.truncate(name, cut)
                expected[name] = expected[name][cut - info.start_offset :]
        store.snapshot()
        store.collect()
        assert store.check("deep") == []
        live = {chunk.name for info in store.segments() for chunk in store.layout(info.name)}
        assert set(world.chunks()) == live
        if round_ % 2:
            store.close()
        else:
            world.crash(store)
        world.forget_cache()
    # Old streams and snapshots are gone, the fence is not.
    store = world.open(gc_grace_s=0, snapshots_kept=1)
    store.snapshot()
    store.collect()
    assert len(world.objects("default/epoch/")) == store.epoch
    assert len(world.objects("default/snap/")) <= 4
    assert store.check("deep") == []


def test_garbage_is_collected_after_its_grace_only(world: World) -> None:
    with jumping_clock() as clock:
        store = world.open(rolling=4, gc_grace_s=100)
        store.create("a")
        store.append("a", pattern(0, 40))
        before = set(world.chunks())
        store.truncate("a", 30)
        report = store.collect()
        assert report.chunks == 0 and report.waiting == 7 and set(world.chunks()) == before
        clock.jump(101)
        store.truncate("a", 34)
        report = store.collect()
        assert report.chunks == 7 and report.chunk_bytes == 28 and report.waiting == 1
        assert len(world.chunks()) == 3
        assert store.read("a", 34, 99) == pattern(34, 6)
        assert store.check("deep") == []
        # A new owner begins the grace anew: its own clock has not seen the removal.
        store.close()
        clock.jump(101)
        again = world.open(gc_grace_s=100)
        assert again.collect().waiting == 1
        clock.jump(101)
        assert again.collect().chunks == 1 and len(world.chunks()) == 2


def test_dry_run_tells_and_does_nothing(world: World) -> None:
    store = world.open(rolling=4, gc_grace_s=0, snapshots_kept=1)
    world.still(store)
    store.create("a")
    store.append("a", pattern(0, 40))
    store.create("b")
    store.append("b", pattern(0, 9))
    store.truncate("a", 21)
    store.delete("b")
    objects, lsn = world.objects(), store._container.current.journal.head.lsn
    told = store.collect(dry_run=True)
    assert (told.chunks, told.chunk_bytes, told.waiting) == (8, 29, 0)
    assert world.objects() == objects and store._container.current.journal.head.lsn == lsn
    done = store.collect()
    assert (done.chunks, done.chunk_bytes, done.waiting) == (8, 29, 0)
    again = store.collect()
    assert (again.chunks, again.chunk_bytes, again.waiting) == (0, 0, 0)
    assert store.check("deep") == []


def test_the_keeper_snapshots_when_it_is_due(world: World) -> None:
    store = world.open(snapshot_bytes_min=500, snapshot_slots_min=5)
    store.create("a")
    for _ in range(10):
        store.append("a", b"x" * 100)
    wait_for(lambda: any(name.endswith(".sn") for name in world.objects("default/snap/")))
