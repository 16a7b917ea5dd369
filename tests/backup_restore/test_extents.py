"""Appends in records, wherever a container is copied or rebuilt: their bytes come along, or stay until nobody needs them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chunkstore import backup
from chunkstore.engine.reading import read_view
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.metadata.retained import oldest_inline_record
from tests.backup_restore.test_restore import restored
from tests.support.data import problems
from tests.support.worlds import World

INLINE_ON: dict[str, Any] = {"inline_bytes_max": None, "gc_grace_s": 0, "snapshots_kept": 1}


@pytest.fixture
def target(world: World, tmp_path: Path) -> Iterator[World]:
    """Another root, of the same kind."""
    made = World(world.kind, world.mode, tmp_path / "target")
    yield made
    made.close()


def opened(world: World, **more: Any) -> ChunkedSegmentStorage:
    store = world.open(**{**INLINE_ON, **more})
    world.still(store)
    return store


def spilled(store: ChunkedSegmentStorage, *names: str) -> None:
    for name in names:
        store._spiller.spill_all(name)


def content(store: Any) -> dict[str, bytes]:
    return {info.name: store.read(info.name, info.start_offset, 1 << 20) for info in store.segments()}


def kinds(store: Any, name: str) -> list[str]:
    return [chunk.kind for chunk in store.layout(name)]


def held(store: ChunkedSegmentStorage) -> tuple[int, int] | None:
    return read_view(store, oldest_inline_record)


def filled(world: World) -> ChunkedSegmentStorage:
    """Extents of two epochs: in lists and in garbage, behind chunks, in the record that an OPEN embeds where records are appended, and in
    the stream that is open."""
    store = opened(world)
    for name in ("a", "spilled", "cut", "one", "two", "gone"):
        store.create(name)
        store.append(name, f"first of {name};".encode())
    spilled(store, "spilled")
    store.append("spilled", b"behind it;")
    store.append("cut", b"what stays;")
    store.truncate("cut", 13)
    store._spiller.sealed = lambda name: None  # type: ignore[method-assign]  # as if it had failed: it is tried again later
    store.seal("two")
    store.concat("one", store.info("one").length, "two")
    store.delete("gone")
    store.snapshot()
    store.append("a", b"the last of its epoch;")
    world.crash(store)
    world.forget_cache()
    store = opened(world)
    store.append("a", b"of the second;")
    store.append("one", b"of the second;")
    assert kinds(store, "a") == ["inline"] * 3 and kinds(store, "spilled") == ["object", "inline"]
    return store


def worn(world: World, store: ChunkedSegmentStorage) -> ChunkedSegmentStorage:
    """Epochs pass, of owners that begin with nothing, and everything is collected that may be."""
    for _ in range(3):
        store.snapshot()
        store.collect()
        store.close()
        world.forget_cache()
        store = opened(world)
    store.snapshot()
    store.collect()
    return store


def require(store: Any, expected: dict[str, bytes]) -> None:
    assert content(store) == expected
    assert problems(store.check("deep")) == []


def test_records_that_hold_extents_outlive_collections_until_they_are_spilled(world: World) -> None:
    store = filled(world)
    expected = content(store)
    store = worn(world, store)
    require(store, expected)
    assert held(store) == (1, 0) if world.mode == "append" else (1, 1) <= (held(store) or (0, 0)) < (2, 0)
    spilled(store, *expected)
    store = worn(world, store)
    require(store, expected)
    assert held(store) is None
    first = world.names().stream(1)
    left = [name for name in world.objects(first) if not name.endswith("0" * 16 + ".s")]
    assert len(left) == (world.mode == "slot"), "the SEAL of a stream of slots stays"


def test_a_restore_makes_chunks_of_extents(world: World, target: World) -> None:
    store = filled(world)
    expected = content(store)
    store.close()
    report = restored(world, target)
    assert report.segments == len(expected)
    store = opened(target)
    assert all(kinds(store, name).count("inline") == 0 for name in expected)
    store.append("a", b"more;")
    expected["a"] += b"more;"
    store = worn(target, store)
    require(store, expected)


def test_an_export_names_extents_and_its_pin_keeps_them(world: World, target: World, tmp_path: Path) -> None:
    store = filled(world)
    expected = content(store)
    file = tmp_path / "export"
    made = backup.export(store, file)
    spilled(store, *expected)
    store.delete("a")
    store = worn(world, store)
    if world.kind == "filesystem":
        settings = world.settings()
        whole = backup.restore(file, target.storage(), from_=store.url, settings=settings, dry_run=True)
        assert not whole.missing and whole.chunks == made.chunks
        backup.restore(file, target.storage(), ["a"], from_=store.url, settings=settings)
        with target.open() as new:
            assert content(new) == {"a": expected["a"]}
    with world.replica(at_lsn=made.lsn, **INLINE_ON) as past:
        require(past, expected)
        assert "inline" in kinds(past, "a")
    assert made.pin is not None and store.unpin(made.pin.name)
    store = worn(world, store)
    assert held(store) is None


def test_a_backup_holds_their_bytes_as_chunks(world: World, target: World) -> None:
    store = filled(world)
    expected = content(store)
    with world.replica(**INLINE_ON) as replica:
        made = backup.backup(replica, target.storage(), pin=False)
        again = backup.backup(replica, target.storage(), pin=False)
    assert again.chunks == made.chunks and not again.copied_chunks
    store.append("a", b"later;")
    later = expected | {"a": expected["a"] + b"later;"}
    assert backup.backup(store, target.storage()).chunks < made.chunks
    assert not any("inline" in kinds(store, name) for name in expected), "an owner spills first"
    store.close()
    with target.replica(metadata="lmdb", at_lsn=made.lsn) as past:
        require(past, expected)
        chunk = next(past.layout("a"))
    with target.replica(metadata="lmdb") as present:
        require(present, later)
    # Rot of a copy is found.
    data = target.content(chunk.name)
    target.overwrite(chunk.name, bytes((data[0] ^ 1,)) + data[1:])
    with target.replica(metadata="lmdb", at_lsn=made.lsn) as past:
        assert [item.chunk for item in problems(past.check("deep"))] == [chunk.name]
