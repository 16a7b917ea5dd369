"""Replicas: prefixes of history, never a claim, never a write (protocol 3.13)."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from chunkstore.changes import Append, TablePut
from chunkstore.errors import BadOffset, Closed, InvalidArgument, RolledBack, SegmentNotFound, SegmentTruncated
from chunkstore_journal.objects import Claim, encode_claim
from tests.faults.ground import FULL_RUN
from tests.journal.ends import objects_of, put_back
from tests.support.data import pattern, refused, run_threads
from tests.support.hooked import in_thread
from tests.support.worlds import World


def test_it_follows_everything(world: World) -> None:
    store = world.open(rolling=8)
    world.still(store)
    store.create("a", attributes={"k": "v"})
    store.append("a", pattern(0, 30))
    objects = world.objects()
    replica = world.replica()
    assert world.objects() == objects
    assert replica.container == "default"
    assert replica.lsn == store._container.current.journal.head.lsn and replica.epoch == store.epoch
    assert replica.read("a", 0, 99) == pattern(0, 30)
    assert replica.info("a") == store.info("a")
    assert [*replica.layout("a")] == [*store.layout("a")]
    store.truncate("a", 10)
    store.table("t").put(b"k", b"v")
    store.create("b")
    store.seal("a")
    store.unseal("a")
    assert replica.info("a").start_offset == 0 and not replica.exists("b")
    replica.refresh()
    assert [*replica.segments()] == [*store.segments()]
    assert [*replica.table("t").scan()] == [*store.table("t").scan()]
    assert replica.table("t").get(b"k") == store.table("t").get(b"k")
    refused(SegmentTruncated, lambda: replica.read("a", 0, 1))
    refused(BadOffset, lambda: replica.read("a", 99, 1))
    refused(SegmentNotFound, lambda: replica.read("c", 0, 1))
    refused(InvalidArgument, lambda: replica.read("a", -1, 1))
    buffer = bytearray(99)
    assert replica.read_into("a", 12, buffer) == 18 and buffer[:18] == pattern(12, 18)
    assert replica.offset_at("a", 0) == 10
    assert replica.check("deep") == []
    for change in ("create", "append", "write", "truncate", "seal", "delete", "commit", "snapshot", "collect"):
        assert not hasattr(replica, change)
    replica.close()
    replica.close()
    refused(Closed, lambda: replica.read("a", 12, 1), replica.refresh, lambda: replica.exists("a"))


def test_during_heavy_writes_it_sees_prefixes_only(world: World) -> None:
    """Every commit appends the same mark to two segments and puts it into a table: a prefix shows all three or none."""
    store = world.open(rolling=100, log_roll_bytes=4_096, slot_roll_records=8, roll_interval_s_min=0)
    store.create("x")
    store.create("y")
    replica = world.replica()
    ended = threading.Event()
    looks = [0]
    # On servers a commit takes tens of milliseconds, and there are rolls enough in fewer of them.
    rounds = 30 if world.kind in ("memory", "filesystem") or FULL_RUN else 8

    def work(thread: int) -> None:
        if thread < 4:
            for number in range(rounds):
                mark = b"%d:%03d;" % (thread, number)
                store.commit([Append("x", mark), Append("y", mark), TablePut("t", b"%d" % thread, mark)])
            return
        last = 0
        while not ended.is_set():
            lsn = replica.refresh()
            assert lsn >= last
            last = lsn
            look()
            looks[0] += 1
            if thread == 4 and replica.info("x").length == 4 * rounds * len(b"0:000;"):
                ended.set()

    def look() -> None:
        # The store's view is one point of history; several calls may see several. So look from one view.
        with replica._follower.store.view() as view:
            from chunkstore.operations.read import find_segment
            from chunkstore.operations.tables import scan_entries

            x, y = find_segment(view, "x", None), find_segment(view, "y", None)
            rows = {entry.key: entry.value for entry in scan_entries(view, "t", b"", None)}
            position = view.head.position
        assert x.length == y.length
        content = replica.read("x", 0, x.length)
        assert content == replica.read("y", 0, y.length)
        pieces = content.split(b";")[:-1]
        assert position.lsn > 0
        for thread in range(4):
            mine = [piece for piece in pieces if piece.startswith(b"%d:" % thread)]
            assert mine == [b"%d:%03d" % (thread, number) for number in range(len(mine))]
            assert rows.get(b"%d" % thread, b";")[:-1] == (mine[-1] if mine else b"")

    run_threads(5, work)
    assert looks[0] > 1
    assert replica.check("deep") == []


@pytest.mark.parametrize(("inline_bytes_max", "size"), [(None, 1), (0, 20_000)], ids=["inline", "long"])
def test_a_read_says_what_is_wrong_in_an_older_state(world: World, inline_bytes_max: int | None, size: int) -> None:
    """A restored backup in the root's place, in which others have gone on until it is as long: no byte that is missing is called damage.
    What is long enough is kept open."""
    settings: dict[str, Any] = {"inline_bytes_max": inline_bytes_max}
    storage = world.raw_storage()
    with world.open(**settings) as store:
        store.create("s")
        store.append("s", b"old;")
    older = objects_of(storage)
    with world.open(**settings) as store:
        for _ in range(5):
            store.append("s", b"shown;" * size)
    replica = world.replica()
    expected = b"old;" + b"shown;" * size * 5
    assert replica.read("s", 0, 1 << 20) == expected
    newer, lsn = objects_of(storage), replica.lsn
    put_back(storage, older)
    for _ in range(3):
        world.forget_cache()
        with world.open(**settings):
            pass
        refused(RolledBack, replica.refresh)
        if size > 1 and world.kind == "filesystem":
            assert replica.read("s", 0, 1 << 20) == expected, "what is open has them still"
        else:
            refused(RolledBack, lambda: replica.read("s", 0, 1 << 20))
    put_back(storage, newer)
    assert (replica.refresh(), replica.read("s", 0, 1 << 20)) == (lsn, expected)


@pytest.mark.parametrize("event", ["append", "seal", "delete", "close"])
def test_wait_refreshes_by_itself(world: World, event: str) -> None:
    store = world.open()
    store.create("a")
    replica = world.replica()
    thread, results = in_thread(lambda: replica.wait("a", 0, 600))
    thread.join(0.1)
    assert thread.is_alive()
    if event == "append":
        store.append("a", b"data")
        # In a log a record is confirmed by what follows it: the next one, or a heartbeat a second later.
    elif event == "seal":
        store.seal("a")
    elif event == "delete":
        store.delete("a")
    else:
        replica.close()
    thread.join(60)
    assert not thread.is_alive()
    if event == "append":
        assert results[0].length == 4  # type: ignore[attr-defined]
    elif event == "seal":
        assert results[0].sealed  # type: ignore[attr-defined]
    else:
        assert type(results[0]) is (SegmentNotFound if event == "delete" else Closed)


def test_a_claim_that_has_not_opened_is_told(world: World) -> None:
    """Between a dead owner's claim and the next OPEN the last acknowledged record may not be shown."""
    with world.open() as store:
        store.create("a")
        store.append("a", b"x")
        replica = world.replica()
        assert not replica.why_short
        claim = Claim(store.epoch + 1, bytes(16), "host", 1, "boot", 0)
        names = world.names()
    world.raw_storage().create(names.epoch(claim.epoch), encode_claim(claim))
    replica.refresh()
    assert replica.unopened_epoch == claim.epoch
    findings = [item for item in replica.check("quick") if "not open yet" in item.message]
    assert [item.severity for item in findings] == ["warning"]
    world.open()
    replica.refresh()
    assert not replica.why_short
