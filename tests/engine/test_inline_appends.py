"""Appends whose bytes travel in the journal's record: every verb over extents, in both journal modes (protocol 3.7)."""

from __future__ import annotations

from typing import Any

import pytest

from chunkstore.changes import Append, Create, Seal
from chunkstore.config import LIMITS
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import (
    InvalidArgument,
    SegmentTruncated,
    StorageFull,
)
from tests.support.data import pattern, problems
from tests.support.worlds import World

LIMIT = 100


@pytest.fixture
def store(world: World) -> ChunkedSegmentStorage:
    """What of it goes into records stays there."""
    return inline(world)


def inline(world: World, **more: Any) -> ChunkedSegmentStorage:
    return world.open(**{"inline_bytes_max": LIMIT, "spill_s": 3600.0, "gc_grace_s": 0.0, **more})


def kinds(store: ChunkedSegmentStorage, name: str) -> list[tuple[str, int]]:
    return [(chunk.kind, chunk.length) for chunk in store.layout(name)]


def mixed(store: ChunkedSegmentStorage, name: str) -> bytes:
    """A segment of chunk, extent, extent, chunk, extent; its bytes."""
    store.create(name)
    sizes = (LIMIT + 1, 7, LIMIT, 4 * LIMIT + 1, 3)
    offset = 0
    for size in sizes:
        store.append(name, pattern(offset, size))
        offset += size
    assert [kind for kind, _ in kinds(store, name)] == ["object", "inline", "inline", "object", "inline"]
    return pattern(0, offset)


def reopened(world: World, store: ChunkedSegmentStorage, killed: bool) -> ChunkedSegmentStorage:
    """The next owner, on another machine. Behind a kill in APPEND mode the last record lives on in its OPEN."""
    if killed:
        world.crash(store)
    else:
        store.close()
    world.forget_cache()
    return inline(world)


def test_what_is_above_the_limit_goes_to_a_chunk(world: World, store: ChunkedSegmentStorage) -> None:
    store.create("a")
    sizes = (LIMIT + 1, LIMIT, 4 * LIMIT + 1)
    for size in sizes:
        store.append("a", bytes(size))
    assert kinds(store, "a") == [("object", LIMIT + 1), ("inline", LIMIT), ("object", 4 * LIMIT + 1)]
    assert len(world.chunks()) == 2, "an extent has no object of its own"


def test_a_cut_in_the_middle_of_an_extent(world: World, store: ChunkedSegmentStorage) -> None:
    data = mixed(store, "a")
    for start in (LIMIT + 4, LIMIT + 8 + 50, len(data) - 1):
        store.truncate("a", start)
        assert store.read("a", start, 999) == data[start:]
        with pytest.raises(SegmentTruncated):
            store.read("a", start - 1, 1)
        store.collect()
        assert problems(store.check("deep")) == []
    again = reopened(world, store, True)
    assert again.read("a", len(data) - 1, 99) == data[-1:]
    again.truncate("a", len(data))
    again.append("a", b"and on")
    assert again.read("a", len(data), 99) == b"and on"


@pytest.mark.parametrize("spilled", [False, True])
def test_concat_of_segments_with_extents(world: World, store: ChunkedSegmentStorage, spilled: bool) -> None:
    data = mixed(store, "target")
    store.create("source")
    for piece in (b"ab", bytes(LIMIT + 2), b"cd"):
        store.append("source", piece)
    store.commit([Seal("source")])  # a seal in a commit leaves them for later
    store.concat("target", len(data), "source")
    data += b"ab" + bytes(LIMIT + 2) + b"cd"
    store.append("target", b"ef")
    assert store.read("target", 0, 9999) == data + b"ef"
    if spilled:
        store._spiller.spill_all("target")
        assert {kind for kind, _ in kinds(store, "target")} == {"object"}
    again = reopened(world, store, True)
    assert again.read("target", 0, 9999) == data + b"ef"
    assert problems(again.check("deep")) == []


def test_the_quota_counts_them(world: World) -> None:
    store = inline(world, quota_bytes=250)
    store.create("a")
    for _ in range(2):
        store.append("a", bytes(LIMIT))
    before = world.objects("default/j/"), store._container.current.journal.head.lsn
    with pytest.raises(StorageFull, match="quota_bytes=250"):
        store.append("a", bytes(51))
    assert (world.objects("default/j/"), store._container.current.journal.head.lsn) == before, "before anything counts"
    store.append("a", bytes(48))
    with pytest.raises(StorageFull):
        store.append("a", b"abc")
    assert store.usage().safe_mode
    store._spiller.spill_all("a")  # finds the space that the quota keeps
    assert {kind for kind, _ in kinds(store, "a")} == {"object"}
    assert (store.info("a").length, problems(store.check("deep"))) == (248, [])


@pytest.mark.proof
def test_what_a_take_over_could_not_hold_is_refused(world: World) -> None:
    """An OPEN holds the last record, and besides a row for each of its extents."""
    store = inline(world, inline_bytes_max=None)
    names = [f"s{number}" for number in range(LIMITS.batch_ops_max)]
    for begin in range(0, len(names), 1000):
        store.commit([Create(name, attributes={"a": "x" * 770}) for name in names[begin : begin + 1000]])
    store.commit([Append(name, b"first") for name in names])
    with pytest.raises(InvalidArgument, match="split the operation"):
        store.commit([Append(name, bytes(413)) for name in names])
    store.commit([Append(name, bytes(250)) for name in names])
    world.crash(store)
    world.forget_cache()
    again = inline(world)
    assert {again.info(name).length for name in names} == {5 + 250}
    assert again.read(names[7], 0, 999) == b"first" + bytes(250)
