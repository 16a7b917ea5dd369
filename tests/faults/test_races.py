"""Directed schedules: failures in one thread at the very moment another one depends on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from chunkstore import changes
from chunkstore.deadline import Deadline
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import ChunkstoreError, Closed, Conflict, OutcomeUnknown, StorageFull, StorageUnavailable
from chunkstore.journal import RecordKind
from chunkstore.metadata.lines import WriterEvent
from chunkstore.operations.append_plan import known_event
from chunkstore.operations.owned_epoch import OwnedEpoch
from chunkstore.operations.pending import PendingOp, PendingSegment
from tests.faults.scenarios import is_opening, is_record
from tests.support.data import problems
from tests.support.forwarding import Hooked
from tests.support.hooked import hold_first, in_thread, open_hooked, wait_for, within
from tests.support.worlds import World, world

__all__ = ["world"]


@contextmanager
def in_background(call: Callable[[], object]) -> Iterator[list[object]]:
    """Runs ``call`` in a thread; yields the list that will hold its result or error."""
    thread, results = in_thread(call)
    yield results
    thread.join(60)
    assert not thread.is_alive()


def test_reads_during_a_roll_of_our_own_are_answered(world: World) -> None:
    """The next epoch is claimed, by ourselves: that is no reason to call ourselves deposed."""
    store, wire = open_hooked(world, Hooked)
    store.create("log")
    store.append("log", b"x" * 100)
    reached, go = hold_first(wire, is_opening)
    with in_background(store._maintenance._recovery.roll) as rolled:
        assert reached.wait(60)
        assert world.raw_storage().exists(world.names().epoch(store.epoch + 1))
        with in_background(lambda: store.append("log", b"waits")) as appended:
            assert store.read("log", 0, 5) == b"xxxxx"
            assert not appended
            go.set()
    assert (rolled, appended, store.epoch) == ([True], [100], 2)


def test_reads_go_on_while_a_take_over_of_our_own_cannot_be_finished(world: World) -> None:
    """A roll got as far as its claim; then there was no answer for a while. Reads are served, and the next change mends."""
    store, wire = open_hooked(world, Hooked, op_deadline_s=0.1, undecided_s_max=0.1)
    written = b"0123456789" * 10
    with within(store, 60.0):
        store.create("log")
        store.append("log", written)

    def no_opening(operation: str, names: tuple[str, ...]) -> None:
        if any(is_opening(operation, name) for name in names):
            raise StorageUnavailable("injected")

    wire.before = no_opening
    assert not store._maintenance._recovery.roll()
    assert world.raw_storage().exists(world.names().epoch(store.epoch + 1))
    with within(store, 60.0):
        assert store.read("log", 0, 10_000) == written
    with pytest.raises(StorageUnavailable):
        store.append("log", b"no journal")
    with within(store, 60.0):
        assert store.read("log", 0, 10_000) == written
        wire.before = lambda operation, names: None
        assert store.append("log", b"mended") == len(written)
        assert problems(store.check("deep")) == []


def after_the_view_was_opened(store: ChunkedSegmentStorage, go: threading.Event, first: list[object]) -> None:
    """Lets the commit that waits for ``go`` end just before the next operation looks at what is pending."""
    tables = store._container.current.tables
    check = tables.check
    called: list[bytes] = []

    def late(key: bytes) -> None:
        if not called:
            called.append(key)
            go.set()
            wait_for(lambda: bool(first))
        check(key)

    tables.check = late  # type: ignore[method-assign]


@pytest.mark.parametrize("second", ["put", "delete"])
def test_a_row_changes_by_what_was_decided_while_it_was_planned(world: World, second: str) -> None:
    store, wire = open_hooked(world, Hooked)
    table = store.table("rows")
    reached, go = hold_first(wire, is_record)
    with in_background(lambda: table.put(b"key", b"first", expected_version=0)) as first:
        assert reached.wait(60)
        after_the_view_was_opened(store, go, first)
        if second == "put":
            with pytest.raises(Conflict):
                table.put(b"key", b"second", expected_version=0)
        else:
            table.delete(b"key")
    assert first == [None]
    assert [entry.value for entry in table.scan()] == ([b"first"] if second == "put" else [])


def test_an_attach_sees_that_its_session_ended_while_it_was_planned(world: World) -> None:
    store, wire = open_hooked(world, Hooked)
    store.create("log")
    session = store.session("elsewhere")
    chunk = session.writer().write_chunk(world.raw_storage(), 0, b"bytes")
    reached, go = hold_first(wire, is_record)
    with in_background(session.end) as ended:
        assert reached.wait(60)
        after_the_view_was_opened(store, go, ended)
        with pytest.raises(Conflict):
            store.commit([changes.Attach("log", session.id, (chunk,))])
    assert ended == [None]
    assert store.info("log").length == 0


def test_a_roll_does_not_wait_for_itself(world: World) -> None:
    """An operation that nobody waits for falls into doubt while a roll drains: the take-over needs what the roll holds."""
    store, wire = open_hooked(world, Hooked, op_deadline_s=2.0)
    owned = store._container.current
    op = PendingOp([], {}, (), (), owned.queue.generation)
    op.kind = RecordKind.HEARTBEAT
    owned.queue.enter(op)

    def fail(operation: str, names: tuple[str, ...]) -> None:
        if owned.end_reason is None and any(is_record(operation, name) for name in names):
            raise StorageUnavailable("injected")

    wire.before = fail
    store._maintenance._recovery.roll()
    assert owned.queue.wait_decided(op, Deadline(60.0))
    assert not isinstance(op.error, OutcomeUnknown)
    with within(store, 60.0):
        store.create("log")
        assert store.append("log", b"after") == 0


def test_nothing_enters_behind_close(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An append that was let in before ``close``, and comes to the queue while CLOSE is being written, is refused as such."""
    store, wire = open_hooked(world, Hooked)
    store.create("log")
    container = store._container
    let_in, go, closed = threading.Event(), threading.Event(), threading.Event()
    serving = container.serving

    def slow_serving(deadline: Deadline, *adds: int) -> OwnedEpoch:
        owned = serving(deadline, *adds)
        if not let_in.is_set():
            let_in.set()
            assert go.wait(60)
        return owned

    def before(operation: str, names: tuple[str, ...]) -> None:
        if not any(is_record(operation, name) for name in names):
            return
        if go.is_set():
            assert closed.wait(60)
        else:
            go.set()
            wait_for(lambda: bool(outcome or container.current.queue._queue))

    end = container.current.end

    def slow_end(reason: ChunkstoreError) -> None:
        wait_for(lambda: bool(outcome or not container.current.queue._queue))
        end(reason)

    monkeypatch.setattr(container, "serving", slow_serving)
    monkeypatch.setattr(container.current, "end", slow_end)
    with in_background(lambda: store.append("log", b"late")) as outcome:
        assert let_in.wait(60)
        wire.before = before
        store.close()
        closed.set()
    (error,) = outcome
    assert isinstance(error, Closed)


def test_an_event_whose_batch_fails_is_not_there(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails just when its repetition is about to be answered from what is pending."""
    store, wire = open_hooked(world, Hooked)
    store.create("log")
    reached, go = hold_first(wire, is_record)
    hold = wire.before

    def full(operation: str, names: tuple[str, ...]) -> None:
        if not reached.is_set():
            hold(operation, names)
            if reached.is_set():
                raise StorageFull("injected")

    def late(owned: OwnedEpoch, state: PendingSegment, *arguments: Any) -> WriterEvent | None:
        go.set()
        if (op := state.undecided()) is not None:
            assert owned.queue.wait_decided(op, Deadline(60.0))
        return known_event(owned, state, *arguments)

    def event() -> int:
        return store.append("log", b"event", writer_id=b"w", event_number=1)

    wire.before = full
    with in_background(event) as first:
        assert reached.wait(60)
        monkeypatch.setattr("chunkstore.operations.append.known_event", late)
        assert event() == 0
    assert isinstance(first[0], StorageFull)
    assert store.read("log", 0, 100) == b"event"
