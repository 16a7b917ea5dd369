"""Moments of the past whose records are damaged (protocol 3.15)."""

from __future__ import annotations

import pytest

from chunkstore.errors import Damaged
from chunkstore.metadata.memory import MemoryMetadataCache, MemoryShelf
from chunkstore_journal.past import Asked, FixedState
from tests.journal.test_inspect import fresh
from tests.journal.world import World, keys_of


def shown_at(world: World, lsn: int) -> set[str]:
    cache = MemoryMetadataCache(world.format.uuid, "here", "past", shelf=MemoryShelf())
    state = FixedState(fresh(world), cache, Asked(lsn, None))
    assert state.catch_up().position.lsn == lsn
    return keys_of(state.store)


def test_a_moment_past_damage_is_no_earlier_moment(world: World) -> None:
    owner = world.process().open()
    middle = [owner.put(f"k{number}") for number in range(8)][2]
    world.process().open()
    assert shown_at(world, middle.lsn + 2) == {f"k{number}" for number in range(5)}
    name = world.names.log(1) if world.mode == "append" else world.names.slot(1, middle.index)
    raw = bytearray(world.whole(name))
    raw[middle.end + 150] ^= 1
    world.overwrite(name, bytes(raw))
    with pytest.raises(Damaged):
        shown_at(world, middle.lsn + 2)
