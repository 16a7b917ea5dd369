"""Chunks: when a new one begins, what is in them, and what happens when they are not what they should be."""

from __future__ import annotations

import pytest

from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import Damaged
from tests.support.data import lengths, pattern
from tests.support.worlds import EVERY_WORLD, World

pytestmark = EVERY_WORLD


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
