"""When the first snapshot after an open is due, before any was written that tells the state's size."""

from __future__ import annotations

import pytest

from chunkstore.operations import snapshots
from tests.support.clock import stopped_clock
from tests.support.worlds import World


def test_a_large_state_is_not_written_for_a_few_changes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the first snapshot the state counted as empty: a few changes, or five minutes with one, were worth writing it all."""
    with stopped_clock() as clock, world.open(snapshot_bytes_min=1, snapshot_slots_min=1) as store:
        world.crash(store)  # nobody else takes one
        store.create("s")
        due = store._maintenance.snapshots.due
        assert due(), "as small as it is"
        monkeypatch.setattr(type(store._container.current.store), "entry_count", lambda self: 10_000_000)
        store.append("s", b"x")
        clock.now_s += 1_000
        assert not due()
        monkeypatch.setattr(type(store._container.current.store), "entry_count", lambda self: 20)
        assert due()
        assert store.snapshot().size_bytes > 0
        assert not due()


def test_a_rows_size_is_about_right(world: World) -> None:
    with world.open(rolling=1) as store:
        for number in range(20):
            store.create(f"segment {number}")
            store.append(f"segment {number}", b"x" * 40)
        estimate_bytes = store._container.current.store.entry_count() * snapshots._BYTES_PER_ENTRY
        assert estimate_bytes / 3 < store.snapshot().size_bytes < estimate_bytes * 3
