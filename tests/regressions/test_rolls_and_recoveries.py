"""Operations beside a roll or a take-over: planned on one state of each segment, committed in one epoch, decided once."""

from __future__ import annotations

import threading

import pytest

from chunkstore.changes import Change, TableDelete, TablePut
from chunkstore.errors import Conflict, OutcomeUnknown, StorageFull, StorageUnavailable
from chunkstore.operations import commit
from chunkstore.operations.change_set import ChangeSet
from chunkstore.operations.tables import plan_put_row
from tests.support.data import problems
from tests.support.forwarding import Hooked
from tests.support.hooked import hold_first, in_thread, is_commit, is_data, open_hooked, wait_for
from tests.support.worlds import World


def test_a_recovery_within_a_roll_does_not_let_two_plan_at_one_offset(world: World) -> None:
    """Seed 1101000050: a commit within a roll met a full disk. The recovery that followed let an append in; when the roll ended, the
    next append was planned at the same offset, and both were acknowledged."""
    store, storage = open_hooked(world, Hooked)
    store.create("s")
    committing, fail = threading.Event(), threading.Event()
    writing: list[tuple[threading.Event, threading.Event]] = []

    def full(operation: str, names: tuple[str, ...]) -> None:
        if is_commit(operation, names[0]):
            committing.set()
            assert fail.wait(60)
            writing.append(hold_first(storage, is_data))
            raise StorageFull("injected")

    storage.before = full
    creating, refused = in_thread(lambda: store.create("t"))
    assert committing.wait(60)
    rolling, rolled = in_thread(store._maintenance._recovery.roll)
    wait_for(lambda: store._container.draining)
    first, answered = in_thread(lambda: store.append("s", b"first"))
    fail.set()
    wait_for(lambda: bool(writing))
    assert writing[0][0].wait(60)
    rolling.join(60)
    second, also_answered = in_thread(lambda: store.append("s", b"second"))
    second.join(0.3)
    writing[0][1].set()
    for thread in (first, second, creating):
        thread.join(60)
    assert rolled == [False] and store.epoch == 2
    assert isinstance(refused[0], StorageFull)
    assert (answered, also_answered) in (([0], [5]), ([6], [0]))
    assert store.read("s", 0, 100) in (b"firstsecond", b"secondfirst")
    assert problems(store.check("deep")) == []


def test_an_event_whose_epoch_ended_meanwhile_is_answered_once(world: World) -> None:
    """Its write hung while others took over; a retry of it was told the offset of what had been refused: acknowledged, and nowhere."""
    store, storage = open_hooked(world, Hooked, op_deadline_s=60.0)
    for name in ("x", "y"):
        store.create(name)
    store.append("x", b"0", writer_id=b"w", event_number=4)
    hanging, go = hold_first(storage, is_data)
    calls = [in_thread(lambda: store.append("x", b"EVENT5", writer_id=b"w", event_number=5))]
    assert hanging.wait(60)

    hold = storage.before

    def full(operation: str, names: tuple[str, ...]) -> None:
        hold(operation, names)
        if is_commit(operation, names[0]):
            storage.before = hold
            raise StorageFull("injected")

    storage.before = full
    calls.append(in_thread(lambda: store.append("x", b"EVENT5", writer_id=b"w", event_number=5)))
    with pytest.raises(StorageFull):
        store.append("y", b"z")
    assert store.append("y", b"z") == 0 and store.epoch == 2
    calls.append(in_thread(lambda: store.append("x", b"EVENT5", writer_id=b"w", event_number=5)))
    calls[-1][0].join(60)
    go.set()
    for thread, _ in calls:
        thread.join(60)
    # Where an append enters before it is written, the first one failed with its epoch.
    answers = [found[0] for _, found in calls]
    assert answers[-1] == 1
    assert all(answer == 1 or isinstance(answer, StorageFull) for answer in answers), answers
    assert store.read("x", 0, 99) == b"0EVENT5"
    assert store.last_event_number("x", b"w") == 5
    assert problems(store.check("deep")) == []


class Planning:
    """Planning a put of the rows "a" and "z" waits there until told to go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached = {key: threading.Event() for key in (b"a", b"z")}
        self.go = {key: threading.Event() for key in (b"a", b"z")}

        def slowly(changes: ChangeSet, namespace: str, key: bytes, value: bytes, expected_version: int | None) -> None:
            if key in self.go:
                self.reached[key].set()
                assert self.go[key].wait(60)
            plan_put_row(changes, namespace, key, value, expected_version)

        monkeypatch.setattr(commit, "plan_put_row", slowly)

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
            assert self.answer.wait(60)
            raise StorageUnavailable("injected: the answer was lost")


@pytest.mark.parametrize("change", [TablePut("t", b"k", b"planned", expected_version=0), TableDelete("t", b"k", 0)])
def test_a_conditional_change_planned_before_a_recovery(
    world: World, monkeypatch: pytest.MonkeyPatch, change: Change
) -> None:
    """It had found no row, and was committed behind a recovery that had found one in the journal."""
    if world.mode == "slot":
        return  # a slot is asked about until it is decided
    store, storage = open_hooked(world, Hooked, op_deadline_s=60.0, undecided_s_max=0.05)
    store.create("s")
    table, planning, doubtful = store.table("t"), Planning(monkeypatch), Doubtful(storage)
    first, first_found = in_thread(lambda: table.put(b"k", b"in doubt"))
    try:
        assert doubtful.committing.wait(60)
        second, second_found = in_thread(
            lambda: store.commit([TablePut("t", b"a", b"1"), change, TablePut("t", b"z", b"1")])
        )
        assert planning.reached[b"a"].wait(60)
        doubtful.answer.set()
        first.join(60)
        assert isinstance(first_found[0], OutcomeUnknown), first_found
        planning.go[b"a"].set()
        assert planning.reached[b"z"].wait(60)
        doubtful.bad = False
        assert store.append("s", b"mends") == 0
        assert store.epoch == 2
    finally:
        doubtful.answer.set()
        planning.release()
    second.join(60)
    assert isinstance(second_found[0], Conflict), second_found
    entry = table.get(b"k")
    assert entry is not None
    assert entry.value == b"in doubt"
    assert table.get(b"z") is None
    assert problems(store.check("deep")) == []
