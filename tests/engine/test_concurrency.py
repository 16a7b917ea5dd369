"""Many threads: order, bytes, offsets, and no deadlocks."""

from __future__ import annotations

import threading
import time

import pytest

from chunkstore.changes import Append, Seal
from chunkstore.errors import (
    ChunkstoreError,
    Closed,
    DeadlineExceeded,
    OutcomeUnknown,
)
from tests.support.data import problems, run_threads
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
