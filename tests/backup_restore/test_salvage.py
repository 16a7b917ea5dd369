"""What is left of a damaged container: its last good state and its sound bytes, in a new one; what is lost is told."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from chunkstore import backup
from chunkstore.backup import LostRange, RestoreReport, SalvageReport
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import Damaged
from chunkstore.journal import RecordsPast
from chunkstore_bindings.memory import forget_memory
from chunkstore_journal.history import open_streams
from chunkstore_journal.inspect import RecordInfo, iter_records
from tests.backup_restore.test_restore import described, restored, target
from tests.support.data import pattern, problems
from tests.support.rot import flip
from tests.support.worlds import EVERY_WORLD, World

__all__ = ["target"]

BLOCK = 64 << 10


def salvaged(world: World, target: World, **given: Any) -> tuple[RestoreReport, SalvageReport]:
    """Salvage it, as a dry run says beforehand, and leave the source as it is."""
    before = {name: world.content(name) for name in world.objects()}
    told = restored(world, target, salvage=True, dry_run=True, **given)
    report = restored(world, target, salvage=True, **given)
    assert report == told._replace(dry_run=False)
    if target is not world:
        assert {name: world.content(name) for name in world.objects()} == before
    assert report.salvaged is not None
    return report, report.salvaged


def contents(store: Any) -> dict[str, tuple[int, bytes]]:
    return {
        info.name: (info.start_offset, store.read(info.name, info.start_offset, 1 << 20)) for info in store.segments()
    }


def head(store: ChunkedSegmentStorage) -> int:
    return store._container.current.queue.head.lsn


def record(world: World, lsn: int) -> RecordInfo:
    """The record, where it is by itself."""
    found = iter_records(open_streams(world.raw_storage(), world.names()))
    return next(item for item in found if item.lsn == lsn and not item.embedded)


def flipped(world: World, lsn: int) -> None:
    at = record(world, lsn)
    flip(world, at.object, at.position + 40)


def zeroed(world: World, lsn: int) -> None:
    at, data = record(world, lsn), bytearray(world.content(record(world, lsn).object))
    data[at.position : at.position + at.size] = bytes(at.size)
    world.overwrite(at.object, bytes(data))


def removed(world: World, lsn: int) -> None:
    """The record's slot; of a log, everything from it on."""
    at = record(world, lsn)
    if at.object.endswith(".s"):
        world.remove(at.object)
    else:
        world.overwrite(at.object, world.content(at.object)[: at.position + 20])


def lived(world: World, *, snapshots: bool = False) -> dict[int, dict[str, tuple[int, bytes]]]:
    """Three epochs of small changes, and what there was after each of them, by its lsn."""
    after: dict[int, dict[str, tuple[int, bytes]]] = {}
    for epoch in range(3):
        store = world.open(rolling=40)
        world.still(store)
        for number in range(10):
            if number == 0:
                store.create(f"s{epoch}")
            elif number == 7:
                store.table("t").put(b"k", b"v")
            elif number == 8:
                store.truncate(f"s{epoch}", 11)
            else:
                store.append(f"s{number % (epoch + 1)}", b"%d;" % number * 9)
            after[head(store)] = contents(store)
        if snapshots:
            store.snapshot()
        if epoch < 2:
            store.close()
    return after


def state_at(after: dict[int, dict[str, tuple[int, bytes]]], lsn: int) -> dict[str, tuple[int, bytes]]:
    return after[max(known for known in after if known <= lsn)]


# ---- history


@EVERY_WORLD
@pytest.mark.parametrize("damage", [flipped, zeroed, removed], ids=lambda damage: damage.__name__)
def test_the_state_before_a_gap_is_kept_and_what_follows_is_counted(
    world: World, target: World, damage: Callable[[World, int], None]
) -> None:
    after = lived(world)
    lsn = sorted(after)[13]
    damage(world, lsn)
    report, found = salvaged(world, target)
    assert report.lsn == lsn - 1 and not found.ok and found.lost_ranges == 0
    assert found.damage and found.object == record_name(world, 2, lsn)
    past = found.past
    assert (past.lsn_max, past.segments) == (max(after), ("s0", "s1", "s2"))
    # Of a log that ends there nothing of this epoch is left.
    assert past.lsn_min == lsn + 1 or (damage is removed and world.mode == "append" and past.lsn_min > lsn)
    assert 0 < past.records <= past.lsn_max - lsn
    assert past.first_ms is not None and past.last_ms is not None and past.first_ms <= past.last_ms
    with target.open() as new:
        assert contents(new) == state_at(after, lsn - 1)
        new.append("s0", b"goes on")
        assert problems(new.check("deep")) == []


