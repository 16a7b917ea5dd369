"""States of the past: each is what a replay says that it was, stays that, and says what of it was has been collected."""

from __future__ import annotations

import random
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest

from chunkstore.engine.replica import Replica
from chunkstore.errors import (
    Closed,
    Damaged,
    InvalidArgument,
    OutcomeUnknown,
    PastCollected,
    StorageUnavailable,
    Unsupported,
)
from chunkstore_journal.history import open_streams
from chunkstore_journal.inspect import iter_records
from tests.support.clock import jumping_clock
from tests.support.data import pattern, problems, refused
from tests.support.forwarding import Hooked
from tests.support.hooked import within
from tests.support.past import lsn_of, rows_at, rows_of
from tests.support.worlds import World

KEEPING_LITTLE: dict[str, Any] = {"rolling": 4, "gc_grace_s": 0, "snapshots_kept": 1}


def rows_of_view(view: Replica) -> dict[bytes, bytes]:
    return rows_of(view._follower.store)


def require_every_moment(world: World, last: int) -> tuple[int, int]:
    """Each lsn is shown as a replay shows it, or cannot be replayed. Returns how many of each."""
    shown = gone = 0
    for lsn in range(1, last + 1):
        try:
            expected = rows_at(world.raw_storage(), world.names(), lsn)
        except AssertionError:
            with pytest.raises(PastCollected) as caught:
                world.replica(at_lsn=lsn)
            assert caught.value.lsn == lsn
            assert caught.value.oldest_lsn is not None and lsn < caught.value.oldest_lsn <= last
            gone += 1
            continue
        with world.replica(at_lsn=lsn) as view:
            assert (view.lsn, rows_of_view(view)) == (lsn, expected)
        shown += 1
    return shown, gone


@pytest.mark.parametrize("seed", range(2))
def test_every_moment_is_what_it_was(world: World, seed: int) -> None:
    chance = random.Random(seed)
    store = world.open(**KEEPING_LITTLE)
    world.still(store)
    said: dict[int, bytes] = {}
    length = 0
    store.create("a")
    for step in range(25):
        kind = chance.choice(
            ("append", "append", "table", "delete", "crash", "close", "snapshot", "truncate", "take over")
        )
        if kind == "append":
            store.append("a", pattern(length, 3))
            length += 3
            said[lsn_of(store)] = pattern(0, length)
        elif kind == "table":
            store.table("t").put(b"k", b"%d" % step)
        elif kind == "delete":
            store.create(f"b{step}")
            store.append(f"b{step}", b"gone")
            store.delete(f"b{step}")
        elif kind == "truncate":
            store.table("t").put(b"other", b"%d" % step)
        elif kind == "snapshot":
            store.snapshot()
        else:
            if kind == "crash":
                world.crash(store)
            elif kind == "close":
                store.close()
            store = world.open(**KEEPING_LITTLE)
            world.still(store)
    last = lsn_of(store)
    assert require_every_moment(world, last)[1] == 0
    for lsn, expected in said.items():
        with world.replica(at_lsn=lsn) as view:
            assert view.read("a", 0, 1 << 20) == expected
            assert problems(view.check("deep")) == []
    store.snapshot()
    store.collect()
    store.close()
    store = world.open(**KEEPING_LITTLE)
    world.still(store)
    store.snapshot()
    store.collect()
    shown, gone = require_every_moment(world, last := lsn_of(store))
    assert shown and gone and shown + gone == last


def test_a_moment_by_time(world: World) -> None:
    with jumping_clock() as clock:
        store = world.open()
        world.still(store)
        store.create("a")
        labels: list[tuple[int, int]] = []
        for step in range(12):
            clock.jump(10)
            store.append("a", b"%02d" % step)
            if step % 5 == 4:
                store.close()
                store = world.open()
                world.still(store)
        storage = world.raw_storage()
        labels = [
            (record.lsn, record.time_ms) for record in iter_records(open_streams(storage, world.names())) if record.lsn
        ]
        assert labels == sorted(labels) and len(labels) > 15
        clock.jump(10)
        for _, time_ms in labels:
            for asked in (time_ms, time_ms + 1):
                expected = max(lsn for lsn, label in labels if label <= asked)
                with world.replica(at_time=asked) as view:
                    assert view.lsn == expected
        with world.replica(at_time=datetime.fromtimestamp(labels[-1][1] / 1000 + 1, UTC)) as view:
            assert view.lsn == labels[-1][0]
        with pytest.raises(PastCollected, match="history begins after it") as early:
            world.replica(at_time=labels[0][1] - 1)
        assert (early.value.lsn, early.value.oldest_lsn) == (0, 1)
        with pytest.raises(InvalidArgument, match="future") as late:
            world.replica(at_time=labels[-1][1] + 1_000_000)
        assert late.value.argument == "at_time"


