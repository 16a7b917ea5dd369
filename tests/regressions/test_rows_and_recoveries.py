"""Changes beside a recovery: what was planned before it is not committed behind it, and what was acknowledged is not forgotten."""

from __future__ import annotations

import threading

import pytest

from chunkstore.changes import Change, TableDelete, TablePut
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import ChunkstoreError, Conflict, OutcomeUnknown, StorageFull, StorageUnavailable
from chunkstore.journal import RecordKind
from chunkstore.metadata.keys import table_key
from chunkstore.operations import apply_changes, lazy
from chunkstore.operations.core import Core
from chunkstore.operations.draft import Draft
from chunkstore.operations.pending import PendingOp, SegmentState
from chunkstore.operations.table import KeyBusy, PendingTables, plan_put
from tests.support.data import problems
from tests.support.forwarding import Hooked
from tests.support.hooked import hold_first, in_thread, is_commit, open_hooked, wait_for
from tests.support.worlds import World


class Planning:
    """Planning a put of the rows "a" and "z" waits there until told to go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached = {key: threading.Event() for key in (b"a", b"z")}
        self.go = {key: threading.Event() for key in (b"a", b"z")}

        def slowly(draft: Draft, namespace: str, key: bytes, value: bytes, expected_version: int | None) -> None:
            if key in self.go:
                self.reached[key].set()
                assert self.go[key].wait(20)
            plan_put(draft, namespace, key, value, expected_version)

        monkeypatch.setattr(apply_changes, "plan_put", slowly)

    def release(self) -> None:
        for event in self.go.values():
            event.set()


class Doubtful:
    """While ``bad``, records are written and the answer is lost, and the journal cannot be taken over. The first one waits."""

    def __init__(self, storage: Hooked) -> None:
        self.bad = True
        self.committing, self.answer = threading.Event(), threading.Event()
        storage.before, storage.after = self._before, self._after

    def _before(self, operation: str, names: tuple[str, ...]) -> None:
        if self.bad and operation == "create_if_absent" and "/epoch/" in names[0]:
            raise StorageFull("injected: disk full")

    def _after(self, operation: str, names: tuple[str, ...]) -> None:
        if self.bad and is_commit(operation, names[0]):
            self.committing.set()
            assert self.answer.wait(20)
            raise StorageUnavailable("injected: the answer was lost")


@pytest.mark.parametrize("change", [TablePut("t", b"k", b"planned", expected_version=0), TableDelete("t", b"k", 0)])
def test_a_conditional_change_planned_before_a_recovery(
    world: World, monkeypatch: pytest.MonkeyPatch, change: Change
) -> None:
    """It had found no row, and was committed behind a recovery that had found one in the journal."""
    if world.mode == "slot":
        pytest.skip("a slot is asked about until it is decided")
    store, storage = open_hooked(world, Hooked, op_deadline_s=60.0, undecided_s_max=0.05)
    store.create("s")
    table, planning, doubtful = store.table("t"), Planning(monkeypatch), Doubtful(storage)
    first, first_found = in_thread(lambda: table.put(b"k", b"in doubt"))
    try:
        assert doubtful.committing.wait(30)
        second, second_found = in_thread(
            lambda: store.commit([TablePut("t", b"a", b"1"), change, TablePut("t", b"z", b"1")])
        )
        assert planning.reached[b"a"].wait(30)
        doubtful.answer.set()
        first.join(30)
        assert isinstance(first_found[0], OutcomeUnknown), first_found
        planning.go[b"a"].set()
        assert planning.reached[b"z"].wait(30)
        doubtful.bad = False
        assert store.append("s", b"mends") == 0
        assert store.epoch == 2
    finally:
        doubtful.answer.set()
        planning.release()
    second.join(30)
    assert isinstance(second_found[0], Conflict), second_found
    entry = table.get(b"k")
    assert entry is not None
    assert entry.value == b"in doubt"
    assert table.get(b"z") is None
    assert problems(store.check("deep")) == []


def changing(*keys: bytes) -> PendingOp:
    op = PendingOp([], {}, (), (), 0)
    op.table_keys = keys
    return op


def test_a_row_is_busy_until_the_last_change_of_it_is_decided() -> None:
    """A newer change that failed hid an older one of the same row that was undecided: who expected a version did not wait for it."""
    tables = PendingTables()
    key, other = table_key("t", b"k"), table_key("t", b"other")
    older, newer = changing(key), changing(key, other)
    tables.remember(older)
    tables.remember(newer)
    with pytest.raises(KeyBusy) as busy:
        tables.check(key)
    assert busy.value.op is newer
    tables.forget(newer)
    tables.check(other)
    with pytest.raises(KeyBusy) as busy:
        tables.check(key)
    assert busy.value.op is older
    tables.forget(newer)
    older.decided = True
    tables.check(key)
    tables.forget(older)
    tables.check(key)


def test_a_change_left_behind_does_not_hide_an_older_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of two changes of a row did not enter the queue; a third one, with an expected version, was planned beside the first."""
    store, storage = open_hooked(world, Hooked, op_deadline_s=30.0)
    table, core = store.table("t"), store._core
    committing, go = hold_first(storage, is_commit)
    first, first_found = in_thread(lambda: table.put(b"k", b"first"))
    try:
        assert committing.wait(30)
        monkeypatch.setattr(core.committer, "enter", lambda op, **named: False)
        with pytest.raises(StorageUnavailable):
            table.put(b"k", b"left behind")
        monkeypatch.undo()
        busy = threading.Event()
        wait_decided = core.committer.wait_decided

        def waiting(op: PendingOp, deadline_s: float) -> bool:
            busy.set()
            return wait_decided(op, deadline_s)

        monkeypatch.setattr(core.committer, "wait_decided", waiting)
        third, third_found = in_thread(lambda: table.put(b"k", b"third", expected_version=0))
        wait_for(lambda: busy.is_set() or len(core.committer._queue) == 1)
    finally:
        go.set()
    for thread in (first, third):
        thread.join(30)
    assert first_found == [None]
    assert isinstance(third_found[0], Conflict), third_found
    entry = table.get(b"k")
    assert entry is not None
    assert entry.value == b"first"


