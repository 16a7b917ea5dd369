"""A journal that rolls for months leaves nothing behind that grows."""

from __future__ import annotations

from tests.support.clock import stopped_clock
from tests.support.worlds import World


def test_replaced_stores_are_closed_in_the_end(world: World) -> None:
    with stopped_clock() as clock:
        store = world.open()
        core = store._core
        store.create("s")
        seen = []
        for number in range(60):
            before = core.store
            core.lifecycle.maintain()
            assert core.store is not before
            seen.append(before)
            assert store.append("s", b"x") == number
            clock.now_s += 10
        assert len(core._retired) <= 24
        # What was replaced a moment ago still answers a reader that holds it.
        with seen[-1].view() as view:
            assert view.head.position.lsn > 0
        assert store.read("s", 0, 99) == b"x" * 60
        store.close()
