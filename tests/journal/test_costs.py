"""What a take-over costs when epochs pile up, and that retries and probes need no LIST (protocol A10)."""

from __future__ import annotations

import pytest

from chunkstore.metadata.memory import MemoryShelf
from chunkstore_journal.history import _OPENED_KEPT_MAX, Opened, probe_dense
from tests.journal.world import World

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


def test_an_append_costs_what_the_protocol_says(memory_world: World) -> None:
    world = memory_world
    owner = world.process().open()
    owner.wire.calls.clear()
    owner.journal.append(owner.batch("a", b"v"))
    operations = [operation for operation, _ in owner.wire.calls]
    assert operations == (["create_if_absent"] if world.mode == "slot" else ["write", "sync", "exists"])
