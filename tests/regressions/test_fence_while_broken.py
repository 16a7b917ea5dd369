"""Where a stat may be stale (NFS), a fenced read is proven by a record of our own, also while the journal is broken.

Before, a read at an owner whose journal was broken looked for the next claim's file instead, and answered from yesterday where that
look was stale.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import ChunkNotFound, NotOwner, StorageFull
from chunkstore.storage import Capabilities
from tests.support.forwarding import Hooked
from tests.support.hooked import open_hooked
from tests.support.worlds import World


class Stale(Hooked):
    """Does not see the names in ``hidden``, as a client that remembers that there was none."""

    hidden: frozenset[str] = frozenset()

    @property
    def capabilities(self) -> Capabilities:
        return replace(self.inner.capabilities, append_journal=False, fence_by_stat=False)

    def exists(self, name: str) -> bool:
        return name not in self.hidden and super().exists(name)


def full(operation: str, names: tuple[str, ...]) -> None:
    if operation == "create_if_absent":
        raise StorageFull("no space", object=names[0])


def broken(world: World) -> tuple[ChunkedSegmentStorage, Stale]:
    """An owner that has written b"old", and whose journal has met a full disk."""
    store, gate = open_hooked(world, Stale)
    store.create("s")
    store.append("s", b"old")
    gate.before = full
    with pytest.raises(StorageFull):
        store.table("t").put(b"k", b"v")
    return store, gate


@pytest.mark.parametrize("world", [("memory", "slot"), ("filesystem", "slot")], ids="-".join, indirect=True)
def test_a_deposed_owner_with_a_broken_journal_does_not_answer(world: World) -> None:
    old, gate = broken(world)
    assert old._container.current.end_reason is not None
    with pytest.raises(StorageFull):
        old.read("s", 0, 99)  # it cannot be proven now
    world.forget_cache()
    new = world.open()
    new.append("s", b" new")
    claim = world.names().epoch(2)

    def stale(operation: str, names: tuple[str, ...]) -> None:
        full(operation, names)
        if names[0] == claim and operation in ("read", "stat"):
            raise ChunkNotFound(claim)

    gate.before, gate.hidden = stale, frozenset((claim,))
    with pytest.raises(StorageFull):
        old.read("s", 0, 99)
    gate.before, gate.hidden = (lambda _operation, _names: None), frozenset()
    with pytest.raises(NotOwner):
        old.read("s", 0, 99)
    assert new.read("s", 0, 99) == b"old new"
