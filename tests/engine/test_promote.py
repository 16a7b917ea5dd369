"""Promotion: a replica becomes an owner with its own state; what an owner must not be, it does not become."""

from __future__ import annotations

import pytest

from chunkstore.config import OptimiserPolicy
from chunkstore.errors import (
    Closed,
    ContainerBusy,
    InvalidArgument,
    NotOwner,
    RolledBack,
    StorageUnavailable,
    Unsupported,
)
from tests.journal.ends import objects_of, put_back
from tests.support.data import pattern, problems, refused
from tests.support.forwarding import Hooked
from tests.support.worlds import World


def test_it_serves_with_the_state_of_the_replica(world: World) -> None:
    store = world.open(rolling=8)
    world.still(store)
    store.create("a")
    store.append("a", pattern(0, 30), writer_id="w", event_number=4)
    store.table("t").put(b"k", b"v")
    world.forget_cache()
    replica = world.replica(rolling=8)
    epoch = store.epoch
    promoted = replica.promote()
    world._open.append(promoted)
    assert promoted.epoch == epoch + 1
    assert (promoted.report.source, promoted.report.findings) == ("cache", ())
    assert promoted.report.replayed_records <= 1
    assert promoted.read("a", 0, 99) == pattern(0, 30)
    assert promoted.append("a", b"never", writer_id="w", event_number=4) == 0
    assert promoted.table("t").get(b"k") is not None
    promoted.append("a", b"more")
    promoted.snapshot()
    promoted.collect()
    assert problems(promoted.check("deep")) == []
    refused(NotOwner, lambda: store.append("a", b"x"))
    refused(Closed, replica.refresh, replica.promote, lambda: replica.read("a", 0, 1))
    promoted.close()
    again = world.open(rolling=8)
    # What the promotion left is the cache of the next owner.
    assert again.report.source == "cache" and again.read("a", 30, 99) == b"more"


def test_what_was_committed_since_the_last_refresh_is_replayed(world: World) -> None:
    store = world.open()
    world.still(store)
    store.create("a")
    replica = world.replica()
    for step in range(5):
        store.append("a", b"%d" % step)
    world.crash(store)
    promoted = replica.promote(optimiser=OptimiserPolicy(retention=True))
    world._open.append(promoted)
    assert promoted.read("a", 0, 99) == b"01234"
    assert problems(promoted.check("deep")) == []


def test_the_owners_own_cache_is_preferred_where_it_stands_further_on(world: World) -> None:
    store = world.open()
    world.still(store)
    store.create("a")
    replica = world.replica()
    store.append("a", b"x")
    store.close()
    promoted = replica.promote()
    world._open.append(promoted)
    assert promoted.report.source == "cache" and promoted.report.replayed_records <= 1
    assert promoted.read("a", 0, 9) == b"x"


def test_a_live_owner_is_left_alone(world: World) -> None:
    store = world.open(lease_s=0.2)
    store.create("a")
    replica = world.replica(lease_s=0.2)
    epoch = store.epoch
    with pytest.raises(ContainerBusy):
        replica.promote(wait_s=600)  # its first sign of life is enough
    store.append("a", b"x")
    replica.refresh()
    assert (replica.epoch, replica.read("a", 0, 9)) == (epoch, b"x")
    store.close()
    promoted = replica.promote(wait_s=600)  # it has said goodbye
    world._open.append(promoted)
    assert promoted.read("a", 0, 9) == b"x"


def test_arguments_are_looked_at_first(world: World) -> None:
    world.open()
    replica = world.replica()
    refused(
        InvalidArgument,
        lambda: replica.promote(-1),
        lambda: replica.promote(observer="x"),  # type: ignore[arg-type]
        lambda: replica.promote(optimiser=1),  # type: ignore[arg-type]
    )
    replica._promote = None
    refused(Unsupported, replica.promote)
    assert replica.refresh()


def test_after_a_failure_the_replica_goes_on(world: World) -> None:
    store = world.open()
    world.still(store)
    store.create("a")
    store.append("a", b"x")
    store.close()
    made: list[Hooked] = []

    def wrap(inner: object) -> Hooked:
        made.append(Hooked(inner))  # type: ignore[arg-type]
        return made[-1]

    replica = world.replica(wrap=wrap, op_deadline_s=0.3)

    def fail(operation: str, names: tuple[str, ...]) -> None:
        if operation == "create_if_absent":
            raise StorageUnavailable("no answer", object=names[0])

    made[0].before = fail
    with pytest.raises(StorageUnavailable):
        replica.promote()
    made[0].before = lambda _operation, _names: None
    assert replica.refresh() and replica.read("a", 0, 9) == b"x"
    promoted = replica.promote()
    world._open.append(promoted)
    promoted.append("a", b"y")
    assert promoted.read("a", 0, 9) == b"xy"


def test_a_root_that_lost_records_is_refused_with_what_the_replica_saw(world: World) -> None:
    """On a machine that never owned it the replica's own state is the witness; it stays one for the next try."""
    store = world.open()
    world.still(store)
    store.create("a")
    store.append("a", b"x")
    lost = {name: world.content(name) for name in world.objects()}
    store.append("a", b"y")
    world.forget_cache()
    replica = world.replica()
    assert replica.read("a", 0, 9) == b"xy"
    for name in world.objects():
        if name not in lost:
            world.remove(name)
    for name, data in lost.items():
        if world.content(name) != data:
            world.overwrite(name, data)
    for _ in range(2):
        with pytest.raises(RolledBack):
            replica.promote()
    with pytest.raises(RolledBack):
        world.open()
    promoted = replica.promote(accept_rollback=True)
    world._open.append(promoted)
    assert promoted.read("a", 0, 9) == b"x"
    assert any("accepted" in finding for finding in promoted.report.findings)


def test_what_others_have_made_of_an_older_state_is_no_state_to_serve(world: World) -> None:
    """It is longer than what was shown, so that no lsn tells."""
    storage = world.raw_storage()
    with world.open() as store:
        store.create("a")
    older = objects_of(storage)
    with world.open() as store:
        store.append("a", b"shown")
    replica = world.replica()
    newer = objects_of(storage)
    put_back(storage, older)
    world.forget_cache()
    for _ in range(4):
        with world.open() as store:
            store.append("a", b"strange")
    grown = objects_of(storage)
    with pytest.raises(RolledBack):
        replica.promote()
    assert objects_of(storage) == grown
    put_back(storage, newer)
    promoted = replica.promote()
    world._open.append(promoted)
    assert promoted.read("a", 0, 99) == b"shown"


def test_two_replicas_that_are_promoted_follow_each_other(world: World) -> None:
    store = world.open()
    world.still(store)
    store.create("a")
    store.append("a", b"x")
    first, second = world.replica(), world.replica()
    one = first.promote()
    world._open.append(one)
    world.still(one)
    one.append("a", b"y")
    two = second.promote()
    world._open.append(two)
    refused(NotOwner, lambda: one.append("a", b"z"))
    two.append("a", b"w")
    assert two.read("a", 0, 9) == b"xyw" and two.epoch == store.epoch + 2
    assert problems(two.check("deep")) == []
