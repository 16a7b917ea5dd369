"""Many threads: order, bytes, offsets, and no deadlocks."""

from __future__ import annotations

import random
import threading
import time

import pytest

from chunkstore.changes import Append, Seal
from chunkstore.errors import (
    ChunkstoreError,
    Closed,
    DeadlineExceeded,
    OutcomeUnknown,
    SegmentSealed,
    SegmentTruncated,
)
from tests.support.data import pattern, problems, run_threads
from tests.support.forwarding import Hooked
from tests.support.hooked import in_thread, is_commit, open_hooked, wait_for, within
from tests.support.worlds import World


def test_32_threads_append_to_one_segment(world: World) -> None:
    store = world.open(rolling=300)
    store.create("a")
    found: dict[int, bytes] = {}

    def work(thread: int) -> None:
        for number in range(12):
            piece = b"<%02d:%03d%s>" % (thread, number, b"." * (number % 7))
            offset = store.append("a", piece)
            assert offset not in found
            found[offset] = piece

    run_threads(32, work)
    content = store.read("a", 0, 1 << 20)
    assert b"".join(found[offset] for offset in sorted(found)) == content
    position = 0
    for offset in sorted(found):
        assert offset == position
        position += len(found[offset])
    for thread in range(32):
        mine = [offset for offset, piece in sorted(found.items()) if piece.startswith(b"<%02d:" % thread)]
        numbers = [int(found[offset][4:7]) for offset in mine]
        assert numbers == list(range(12)), "each thread's appends are in its own order"
    assert problems(store.check("deep")) == []
    world.crash(store)
    world.forget_cache()
    again = world.open()
    assert again.read("a", 0, 1 << 20) == content
    assert problems(again.check("deep")) == []


def test_group_commit_shares_records(world: World) -> None:
    """Company is used: where a commit takes its time, many threads need far fewer records than appends."""
    store, storage = open_hooked(world, Hooked)
    for thread in range(16):
        store.create(f"s{thread}")
    before = store._container.current.journal.head.lsn
    queue, ended = store._container.current.queue, [False] * 16

    def slow(operation: str, names: tuple[str, ...]) -> None:
        # It takes until all the others have come.
        if is_commit(operation, names[0]):
            wait_for(lambda: len(queue._taken) + len(queue._queue) >= ended.count(False) - 1)

    storage.before = slow

    def work(thread: int) -> None:
        for _ in range(20):
            store.append(f"s{thread}", b"x" * 100)
        ended[thread] = True

    run_threads(16, work)
    assert store._container.current.journal.head.lsn - before < 160


@pytest.mark.parametrize("writers", [4, 16])
def test_seal_gets_through_beside_appends(world: World, writers: int) -> None:
    """A structural change is not starved by a stream of appends to the same segment."""
    store = world.open(rolling=1_000)
    store.create("a")
    acknowledged: list[int] = []

    def work(thread: int) -> None:
        if thread == 0:
            wait_for(lambda: len(acknowledged) > 10 * writers)
            store.seal("a")
            return
        limit = time.monotonic() + 60
        while time.monotonic() < limit:
            try:
                acknowledged.append(store.append("a", b"0123456789"))
            except SegmentSealed:
                return
        pytest.fail("seal was starved")

    run_threads(writers + 1, work, timeout_s=150)
    info = store.info("a")
    assert info.sealed and info.length == 10 * len(acknowledged)
    assert sorted(acknowledged) == list(range(0, info.length, 10))
    assert problems(store.check("deep")) == []


def test_appends_beside_truncates_and_readers(world: World) -> None:
    store = world.open(rolling=64, gc_grace_s=0)
    store.create("a")
    stop = threading.Event()
    total = 3_000

    def work(thread: int) -> None:
        chance = random.Random(thread)
        if thread == 0:
            position = 0
            while position < total:
                size = min(chance.randrange(1, 60), total - position)
                assert store.append("a", pattern(position, size)) == position
                position += size
            stop.set()
        elif thread == 1:
            while not stop.is_set():
                info = store.info("a")
                store.truncate("a", chance.randrange(info.start_offset, info.length + 1))
                time.sleep(0.002)
        elif thread == 2:
            while not stop.is_set():
                store.collect()
                time.sleep(0.005)
        else:
            seen = 0
            while not stop.is_set():
                info = store.info("a")
                assert info.length >= seen
                seen = info.length
                offset = chance.randrange(info.start_offset, info.length + 1)
                length = chance.randrange(200)
                try:
                    data = store.read("a", offset, length)
                except SegmentTruncated as error:
                    assert error.start_offset > offset
                    continue
                assert data == pattern(offset, len(data))
                assert len(data) >= min(length, info.length - offset)

    run_threads(6, work)
    info = store.info("a")
    assert info.length == total
    assert store.read("a", info.start_offset, total) == pattern(info.start_offset, total - info.start_offset)
    store.truncate("a", total)
    store.collect()
    assert problems(store.check("deep")) == [] and world.chunks() == []


def test_close_beside_appends(world: World) -> None:
    """Every append is either acknowledged, and then there for ever, or refused with Closed."""
    store = world.open(rolling=200)
    store.create("a")
    store.create("b")
    acknowledged: dict[int, bytes] = {}
    refused_count = [0]

    def work(thread: int) -> None:
        if thread == 0:
            time.sleep(0.05)
            store.close()
            return
        number = 0
        while True:
            piece = b"%d:%04d;" % (thread, number)
            number += 1
            try:
                if thread % 2:
                    acknowledged[store.append("a", piece)] = piece
                else:
                    store.commit([Append("b", piece)])
            except Closed:
                refused_count[0] += 1
                return

    run_threads(9, work)
    assert refused_count[0] == 8
    again = world.open()
    assert again.report.tail_cut is None and again.report.findings == ()
    content = again.read("a", 0, 1 << 24)
    assert b"".join(acknowledged[offset] for offset in sorted(acknowledged)) == content
    assert problems(again.check("deep")) == []


def test_a_deadline_does_not_wait_for_the_storage(world: World) -> None:
    """An operation behind a stuck one ends by its own deadline."""
    going, held = threading.Event(), threading.Event()
    store, storage = open_hooked(world, Hooked, keeper=True)
    store.create("a")
    store.create("b")

    def stuck(operation: str, names: tuple[str, ...]) -> None:
        if is_commit(operation, names[0]) and not going.is_set():
            held.set()
            assert going.wait(600)

    storage.before = stuck
    leader, led = in_thread(lambda: store.append("a", b"stuck"))
    assert held.wait(60)
    for call in (
        lambda: store.append("a", b"behind"),
        lambda: store.append("b", b"beside"),
        lambda: store.seal("a"),
        lambda: store.commit([Append("b", b"x"), Seal("a")]),
        lambda: store.table("t").put(b"k", b"v"),
    ):
        began = time.monotonic()
        with within(store, 0.5), pytest.raises((DeadlineExceeded, OutcomeUnknown)) as caught:
            call()
        assert isinstance(caught.value, ChunkstoreError)
        assert time.monotonic() - began < 60
    # Reads go on, with the last decided state.
    assert store.read("a", 0, 9) == b""
    going.set()
    leader.join(60)
    # Where others commit for it, its caller need not wait either.
    assert led == [0] or isinstance(led[0], OutcomeUnknown)
    wait_for(lambda: store.read("a", 0, 5) == b"stuck")
    assert problems(store.check("deep")) == []
