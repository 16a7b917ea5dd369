"""Appends whose bytes travel in the journal's record: every verb over extents, in both journal modes (protocol 3.7)."""

from __future__ import annotations

from typing import Any

import pytest

from chunkstore.changes import Append, Create
from chunkstore.config import LIMITS
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import (
    InvalidArgument,
)
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


def test_what_is_above_the_limit_goes_to_a_chunk(world: World, store: ChunkedSegmentStorage) -> None:
    store.create("a")
    sizes = (LIMIT + 1, LIMIT, 4 * LIMIT + 1)
    for size in sizes:
        store.append("a", bytes(size))
    assert kinds(store, "a") == [("object", LIMIT + 1), ("inline", LIMIT), ("object", 4 * LIMIT + 1)]
    assert len(world.chunks()) == 2, "an extent has no object of its own"


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