def record_name(world: World, epoch: int, lsn: int) -> str:
    """The object that holds, or held, a record of that epoch."""
    if world.mode == "append":
        return world.names().log(epoch)
    opened = open_streams(world.raw_storage(), world.names()).opened(epoch)
    return world.names().slot(epoch, lsn - opened.header.lsn)


def test_every_record_may_be_the_damaged_one(world: World, target: World) -> None:
    after = lived(world)
    streams = open_streams(world.raw_storage(), world.names())
    alone = [item for item in iter_records(streams) if not item.embedded]
    told = set[int]()
    for item in alone[2:]:
        flip(world, item.object, item.position + item.size - 30)
        report = restored(world, target, salvage=True, dry_run=True)
        flip(world, item.object, item.position + item.size - 30)
        assert report.salvaged is not None
        if report.salvaged.damage:
            assert item.lsn - 2 <= report.lsn < item.lsn, "an OPEN holds the record before it as well"
            told.add(item.lsn)
        else:
            assert (item.lsn, report.lsn) == (alone[-1].lsn, item.lsn - 1), "as a torn write"
    assert len(told) >= len(after)


def test_a_snapshot_stands_for_what_is_rotten_before_it(world: World, target: World) -> None:
    after = lived(world, snapshots=True)
    flipped(world, sorted(after)[4])
    report, found = salvaged(world, target)
    assert found == SalvageReport("", "", 0, RecordsPast(), (), 0, 0, 0) and report.lsn >= max(after)
    with target.open() as new:
        assert contents(new) == after[max(after)]


def test_an_open_that_is_rotten_or_gone(world: World, target: World) -> None:
    """It ends history, unless a snapshot of its own epoch stands for it."""
    after = lived(world)
    name = world.names().slot(2, 0)
    whole = world.content(name)
    lsn = open_streams(world.raw_storage(), world.names()).opened(2).header.lsn
    for gone in (False, True):
        if gone:
            world.remove(name)
        else:
            flip(world, name, 50)
        report, found = salvaged(world, target, new_container=f"gone-{gone}")
        assert report.lsn in (lsn - 1, lsn - 2) and found.object == name and found.past.records
        with target.open(f"gone-{gone}") as new:
            assert contents(new) == state_at(after, report.lsn)
    world.raw_storage().create_if_absent(name, whole)
    world.forget_cache()
    with world.open() as store:
        store.snapshot()
        store.append("s0", b"last")
        expected = contents(store)
    flip(world, world.names().slot(4, 0), 50)
    report, found = salvaged(world, target, new_container="snapshot")
    assert found.ok
    with target.open("snapshot") as new:
        assert contents(new) == expected


def test_nothing_to_begin_from(world: World, target: World) -> None:
    """The beginning was collected, and no snapshot can be read: an empty container would be a lie."""
    for number in range(4):
        with world.open(collect_s=0, snapshots_kept=1) as store:
            store.create(f"s{number}")
            store.snapshot()
            store.collect()
    for name in world.objects():
        if "/snap/" in name and name.endswith(".sn"):
            world.overwrite(name, b"rot")
    with pytest.raises(Damaged, match="nothing can be salvaged"):
        restored(world, target, salvage=True)
    assert target.objects() == []


# ---- bytes of chunks


def filled(world: World) -> ChunkedSegmentStorage:
    """Segments of four blocks a chunk, three chunks each."""
    store = world.open(rolling=4 * BLOCK, inline_bytes_max=0)
    world.still(store)
    for seed, name in enumerate("ab"):
        store.create(name)
        store.append(name, pattern(0, 12 * BLOCK, seed), writer_id="w", event_number=3)
    return store


