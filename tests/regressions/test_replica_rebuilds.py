"""A replica that has to start again from a snapshot answers its readers meanwhile, from what it showed before.

Before, the old state was closed before there was another one: reads in between, and reads under way, got ``Closed``.
"""

from __future__ import annotations

from typing import Any

import pytest

from chunkstore.replica import Replica
from chunkstore_journal import recovery
from tests.support.data import pattern
from tests.support.worlds import World


def sleeper(world: World) -> Replica:
    """A replica whose next records were collected while it slept."""
    choice: dict[str, Any] = {"rolling": 8, "gc_grace_s": 0, "snapshots_kept": 1}
    store = world.open(**choice)
    store.create("a")
    store.append("a", pattern(0, 20))
    found = world.replica(op_deadline_s=60.0)
    for number in range(4):
        store.append("a", pattern(20 + 10 * number, 10))
        store.snapshot()
        store.close()
        store = world.open(**choice)
    store.snapshot()
    assert store.collect().journal_objects > 0
    world.forget_files(found)
    return found


def test_readers_do_not_notice(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    replica = sleeper(world)
    load = vars(recovery)["load_snapshot"]
    seen: list[bytes] = []

    def look(*arguments: Any, **named: Any) -> Any:
        seen.append(replica.read("a", 0, 99))
        return load(*arguments, **named)

    monkeypatch.setattr(recovery, "load_snapshot", look)
    before = replica._follower.store
    with before.view() as view:
        position = view.head.position
        replica.refresh()
        assert seen == [pattern(0, 20)]
        assert view.head.position == position  # whoever was at it ends in peace
    assert before.head().position == position
    assert replica._follower.store is not before
    assert replica.read("a", 0, 99) == pattern(0, 60)
    assert replica.check("deep") == []
    monkeypatch.undo()
    replica.close()
    with world.replica() as again:
        assert again.read("a", 0, 99) == pattern(0, 60)
