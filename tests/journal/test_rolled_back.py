"""Older states in the root's place: told from damage, accepted where that is asked for, and noticed by replicas (A17)."""

from __future__ import annotations

import pickle

import pytest

from chunkstore.config import Settings
from chunkstore.errors import RolledBack
from chunkstore.metadata.memory import MemoryShelf
from chunkstore_journal.check import check_journal
from chunkstore_journal.history import open_streams
from chunkstore_journal.lease import read_lease
from chunkstore_journal.payloads import FLAG_GIVEN_UP
from tests.journal.ends import KEYS, Objects, become, close, closed, cut_tail, objects_of, refused
from tests.journal.world import World


def rolled_back(world: World, shelf: MemoryShelf, *, epochs: int) -> tuple[Objects, Objects, int]:
    """A backup, taken after a close, takes the place of a root that went on. The backup, the newer state, and its lsn."""
    closed(world, shelf)
    backup = objects_of(world.storage)
    for number in range(epochs):
        owner = world.process(shelf).open()
        for row in range(3):
            owner.put(f"later {number} {row}")
        close(owner)
    newer, lsn = objects_of(world.storage), owner.journal.head.lsn
    become(world, backup)
    return backup, newer, lsn


@pytest.mark.parametrize("epochs", [1, 3])
def test_a_restored_backup_is_told_from_damage(world: World, epochs: int) -> None:
    shelf = MemoryShelf()
    backup, newer, lsn = rolled_back(world, shelf, epochs=epochs)
    error = refused(world, shelf)
    assert isinstance(error, RolledBack)
    assert (error.lsn_seen, error.lsn_now) == (lsn, 10)
    assert "a restored backup" in error.message
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.to_fields()) == (RolledBack, error.to_fields())
    become(world, newer)
    assert len(world.process(shelf).open().keys()) == len(KEYS) + 3 * epochs, "put right, it goes on"
    become(world, backup)
    assert world.process().open().keys() == KEYS, "who has seen nothing has nothing to say"


@pytest.mark.parametrize("lease_s", [0.0, 5.0])
@pytest.mark.parametrize("epochs", [1, 3])
def test_an_accepted_rollback(world: World, epochs: int, lease_s: float) -> None:
    shelf, third = MemoryShelf(), MemoryShelf()
    rolled_back(world, shelf, epochs=epochs)
    settings = Settings(journal_mode=world.mode, lease_s=lease_s)
    heir = world.process(shelf, settings)
    heir.ownership = heir.service.take_over(own=None, accept_rollback=True)
    assert heir.keys() == KEYS
    assert [finding for finding in heir.report.findings if finding.startswith("accepted: ")]
    assert world.opened(heir.journal.epoch).payload.flags == FLAG_GIVEN_UP
    for number in range(epochs):
        heir.put(f"new {number}")
        heir = world.process(shelf, settings).open()  # and the one before it died
        assert heir.report.findings == ()
        assert world.opened(heir.journal.epoch).payload.flags == 0
    assert len(heir.keys()) == len(KEYS) + epochs
    assert len(world.process(third).open().keys()) == len(KEYS) + epochs
    assert not [found for found in check_journal(world.streams, heir.store.head()) if found.severity == "damage"]


def test_nothing_is_accepted_where_nothing_was_lost(world: World) -> None:
    shelf = MemoryShelf()
    closed(world, shelf).store.close(clean=True)
    ownership = world.process(shelf).service.take_over(own=None, accept_rollback=True)
    assert (ownership.report.source, ownership.report.findings) == ("cache", ())
    assert world.opened(2).payload.flags == 0


def test_a_cut_tail_can_be_accepted(world: World) -> None:
    owner = closed(world, shelf := MemoryShelf())
    end = owner.journal.head
    cut_tail(world, end)
    ownership = world.process(shelf).service.take_over(own=None, accept_rollback=True)
    assert len([finding for finding in ownership.report.findings if finding.startswith("accepted: ")]) == 2
    lease = read_lease(world.storage, world.names)
    assert lease is not None
    assert (lease.epoch, lease.released) == (1, False), (
        "nobody judges by the old one any more, nor by an epoch that is not open yet"
    )
    assert world.process().open().keys() == world.process(shelf).open().keys()


def test_each_machine_that_has_seen_what_was_given_up_is_asked(world: World) -> None:
    """Whoever has accepted it knows nothing of what others have seen."""
    first, second = MemoryShelf(), MemoryShelf()
    owner = closed(world, first)
    end = owner.journal.head
    whole = objects_of(world.storage)
    assert world.process(second).open().store.head().position.epoch == 2
    become(world, whole)
    if world.mode == "append":
        world.overwrite(world.names.log(1), whole[world.names.log(1)][: end.end - 700])
    else:
        for index in range(end.index - 3, end.index):
            world.storage.delete(world.names.slot(1, index))
    world.process(MemoryShelf()).service.take_over(own=None, accept_rollback=True)
    for shelf in (first, second):
        assert isinstance(refused(world, shelf), RolledBack)
        heir = world.process(shelf)
        heir.ownership = heir.service.take_over(own=None, accept_rollback=True)
        assert heir.keys() < KEYS
    assert world.process(first).open().keys() == heir.keys()


def test_a_cache_ahead_of_another_history_is_a_rollback(world: World) -> None:
    """Whatever epochs were claimed since: no history that this cache saw ends before it."""
    shelf = MemoryShelf()
    _, _, lsn = rolled_back(world, shelf, epochs=1)
    for _ in range(2):
        close(world.process().open())
    error = refused(world, shelf)
    assert isinstance(error, RolledBack)
    assert error.lsn_seen == lsn or error.lsn_now >= lsn


def test_check_compares_with_what_was_seen_here(world: World) -> None:
    shelf = MemoryShelf()
    rolled_back(world, shelf, epochs=3)
    seen = world.process(shelf).cache.seen()
    assert seen is not None
    found = [*check_journal(open_streams(world.storage, world.names), None, seen)]
    assert {(item.invariant, item.severity) for item in found} == {(12, "damage")}
    assert [item.object for item in found] == ["metadata cache of an owner on this machine"] * 2
    stranger = world.process().open()
    for number in range(20):
        stranger.put(f"another {number}")
    found = [*check_journal(open_streams(world.storage, world.names), None, seen)]
    assert {item.severity for item in found} == {"damage"}
    assert any("than history" in item.message for item in found)
