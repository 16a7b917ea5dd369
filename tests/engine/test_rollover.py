"""Chunks: when a new one begins, what is in them, and what happens when they are not what they should be."""

from __future__ import annotations

from itertools import pairwise

import pytest

from chunkstore.config import RollingPolicy
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import Damaged
from chunkstore.names import ContainerNames
from tests.support.data import pattern
from tests.support.worlds import EVERY_WORLD, World

pytestmark = EVERY_WORLD


def lengths(store: ChunkedSegmentStorage, name: str = "a") -> list[int]:
    return [chunk.length for chunk in store.layout(name)]


def test_sizes_1_2_3_4_with_chunks_of_2(world: World) -> None:
    store = world.open()
    store.create("a", rolling=RollingPolicy(chunk_size_bytes_max=2))
    offset = 0
    for size in (1, 2, 3, 4):
        offset = store.write("a", offset, pattern(offset, size))
    assert lengths(store) == ([2] * 5 if world.appends else [1, 2, 2, 1, 2, 2])
    store.write("a", 10, pattern(10, 4))
    assert lengths(store) == ([2] * 7 if world.appends else [1, 2, 2, 1, 2, 2, 2, 2])
    assert store.read("a", 0, 99) == pattern(0, 14)
    assert store.check("deep") == []
    assert len(world.chunks()) == len(lengths(store))


