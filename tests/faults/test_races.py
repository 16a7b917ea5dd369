"""Directed schedules: failures in one thread at the very moment another one depends on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from chunkstore import changes
from chunkstore.deadline import Deadline
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import ChunkstoreError, Closed, Conflict, OutcomeUnknown, StorageFull, StorageUnavailable
from chunkstore.journal import RecordKind
from chunkstore.operations.exactly_once import known_event
from chunkstore.operations.owned_epoch import OwnedEpoch
from chunkstore.operations.pending import PendingOp, PendingSegment
from tests.faults.scenarios import is_opening, is_record
from tests.support.data import problems
from tests.support.forwarding import Hooked
from tests.support.hooked import wait_for
from tests.support.worlds import World, world

__all__ = ["world"]


class Stop:
    """Holds the first call that ``when`` chooses, until ``go``."""

    def __init__(self, when: Callable[[str, str], bool]) -> None:
        self._when = when
        self.reached = threading.Event()
        self.released = threading.Event()

    def __call__(self, operation: str, names: tuple[str, ...]) -> None:
        if not self.reached.is_set() and any(self._when(operation, name) for name in names):
            self.reached.set()
            assert self.released.wait(30)


@contextmanager
def in_background(call: Callable[[], object]) -> Iterator[list[object]]:
    """Runs ``call`` in a thread; yields the list that will hold its result or error."""
    results: list[object] = []

    def run() -> None:
        try:
            results.append(call())
        except Exception as error:  # noqa: BLE001  (looked at by the test)
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    yield results
    thread.join(20)
    assert not thread.is_alive()


def hooked(world: World, **settings: Any) -> tuple[ChunkedSegmentStorage, Hooked]:
    wire = Hooked(world.raw_storage())
    return world.open(storage=wire, **settings), wire


def test_a_failure_behind_a_commit_under_way_does_not_hide_it(world: World) -> None:
    """One append is being committed, a second waits behind it, a third fails: the fourth must follow the first."""
    store, wire = hooked(world)
    store.create("log")
    stop = wire.before = Stop(is_record)
    with in_background(lambda: store.append("log", b"first ")) as first:
        assert stop.reached.wait(30)
        with in_background(lambda: store.append("log", b"second ")) as second:
            while not store._container.current.queue._queue:
                time.sleep(0.001)

            def fail(operation: str, names: tuple[str, ...]) -> None:
                if operation in ("create", "write") and "/d/" in names[0]:
                    raise StorageUnavailable("injected")

            wire.before = fail
            with pytest.raises(StorageUnavailable):
                store.append("log", b"third ")
            wire.before = lambda operation, names: None
            with in_background(lambda: store.append("log", b"fourth")) as fourth:
                time.sleep(0.05)
                stop.released.set()
    assert first == [0]
    there = b"first "
    if not isinstance(second[0], Exception):
        assert second == [6]
        there += b"second "
    assert fourth == [len(there)]
    assert store.read("log", 0, 100) == there + b"fourth"
    assert problems(store.check("deep")) == []


def test_reads_during_a_roll_of_our_own_are_answered(world: World) -> None:
    """The next epoch is claimed, by ourselves: that is no reason to call ourselves deposed."""
    store, wire = hooked(world)
    store.create("log")
    store.append("log", b"x" * 100)
    stop = wire.before = Stop(is_opening)
    with in_background(store._maintenance._recovery.roll) as rolled:
        assert stop.reached.wait(30)
        assert world.raw_storage().exists(world.names().epoch(store.epoch + 1))
        with in_background(lambda: store.append("log", b"waits")) as appended:
            assert store.read("log", 0, 5) == b"xxxxx"
            assert not appended
            stop.released.set()
    assert (rolled, appended, store.epoch) == ([True], [100], 2)


def test_reads_go_on_while_a_take_over_of_our_own_cannot_be_finished(world: World) -> None:
    """A roll got as far as its claim; then there was no answer for a while. Reads are served, and the next change mends."""
    store, wire = hooked(world, op_deadline_s=0.1, undecided_s_max=0.1)
    store.create("log")
    written = b"0123456789" * 10
    store.append("log", written)

    def no_opening(operation: str, names: tuple[str, ...]) -> None:
        if any(is_opening(operation, name) for name in names):
            raise StorageUnavailable("injected")

    wire.before = no_opening
    assert not store._maintenance._recovery.roll()
    assert world.raw_storage().exists(world.names().epoch(store.epoch + 1))
    assert store.read("log", 0, 10_000) == written
    with pytest.raises(StorageUnavailable):
        store.append("log", b"no journal")
    assert store.read("log", 0, 10_000) == written
    wire.before = lambda operation, names: None
    assert store.append("log", b"mended") == len(written)
    assert problems(store.check("deep")) == []


def after_the_view_was_opened(store: ChunkedSegmentStorage, stop: Stop, first: list[object]) -> None:
    """Lets the commit that ``stop`` holds end just before the next operation looks at what is pending."""
    tables = store._container.current.tables
    check = tables.check
    called: list[bytes] = []

    def late(key: bytes) -> None:
        if not called:
            called.append(key)
            stop.released.set()
            end_s = time.monotonic() + 10
            while not first:
                assert time.monotonic() < end_s
                time.sleep(0.001)
        check(key)

    tables.check = late  # type: ignore[method-assign]


def test_a_conditional_row_sees_what_was_decided_while_it_was_planned(world: World) -> None:
    store, wire = hooked(world)
    table = store.table("rows")
    stop = wire.before = Stop(is_record)
    with in_background(lambda: table.put(b"key", b"first", expected_version=0)) as first:
        assert stop.reached.wait(30)
        after_the_view_was_opened(store, stop, first)
        with pytest.raises(Conflict):
            table.put(b"key", b"second", expected_version=0)
    assert first == [None]
    entry = table.get(b"key")
    assert entry is not None
    assert entry.value == b"first"


def test_a_deletion_sees_what_was_decided_while_it_was_planned(world: World) -> None:
    store, wire = hooked(world)
    table = store.table("rows")
    stop = wire.before = Stop(is_record)
    with in_background(lambda: table.put(b"key", b"first")) as first:
        assert stop.reached.wait(30)
        after_the_view_was_opened(store, stop, first)
        table.delete(b"key")
    assert first == [None]
    assert table.get(b"key") is None


def test_an_attach_sees_that_its_session_ended_while_it_was_planned(world: World) -> None:
    store, wire = hooked(world)
    store.create("log")
    session = store.session("elsewhere")
    chunk = session.writer().write_chunk(world.raw_storage(), 0, b"bytes")
    stop = wire.before = Stop(is_record)
    with in_background(session.end) as ended:
        assert stop.reached.wait(30)
        after_the_view_was_opened(store, stop, ended)
        with pytest.raises(Conflict):
            store.commit([changes.Attach("log", session.id, (chunk,))])
    assert ended == [None]
    assert store.info("log").length == 0


def test_a_roll_does_not_wait_for_itself(world: World) -> None:
    """An operation that nobody waits for falls into doubt while a roll drains: the take-over needs what the roll holds."""
    store, wire = hooked(world, op_deadline_s=2.0)
    owned = store._container.current
    op = PendingOp([], {}, (), (), owned.queue.generation)
    op.kind = RecordKind.HEARTBEAT
    owned.queue.enter(op)

    def fail(operation: str, names: tuple[str, ...]) -> None:
        if owned.end_reason is None and any(is_record(operation, name) for name in names):
            raise StorageUnavailable("injected")

    wire.before = fail
    store._maintenance._recovery.roll()
    assert owned.queue.wait_decided(op, Deadline(30.0))
    assert not isinstance(op.error, OutcomeUnknown)
    store.create("log")
    assert store.append("log", b"after") == 0


def test_nothing_enters_behind_close(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An append that was let in before ``close``, and comes to the queue while CLOSE is being written, is refused as such."""
    store, wire = hooked(world)
    store.create("log")
    container = store._container
    world.still(store)
    let_in, go, closed = threading.Event(), threading.Event(), threading.Event()
    serving = container.serving

    def slow_serving(deadline: Deadline) -> OwnedEpoch:
        owned = serving(deadline)
        if not let_in.is_set():
            let_in.set()
            assert go.wait(30)
        return owned

    def before(operation: str, names: tuple[str, ...]) -> None:
        if not any(is_record(operation, name) for name in names):
            return
        if go.is_set():
            assert closed.wait(30)
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
        assert let_in.wait(30)
        wire.before = before
        store.close()
        closed.set()
    (error,) = outcome
    assert isinstance(error, Closed)


