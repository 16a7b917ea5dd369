"""Operations that others wait for end in their time, also when their callers have gone, or when others keep coming."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest

from chunkstore.changes import Seal
from chunkstore.errors import OutcomeUnknown, StorageUnavailable
from chunkstore.operations.pending import PendingOp
from tests.support.data import problems
from tests.support.forwarding import Hooked
from tests.support.hooked import hold_first, in_thread, is_commit, open_hooked, wait_for, within
from tests.support.worlds import World

MANY = 8


def test_a_writers_last_event_on_a_segment_that_is_never_idle(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waited until nothing was undecided, and while others appended without a pause that moment never came."""
    store, storage = open_hooked(world, Hooked, op_deadline_s=30.0)
    store.create("s")
    store.append("s", b"x", writer_id="w", event_number=7)
    core = store._core
    held, permits = threading.Semaphore(0), threading.Semaphore(0)
    callers: list[tuple[threading.Thread, list[object]]] = []

    def before(operation: str, names: tuple[str, ...]) -> None:
        if is_commit(operation, names[0]):
            held.release()
            assert permits.acquire(timeout=60)

    def another_comes() -> None:
        under_way = core.committer.inflight()
        callers.append(in_thread(lambda: store.append("s", b"y")))
        wait_for(lambda: core.committer.inflight() > under_way)

    def never_idle(op: PendingOp, deadline_s: float) -> None:
        """Once it is decided, another one is under way."""
        if time.monotonic() > deadline_s:
            core.raise_deadline("waiting for an earlier operation")
        assert held.acquire(timeout=30)
        another_comes()
        permits.release()
        wait_for(lambda: op.decided)

    storage.before = before
    another_comes()
    try:
        monkeypatch.setattr(core, "wait_for", never_idle)
        assert store.last_event_number("s", "w") == 7
    finally:
        monkeypatch.undo()
        storage.before = lambda operation, names: None
        permits.release(1000)
        for thread, _ in callers:
            thread.join(30)
    assert [found for _, found in callers] == [[1 + number] for number in range(len(callers))]
    assert store.info("s").length == 1 + len(callers)


def test_a_batch_that_fails_waits_once_for_all_that_hang(world: World) -> None:
    """One after the other was waited for: for a batch of many segments that took many times as long as anybody's deadline."""
    if not world.appends:
        pytest.skip("appends are not written under a segment's lock where chunks cannot grow")
    store, storage = open_hooked(world, Hooked, op_deadline_s=60.0)
    core = store._core
    core.patience_s = 1.0
    names = [f"s{number}" for number in range(MANY)]
    for name in names:
        store.create(name)
        store.append(name, b"0")
    committing, go, go_on = threading.Event(), threading.Event(), threading.Event()
    failing, hanging = threading.Event(), threading.Semaphore(0)

    def before(operation: str, objects: tuple[str, ...]) -> None:
        if is_commit(operation, objects[0]) and not committing.is_set():
            committing.set()
            assert go.wait(20)
        elif failing.is_set() and "/d/" in objects[0]:
            if operation == "sync":
                raise StorageUnavailable("injected")
            hanging.release()
            assert go_on.wait(60)

    storage.before = before
    leader, _ = in_thread(lambda: store.create("other"))
    try:
        assert committing.wait(30)
        batch = [in_thread(partial(store.append, name, b"1")) for name in names]
        wait_for(lambda: len(core.committer._queue) == MANY)
        failing.set()
        behind = [in_thread(partial(store.append, name, b"2")) for name in names]
        for _ in names:
            assert hanging.acquire(timeout=30)
        began_s = time.monotonic()
        go.set()
        for thread, found in batch:
            thread.join(20)
            assert isinstance(found[0], StorageUnavailable), found
        took_s = time.monotonic() - began_s
    finally:
        go.set()
        go_on.set()
    failing.clear()
    for thread, found in behind:
        thread.join(20)
        assert isinstance(found[0], StorageUnavailable), found
    leader.join(20)
    # A moment is given to each that comes after the patience has run out.
    assert took_s < core.patience_s * (MANY - 2)
    assert [store.append(name, b"3") for name in names] == [1] * MANY
    assert core.committer.inflight() == 0
    assert problems(store.check("deep")) == []


def test_what_a_caller_entered_and_never_waited_for_is_led(world: World) -> None:
    """A change of two segments closes two lazy tails first; it gave up waiting for the one, and nobody ever led the other: its
    segment could not be sealed until somebody else committed something."""
    if not world.appends:
        pytest.skip("lengths are lazy where chunks can grow only")
    store, storage = open_hooked(world, Hooked, op_deadline_s=30.0, lengths="lazy")
    world.crash(store)  # the keeper commits something now and then
    for name in "ab":
        store.create(name)
        store.append(name, b"0123")
        store.append(name, b"4567")
    store.create("other")
    committing, go = hold_first(storage, is_commit)
    leader, _ = in_thread(lambda: store.append("other", b"x"))
    try:
        assert committing.wait(30)
        with within(store, 1.0), pytest.raises(OutcomeUnknown):
            store.commit([Seal("a"), Seal("b")])
    finally:
        go.set()
    leader.join(30)
    store.seal("b")
    store.seal("a")
    assert store._core.committer.inflight() == 0
    assert store.read("a", 0, 99) == store.read("b", 0, 99) == b"01234567"
    assert problems(store.check("deep")) == []
