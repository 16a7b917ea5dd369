"""``usage``: totals that nobody scans, and the sizes of journal, snapshots and orphans. Random histories: ``test_state_machine``."""

from __future__ import annotations

from typing import Any

import pytest

import chunkstore
from chunkstore.errors import SegmentNotFound
from tests.support.data import pattern
from tests.support.worlds import World


def stored_bytes(world: World, prefix: str, suffixes: tuple[str, ...]) -> int:
    """Without the zeros that logs may end with."""
    return sum(len(world.content(name).rstrip(b"\0")) for name in world.objects(prefix) if name.endswith(suffixes))


def test_segments_heads_and_garbage(world: World) -> None:
    store = world.open(rolling=10, gc_grace_s=0)
    assert store.usage()._replace(journal_bytes=0, listed_ms=0, free_bytes=None, open_bytes=0) == chunkstore.Usage(
        0, 0, 0, None, 0, 0, 0, 0, 0, None, safe_mode=False, inline_bytes=0, inline_extents=0,
        open_bytes=0,
    )  # fmt: skip
    for name in ("a", "b"):
        store.create(name)
        store.append(name, pattern(0, 35))
    store.truncate("a", 24)
    used = store.usage()
    assert (used.segments, used.chunks) == (2, 6)
    assert (used.live_bytes, used.dead_head_bytes, used.garbage_bytes) == (11 + 35, 4, 20)
    one = store.usage("a")
    none: dict[str, Any] = {"inline_bytes": 0, "inline_extents": 0}
    assert one == chunkstore.Usage(11, None, 4, None, None, None, 2, 1, **none)
    assert store.usage(store.open_read("b")) == chunkstore.Usage(35, None, 0, None, None, None, 4, 1, **none)
    with pytest.raises(SegmentNotFound):
        store.usage("c")
    store.delete("a")
    assert (store.usage().garbage_bytes, store.usage().live_bytes) == (35, 35)
    store.collect()
    used = store.usage()
    assert (used.segments, used.chunks, used.live_bytes, used.dead_head_bytes, used.garbage_bytes) == (1, 4, 35, 0, 0)


def test_extents_and_what_they_hold(world: World) -> None:
    """By the owner and by a replica alike: in segments, in garbage, spilled, and where an OPEN has taken the last record along."""
    chosen: dict[str, Any] = {"inline_bytes_max": None, "spill_bytes": 1 << 30, "spill_s": 3600.0, "gc_grace_s": 0}
    store = world.open(**chosen)
    world.still(store)
    store.create("a")
    store.create("b")
    opening = store.usage().open_bytes
    index = store._container.current.journal.head.index
    for number in range(5):
        store.append("a", pattern(10 * number, 10))
    store.append("b", pattern(0, 7))
    replica = world.replica()

    def seen() -> tuple[object, ...]:
        replica.refresh()
        here, there = (
            (used.inline_bytes, used.inline_extents, used.held_epoch, used.held_index)
            for used in (store.usage(), replica.usage())
        )
        assert here == there
        return here

    oldest = store.epoch, index if world.mode == "slot" else 0
    assert seen() == (57, 6, *oldest)
    assert (store.usage("b").inline_bytes, store.usage("a").inline_extents) == (7, 5)
    store.truncate("a", 20)
    assert seen() == (57, 6, *oldest) and store.usage("a").inline_bytes == 30
    store.collect()
    assert seen()[:2] == (37, 4)
    store.delete("b")
    store._spiller.spill_all("a")
    assert seen()[:2] == (7, 1)
    assert store.usage("a").inline_extents == 0
    store.append("a", b"the last record of its stream")
    world.forget_cache()  # whoever has one that has applied the last record takes nothing along
    store = world.open(**chosen)
    world.still(store)
    used = store.usage()
    assert used.open_bytes == stored_bytes(world, "default/j/", ("0000000000000000.s",))
    assert opening is not None and used.open_bytes is not None
    assert (used.open_bytes > 2 * opening + 29) is (world.mode == "append")
    for name in ("a", "b"):
        if store.exists(name):
            store._spiller.spill_all(name)
    store.collect()
    assert (store.usage().inline_extents, store.usage().held_epoch) == (0, None)


def test_journal_and_snapshots_are_what_lies_there(world: World) -> None:
    begun = world.open(gc_grace_s=0, snapshots_kept=1)
    begun.create("a")
    begun.close()
    store = world.open(gc_grace_s=0, snapshots_kept=1)

    def compare() -> None:
        used = store.usage()
        # What begins and ends epochs of ours since the listing is all that is not counted.
        there = stored_bytes(world, "default/j/", (".s", "log.a"))
        assert used.journal_bytes is not None and -8 <= there - used.journal_bytes <= slack
        assert used.snapshot_bytes is not None
        assert -8 <= stored_bytes(world, "default/snap/", (".sn",)) - used.snapshot_bytes <= 0

    slack = 0
    compare()
    for number in range(20):
        store.append("a", pattern(number, 10))
        compare()
    store.snapshot()
    compare()
    listed = store.usage().listed_ms
    store._maintenance._recovery.roll()
    slack = 4_000
    store.append("a", b"x")
    compare()
    assert store.usage().listed_ms == listed
    slack = 0
    store.snapshot()
    store.collect()
    compare()
    assert store.usage().snapshot_bytes
