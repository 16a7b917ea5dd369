"""What a take-over costs when epochs pile up, and that retries and probes need no LIST (protocol A10)."""

from __future__ import annotations

from pathlib import Path

import pytest

from chunkstore.metadata.memory import MemoryShelf
from chunkstore_journal.history import _OPENED_KEPT_MAX, Opened, probe_dense
from tests.journal.world import Wire, World, make_storage

REQUESTS_MAX = 40


@pytest.mark.parametrize("end", [0, 1, 2, 3, 10, 100, 1000, 4095])
def test_probing_a_dense_sequence(end: int) -> None:
    for known in {0, 1, end // 2, end} & set(range(end + 1)):
        asked: list[int] = []

        def present(n: int, asked: list[int] = asked) -> bool:
            asked.append(n)
            return n <= end

        assert probe_dense(present, known) == end
        assert len(asked) <= 20


def test_a_thousand_opened_and_empty_epochs(memory_world: World) -> None:
    world = memory_world
    owner = world.process().open()
    owner.put("a")
    owner.snapshot()
    owner.put("b")
    sleeper = world.follower()
    sleeper.catch_up()
    shelf = MemoryShelf()
    for _ in range(1000):
        world.process(shelf).open()
    heir = world.process(shelf)
    heir.open()
    assert heir.journal.epoch == 1002
    assert heir.keys() == {"a", "b"}
    assert heir.wire.count() <= REQUESTS_MAX, heir.wire.calls
    assert all(operation != "list" for operation, _ in heir.wire.calls)
    assert world.opened(1002).payload.base.epoch <= 2
    for epoch in (*range(1, 1003), 1):
        assert isinstance(world.streams.slot0(epoch), Opened)
    assert len(world.streams._opened) == _OPENED_KEPT_MAX, "what is remembered of epochs is bounded"
    assert sleeper.catch_up().digest == heir.store.head().digest


def test_a_thousand_claimed_and_never_opened_epochs(memory_world: World) -> None:
    world = memory_world
    owner = world.process().open()
    owner.put("a")
    owner.snapshot()
    for epoch in range(2, 1002):
        dead = world.process()
        dead.die_at_open(epoch)
        assert dead.wire.count() <= REQUESTS_MAX, dead.wire.calls
    heir = world.process()
    heir.open()
    assert (heir.journal.epoch, heir.report.previous_epoch) == (1002, 1)
    assert heir.keys() == {"a"}
    assert heir.wire.count() <= REQUESTS_MAX, heir.wire.calls
    assert all(operation != "list" for operation, _ in heir.wire.calls)


def test_an_append_costs_what_the_protocol_says(memory_world: World) -> None:
    world = memory_world
    owner = world.process().open()
    owner.wire.calls.clear()
    owner.journal.append(owner.batch("a", b"v"))
    operations = [operation for operation, _ in owner.wire.calls]
    assert operations == (["create_if_absent"] if world.mode == "slot" else ["write", "sync", "exists"])


def test_an_idle_follower_asks_little(memory_world: World) -> None:
    world = memory_world
    owner = world.process().open()
    owner.put("a")
    wire = Wire(world.storage)
    follower = world.follower(storage=wire)
    follower.catch_up()
    wire.calls.clear()
    head = follower.catch_up()
    assert head.position == owner.journal.head
    assert len(wire.calls) <= 5


def test_a_claimant_that_fell_behind_does_not_climb_slot_by_slot(tmp_path: Path) -> None:
    world = World(make_storage("memory", tmp_path), "slot")
    owner = world.process().open()
    owner.put("a")
    heir = world.process()
    raced = 0

    def race(operation: str, name: str) -> None:
        nonlocal raced
        if operation == "create_if_absent" and name == world.names.slot(1, 2):
            raced += 1
            for number in range(1000):
                owner.put(f"k{number}")

    heir.wire.before = race
    heir.open()
    assert raced == 1
    assert len(heir.keys()) == 1001
    asked = [call for call in heir.wire.calls if call[0] != "read"]
    assert len(asked) <= REQUESTS_MAX, asked
