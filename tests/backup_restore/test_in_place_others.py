"""Whoever has seen what a restore in place cut off notices: replicas, caches, backups; and a root that was rolled back stays one."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from chunkstore import backup
from chunkstore.config import DefragPolicy
from chunkstore.errors import NotOwner, RolledBack
from chunkstore.storage import ChunkHandle, ChunkStorage, iter_listing
from tests.backup_restore.in_place import TWO_WORLDS, head, rewound
from tests.support.backups import drop_old
from tests.support.data import problems
from tests.support.worlds import World


def texts(store: object) -> list[str]:
    return [item.message for item in store.check("quick")]  # type: ignore[attr-defined]


@TWO_WORLDS
@pytest.mark.parametrize("grown", [0, 3, 30], ids=["shorter", "as-long", "longer"])
def test_replicas_and_caches_start_again(world: World, grown: int) -> None:
    """At whatever lsn the new history stands by then; nobody is told of a loss that a person wanted."""
    store = world.open()
    store.create("a")
    store.append("a", b"then;")
    lsn = head(store)
    behind = world.replica()
    for _ in range(5):
        store.append("a", b"cut off;")
    ahead = world.replica()
    assert ahead.read("a", 0, 99).endswith(b"cut off;")
    store.close()
    former = world.machine
    world.forget_cache()
    rewound(world, lsn=lsn)
    expected = b"then;" + b"now;" * grown
    with world.open() as store:
        for _ in range(grown):
            store.append("a", b"now;")
        for replica in (ahead, behind):
            replica.refresh()
            assert replica.read("a", 0, 999) == expected
            assert problems(replica.check("deep")) == [] and not any("ahead" in text for text in texts(replica))
    world.wake(former)
    with world.open() as store:
        assert store.read("a", 0, 999) == expected
        assert not any("records were lost" in text for text in texts(store))
        assert problems(store.check("deep")) == []


def objects(storage: ChunkStorage) -> dict[str, bytes]:
    return {
        info.name: storage.read(ChunkHandle(info.name, False), 0, info.length)
        for info in iter_listing(storage)
        if not info.name.endswith("/reserve")
    }


def become(storage: ChunkStorage, wanted: dict[str, bytes]) -> None:
    for name in {*objects(storage)} - {*wanted}:
        storage.delete(name)
    for name, data in wanted.items():
        storage.put(name, data)


@pytest.mark.parametrize("world", [("memory", "slot"), ("memory", "append")], indirect=True, ids=["slot", "append"])
def test_a_root_that_was_rolled_back_stays_one(world: World) -> None:
    """An old copy of the root, in which somebody else then went back in place, is no explanation for what this machine has seen since."""
    raw, here = world.raw_storage(), world.machine
    with world.open() as store:
        store.create("a")
        lsn = head(store)
        store.append("a", b"in the copy")
        copy = objects(raw)
        for _ in range(9):
            store.append("a", b"behind the copy")
        seen = head(store)
    world.forget_cache()
    become(raw, copy)
    rewound(world, lsn=lsn)
    world.wake(here)
    with pytest.raises(RolledBack) as caught:
        world.open()
    assert caught.value.lsn_seen >= seen


@pytest.mark.parametrize("world", [("memory", "slot"), ("memory", "append")], indirect=True, ids=["slot", "append"])
def test_gone_back_in_place_again_and_again(world: World) -> None:
    """To before an earlier restore: what was seen of the first part that was cut off explains itself, too."""
    with world.open() as store:
        store.create("a")
        first = head(store)
        store.append("a", b"1")
        second = head(store)
        for _ in range(9):
            store.append("a", b"cut off")
    here = world.machine
    world.forget_cache()
    rewound(world, lsn=second)
    rewound(world, lsn=first)
    world.wake(here)
    with world.open() as store:
        assert store.info("a").length == 0 and problems(store.check("deep")) == []


@TWO_WORLDS
def test_backups_do_not_mix_two_histories(world: World, tmp_path: Path) -> None:
    """A backup of the part that was cut off stays whole; the next one waits until history is longer, and is whole, too."""
    target = (tmp_path / "backups").as_uri()
    store = world.open(rolling=8)
    store.create("a")
    store.append("a", b"a" * 20)
    store.append("a", b"b" * 3)
    lsn = head(store)
    backup.backup(store, target)
    store.append("a", b"c" * 30)
    store.truncate("a", 16)
    cut_off = backup.backup(store, target).backup
    store.close()
    rewound(world, lsn=lsn)
    with world.open(rolling=8) as store:
        with pytest.raises(RolledBack):
            backup.backup(store, target)
        while head(store) <= cut_off.lsn:
            store.append("a", b"d" * 5)
        made = backup.backup(store, target).backup
        drop_old(target, keep=2)
        assert made.lsn > cut_off.lsn
        expected = store.read("a", 0, 999)
    assert backup.verify_copies(target).findings == ()
    for number, (item, _) in enumerate(backup.list_backups(target)):
        back = (tmp_path / f"back {number}").as_uri()
        backup.restore(target, back, lsn=item.lsn, settings=world.settings(metadata="lmdb"))
        from chunkstore import open_replica

        with open_replica(back, settings=world.settings(metadata="lmdb")) as replica:
            start = replica.info("a").start_offset
            whole = expected if item == made else (b"a" * 20 + b"b" * 3 + b"c" * 30)
            assert replica.read("a", start, 999) == whole[start:]


@TWO_WORLDS
@pytest.mark.parametrize("goes_on", [False, True])
def test_a_former_owner_that_collects_leaves_what_stands_below_it(world: World, goes_on: bool) -> None:
    """Its successor went back in place, so its snapshots are at lower positions: by these alone, the former owner forgot them."""
    store = world.open(gc_grace_s=3600)
    store.create("a")
    store.append("a", b"then;")
    lsn = head(store)
    for _ in range(6):
        store.append("a", b"cut off;")
        store.snapshot()
    former = store
    world.crash(former)
    world.forget_cache()
    rewound(world, lsn=lsn)
    expected = b"then;"
    if goes_on:
        store = world.open()
        store.append("a", b"now;")
        expected += b"now;"
        store.snapshot()
        store.collect()
        world.crash(store)
    world.forget_cache()
    with suppress(NotOwner):
        former.collect()
    with world.open() as store:
        assert store.read("a", 0, 99) == expected
        assert problems(store.check("deep")) == []


@pytest.mark.parametrize("world", [("filesystem", "append")], indirect=True)
@pytest.mark.parametrize("how", ["defrag", "truncate", "delete"])
def test_adopted_bytes_that_left_the_list_come_back(world: World, how: str, tmp_path: Path) -> None:
    """They lie in another root, under its pin."""
    other = World(world.kind, world.mode, tmp_path / "other")
    source = other.open(gc_grace_s=0)
    source.create("q")
    source.append("q", b"adopted bytes;" * 5)
    source.spill()
    world.defaults["foreign_roots"] = (source.url,)
    store = world.open(gc_grace_s=0)
    settings = other.settings()
    backup.merge_file(store, source.url, ["q"], rename={"q": "a"}, adopt=True, settings=settings)
    expected = store.read("a", 0, 999)
    store.pin("kept")
    lsn = head(store)
    if how == "defrag":
        store.defrag("a", policy=DefragPolicy(foreign=True))
    elif how == "truncate":
        store.truncate("a", len(expected))
    else:
        store.delete("a")
    source.delete("q")
    source.collect()
    store.close()
    rewound(world, lsn=lsn)
    other.close()
    with world.open() as store:
        assert store.read("a", 0, 999) == expected
        assert problems(store.check("deep")) == []