def test_an_event_whose_batch_fails_is_not_there(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails just when its repetition is about to be answered from what is pending."""
    store, wire = hooked(world)
    store.create("log")
    stop = Stop(is_record)

    def full(operation: str, names: tuple[str, ...]) -> None:
        if not stop.reached.is_set():
            stop(operation, names)
            if stop.reached.is_set():
                raise StorageFull("injected")

    def late(owned: OwnedEpoch, state: PendingSegment, *arguments: Any) -> tuple[int, int] | None:
        stop.released.set()
        if (op := state.undecided()) is not None:
            assert owned.queue.wait_decided(op, Deadline(30.0))
        return known_event(owned, state, *arguments)

    def event() -> int:
        return store.append("log", b"event", writer_id=b"w", event_number=1)

    wire.before = full
    with in_background(event) as first:
        assert stop.reached.wait(30)
        monkeypatch.setattr("chunkstore.operations.append.known_event", late)
        assert event() == 0
    assert isinstance(first[0], StorageFull)
    assert store.read("log", 0, 100) == b"event"


def test_an_epoch_that_ends_beside_a_commit_deposes_nobody(world: World) -> None:
    """Who is interrupted while entering ends it. The take-over waits for the leader, who would take our claim for a stranger's."""
    store, wire = hooked(world)
    store.create("log")
    stop = wire.before = Stop(is_record)
    with in_background(lambda: store.append("log", b"beside ")) as beside:
        assert stop.reached.wait(30)
        store._container.current.end(StorageUnavailable("interrupted"))
        with in_background(lambda: store.append("log", b"after ")) as after:
            time.sleep(0.05)
            assert not after
            stop.released.set()
    assert (beside, after, store.epoch) == ([0], [7], 2)
    assert store.append("log", b"more") == 13
    assert problems(store.check("deep")) == []
