"""Regressions of the commit queue: failures beside a commit under way, interrupted callers, foreign exceptions."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import OutcomeUnknown, StorageUnavailable
from tests.support.data import problems
from tests.support.forwarding import Hooked
from tests.support.hooked import hold_first, in_thread, is_commit, open_hooked, wait_for, within
from tests.support.worlds import World


def hooked(world: World, deadline_s: float = 30.0) -> tuple[ChunkedSegmentStorage, Hooked]:
    """A store behind a hooked storage."""
    return open_hooked(world, Hooked, op_deadline_s=deadline_s, undecided_s_max=deadline_s, resolve_s=1.0)


def test_a_failed_write_behind_a_commit_under_way_does_not_hide_it(world: World) -> None:
    """A is being committed, B waits behind it, C's data write fails, D comes: D must lie behind A."""
    store, gate = hooked(world)
    store.create("s")
    committing, go = threading.Event(), threading.Event()
    fail = threading.Event()

    def before(operation: str, names: tuple[str, ...]) -> None:
        if is_commit(operation, names[0]) and not committing.is_set():
            committing.set()
            assert go.wait(30)
        if fail.is_set() and operation in ("create", "write") and "/d/" in names[0]:
            fail.clear()
            raise StorageUnavailable("injected")

    gate.before = before
    a, found_a = in_thread(lambda: store.append("s", b"aaaa"))
    assert committing.wait(30)
    b, found_b = in_thread(lambda: store.append("s", b"bbbb"))
    wait_for(lambda: len(store._core.committer._queue) == 1)
    fail.set()
    with pytest.raises(StorageUnavailable):
        store.append("s", b"cccc")
    d, found_d = in_thread(lambda: store.append("s", b"dddd"))
    time.sleep(0.05)
    go.set()
    for thread in (a, b, d):
        thread.join(30)
        assert not thread.is_alive()
    done = sorted(
        (offset, data)
        for found, data in ((found_a, b"aaaa"), (found_b, b"bbbb"), (found_d, b"dddd"))
        for offset in found
        if isinstance(offset, int)
    )
    assert found_a == [0]
    assert [offset for offset, _ in done] == list(range(0, 4 * len(done), 4))
    assert store.read("s", 0, 100) == b"".join(data for _, data in done)


def test_two_data_writes_that_fail_at_once_both_say_so(world: World) -> None:
    store, gate = hooked(world)
    store.create("s")
    barrier = threading.Barrier(2)

    def before(operation: str, names: tuple[str, ...]) -> None:
        if operation in ("create", "write") and "/d/" in names[0]:
            if not world.appends:
                barrier.wait(30)
            raise StorageUnavailable("injected")

    for _ in range(20):
        gate.before = before
        results = [in_thread(lambda: store.append("s", b"x")) for _ in range(2)]
        for thread, _ in results:
            thread.join(30)
        assert all(isinstance(found[0], StorageUnavailable) for _, found in results), results
    gate.before = lambda operation, names: None
    assert store.append("s", b"x") == 0


class Interrupt(BaseException):
    """As KeyboardInterrupt, but of this test only."""


def test_an_interrupted_waiter_does_not_take_the_lead_with_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in a thread that waits for another one's commit: later calls go on."""
    store, gate = hooked(world)
    store.create("s")
    store.create("t")
    committing, go = hold_first(gate, is_commit)
    a, found_a = in_thread(lambda: store.append("s", b"aaaa"))
    assert committing.wait(30)
    from chunkstore.operations.pending import Waiter

    real = Waiter.wait

    def interrupted(self: Waiter, timeout_s: float) -> bool:
        monkeypatch.setattr(Waiter, "wait", real)
        raise Interrupt

    monkeypatch.setattr(Waiter, "wait", interrupted)
    b, found_b = in_thread(lambda: store.append("t", b"bbbb"))
    b.join(30)
    assert isinstance(found_b[0], Interrupt)
    go.set()
    a.join(30)
    assert found_a == [0]
    began = time.monotonic()
    store.append("s", b"cccc")
    store.seal("t")
    assert time.monotonic() - began < 20
    assert store.info("t").length == 4


