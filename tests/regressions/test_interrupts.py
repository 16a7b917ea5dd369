"""An interrupt (Ctrl-C, or no memory left) leaves nothing behind: no gate that is shut, no state forgotten, nothing undecided."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import pytest

from chunkstore import runtime
from chunkstore.changes import Append
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import Conflict, StorageUnavailable
from chunkstore.operations.core import Core
from chunkstore.operations.pending import PendingOp, SegmentStates
from tests.support.data import problems
from tests.support.forwarding import Hooked
from tests.support.hooked import Remote, hold_first, in_thread, is_commit, open_hooked, wait_for
from tests.support.worlds import World


class Interrupt(BaseException):
    """As KeyboardInterrupt, but of this test only."""


class InterruptingLock:
    """A lock in front of another one: ``victim`` is interrupted when it asks for it, once. ``wanted`` is set when somebody waits."""

    def __init__(self, inner: runtime.Lock, wanted: threading.Event) -> None:
        self._inner = inner
        self._wanted = wanted
        self.victim: threading.Thread | None = None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if threading.current_thread() is self.victim:
            self.victim = None
            raise Interrupt
        if self._inner.acquire(False):
            return True
        if not blocking:
            return False
        self._wanted.set()
        return self._inner.acquire(True, timeout)

    def release(self) -> None:
        self._inner.release()

    def locked(self) -> bool:
        return self._inner.locked()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.release()


class Writing:
    """An append of four bytes to "s", under the segment's lock, that hangs when they are written; that lock, and whether somebody
    waits for it (or, as behind a change of structure, for the turn to take it)."""

    def __init__(self, store: ChunkedSegmentStorage, storage: Hooked, how: str) -> None:
        self._written, self._go = threading.Event(), threading.Event()
        self.wanted = threading.Event()
        state = store._core.states.peek("s")
        assert state is not None
        state.turn = InterruptingLock(state.turn, self.wanted)
        self.lock = state.lock = InterruptingLock(state.lock, self.wanted)
        storage.after = self._after
        self.thread, self.found = in_thread(
            lambda: store.append("s", b"AAAA") if how == "append" else store.commit([Append("s", b"AAAA")])[0]
        )
        assert self._written.wait(30)

    def _after(self, operation: str, names: tuple[str, ...]) -> None:
        if operation in ("create", "write") and "/d/" in names[0] and not self._written.is_set():
            self._written.set()
            assert self._go.wait(20)

    def go_on(self) -> None:
        self._go.set()


@contextmanager
def writing(world: World, how: str) -> Iterator[tuple[ChunkedSegmentStorage, Hooked, Writing]]:
    if how == "append" and not world.appends:
        pytest.skip("appends are not written under a segment's lock where chunks cannot grow")
    store, storage = open_hooked(world, Hooked, op_deadline_s=30.0)
    store._core.patience_s = 0.1
    store.create("s")
    store.create("t")
    store.append("s", b"0123")
    written = Writing(store, storage, how)
    try:
        yield store, storage, written
    finally:
        written.go_on()
        written.thread.join(30)


# While the gate is being shut


@pytest.mark.parametrize("how", ["append", "commit"])
def test_a_roll_interrupted_while_it_shuts_the_gate(world: World, how: str) -> None:
    """The gate opened again with fresh states, although somebody was writing on a former one: the next append was planned, and
    acknowledged, at the same offset."""
    with writing(world, how) as (store, _, first):
        core = store._core
        core.lifecycle.roll_due = lambda: True  # type: ignore[method-assign]
        first.lock.victim = threading.current_thread()
        with pytest.raises(Interrupt):
            store.append("t", b"x")
        core.lifecycle.roll_due = lambda: False  # type: ignore[method-assign]
        second, answered = in_thread(lambda: store.append("s", b"BBBB"))
        wait_for(lambda: first.wanted.is_set() or not second.is_alive())
        first.go_on()
        for thread in (first.thread, second):
            thread.join(30)
        assert (first.found, answered) == ([4], [8])
        assert store.read("s", 0, 99) == b"0123AAAABBBB"
        assert core.committer.inflight() == 0
        assert problems(store.check("deep")) == []


@pytest.mark.parametrize("how", ["append", "commit"])
def test_a_recovery_interrupted_while_it_shuts_the_gate(world: World, how: str) -> None:
    """The next one did not know of who was still writing: what was planned upon that was acknowledged in the new epoch, over what
    others had appended meanwhile."""
    with writing(world, how) as (store, storage, first):
        core = store._core
        second, second_found = in_thread(lambda: store.append("s", b"BBBB"))
        assert first.wanted.wait(30)
        core.broken = StorageUnavailable("the journal, say")
        first.lock.victim = threading.current_thread()
        with pytest.raises(Interrupt):
            store.append("t", b"x")
        assert store.append("t", b"y") == 0
        assert store.epoch == 2
        assert store.append("s", b"CCCC") == 4
        committing, go = hold_first(storage, is_commit)
        other, other_found = in_thread(lambda: store.append("t", b"z"))
        try:
            assert committing.wait(30)
            first.go_on()
            # Both are answered, or wait behind the commit that is under way.
            wait_for(lambda: len(core.committer._queue) + (not first.thread.is_alive()) + (not second.is_alive()) >= 2)
        finally:
            go.set()
        for thread in (first.thread, second, other):
            thread.join(30)
        assert isinstance(first.found[0], StorageUnavailable), first.found
        assert (second_found, other_found) == ([8], [1])
        assert store.read("s", 0, 99) == b"0123CCCCBBBB"
        assert core.committer.inflight() == 0
        assert problems(store.check("deep")) == []


# While the gate opens


@pytest.mark.parametrize("why", ["roll", "recovery"])
def test_interrupted_while_the_gate_opens(world: World, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    """It stayed shut, and everybody waited at it for ever; after a roll, none came any more."""
    store = world.open(op_deadline_s=30.0)
    store.create("s")
    core = store._core
    real, calls = SegmentStates.__init__, []

    def renew(self: SegmentStates, *arguments: Any) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise Interrupt
        real(self, *arguments)

    monkeypatch.setattr(SegmentStates, "__init__", renew)
    if why == "roll":
        monkeypatch.setattr(core.lifecycle, "roll_due", lambda: core.epoch == 1)
    else:
        core.broken = StorageUnavailable("the journal, say")
    with pytest.raises(Interrupt):
        store.append("s", b"0123")
    assert calls
    assert store.epoch == 2
    length = store.info("s").length
    assert length == (4 if why == "roll" else 0)
    assert store.append("s", b"4567") == length
    monkeypatch.setattr(core.lifecycle, "roll_due", lambda: core.epoch == 2)
    assert store.append("s", b"89") == length + 4
    assert store.epoch == 3
    assert problems(store.check("deep")) == []


# While a take-over measures lazy chunks


@pytest.mark.parametrize("error", [Interrupt, MemoryError])
def test_interrupted_while_lazy_chunks_are_measured(world: World, error: type[BaseException]) -> None:
    """The claim stood on the storage and nobody knew that it was our own: the next take-over deposed its owner for ever."""
    if not world.appends:
        pytest.skip("lengths are lazy where chunks can grow only")
    store, storage = open_hooked(world, Hooked, op_deadline_s=30.0, lengths="lazy")
    store.create("s")
    store.append("s", b"0123")
    store.append("s", b"4567")
    measured: list[str] = []

    def before(operation: str, names: tuple[str, ...]) -> None:
        if operation == "stat" and "/d/" in names[0] and not measured:
            measured.append(names[0])
            raise error

    storage.before = before
    store._core.broken = StorageUnavailable("the journal, say")
    with pytest.raises((error, StorageUnavailable)):
        store.append("s", b"not")
    assert measured
    assert store._core.fenced is None
    assert store.append("s", b"89") == 8
    assert store.read("s", 0, 99) == b"0123456789"
    assert problems(store.check("deep")) == []


# Between planning and the queue


def interrupt_entering(monkeypatch: pytest.MonkeyPatch, core: Core, moment: str, number: int = 1) -> None:
    """Whoever enters the queue as the ``number``-th from now on is interrupted on the way in, or right behind it."""
    real, calls = core.committer.enter, []

    def enter(op: PendingOp, **named: Any) -> bool:
        calls.append(op)
        if len(calls) != number:
            return real(op, **named)
        if moment == "behind":
            assert real(op, **named)
        raise Interrupt

    monkeypatch.setattr(core.committer, "enter", enter)


moments = pytest.mark.parametrize("moment", ["before", "behind"])


@moments
def test_an_append_interrupted_at_the_queue(world: World, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    """Before the queue its segment waited for it for ever, or the next append was planned behind bytes that nobody had committed;
    behind it, nobody led."""
    store = world.open(op_deadline_s=30.0)
    store.create("s")
    store.append("s", b"0123")
    interrupt_entering(monkeypatch, store._core, moment)
    with pytest.raises(Interrupt):
        store.append("s", b"AAAA")
    # Changes of several segments wait until nothing is undecided on theirs.
    content = b"0123AAAA" if moment == "behind" else b"0123"
    assert store.commit([Append("s", b"BBBB")]) == [len(content)]
    assert store.append("s", b"CCCC") == len(content) + 4
    assert store.read("s", 0, 99) == content + b"BBBBCCCC"
    assert store._core.committer.inflight() == 0
    assert problems(store.check("deep")) == []


def test_an_append_after_one_that_was_interrupted_before_the_queue(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was planned behind bytes of which there was no record."""
    store = world.open(op_deadline_s=30.0)
    store.create("s")
    store.append("s", b"0123")
    interrupt_entering(monkeypatch, store._core, "before")
    with pytest.raises(Interrupt):
        store.append("s", b"AAAA")
    assert store.append("s", b"BBBB") == 4
    assert store.read("s", 0, 99) == b"0123BBBB"
    assert store._core.committer.inflight() == 0
    assert problems(store.check("deep")) == []