class Interrupt(BaseException):
    """As KeyboardInterrupt, but of this test only."""


def test_a_record_that_went_to_another_journal_than_its_leader_expected(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between a leader's first look and its record somebody else took over; interrupted behind the record, the leader took it for
    one of the former journal, said that it had not happened, and the next one wrote to the same place."""
    store, storage = open_hooked(world, Hooked, op_deadline_s=30.0)
    store.create("s")
    core = store._core
    interrupted: list[str] = []

    def after(operation: str, names: tuple[str, ...]) -> None:
        if operation in ("sync", "create_if_absent") and "/j/" in names[0]:
            interrupted.append(names[0])
            storage.after = lambda operation, names: None
            raise Interrupt

    def others_mend(_now_s: float) -> None:
        monkeypatch.undo()
        core.broken = StorageUnavailable("an earlier batch, say")
        core.lifecycle.mend(core.deadline_s())
        storage.after = after

    monkeypatch.setattr(core, "check_cache_space", others_mend)
    with pytest.raises(Interrupt):
        core.lifecycle.note(RecordKind.HEARTBEAT, ())
    assert interrupted
    assert store.epoch == 3, "the one that was interrupted was taken over, too"
    assert store.append("s", b"0123") == 0
    assert store.read("s", 0, 9) == b"0123"
    assert core.committer.inflight() == 0
    assert problems(store.check("deep")) == []


def lazy_store(world: World) -> tuple[ChunkedSegmentStorage, Hooked]:
    """Two segments, each with bytes that are acknowledged and not journaled; nobody journals them but the test."""
    if not world.appends:
        pytest.skip("lengths are lazy where chunks can grow only")
    store, storage = open_hooked(world, Hooked, op_deadline_s=30.0, lengths="lazy")
    world.crash(store)
    for name in "ab":
        store.create(name)
        store.append(name, b"0123")
        store.append(name, b"4567")
    return store, storage


def test_settling_beside_a_take_over_that_could_not_measure(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It found chunks of the former epoch, took them for settled and forgot what was acknowledged of them: until they were
    measured, readers saw less."""
    store, storage = lazy_store(world)
    core = store._core
    down = True

    def before(operation: str, names: tuple[str, ...]) -> None:
        if down and operation == "stat" and "/d/" in names[0]:
            raise StorageUnavailable("injected")

    storage.before = before
    settle_one = lazy._settle_one

    def then_a_take_over(of: Core, state: SegmentState, *, closing: bool) -> PendingOp | None:
        monkeypatch.undo()
        settled = settle_one(of, state, closing=closing)
        core.broken = StorageUnavailable("the journal, say")
        with pytest.raises(ChunkstoreError):
            core.lifecycle.mend(core.deadline_s())
        assert store.epoch == 2
        return settled

    monkeypatch.setattr(lazy, "_settle_one", then_a_take_over)
    lazy.settle(core)
    assert store.epoch == 2
    for name in "ab":
        assert store.info(name).length == 8
        assert store.read(name, 0, 99) == b"01234567"
    down = False
    for name in "ab":
        assert store.append(name, b"89") == 8
        assert store.read(name, 0, 99) == b"0123456789"
    assert problems(store.check("deep")) == []
