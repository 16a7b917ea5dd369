"""A journal that rolls for months leaves nothing behind that grows."""

from __future__ import annotations

from tests.support.clock import stopped_clock
from tests.support.worlds import World


def test_replaced_stores_are_closed_in_the_end(world: World) -> None:
    with stopped_clock() as clock:
        store = world.open(op_deadline_s=5.0)
        store.create("s")
        container, seen = store._container, []
        for number in range(60):
            seen.append(container.current.store)
            assert store._maintenance._recovery.roll()
            assert container.current.store is not seen[-1]
            assert store.append("s", b"x") == number
            clock.now_s += 10
        assert len(container._retired) <= 24
        # What was replaced a moment ago still answers a reader that holds it.
        with seen[-1].view() as view:
            assert view.head.position.lsn > 0
        assert store.read("s", 0, 99) == b"x" * 60
        store.close()


def test_a_clean_close_is_marked_clean_after_a_roll(world: World) -> None:
    """Replaced stores share the environment with the present one, and only its last user marks it: an unclean mark cost a rebuild
    of the whole cache."""
    with stopped_clock() as clock:
        store = world.open(metadata="lmdb")
        store.create("s")
        for number in range(3):
            store._maintenance._recovery.roll()
            assert store.append("s", b"x") == number
            clock.now_s += 10
        store.close()
    states = [path.read_text() for path in world.cache_dir.glob("*/owner/*/STATE")]
    assert len(states) == 1 and not states[0].endswith(" open\n")
