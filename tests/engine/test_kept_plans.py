"""Reads keep their plan: what they ask of the rows then, and that no plan outlives what it says. See ``test_state_machine``, too."""

from __future__ import annotations

import random
from typing import Any
from unittest.mock import Mock

import pytest

from chunkstore.config import KIB, MIB
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import Damaged
from chunkstore.operations import kept_plans
from chunkstore.reading import context_of
from chunkstore.replica import Replica
from tests.support.data import pattern
from tests.support.rot import flip
from tests.support.worlds import World

STRETCH = kept_plans.WINDOW_BYTES
EDGE = 2 * STRETCH + 5


def planned(monkeypatch: pytest.MonkeyPatch, store: ChunkedSegmentStorage | Replica, offset: int, length: int) -> int:
    """How often a read opens a view of the rows; it must give the pattern."""
    with monkeypatch.context() as patch:
        view = Mock(wraps=context_of(store).store().view)
        patch.setattr(context_of(store).store(), "view", view)
        assert store.read("a", offset, length) == pattern(offset, length)
    return int(view.call_count)


@pytest.mark.parametrize("settings", [{"inline_bytes_max": 0}, {}, {"verify": "off", "inline_bytes_max": 0}], ids=str)
def test_a_read_of_the_same_rows_asks_none(
    world: World, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    owner = world.open(**settings)
    owner.create("a")
    owner.append("a", pattern(0, 60 * KIB))
    world.still(owner)
    replica = world.replica(**settings)
    for store in (owner, replica):
        assert [planned(monkeypatch, store, 7, 4 * KIB) for _ in range(3)] == [1, 1, 0]
        assert planned(monkeypatch, store, 50 * KIB, 4 * KIB) == 0, "of the same stretch"
    owner.create("another")
    assert planned(monkeypatch, owner, 7, 4 * KIB) == 1
    assert planned(monkeypatch, replica, 7, 4 * KIB) == 0
    replica.refresh()
    assert planned(monkeypatch, replica, 7, 4 * KIB) == 1


def test_bytes_are_the_same_at_every_border(world: World) -> None:
    """Of stretches, chunks and blocks, whoever made them."""
    store = world.open(rolling=5 * MIB // 3)
    store.create("a")
    for begin, end in ((0, 20 * KIB), (20 * KIB, STRETCH - 9), (STRETCH - 9, EDGE)):
        store.append("a", pattern(begin, end - begin))
    store.truncate("a", 100)
    borders = [100, 20 * KIB, STRETCH, 2 * STRETCH, EDGE, *(chunk.offset for chunk in store.layout("a"))]
    chance = random.Random(1)
    places = [
        (max(100, at + chance.randrange(-70, 70) * chance.choice((1, KIB))), 1 << size)
        for at in borders
        for size in range(0, 19, 3)
    ]
    for last in (False, False, False, True):
        if last:
            store.defrag()
        for offset, length in places:
            if offset <= EDGE:
                assert store.read("a", offset, length) == pattern(offset, min(length, EDGE - offset)), (offset, length)


def test_damage_is_found_by_a_kept_plan(world: World) -> None:
    store = world.open(inline_bytes_max=0)
    store.create("a")
    store.append("a", pattern(0, 300 * KIB))
    world.still(store)
    for _ in range(3):
        assert store.read("a", 70 * KIB, 10) == pattern(70 * KIB, 10)
    flip(world, next(store.layout("a")).name, 100 * KIB)
    for _ in range(3):
        with pytest.raises(Damaged) as raised:
            store.read("a", 70 * KIB, 10)
        assert (raised.value.start, raised.value.stop) == (64 * KIB, 128 * KIB)
    assert store.read("a", 0, 10) == pattern(0, 10)


def test_a_replica_plans_anew_when_the_chunk_of_its_plan_was_collected(world: World) -> None:
    owner = world.open(gc_grace_s=0, snapshots_kept=1, inline_bytes_max=0)
    owner.create("a")
    owner.append("a", b"old")
    replica = world.replica()
    for _ in range(3):
        assert replica.read("a", 0, 9) == b"old"
    owner.delete("a")
    owner.create("a")
    owner.append("a", b"newer")
    owner.collect()
    assert replica.read("a", 0, 9) in (b"newer", b"old"), "a file may stay open"
    replica.refresh()
    assert replica.read("a", 0, 9) == b"newer"


def test_plans_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_plans, "PLANS_MAX", 3)
    store = world.open()
    for number in range(9):
        store.create(f"s{number}")
        store.append(f"s{number}", b"bytes")
    for number in [*range(9)] * 3:
        assert store.read(f"s{number}", 0, 9) == b"bytes"
    assert len(context_of(store).kept._windows) == 3
