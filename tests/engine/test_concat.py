"""Concatenation: tables of targets and sources, and what may follow."""

from __future__ import annotations

import pytest

from chunkstore.config import RollingPolicy
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import SegmentNotFound, SegmentTruncated
from tests.support.data import pattern
from tests.support.worlds import World


def fill(store: ChunkedSegmentStorage, name: str, chunks: int, size: int, seed: int) -> bytes:
    store.create(name, rolling=RollingPolicy(chunk_size_bytes_max=size))
    data = pattern(0, chunks * size, seed)
    if data:
        store.append(name, data)
    assert store.info(name).chunk_count == chunks
    return data


@pytest.mark.parametrize("target_chunks", range(4))
@pytest.mark.parametrize("source_chunks", range(4))
def test_tables(world: World, target_chunks: int, source_chunks: int) -> None:
    store = world.open()
    for size in (1, 3):
        target, source = f"target-{size}", f"source-{size}"
        data = fill(store, target, target_chunks, size, 1)
        more = fill(store, source, source_chunks, size, 2)
        chunks = [*store.layout(target)]
        moved = [*store.layout(source)]
        store.seal(source)
        handle = store.open_read(source)
        store.concat(target, len(data), source)
        assert not store.exists(source)
        with pytest.raises(SegmentNotFound):
            store.read(handle, 0, 1)
        expected = data + more
        assert store.read(target, 0, 99) == expected
        for offset in range(len(expected) + 1):
            assert store.read(target, offset, 2) == expected[offset : offset + 2]
        after = [*store.layout(target)]
        assert [chunk.name for chunk in after] == [chunk.name for chunk in chunks + moved]
        assert [chunk.offset for chunk in after] == list(range(0, len(expected), size))
        assert [chunk.crc32c for chunk in after] == [chunk.crc32c for chunk in chunks + moved]
        # What follows goes into a chunk of its own, unless nothing was spliced.
        assert store.append(target, b"tail") == len(expected)
        assert store.read(target, 0, 99) == expected + b"tail"
        if source_chunks:
            assert [chunk.name for chunk in store.layout(target)][: len(after)] == [chunk.name for chunk in after]
            assert [chunk.length for chunk in store.layout(target)][: len(after)] == [size] * len(after)
        assert store.check("deep") == []
        # The name is free at once.
        store.create(source)
        assert store.read(source, 0, 1) == b""
    world.forget_cache()
    store = world.open()
    assert (
        store.read("target-3", 0, 99) == pattern(0, 3 * target_chunks, 1) + pattern(0, 3 * source_chunks, 2) + b"tail"
    )
    assert store.check("deep") == []


def test_a_truncated_source_is_refused_also_when_nothing_is_left_of_it(world: World) -> None:
    store = world.open()
    store.create("target")
    for name, cut in (("inside", 2), ("end", 6)):
        fill(store, name, 2, 3, 1)
        store.truncate(name, cut)
        store.seal(name)
        with pytest.raises(SegmentTruncated) as caught:
            store.concat("target", 0, name)
        assert (caught.value.segment, caught.value.start_offset, caught.value.offset) == (name, cut, 0)
        assert store.exists(name)
    assert store.info("target").length == 0