@pytest.mark.parametrize("size_max", [1, 3, 8])
def test_exact_boundaries(world: World, size_max: int) -> None:
    store = world.open(rolling=size_max)
    for size in range(1, 3 * size_max + 2):
        name = f"s{size}"
        store.create(name)
        for offset in range(0, 4 * size, size):
            assert store.append(name, pattern(offset, size)) == offset
        total = 4 * size
        if world.appends:
            expected = [size_max] * (total // size_max) + [total % size_max] * (total % size_max > 0)
        else:
            expected = 4 * ([size_max] * (size // size_max) + [size % size_max] * (size % size_max > 0))
        assert lengths(store, name) == expected
        assert store.info(name).chunk_count == len(expected)
        assert store.read(name, 0, total) == pattern(0, total)
    assert store.check("deep") == []


def test_layout_says_where_everything_is(world: World) -> None:
    store = world.open(rolling=10)
    store.create("a")
    for offset in range(0, 40, 4):
        store.append("a", pattern(offset, 4))
    chunks = [*store.layout("a")]
    assert chunks[0].offset == 0
    assert all(one.offset + one.length == two.offset for one, two in pairwise(chunks))
    assert chunks[-1].offset + chunks[-1].length == 40
    assert {chunk.epoch for chunk in chunks} == {store.epoch} and {chunk.kind for chunk in chunks} == {"object"}
    states = [chunk.state for chunk in chunks]
    assert states == ["closed"] * (len(chunks) - 1) + (["active"] if world.appends else ["closed"])
    assert {chunk.name for chunk in chunks} == set(world.chunks())
    for chunk in chunks:
        assert world.content(chunk.name) == pattern(chunk.offset, chunk.length)
        identity = ContainerNames("default").parse_chunk(chunk.name)
        assert identity is not None
    store.seal("a")
    assert {chunk.state for chunk in store.layout("a")} == {"closed"}


def test_one_write_over_many_chunks(world: World) -> None:
    store = world.open(rolling=100)
    store.create("a")
    store.append("a", pattern(0, 30))
    store.append("a", pattern(30, 5_003))
    assert store.read("a", 0, 10_000) == pattern(0, 5_033)
    assert store.info("a").chunk_count == (51 if world.appends else 52)
    for offset in range(0, 5_033, 97):
        assert store.read("a", offset, 211) == pattern(offset, min(211, 5_033 - offset))
    assert store.check("deep") == []


def test_a_tail_of_garbage_is_left_behind(world: World) -> None:
    store = world.open(rolling=20)
    store.create("a")
    offset = 0
    for size in (1, 2, 3, 4):
        store.append("a", pattern(offset, size))
        offset += size
        tail = [*store.layout("a")][-1].name
        world.overwrite(tail, world.content(tail) + b"X")
    assert lengths(store) == [1, 2, 3, 4]
    assert store.read("a", 0, 99) == pattern(0, 10)
    assert store.check("deep") == []
    store.append("a", pattern(10, 1))
    assert lengths(store) == [1, 2, 3, 4, 1]
    world.forget_cache()
    assert world.open().read("a", 0, 99) == pattern(0, 11)


def test_a_tail_of_garbage_and_a_commit_of_several_changes(world: World) -> None:
    from chunkstore.changes import Append, Seal

    store = world.open(rolling=20)
    for name in ("a", "b"):
        store.create(name)
        store.append(name, pattern(0, 5))
    tail = [*store.layout("b")][-1].name
    world.overwrite(tail, world.content(tail) + b"X")
    assert store.commit([Append("a", pattern(5, 3)), Append("b", pattern(5, 20)), Seal("b")]) == [5, 5, None]
    for name, length in (("a", 8), ("b", 25)):
        assert store.read(name, 0, 99) == pattern(0, length)
    assert store.check("deep") == []


def test_the_next_append_after_its_tail_was_lost(world: World) -> None:
    store = world.open(rolling=20)
    store.create("a")
    store.append("a", pattern(0, 5))
    world.remove(world.chunks()[0])
    store.append("a", pattern(5, 5))
    assert store.read("a", 5, 5) == pattern(5, 5)
    with pytest.raises(Damaged):
        store.read("a", 0, 10)


def damage_one(world: World, number: int, kind: str) -> tuple[ChunkedSegmentStorage, str]:
    store = world.open(rolling=4)
    store.create("a")
    for offset in range(0, 20, 4):
        store.append("a", pattern(offset, 4))
    name = [*store.layout("a")][number].name
    if kind == "missing":
        world.remove(name)
    elif kind == "shorter":
        world.overwrite(name, world.content(name)[:-1])
    elif kind == "longer":
        world.overwrite(name, world.content(name) + b"!")
    else:
        content = bytearray(world.content(name))
        content[2] ^= 0x10
        world.overwrite(name, bytes(content))
    # Open again: a file that is held open can still be read when its name is gone.
    store.close()
    return world.open(), name


@pytest.mark.parametrize("number", [0, 4])
@pytest.mark.parametrize("kind", ["missing", "shorter", "flipped", "longer"])
def test_a_damaged_chunk(world: World, number: int, kind: str) -> None:
    store, name = damage_one(world, number, kind)
    if kind == "longer":
        assert store.read("a", 0, 99) == pattern(0, 20)
        assert store.check("deep") == []
        return
    begin = 4 * number
    for offset, length in ((begin, 4), (0, 20), (begin, 20)):
        with pytest.raises(Damaged) as caught:
            store.read("a", offset, length)
        assert caught.value.object == name
        with pytest.raises(Damaged):
            store.read_into("a", offset, bytearray(length))
    for other in set(range(5)) - {number}:
        assert store.read("a", 4 * other, 4) == pattern(4 * other, 4)
    if kind == "shorter":
        # What is left of the block cannot be verified.
        with pytest.raises(Damaged):
            store.read("a", begin, 3)
        with world.open(verify="off") as unverified:
            assert unverified.read("a", begin, 3) == pattern(begin, 3)
            with pytest.raises(Damaged):
                unverified.read("a", begin + 1, 3)
        store = world.open()
    assert store.check("quick") == []
    assert [finding.chunk for finding in store.check("deep")] == [name]
    finding = store.check("deep")[0]
    assert (finding.severity, finding.segment, finding.object) == ("damage", "a", name)
    assert [finding.chunk for finding in store.check("exists")] == ([] if kind == "flipped" else [name])
