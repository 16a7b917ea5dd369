"""What tests of restores in place have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from chunkstore.backup.in_place import InPlaceReport, restore_in_place
from chunkstore.storage import ChunkStorage
from tests.support.worlds import ShelfCache, World

__all__ = ["TWO_WORLDS", "described", "head", "rewound"]

TWO_WORLDS = pytest.mark.parametrize(
    "world", [("memory", "slot"), ("filesystem", "append")], indirect=True, ids=["memory-slot", "filesystem-append"]
)
"""Both journals and both kinds of storage, where four worlds would say no more."""


def rewound(world: World, wrap: Callable[[ChunkStorage], ChunkStorage] | None = None, **given: Any) -> InPlaceReport:
    """``restore_in_place`` on the present machine of a world."""
    storage = world.storage(wrap)
    settings = world.settings(rolling=given.pop("rolling", None))
    if world._uses_lmdb(None):
        return restore_in_place(storage, settings=settings, **given)

    def caches(role: str) -> ShelfCache:
        return ShelfCache(storage, given.get("container", "default"), role, world._shelf)

    return restore_in_place(storage, settings=settings, caches=caches, **given)


def described(store: Any) -> dict[str, Any]:
    """All that a restore in place brings back, with the ids of chunks left out."""
    found: dict[str, Any] = {}
    for info in store.segments():
        found[info.name] = (
            info._replace(owner_epoch=0, attributes=dict(info.attributes)),
            store.read(info.name, info.start_offset, info.length),
            [(chunk.offset, chunk.length, chunk.crc32c) for chunk in store.layout(info.name)],
        )
    found["rows"] = list(store.table("rows").scan())
    found["pins"] = list(store.pins())
    return found


def head(store: Any) -> int:
    """The last committed record of an owner."""
    lsn: int = store._container.current.queue.head.lsn
    return lsn