def test_what_cannot_be_asked_for(world: World) -> None:
    with pytest.raises(Exception, match="no container"):
        world.replica(at_lsn=1)
    store = world.open()
    store.create("a")
    store.append("a", b"x")
    lsn = lsn_of(store)
    refused(
        InvalidArgument,
        lambda: world.replica(at_lsn=1, at_time=1),
        lambda: world.replica(at_lsn=0),
        lambda: world.replica(at_lsn=lsn + 100),
        lambda: world.replica(at_lsn=True),
        lambda: world.replica(at_lsn="5"),  # type: ignore[arg-type]
        lambda: world.replica(at_time=-1),
        lambda: world.replica(at_time=1.5),  # type: ignore[arg-type]
        lambda: world.replica(at_time=datetime.now()),
    )
    with world.replica(at_lsn=lsn) as view:
        refused(Unsupported, view.orphans)
        assert view.refresh() == lsn
        store.append("a", b"y")
        assert view.refresh() == lsn and view.read("a", 0, 9) == b"x"
        assert view.wait("a", 5, 0).length == 1
    refused(Closed, lambda: view.read("a", 0, 1), view.refresh)


def test_a_chunk_that_was_collected_is_no_damage(world: World) -> None:
    store = world.open(**KEEPING_LITTLE)
    world.still(store)
    store.create("a")
    store.append("a", pattern(0, 12))
    store.create("b")
    store.append("b", pattern(0, 12))
    lsn = lsn_of(store)
    chunks = {name: [chunk.name for chunk in store.layout(name)] for name in "ab"}
    store.truncate("a", 4)
    with world.replica(at_lsn=lsn) as view:
        assert view.read("a", 0, 12) == pattern(0, 12)
        store.collect()
        with pytest.raises(PastCollected, match="has been collected") as caught:
            view.read("a", 0, 12)
        assert (caught.value.lsn, caught.value.chunk) == (lsn, chunks["a"][0])
        assert view.read("a", 4, 8) == pattern(4, 8)
        # What the present needs, too, is not gone by any right.
        world.remove(chunks["a"][1])
        world.remove(chunks["b"][0])
        refused(Damaged, lambda: view.read("a", 4, 8), lambda: view.read("b", 0, 4))
        # Removed in the rows, deleted, and its row not yet dropped: as a collection leaves it for a moment.
        store.delete("b")
        refused(PastCollected, lambda: view.read("b", 0, 4))


def test_an_undecided_record_is_the_future(world: World) -> None:
    """APPEND: a record that was written, not acknowledged, and whose sync failed is shown to nobody before an OPEN adopts it."""
    if world.mode != "append":
        return  # in SLOT mode what exists is committed
    made: list[Hooked] = []

    def wrap(inner: object) -> Hooked:
        made.append(Hooked(inner))  # type: ignore[arg-type]
        return made[-1]

    store = world.open(wrap=wrap, op_deadline_s=1.0, undecided_s_max=1.0)
    world.still(store)
    with within(store, 60.0):
        store.create("a")
    lsn = lsn_of(store)

    def fail(operation: str, names: tuple[str, ...]) -> None:
        if operation in ("sync", "create_if_absent"):
            raise StorageUnavailable("no answer", object=names[0])

    made[0].before = fail
    with suppress(StorageUnavailable, OutcomeUnknown):
        store.create("b")
    made[0].before = lambda _operation, _names: None
    with world.replica(at_lsn=lsn) as view:
        assert not view.exists("b")
