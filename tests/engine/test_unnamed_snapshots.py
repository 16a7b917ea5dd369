"""A snapshot that nothing names but its note: the records that it stands for stay."""

from __future__ import annotations

import pytest

from chunkstore.errors import StorageFull
from chunkstore.storage import ChunkStorage
from tests.support.data import problems
from tests.support.forwarding import Hooked
from tests.support.worlds import World


def test_what_latest_does_not_name_collects_nothing(world: World) -> None:
    wrapped: list[Hooked] = []

    def wrap(storage: ChunkStorage) -> ChunkStorage:
        wrapped.append(Hooked(storage))
        return wrapped[-1]

    def full(operation: str, names: tuple[str, ...]) -> None:
        if operation == "put" and names[0].endswith("/LATEST"):
            raise StorageFull("planted")

    world.wrap = wrap
    for _ in range(3):
        store = world.open(gc_grace_s=0.0, snapshots_kept=1)
        world.still(store)
        if not store.exists("a"):
            store.create("a")
        store.append("a", b"x")
        store.spill()
    for item in wrapped:
        item.before = full
    with pytest.raises(StorageFull):
        store.snapshot()
    assert store.collect().journal_objects == 0
    assert problems(store.check("deep")) == []
    for item in wrapped:
        item.before = lambda operation, names: None
    store.snapshot()
    assert store.collect().journal_objects > 0
    assert problems(store.check("deep")) == []
