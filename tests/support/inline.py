"""Owners whose appends travel in records, and whose spilling waits for the test."""

from __future__ import annotations

from typing import Any

from chunkstore import runtime
from chunkstore.engine.store import ChunkedSegmentStorage
from tests.support.data import pattern
from tests.support.worlds import World


def inline(world: World, **more: Any) -> ChunkedSegmentStorage:
    """An owner whose keeper rests: nothing is spilled before the test says so."""
    settings = {"inline_bytes_max": None, "spill_s": 3600.0, "gc_grace_s": 0.0, **more}
    store = world.open(**settings)
    maintenance = store._maintenance
    maintenance.stopping.set()
    if maintenance._keeper is not None:
        maintenance._keeper.join(60)
    store._spiller.join(60)
    return store


def keep(store: ChunkedSegmentStorage) -> None:
    """What the keeper does about spilling, once."""
    store._spiller.tick(runtime.monotonic_s())
    store._spiller.join(60)


def kinds(store: ChunkedSegmentStorage, name: str) -> list[str]:
    return [chunk.kind for chunk in store.layout(name)]


def fill(store: ChunkedSegmentStorage, name: str, count: int, size: int = 10) -> bytes:
    """So many appends more, of a segment of this pattern; all that it has then."""
    if not store.exists(name):
        store.create(name)
    begin = store.info(name).length
    for number in range(count):
        store.append(name, pattern(begin + number * size, size))
    return pattern(0, begin + count * size)