def test_who_enters_the_queue_with_an_interrupted_append(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where several are written at once, the first one puts those behind it into the queue, too. Interrupted in between, it left
    them outside, and whoever waited for them waited in vain."""
    if world.appends:
        pytest.skip("one append to a segment is written at a time where chunks can grow")
    store, storage = open_hooked(world, Hooked, op_deadline_s=30.0)
    store.create("s")
    core = store._core
    writes, go = hold_first(storage, lambda operation, name: operation == "create" and "/d/" in name)
    first, first_found = in_thread(lambda: store.append("s", b"AAAA"))
    try:
        assert writes.wait(30)
        second, second_found = in_thread(lambda: store.append("s", b"BBBB"))
        state = core.states.peek("s")
        assert state is not None
        wait_for(lambda: len(state.reserved) == 2 and state.reserved[1].written)
        interrupt_entering(monkeypatch, core, "before", number=2)
    finally:
        go.set()
    for thread in (first, second):
        thread.join(30)
    assert isinstance(first_found[0], Interrupt), first_found
    assert second_found == [4]
    store.seal("s")
    assert store.read("s", 0, 99) == b"AAAABBBB"
    assert core.committer.inflight() == 0
    assert problems(store.check("deep")) == []


@moments
@pytest.mark.parametrize("lengths", ["exact", "lazy"])
def test_a_seal_interrupted_at_the_queue(
    world: World, monkeypatch: pytest.MonkeyPatch, lengths: str, moment: str
) -> None:
    """Its segment was undecided for ever. Where lengths are lazy it is the record that closes the last chunk which is interrupted."""
    if lengths == "lazy" and not world.appends:
        pytest.skip("lengths are lazy where chunks can grow only")
    store = world.open(op_deadline_s=30.0, lengths=lengths)
    world.crash(store)  # the keeper would settle, too
    store.create("s")
    store.append("s", b"0123")
    store.append("s", b"4567")
    interrupt_entering(monkeypatch, store._core, moment)
    with pytest.raises(Interrupt):
        store.seal("s")
    store.seal("s")
    assert store.info("s").sealed
    assert store.read("s", 0, 99) == b"01234567"
    assert store._core.committer.inflight() == 0
    assert problems(store.check("deep")) == []


@moments
def test_a_row_interrupted_at_the_queue(world: World, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    """Every later conditional change of it waited for it until its deadline."""
    store = world.open(op_deadline_s=30.0)
    table = store.table("t")
    interrupt_entering(monkeypatch, store._core, moment)
    with pytest.raises(Interrupt):
        table.put(b"k", b"first")
    if moment == "before":
        table.put(b"k", b"second", expected_version=0)
    else:
        with pytest.raises(Conflict):
            table.put(b"k", b"second", expected_version=0)
    entry = table.get(b"k")
    assert entry is not None
    assert entry.value == (b"second" if moment == "before" else b"first")
    assert store._core.committer.inflight() == 0


def test_a_note_interrupted_before_the_queue(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It counted as under way for ever: no journal was rolled any more."""
    store = world.open(op_deadline_s=30.0)
    store.create("s")
    core = store._core
    interrupt_entering(monkeypatch, core, "before")
    with pytest.raises(Interrupt):
        store.snapshot()
    assert core.committer.inflight() == 0
    monkeypatch.setattr(core.lifecycle, "roll_due", lambda: core.epoch == 1)
    assert store.append("s", b"x") == 0
    assert store.epoch == 2


@pytest.mark.parametrize("remote", [False, True], ids=["local", "remote"])
def test_who_was_about_to_lead_is_interrupted(world: World, monkeypatch: pytest.MonkeyPatch, remote: bool) -> None:
    """The lead was taken, and nobody led: whatever came later waited for a commit that never began."""
    store, _ = open_hooked(world, Remote if remote else Hooked, op_deadline_s=30.0)
    store.create("s")
    target: tuple[object, str] = (runtime, "spawn") if remote else (store._core.committer, "_lead")
    real: Callable[..., Any] = getattr(*target)

    def interrupted(*arguments: Any) -> Any:
        if remote and arguments[1] != "chunkstore-committer":
            return real(*arguments)
        monkeypatch.undo()
        raise Interrupt

    monkeypatch.setattr(*target, interrupted)
    with pytest.raises(Interrupt):
        store.append("s", b"AAAA")
    assert store.append("s", b"BBBB") == 4
    assert store.read("s", 0, 99) == b"AAAABBBB"
    assert store._core.committer.inflight() == 0
    assert problems(store.check("deep")) == []
