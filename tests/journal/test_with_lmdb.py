"""The journal over the real cache: two owners on one machine, a stale cache, a rebuild, a follower."""

from __future__ import annotations

from pathlib import Path

import pytest

from chunkstore.config import MIB, Settings, Tuning
from chunkstore.metadata.lmdb import LmdbMetadataCache
from chunkstore_journal.follower import Follower
from chunkstore_journal.service import ContainerJournal
from tests.journal.world import Process, World, keys_of


def machine(world: World, folder: Path) -> Process:
    process = world.process()
    settings = Settings(
        journal_mode=world.mode, op_deadline_s=60.0, cache_dir=str(folder), tuning=Tuning(lmdb_map_bytes=16 * MIB)
    )
    cache = make_cache(world, folder, "owner", settings)
    process.service = ContainerJournal(process.wire, world.names, world.format, cache, settings)
    return process


def make_cache(world: World, folder: Path, role: str, settings: Settings) -> LmdbMetadataCache:
    return LmdbMetadataCache(str(folder), world.format.uuid, "here", role, settings=settings)


def test_a_life_with_lmdb(memory_world: World, tmp_path: Path) -> None:
    world = memory_world
    first = machine(world, tmp_path / "one").open()
    for i in range(50):
        first.put(f"k{i}")
    first.again()
    first.snapshot()
    second = machine(world, tmp_path / "one").open()
    assert second.report.source == "snapshot", "the first one holds the cache"
    with pytest.raises(world.told_when_fenced):
        first.put("zombie")
    second.put("second")
    third = machine(world, tmp_path / "two").open()
    assert third.report.source == "snapshot"
    assert third.keys() == second.keys()
    third.put("third")
    second.store.close(clean=True)
    back = machine(world, tmp_path / "one").open()
    assert back.report.source == "cache"
    assert back.keys() == third.keys()
    settings = Settings(journal_mode=world.mode, tuning=Tuning(lmdb_map_bytes=16 * MIB))
    cache = make_cache(world, tmp_path / "three", "replica", settings)
    follower = Follower(world.storage, world.names, world.format, cache, settings)
    assert follower.catch_up().position == back.journal.head
    assert keys_of(follower.store) == back.keys()
    follower.close()
    cache.close()
    for process in (first, third, back):
        process.store.close(clean=True)
