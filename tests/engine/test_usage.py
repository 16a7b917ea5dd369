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
