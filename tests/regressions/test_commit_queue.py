"""Regressions of the commit queue: failures beside a commit under way, interrupted callers and leaders, foreign exceptions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from chunkstore import runtime
from chunkstore.changes import Append
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import StorageUnavailable
from tests.support.data import problems
from tests.support.forwarding import Hooked
from tests.support.hooked import Remote, hold_first, in_thread, is_commit, open_hooked, replace_steps, wait_for
from tests.support.worlds import World


def hooked(world: World, deadline_s: float = 600.0) -> tuple[ChunkedSegmentStorage, Hooked]:
    """A store behind a hooked storage. Who waits for what never comes waits longer than any machine holds up a thread."""
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
            assert go.wait(60)
        if fail.is_set() and operation in ("create", "write") and "/d/" in names[0]:
            fail.clear()
            raise StorageUnavailable("injected")

    gate.before = before
    a, found_a = in_thread(lambda: store.append("s", b"aaaa"))
    assert committing.wait(60)
    b, found_b = in_thread(lambda: store.append("s", b"bbbb"))
    wait_for(lambda: len(store._container.current.queue._queue) == 1)
    fail.set()
    with pytest.raises(StorageUnavailable):
        store.append("s", b"cccc")
    d, found_d = in_thread(lambda: store.append("s", b"dddd"))
    time.sleep(0.05)
    go.set()
    for thread in (a, b, d):
        thread.join(60)
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


class Interrupt(BaseException):
    """As KeyboardInterrupt, but of these tests only."""


@pytest.mark.parametrize("where", ["wait", "sync", "build", "append", "apply"])
def test_an_interrupt_anywhere_leaves_a_store_that_works(
    world: World, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    store, _ = hooked(world)
    store.create("s")
    store.append("s", b"aaaa")
    queue, calls = store._container.current.queue, []

    def interrupted(*_: object) -> None:
        calls.append(1)
        raise Interrupt

    if where == "wait":
        monkeypatch.setattr(queue, "wait", interrupted)
    elif where == "sync" and not world.appends:
        return  # nothing is synced where chunks cannot grow
    else:
        replace_steps(store, **{where: interrupted})
    with pytest.raises(Interrupt):
        store.append("s", b"bbbb")
    monkeypatch.undo()
    assert calls
    happened = where in ("wait", "apply")
    began = time.monotonic()
    # A change of several segments waits until nothing is undecided.
    store.commit([Append("s", b"cccc")])
    assert store.append("s", b"dddd") == (12 if happened else 8)
    store.seal("s")
    assert time.monotonic() - began < 60
    assert store.read("s", 0, 100) == (b"aaaabbbbccccdddd" if happened else b"aaaaccccdddd")
    assert store.epoch == (1 if where == "wait" else 2)
    assert store._container.current.queue.idle
    assert problems(store.check()) == []


# The queue alone


@pytest.mark.parametrize("where", ["enter", "spawn"])
def test_a_take_over_waits_for_a_commit_under_way(world: World, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """An interrupted caller ended the epoch beside it, and the leader took the claim of the take-over for a stranger's."""
    store, storage = open_hooked(world, Remote if where == "spawn" else Hooked, op_deadline_s=60.0)
    store.create("s")
    store.create("t")
    committing, go = hold_first(storage, is_commit)
    queue = store._container.current.queue
    if where == "spawn":
        spawn = runtime.spawn

        def interrupted(call: Callable[[], None], name: str) -> runtime.Task:
            spawn(call, name)
            assert committing.wait(60)
            raise Interrupt

        monkeypatch.setattr(runtime, "spawn", interrupted)
        with pytest.raises(Interrupt):
            store.append("s", b"aaaa")
        first = None
    else:
        first = in_thread(lambda: store.append("s", b"aaaa"))
        assert committing.wait(60)
        monkeypatch.setattr(queue, "_gathering", object())  # to be woken, which fails
        with pytest.raises(AttributeError):
            store.append("t", b"bbbb")
    monkeypatch.undo()
    assert queue.ended
    other, answered = in_thread(lambda: store.append("t", b"cccc"))
    other.join(0.2)
    assert other.is_alive()
    go.set()
    other.join(60)
    assert answered == [0]
    if first is not None:
        first[0].join(60)
        assert first[1] == [0]
    assert store.epoch == 2
    assert store.read("s", 0, 9) == b"aaaa"
    assert problems(store.check("deep")) == []
