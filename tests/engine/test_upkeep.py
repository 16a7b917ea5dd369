"""Snapshots, collections, rolls and heartbeats: work that users never have to think of."""

from __future__ import annotations

import dataclasses
import random
import time
from typing import Any

import pytest

from chunkstore.changes import Append, TablePut
from chunkstore.config import LIMITS
from chunkstore.errors import InvalidArgument
from chunkstore.operations import maintenance
from tests.support.clock import jumping_clock
from tests.support.data import pattern, refused, run_threads
from tests.support.hooked import wait_for
from tests.support.worlds import World

ROLLING: dict[str, Any] = {"log_roll_bytes": 1_024, "slot_roll_records": 4, "roll_interval_s_min": 0}


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


@pytest.mark.parametrize("collectors", [1, 4])
def test_more_garbage_than_one_record_forgets(world: World, collectors: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """5,000 chunks or writers are forgotten at a time (A7); here 7, also when several collect at the same time."""
    monkeypatch.setattr("chunkstore.operations.collect._WRITER_ROWS_MAX", 7)
    limits = dataclasses.replace(LIMITS, garbage_unfold_chunks_max=7)
    monkeypatch.setattr("chunkstore.operations.collect.LIMITS", limits)
    store = world.open(gc_grace_s=0, rolling=3)
    for name in ("a", "b"):
        store.create(name)
        for number in range(40):
            store.append(name, pattern(0, 7), writer_id=b"w%d" % number, event_number=1)
        store.delete(name)
    run_threads(collectors, lambda thread: store.collect())  # type: ignore[arg-type]
    with store._container.current.store.view() as view:
        assert [*view.scan(b"T", b"U")] == [] and [*view.scan(b"G", b"H")] == [] and [*view.scan(b"C", b"D")] == []
    assert world.chunks() == [] and store.check("deep") == []


def test_rolls_do_not_begin_the_grace_anew(world: World) -> None:
    with jumping_clock() as clock:
        store = world.open(rolling=4, gc_grace_s=100, ask_s=0, collect_s=0)
        store.create("a")
        store.append("a", pattern(0, 40))
        store.truncate("a", 12)
        for _ in range(3):
            clock.jump(30)
            epoch = store.epoch
            assert store._recovery.roll() and store.epoch == epoch + 1
        store.truncate("a", 20)
        assert store.collect().waiting == 5
        clock.jump(11)
        report = store.collect()
        assert (report.chunks, report.waiting) == (3, 2), "busy containers roll more often than their grace lasts"
        clock.set_back(50)
        assert store._recovery.roll()
        store.truncate("a", 24)
        clock.jump(88)
        assert store.collect().chunks == 0, "each label is of the clock of its own epoch"
        clock.jump(2)
        assert store.collect().chunks == 2
        clock.jump(11)
        assert store.collect().chunks == 1


def test_rolls_under_load_are_not_noticed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "_TICK_S", 0.002)
    store = world.open(rolling=200, op_deadline_s=60, **ROLLING)
    for number in range(4):
        store.create(f"s{number}")
    store.create("hot")
    first = store.epoch
    found: dict[int, bytes] = {}

    def work(thread: int) -> None:
        name = f"s{thread % 4}"
        for number in range(30):
            mark = b"%d:%03d;" % (thread, number)
            if number % 3 == 0:
                store.commit([Append(name, mark), Append("hot", mark), TablePut("t", b"%d" % thread, mark)])
            elif number % 3 == 1:
                found[store.append("hot", mark)] = mark
            else:
                store.append(name, mark, writer_id=b"%d" % thread, event_number=number)
            if number % 10 == 9:
                store.update_attributes(name, {str(thread): number})
                assert store.read(name, 0, 6)

    run_threads(8, work)
    assert store.epoch > first + 1
    assert store.report.tail_cut is None and store.report.findings == ()
    hot = store.read("hot", 0, 1 << 20)
    for offset, mark in found.items():
        assert hot[offset : offset + 6] == mark
    assert len(hot) == 8 * 20 * 6
    for number in range(4):
        content = store.read(f"s{number}", 0, 1 << 20).split(b";")[:-1]
        for thread in (number, number + 4):
            mine = [piece for piece in content if piece.startswith(b"%d:" % thread)]
            assert mine == [b"%d:%03d" % (thread, event) for event in range(30) if event % 3 != 1]
    assert store.check("deep") == []
    world.crash(store)
    world.forget_cache()
    again = world.open()
    assert again.read("hot", 0, 1 << 20) == hot
    assert again.check("deep") == []


def test_the_keeper_snapshots_when_it_is_due(world: World) -> None:
    store = world.open(snapshot_bytes_min=500, snapshot_slots_min=5)
    store.create("a")
    for _ in range(10):
        store.append("a", b"x" * 100)
    wait_for(lambda: any(name.endswith(".sn") for name in world.objects("default/snap/")))


def test_one_heartbeat_after_the_last_record(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "_TICK_S", 0.005)
    monkeypatch.setattr(maintenance, "_HEARTBEAT_S", 0.01)
    store = world.open()
    lsn = store._container.current.journal.head.lsn
    store.create("a")
    if world.mode == "slot":
        time.sleep(0.3)
        assert store._container.current.journal.head.lsn == lsn + 1
        return
    wait_for(lambda: store._container.current.journal.head.lsn >= lsn + 2)
    time.sleep(0.3)  # many more would be due
    assert store._container.current.journal.head.lsn == lsn + 2


@pytest.mark.parametrize("released", [True, False], ids=["closed", "alive"])
def test_the_lease_is_a_polite_hint(world: World, monkeypatch: pytest.MonkeyPatch, released: bool) -> None:
    from chunkstore.errors import ContainerBusy

    monkeypatch.setattr("chunkstore_journal.lease._LEASES_WATCHED", 3000)
    first = world.open(lease_s=0.2)
    first.create("a")
    if released:
        first.close()
        began = time.monotonic()
        second = world.open(lease_s=0.2, wait_s=0)
        assert time.monotonic() - began < 60
    else:
        # Its first sign of life is enough; a keeper that is held up shows it later.
        with pytest.raises(ContainerBusy) as caught:
            world.open(lease_s=0.2, wait_s=0)
        assert caught.value.pid > 0 and caught.value.host
        first.append("a", b"undisturbed")
        second = world.open(lease_s=0.2)
    second.append("a", b"mine")
    refused(InvalidArgument, lambda: world.open(wait_s=float("nan")))
