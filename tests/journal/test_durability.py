"""What is relied upon was made durable first, and what is unknown stays unknown (protocol 2.3, P6)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from chunkstore import runtime
from chunkstore.checksum import BytesLike
from chunkstore.errors import (
    AccessDenied,
    ChunkstoreError,
    Closed,
    DeadlineExceeded,
    InvalidArgument,
    StorageFull,
    StorageUnavailable,
)
from chunkstore_bindings.memory import MemoryChunkStorage
from chunkstore_journal.slots import MINE, Foreign, Undecided, put_decided
from tests.journal.world import Hook, Wire, World
from tests.support.clock import StoppedClock, stopped_clock

ANSWERS = [DeadlineExceeded("a turn", deadline_s=60), InvalidArgument("token expired"), Closed("x")]


def calls_of(world: World) -> list[tuple[str, str]]:
    heir = world.process()
    heir.open()
    return heir.wire.calls


def test_a_log_is_hardened_after_reading_and_before_open(append_world: World) -> None:
    world = append_world
    world.process().open().put("a")
    calls = calls_of(world)
    hardened = calls.index(("harden", world.names.log(1)))
    assert calls.index(("read", world.names.log(1))) < hardened
    assert calls.index(("create_if_absent", world.names.epoch(2))) < calls.index(("read", world.names.log(1)))
    assert hardened < calls.index(("create_if_absent", world.names.slot(2, 0)))


def test_the_last_slot_is_hardened_before_the_seal(slot_world: World) -> None:
    world = slot_world
    world.process().open().put("a")
    calls = calls_of(world)
    assert calls.index(("harden", world.names.slot(1, 1))) < calls.index(("create_if_absent", world.names.slot(1, 2)))
    assert calls.index(("create_if_absent", world.names.epoch(2))) < calls.index(
        ("create_if_absent", world.names.slot(1, 2))
    )


def test_the_seal_and_the_voids_of_others_are_hardened(world: World) -> None:
    """Claimant 2 dies before its OPEN, claimant 3 voids it and dies: claimant 4 relies on what both have left."""
    world.process().open().put("a")
    for epoch in (2, 3):
        world.process().die_at_open(epoch)
    world.storage.delete(world.names.voided)
    calls = calls_of(world)
    assert ("harden", world.names.slot(2, 0)) in calls
    if world.mode == "slot":
        assert ("harden", world.names.slot(1, 2)) in calls


def failing(operation: str, name: str, error: BaseException) -> Hook:
    def fail(found_operation: str, found_name: str) -> None:
        if (found_operation, found_name) == (operation, name):
            raise error

    return fail


def test_the_open_of_a_dead_owner_is_hardened(world: World) -> None:
    """Its owner may have died before the name was durable, and we are about to build on it."""
    world.process().open()
    calls = calls_of(world)
    assert calls.index(("harden", world.names.slot(1, 0))) < calls.index(("create_if_absent", world.names.slot(2, 0)))


def test_the_log_exists_durably_before_its_stream_is_opened(append_world: World) -> None:
    world = append_world
    process = world.process().open()
    calls = process.wire.calls
    created, synced = calls.index(("create", world.names.log(1))), calls.index(("sync", world.names.log(1)))
    assert created < synced < calls.index(("create_if_absent", world.names.slot(1, 0)))


def test_a_follower_hardens_before_it_believes(world: World) -> None:
    world.process().open().put("a")
    wire = Wire(world.storage)
    world.follower(storage=wire).catch_up()
    name = world.names.log(1) if world.mode == "append" else world.names.slot(1, 1)
    hardened = wire.calls.index(("harden", name))
    if world.mode == "append":
        assert ("exists", world.names.epoch(2)) in wire.calls[hardened:], "the claim is looked for after hardening"


class TestPutDecided:
    @pytest.fixture(autouse=True)
    def clock(self) -> Iterator[StoppedClock]:
        """How many attempts there are in so much time must not depend on the machine."""
        with stopped_clock() as clock:
            yield clock

    @pytest.fixture
    def wire(self) -> Wire:
        return Wire(MemoryChunkStorage(f"memory://{runtime.token(4).hex()}"))

    def test_mine_and_foreign(self, wire: Wire) -> None:
        assert put_decided(wire, "a", b"x", deadline_s=0) == MINE
        assert put_decided(wire, "a", b"x", deadline_s=0) == MINE
        assert put_decided(wire, "a", b"y", deadline_s=0) == Foreign(b"x")

    def test_what_is_seen_again_is_hardened(self, wire: Wire) -> None:
        wire.after = once(lambda: StorageUnavailable("reply lost"))
        assert put_decided(wire, "a", b"x", deadline_s=5) == MINE
        assert ("harden", "a") in wire.calls

    def test_not_there_proves_nothing(self, wire: Wire) -> None:
        wire.before = failing("create_if_absent", "a", StorageUnavailable("time-out"))
        with pytest.raises(Undecided):
            put_decided(wire, "a", b"x", deadline_s=0.02)
        assert wire.count(frozenset(("create_if_absent",))) > 1

    @pytest.mark.parametrize("kind", [StorageFull, AccessDenied])
    def test_full_and_denied_did_not_happen(self, wire: Wire, kind: type[StorageFull | AccessDenied]) -> None:
        wire.before = failing("create_if_absent", "a", kind("no"))
        with pytest.raises(kind):
            put_decided(wire, "a", b"x", deadline_s=5)
        assert wire.count(frozenset(("create_if_absent",))) == 1

    @pytest.mark.parametrize("kind", [StorageFull, AccessDenied])
    def test_full_after_an_open_attempt_is_unknown(self, wire: Wire, kind: type[StorageFull | AccessDenied]) -> None:
        errors = iter([StorageUnavailable("time-out")])
        wire.override = lambda _operation, _name, _data: raising(next(errors, kind("no")))
        with pytest.raises(Undecided):
            put_decided(wire, "a", b"x", deadline_s=0.02)

    @pytest.mark.parametrize("first", ["lost", "landed"])
    @pytest.mark.parametrize("answer", ANSWERS, ids=lambda answer: type(answer).__name__)
    def test_no_answer_undoes_an_open_attempt(self, wire: Wire, answer: ChunkstoreError, first: str) -> None:
        errors = iter([StorageUnavailable("time-out")])

        def override(_operation: str, name: str, data: BytesLike) -> bool | None:
            error = next(errors, None)
            if error is not None and first == "landed":
                wire.inner.create_if_absent(name, data)
            raise answer if error is None else error

        wire.override = override
        with pytest.raises(Undecided) as raised:
            put_decided(wire, "a", b"x", deadline_s=0.02)
        assert raised.value.error.__cause__ is answer
        with pytest.raises(type(answer)):
            put_decided(wire, "b", b"x", deadline_s=0.02)

    @pytest.mark.parametrize("operation", ["read", "harden"])
    @pytest.mark.parametrize("answer", [*ANSWERS, StorageFull("full")], ids=lambda answer: type(answer).__name__)
    def test_a_taken_name_that_cannot_be_looked_at_is_unknown(
        self, wire: Wire, answer: ChunkstoreError, operation: str
    ) -> None:
        wire.inner.create_if_absent("a", b"x")
        wire.before = failing(operation, "a", answer)
        with pytest.raises(Undecided):
            put_decided(wire, "a", b"x", deadline_s=0.02)


def raising(error: Exception) -> bool | None:
    raise error


def once(make: Callable[[], Exception]) -> Hook:
    left = [1]

    def hook(_operation: str, _name: str) -> None:
        if left:
            left.pop()
            raise make()

    return hook
