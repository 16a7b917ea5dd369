"""Whoever is interrupted between planning and the queue leaves nothing behind: no segment, row or roll that waits for ever."""

from __future__ import annotations

import pytest

from chunkstore.changes import Append, Seal, TablePut
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import StorageUnavailable
from chunkstore.operations.pending import PendingOp
from tests.regressions.test_commit_queue import Interrupt
from tests.support.data import problems
from tests.support.forwarding import Hooked, nothing
from tests.support.hooked import hold_first, in_thread, open_hooked, wait_for
from tests.support.worlds import World


def interrupt_entering(monkeypatch: pytest.MonkeyPatch, store: ChunkedSegmentStorage, moment: str) -> None:
    """Whoever enters the queue next is interrupted on the way in, or right behind it."""
    queue = store._container.current.queue
    enter = queue.enter

    def interrupted(op: PendingOp) -> None:
        monkeypatch.setattr(queue, "enter", enter)
        if moment == "behind":
            enter(op)
        raise Interrupt

    monkeypatch.setattr(queue, "enter", interrupted)


moments = pytest.mark.parametrize("moment", ["before", "behind"])


@moments
@pytest.mark.parametrize("then", ["commit", "append"])
def test_an_append_interrupted_at_the_queue(
    world: World, monkeypatch: pytest.MonkeyPatch, moment: str, then: str
) -> None:
    """Before the queue its segment waited for it for ever, or the next append was planned behind bytes that nobody had committed;
    behind it, nobody led."""
    store = world.open(op_deadline_s=60.0)
    store.create("s")
    store.append("s", b"0123")
    interrupt_entering(monkeypatch, store, moment)
    with pytest.raises(Interrupt):
        store.append("s", b"AAAA")
    # Where an append enters before it is written, this one never was.
    content = b"0123AAAA" if moment == "behind" and world.appends else b"0123"
    if then == "commit":
        # Changes of several segments wait until nothing is undecided on theirs.
        assert store.commit([Append("s", b"BBBB")]) == [len(content)]
    else:
        assert store.append("s", b"BBBB") == len(content)
    assert store.append("s", b"CCCC") == len(content) + 4
    assert store.read("s", 0, 99) == content + b"BBBBCCCC"
    assert store._container.current.queue.idle
    assert problems(store.check("deep")) == []


def test_an_append_behind_one_that_was_interrupted(world: World) -> None:
    """Where several are written at once, those behind it are neither lost nor kept waiting."""
    if world.appends:
        return  # one append to a segment is written at a time where chunks can grow
    store, storage = open_hooked(world, Hooked, op_deadline_s=60.0)
    store.create("s")
    writing, go = hold_first(storage, lambda operation, name: operation == "create" and "/d/" in name)

    def interrupted(operation: str, names: tuple[str, ...]) -> None:
        if operation == "create" and "/d/" in names[0] and go.is_set():
            raise Interrupt

    first, first_found = in_thread(lambda: store.append("s", b"AAAA"))
    assert writing.wait(60)
    second, second_found = in_thread(lambda: store.append("s", b"BBBB"))
    queue = store._container.current.queue
    wait_for(lambda: len(queue._queue) == 2 and queue._queue[1].written)
    storage.after = interrupted
    go.set()
    for thread in (first, second):
        thread.join(60)
    assert isinstance(first_found[0], Interrupt) and isinstance(second_found[0], StorageUnavailable)
    storage.after = nothing
    assert store.append("s", b"CCCC") == 0
    store.seal("s")
    assert store.read("s", 0, 99) == b"CCCC"
    assert problems(store.check("deep")) == []


@moments
def test_a_change_interrupted_at_the_queue(world: World, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    """Its segment was undecided for ever, and every later conditional change of its row waited until its deadline."""
    store = world.open(op_deadline_s=60.0)
    table = store.table("t")
    store.create("s")
    store.append("s", b"0123")
    interrupt_entering(monkeypatch, store, moment)
    with pytest.raises(Interrupt):
        store.commit([Seal("s"), TablePut("t", b"k", b"first")])
    table.put(b"k", b"second", expected_version=0)
    entry = table.get(b"k")
    assert entry is not None and entry.value == b"second"
    assert store.append("s", b"4567") == 4
    store.seal("s")
    assert store.read("s", 0, 99) == b"01234567"
    assert store._container.current.queue.idle
    assert problems(store.check("deep")) == []
