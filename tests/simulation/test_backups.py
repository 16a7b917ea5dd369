"""Backups and restores beside owners that die, power cuts and clocks that are wrong, step by step."""

from __future__ import annotations

from typing import Final

import pytest

from chunkstore.assembly import open_store_on
from chunkstore.backup import runs
from chunkstore.backup.copies import named_copies
from chunkstore.backup.restore import restore as restore_container
from chunkstore.backup.rounds import backup
from chunkstore.engine.replica import Replica
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import Unsupported
from chunkstore.following import open_replica_on
from chunkstore.metadata.memory import MemoryMetadataCache, MemoryShelf
from chunkstore.records.names import BackupNames
from chunkstore.storage import BaseChunkStorage, ChunkStorage
from tests.simulator import Process, World
from tests.simulator.folders import FolderStorage
from tests.simulator.world import StorageKind
from tests.support.backups import drop_old

BACKUPS: Final = "backups/"


def fresh_cache(storage: ChunkStorage, role: str) -> MemoryMetadataCache:
    """A cache that nobody else has."""
    return MemoryMetadataCache(bytes(16), storage.address, role, shelf=MemoryShelf())


def _filled(process: Process) -> ChunkedSegmentStorage:
    store = process.open()
    process.run(lambda: store.create("goes"))
    process.run(lambda: store.append("goes", b"g" * 40))
    process.run(lambda: store.create("stays"))
    process.run(lambda: store.append("stays", b"s" * 40))
    return store


def at(process: Process, folder: str) -> ChunkStorage:
    """The storage whose root is a folder of the world's, ``/`` behind its name."""
    assert isinstance(process.storage, BaseChunkStorage)
    return FolderStorage(process.storage, folder)


def assert_one_whole(world: World) -> None:
    """One backup counts, and all that it names is there."""
    reader, names = world.process("reader"), BackupNames("c")
    there = at(reader, BACKUPS)

    def look() -> int:
        complete = list(runs.iter_complete(there, names))
        for item in complete:
            for copy in named_copies(there, names, item.lsn, item.run):
                assert there.stat(copy.name(names)).length >= copy.length
        return len(complete)

    assert reader.run(look) == 1


@pytest.mark.parametrize("seed", range(6))
def test_a_backup_that_was_dropped_is_not_brought_back_by_a_power_cut(seed: int) -> None:
    """Deletions are not durable: of copies one may be, of what says that the backup counts another may not."""
    with World(seed, "posix") as world:
        owner = world.process("owner")
        store = _filled(owner)
        owner.run(lambda: backup(store, at(owner, BACKUPS)))
        owner.run(lambda: store.delete("goes"))
        owner.run(lambda: backup(store, at(owner, BACKUPS)))
        owner.run(lambda: drop_old(at(owner, BACKUPS), container=store.container))
        owner.crash()
        world.power_cut()
        assert_one_whole(world)


@pytest.mark.parametrize("seed", range(6))
def test_a_copy_that_was_seen_is_made_durable_before_it_is_relied_on(seed: int) -> None:
    """Whoever put it dies between its link and the sync of the folder; the next run finds it there."""
    with World(seed, "posix") as world:
        owner, first = world.process("owner"), world.process("first")
        store = _filled(owner)
        replica = first.replica()
        first.start(lambda: backup(replica, at(first, BACKUPS), pin=False))
        first.until(op="create_if_absent", step="fsync-folder", name=f"{BACKUPS}c/[do]/*")
        first.crash()
        owner.run(lambda: backup(store, at(owner, BACKUPS)))
        owner.crash()
        world.power_cut()
        assert_one_whole(world)


@pytest.mark.parametrize("kind", ["s3", "posix"])
def test_a_container_that_is_about_to_be_restored_is_not_opened_empty(kind: StorageKind) -> None:
    """FORMAT is there, and whoever restores dies before its OPEN."""
    with World(1, kind) as world:
        owner, restorer, other = world.process("owner"), world.process("restorer"), world.process("other")
        store = _filled(owner)

        def restore(process: Process) -> None:
            old, new = process.storage, at(process, "n/")
            caches = lambda role: fresh_cache(new if role == "owner" else old, role)  # noqa: E731
            restore_container(old, new, container="c", settings=world.settings, caches=caches)

        restorer.start(lambda: restore(restorer))
        restorer.until(op="create_if_absent", name="n/c/epoch/*")
        restorer.crash()
        new = at(other, "n/")

        def opened() -> ChunkedSegmentStorage:
            cache = fresh_cache(new, "owner")
            return open_store_on(new, container="c", settings=world.settings, cache=cache, create=False)

        def followed() -> Replica:
            return open_replica_on(new, container="c", settings=world.settings, cache=fresh_cache(new, "replica"))

        with pytest.raises(Unsupported, match=r"is being made of|ended before it began"):
            other.run(followed)
        with pytest.raises(Unsupported, match=r"is being made of|ended before it began"):
            other.run(opened)
        other.run(lambda: restore(other))
        restored = other.run(opened)
        assert other.run(lambda: restored.read("goes", 0, 99)) == b"g" * 40
        assert owner.run(lambda: store.read("stays", 0, 99)) == b"s" * 40