def test_a_rotten_block_splits_its_segment(world: World, target: World) -> None:
    """No reader sees bytes that were not written there; what follows keeps its offsets; both parts take no more."""
    store = filled(world)
    store.truncate("a", 100)
    expected = described(store)
    chunks = [chunk.name for chunk in store.layout("a")]
    flip(world, chunks[1], BLOCK + 7)
    flip(world, chunks[2], 4 * BLOCK - 1)
    _, found = salvaged(world, target)
    assert found.lost == (
        LostRange("a", 5 * BLOCK, 6 * BLOCK, chunks[1], f"a.after-{6 * BLOCK}"),
        LostRange("a", 11 * BLOCK, 12 * BLOCK, chunks[2], ""),
    )
    assert (found.lost_ranges, found.lost_bytes, found.damage, found.ok) == (2, 2 * BLOCK, "", False)
    with target.open() as new:
        assert {info.name: (info.start_offset, info.length, info.sealed) for info in new.segments()} == {
            "a": (100, 5 * BLOCK, True),
            f"a.after-{6 * BLOCK}": (6 * BLOCK, 11 * BLOCK, True),
            "b": (0, 12 * BLOCK, False),
        }
        assert new.read("a", 100, 1 << 20) == pattern(100, 5 * BLOCK - 100)
        assert new.read(f"a.after-{6 * BLOCK}", 6 * BLOCK, 1 << 20) == pattern(6 * BLOCK, 5 * BLOCK)
        assert described(new)["b"] == expected["b"]
        assert new.last_event_number("b", "w") == 3
        assert new.last_event_number("a", "w") == 0, "its bytes are lost, and are to be sent again"
        assert problems(new.check("deep")) == []


@pytest.fixture
def backups() -> Iterator[str]:
    url = f"memory://salvage-{os.getpid()}"
    yield url
    forget_memory(url)


def test_copies_of_a_backup_take_the_place_of_rotten_blocks(world: World, target: World, backups: str) -> None:
    """Also of a missing chunk, and of one that was growing at the time; a block that is rotten in both is lost."""
    store = filled(world)
    store.create("growing")
    store.append("growing", pattern(0, 2 * BLOCK + 50, 5))
    backup.backup(store, backups, pin=False)
    store.append("growing", pattern(2 * BLOCK + 50, 10, 5))
    expected = described(store)
    a, b = ([chunk.name for chunk in store.layout(name)] for name in "ab")
    (growing, *_) = (chunk.name for chunk in store.layout("growing"))
    world.remove(a[0])
    flip(world, a[1], 5)
    flip(world, a[1], 3 * BLOCK)
    flip(world, growing, BLOCK)
    _, found = salvaged(world, target, from_=backups, new_container="whole")
    assert found.ok and found.replaced_bytes >= 7 * BLOCK
    with target.open("whole") as new:
        assert contents(new) == {name: (item[0], item[6]) for name, item in expected.items()}
        assert problems(new.check("deep")) == []
    flip(world, b[2], 0)
    _, found = salvaged(world, target)
    assert {item.segment for item in found.lost} == {"a", "b", "growing"}


@pytest.mark.parametrize("world", [("filesystem", "append"), ("filesystem", "slot")], ids="-".join, indirect=True)
def test_damaged_bytes_of_an_append_in_a_record_cost_only_these(world: World, target: World) -> None:
    """Their record counts, and so does what follows it."""
    store = world.open(inline_bytes_max=None)
    world.still(store)
    store.create("a")
    data = [bytes([65 + number]) * 30 for number in range(6)]
    for part in data:
        store.append("a", part)
        store.create(f"after {part[:1].decode()}")
    assert {chunk.kind for chunk in store.layout("a")} == {"inline"}
    (name,) = (name for name in world.objects("default/j/") if data[2] in world.content(name))
    flip(world, name, world.content(name).index(data[2]) + 4)
    report, found = salvaged(world, target)
    assert report.lsn == head(store) and found.damage == ""
    assert [item[:3] for item in found.lost] == [("a", 60, 90)]
    with target.open() as new:
        assert new.read("a", 0, 99) == data[0] + data[1]
        assert new.read("a.after-90", 90, 999) == data[3] + data[4] + data[5]
        assert new.exists("after F") and problems(new.check("deep")) == []


# ---- where to
