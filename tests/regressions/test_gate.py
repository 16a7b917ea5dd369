"""Regressions of the gate: what is planned while a roll meets a recovery is planned on one state of each segment."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from chunkstore.errors import StorageUnavailable
from chunkstore.operations.pending import SegmentState
from tests.support.data import problems
from tests.support.forwarding import Hooked
from tests.support.hooked import in_thread, open_hooked, wait_for
from tests.support.worlds import World


def test_a_recovery_within_a_roll_does_not_let_two_plan_at_one_offset(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seed 1101000050: a commit within a roll met a full disk. The recovery that followed opened the gate; an append was being
    written when the roll opened it, too, with fresh states: the next append was planned at the same offset, and both were
    acknowledged."""
    store, storage = open_hooked(world, Hooked)
    store.create("s")
    core = store._core
    first_writes, go_on = threading.Event(), threading.Event()
    first: list[tuple[threading.Thread, list[object]]] = []

    def before(operation: str, names: tuple[str, ...]) -> None:
        if operation in ("create", "write") and "/d/" in names[0] and not first_writes.is_set():
            first_writes.set()
            assert go_on.wait(20)

    def meets_a_fault(_deadline_s: float) -> None:
        core.broken = StorageUnavailable("the journal, say")
        core.lifecycle.mend(core.deadline_s())
        storage.before = before
        first.append(in_thread(lambda: store.append("s", b"first")))
        # Either it is being written by now, or it waits at the gate.
        first_writes.wait(0.3)

    monkeypatch.setattr(core.committer, "drain", meets_a_fault)
    core.lifecycle.maintain()
    monkeypatch.undo()
    assert core.gate.is_open()
    wait_for(first_writes.is_set)
    second, answered = in_thread(lambda: store.append("s", b"second"))
    second.join(0.3)
    go_on.set()
    for thread, _ in (*first, (second, answered)):
        thread.join(20)
    offsets = sorted([*first[0][1], *answered], key=str)
    assert offsets in ([0, 5], [0, 6])
    assert store.read("s", 0, 100) in (b"firstsecond", b"secondfirst")
    assert problems(store.check("deep")) == []


def test_the_gate_is_open_when_nobody_wants_it_shut(world: World) -> None:
    """A roll within which something is recovered, and an end beside both."""
    store = world.open()
    store.create("s")
    core = store._core
    core.gate.shut("roll")
    core.gate.shut("recovery")
    core.gate.open("recovery")
    assert not core.gate.is_open()
    before = core.states
    core.gate.open("roll")
    assert core.gate.is_open() and core.states is not before
    before = core.states
    core.gate.open("roll")
    assert core.gate.is_open() and core.states is before, "who opens what is open changes nothing"
    assert store.append("s", b"x") == 0


def test_what_one_of_several_keeps_is_kept_when_the_last_one_opens(world: World) -> None:
    store = world.open()
    store.create("s")
    core = store._core
    state = core.states.acquire("s")
    kept: Sequence[SegmentState] = [state]
    core.gate.shut("roll")
    core.gate.shut("recovery")
    core.gate.open("roll", kept)
    assert not core.gate.is_open()
    core.gate.open("recovery")
    assert core.gate.is_open() and core.states.peek("s") is state
    core.states.release(state)
    assert store.append("s", b"x") == 0