@pytest.mark.parametrize("where", ["wait", "apply", "roll", "sync"])
def test_an_interrupt_anywhere_leaves_a_store_that_works(
    world: World, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    store, _ = hooked(world)
    store.create("s")
    store.append("s", b"aaaa")
    core = store._core
    epoch = store.epoch
    targets: dict[str, tuple[object, str]] = {
        "wait": (core.committer, "wait"),
        "apply": (core.store, "apply"),
        "roll": (core.storage, "create_if_absent"),
        "sync": (core.storage, "sync"),
    }
    target, name = targets[where]
    if where == "roll":
        monkeypatch.setattr(core.lifecycle, "roll_due", lambda: core.epoch == epoch)
    real = getattr(target, name)
    calls: list[int] = []

    def interrupted(*arguments: Any, **named: Any) -> Any:
        if not calls:
            calls.append(1)
            raise Interrupt
        return real(*arguments, **named)

    monkeypatch.setattr(target, name, interrupted)
    if where == "sync" and not world.appends:
        pytest.skip("nothing is synced where chunks cannot grow")
    with pytest.raises(Interrupt):
        store.append("s", b"bbbb")
    assert calls
    began = time.monotonic()
    length = store.info("s").length
    assert length in (4, 8)
    offset = store.append("s", b"cccc")
    store.seal("s")
    assert time.monotonic() - began < 20
    assert offset in (4, 8)
    assert store.read("s", 0, 100) == b"aaaabbbb"[:offset] + b"cccc"
    assert problems(store.check()) == []


def test_a_foreign_exception_during_recovery_ends_with_an_answer(world: World) -> None:
    """A binding with a bug (TypeError) when the journal fails and during the take-over that follows."""
    store, gate = hooked(world, deadline_s=2.0)
    store.create("s")
    broken = threading.Event()

    def before(operation: str, names: tuple[str, ...]) -> None:
        if broken.is_set() and "/d/" not in names[0]:
            raise TypeError("a bug of the binding")

    gate.before = before
    broken.set()
    began = time.monotonic()
    with pytest.raises((StorageUnavailable, OutcomeUnknown, TypeError)) as caught:
        store.append("s", b"aaaa")
    assert time.monotonic() - began < 25, caught
    broken.clear()
    began = time.monotonic()
    offset = store.append("s", b"bbbb")
    assert time.monotonic() - began < 20
    assert store.read("s", offset, 4) == b"bbbb"
    assert store._core.committer.inflight() == 0


@pytest.mark.parametrize("happened", [True, False])
def test_nobody_else_recovers_before_the_batch_is_decided(
    world: World, monkeypatch: pytest.MonkeyPatch, happened: bool
) -> None:
    """The journal breaks, and before the leader takes over another caller would: what became of the batch must not be lost."""
    if world.mode == "slot":
        pytest.skip("a slot is asked about until it is decided")
    store, gate = hooked(world)
    store.create("s")
    store.create("t")
    once = [1]

    def fail(operation: str, names: tuple[str, ...]) -> None:
        if once and is_commit(operation, names[0]):
            once.clear()
            raise StorageUnavailable("injected")

    lifecycle = store._core.lifecycle
    lock, leader = lifecycle._recovery_lock, threading.current_thread()
    others: list[threading.Thread] = []

    class Slow:
        """The recovery lock; somebody is faster than the leader, if the core lets him."""

        def __enter__(self) -> bool:
            if threading.current_thread() is leader:
                others.append(in_thread(lambda: store.append("t", b"t"))[0])
                time.sleep(0.3)
            return lock.__enter__()

        def __exit__(self, *unused: object) -> None:
            lock.release()

        def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
            return lock.acquire(blocking, timeout)

        def release(self) -> None:
            lock.release()

    monkeypatch.setattr(lifecycle, "_recovery_lock", Slow())
    setattr(gate, "after" if happened else "before", fail)
    if happened:
        assert store.append("s", b"aaaa") == 0
    else:
        with pytest.raises(StorageUnavailable):
            store.append("s", b"aaaa")
    for thread in others:
        thread.join(30)
    assert others
    assert store.info("s").length == (4 if happened else 0)


def test_close_never_raises(world: World) -> None:
    """Whatever a binding does: everything is released, and the next owner goes on."""
    store, gate = hooked(world, deadline_s=2.0)
    store.create("s")
    store.append("s", b"aaaa")

    def before(operation: str, names: tuple[str, ...]) -> None:
        raise TypeError("a bug of the binding")

    gate.before = before
    released: list[int] = []

    def fails() -> None:
        released.append(1)
        raise OSError("no")

    store._on_close = (fails, lambda: released.append(2))
    with within(store, 30.0):  # one that is held up for longer is left to itself
        store.close()
        store.close()
    assert released == [1, 2]
    with world.open() as later:
        assert later.read("s", 0, 10) == b"aaaa"
