"""Truncation: everywhere, again and again, to the end, and on sealed segments."""

from __future__ import annotations

import pytest

from chunkstore.config import RollingPolicy
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import BadOffset, SegmentTruncated
from tests.support.data import pattern, refused
from tests.support.worlds import World


def fill(store: ChunkedSegmentStorage, name: str, *sizes: int) -> int:
    """A segment whose chunks have these sizes."""
    store.create(name, rolling=RollingPolicy(chunk_size_bytes_max=max(sizes)))
    offset = 0
    for size in sizes:
        if offset:
            # A sealed tail never grows.
            store.seal(name)
            store.unseal(name)
        store.append(name, pattern(offset, size))
        offset += size
    assert [chunk.length for chunk in store.layout(name)] == list(sizes)
    return offset


def verify(store: ChunkedSegmentStorage, name: str, start: int, length: int) -> None:
    info = store.info(name)
    assert (info.start_offset, info.length) == (start, length)
    assert store.read(name, start, length + 1) == pattern(start, length - start)
    if start:
        with pytest.raises(SegmentTruncated) as caught:
            store.read(name, start - 1, 1)
        assert (caught.value.start_offset, caught.value.offset) == (start, start - 1)
    chunks = [*store.layout(name)]
    assert len(chunks) == info.chunk_count
    if start == length:
        assert chunks == []
    else:
        assert chunks[0].offset <= start < chunks[0].offset + chunks[0].length
        assert chunks[-1].offset + chunks[-1].length == length
    for offset in range(start, length + 1):
        assert store.read(name, offset, 2) == pattern(offset, min(2, length - offset))


LAYOUTS = [(3, 3, 3, 3), (10,), (1, 5, 2)]


@pytest.mark.parametrize("sizes", LAYOUTS, ids=str)
def test_at_every_offset(world: World, sizes: tuple[int, ...]) -> None:
    store = world.open()
    total = sum(sizes)
    for offset in range(total + 1):
        name = f"cut-{offset}"
        assert fill(store, name, *sizes) == total
        store.truncate(name, offset)
        verify(store, name, offset, total)
    assert store.check("deep") == []
    world.forget_cache()
    store = world.open()
    for offset in range(total + 1):
        verify(store, f"cut-{offset}", offset, total)
    assert store.check("deep") == []


def test_at_and_below_the_start_nothing_happens(world: World) -> None:
    store = world.open()
    fill(store, "a", 3, 3)
    store.truncate("a", 0)
    store.truncate("a", 4)
    before = store.info("a")
    for offset in (4, 3, 1, 0):
        store.truncate("a", offset)
    assert store.info("a") == before
    refused(BadOffset, lambda: store.truncate("a", 7), lambda: store.truncate("a", 1 << 62))
    verify(store, "a", 4, 6)
