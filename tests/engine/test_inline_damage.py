"""Damage to records that hold extents: told, and never taken for something else (protocol 3.7)."""

from __future__ import annotations

import pytest

from chunkstore.changes import Create
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import Damaged
from chunkstore.operations.spill import spill
from tests.support.data import problems
from tests.support.worlds import World

NEEDLE = b"bytes of the extent"


@pytest.fixture
def store(world: World) -> ChunkedSegmentStorage:
    return world.open(inline_bytes_max=4096, spill_s=3600.0)


def behind_a_snapshot(world: World, store: ChunkedSegmentStorage) -> ChunkedSegmentStorage:
    """The next owner, who needs the former one's records for their extents only."""
    store.close()
    again = world.open(inline_bytes_max=4096, spill_s=3600.0, tail_cache_bytes=0)
    again.snapshot()
    return again


def holder(world: World) -> str:
    """The journal's object that holds the extent with ``NEEDLE``."""
    (name,) = [name for name in world.objects(world.names().journal_prefix()) if NEEDLE in world.content(name)]
    return name


def damaged(world: World, *, missing: bool) -> str:
    name = holder(world)
    if missing:
        world.remove(name)
    else:
        world.overwrite(name, world.content(name).replace(NEEDLE, NEEDLE[:-1] + b"T"))
    return name


@pytest.mark.parametrize("missing", [False, True], ids=["rotten", "missing"])
def test_checks_and_scrubs_tell_which_extent_is_damaged(
    world: World, store: ChunkedSegmentStorage, missing: bool
) -> None:
    store.commit([Create("a"), Create("b")])
    store.append("a", b"good,")
    store.append("a", NEEDLE)
    store.append("b", b"another's")
    store = behind_a_snapshot(world, store)
    assert problems(store.check("deep")) == []
    name = damaged(world, missing=missing)
    found = [item for item in store.check("deep") if item.segment == "a" and item.severity == "damage"]
    assert found and all(name in item.object for item in found)
    assert {item.invariant for item in found} == {34}
    if missing:
        told = [item for item in store.check("exists") if item.segment == "a" and item.severity == "damage"]
        assert told and all(name in item.object and item.invariant == 34 for item in told)
    report = store.scrub()
    ranges = [(item.start, item.stop) for item in report.findings if item.segment == "a"]
    assert (5, 5 + len(NEEDLE)) in ranges and (missing or len(ranges) == 1)
    assert {item.invariant for item in report.findings} == {34}
    assert not [item for item in report.findings if item.segment == "b"] or missing


@pytest.mark.parametrize("missing", [False, True], ids=["rotten", "missing"])
def test_a_spill_never_makes_chunk_bytes_of_damage(world: World, store: ChunkedSegmentStorage, missing: bool) -> None:
    store.create("a")
    store.append("a", NEEDLE)
    again = behind_a_snapshot(world, store)
    name = damaged(world, missing=missing)
    before = world.chunks()
    (told,) = spill(again._container, "a", bytes_max=1 << 20).damaged.values()
    assert isinstance(told, Damaged) and name in told.object
    with pytest.raises(Damaged) as caught:
        again.read("a", 0, 99)
    assert name in caught.value.object and (caught.value.start, caught.value.stop) == (0, len(NEEDLE))
    assert world.chunks() == before


def test_a_damaged_extent_holds_up_none_of_its_segment(world: World, store: ChunkedSegmentStorage) -> None:
    """Else all that a segment gets stays in the journal from then on, and with it everything that any segment has there."""
    store.commit([Create("a"), Create("b")])
    parts = [b"%d" % number * 9 for number in range(6)]
    for part in (*parts[:3], NEEDLE, *parts[3:]):
        store.append("a", part)
        store.append("b", part.lower().replace(b"y", b"z"))
    again = behind_a_snapshot(world, store)
    name = damaged(world, missing=False)
    for _ in range(3):
        with pytest.raises(Damaged) as caught:
            again.spill()
        assert name in caught.value.object and caught.value.start == 27
        again.append("a", b"more")
    assert "inline" not in [chunk.kind for chunk in again.layout("b")]
    kinds = [chunk.kind for chunk in again.layout("a")]
    assert kinds.count("inline") == 2 and kinds[:2] == ["object", "inline"] and kinds[-1] == "inline"
    assert again.read("a", 0, 27) == b"".join(parts[:3])
    assert again.read("a", 27 + len(NEEDLE), 99) == b"".join(parts[3:]) + b"more" * 3
    with pytest.raises(Damaged):
        again.read("a", 27, 1)
    again.seal("a")
    assert [chunk.kind for chunk in again.layout("a")].count("inline") == 1
    (bad,) = [chunk.name for chunk in again.layout("a") if chunk.kind == "inline"]
    assert {(item.segment, item.object) for item in again.check("deep")} == {("a", bad), ("", name)}
    again.truncate("a", 27 + len(NEEDLE))
    assert "inline" not in [chunk.kind for chunk in again.layout("a")]
    assert {(item.segment, item.object) for item in again.check("deep")} == {("", name)}


# ---- the index
