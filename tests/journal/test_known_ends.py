"""Ends that are known: nothing that was acknowledged before a clean close is missing without a word (protocol 3.2, A17)."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from chunkstore.config import Settings
from chunkstore.errors import Damaged, RolledBack
from chunkstore.journal import RecordKind
from chunkstore.metadata.memory import MemoryMetadataCache, MemoryShelf
from chunkstore.metadata.port import Position
from chunkstore.storage import ChunkHandle, ChunkStorage
from chunkstore_journal.ends import SeenEnds
from chunkstore_journal.follower import Follower
from chunkstore_journal.history import Opened, Sealed, open_streams
from chunkstore_journal.inspect import check_journal
from chunkstore_journal.lease import read_lease
from chunkstore_journal.objects import encode_lease
from chunkstore_journal.payloads import FLAG_GIVEN_UP
from tests.journal.test_recovery import plant_cache
from tests.journal.world import Process, World, make_storage

KEYS = {f"k{number}" for number in range(8)}
Objects = dict[str, bytes]


def close(process: Process) -> None:
    """What the engine does at a clean close."""
    process.note(RecordKind.CLOSE)
    process.service.renew_lease(process.journal.epoch, released=True)


def closed(world: World, shelf: MemoryShelf | None = None) -> Process:
    owner = world.process(shelf).open()
    for number in range(8):
        owner.put(f"k{number}", bytes(number * 10))
    close(owner)
    return owner


def objects_of(storage: ChunkStorage) -> Objects:
    names = [item.name for item in storage.list("", limit=100_000).items]
    return {name: storage.read(ChunkHandle(name, False), 0, 1 << 30) for name in names}


def become(world: World, objects: Objects) -> None:
    """Let ``objects`` be all that the storage holds: what was lost, or a backup that takes the root's place."""
    for name in objects_of(world.storage).keys() - objects.keys():
        world.storage.delete(name)
    for name, data in objects.items():
        world.storage.put(name, data)


def refused(world: World, shelf: MemoryShelf | None = None, lost: frozenset[str] = frozenset()) -> Damaged:
    """Nobody may open it, and nothing that restoring would have to undo is written: claims, and voids of dead ones."""
    before = objects_of(world.storage)
    with pytest.raises(Damaged) as raised:
        world.process(shelf).open()
    after = objects_of(world.storage)
    hints = {world.names.voided}
    new = {world.names.parse_slot(name) for name in after.keys() - before.keys() - hints} - {None}
    assert all(index == 0 and isinstance(world.streams.slot0(epoch), Sealed) for epoch, index in filter(None, new)), new
    assert not lost & after.keys()
    assert {name: after[name] for name in before.keys() - hints} == {
        name: before[name] for name in before.keys() - hints
    }
    return raised.value


def test_every_cut_of_the_tail_is_found(tmp_path: Path) -> None:
    world = World(make_storage("memory", tmp_path), "append")
    closed(world)
    whole = objects_of(world.storage)
    log = world.names.log(1)
    assert len(whole[log]) > 1500
    for kept in range(len(whole[log])):
        become(world, {**whole, log: whole[log][:kept]})
        error = refused(world)
        assert error.object == log
        assert error.position <= kept
        assert "is missing here" in error.message
        if kept % 97 == 0:
            assert any(
                found.invariant in (5, 6) and found.severity == "error" for found in check_journal(world.streams)
            )
            world.overwrite(log, whole[log])
            assert world.process().open().keys() == KEYS, "a retry after restoring the storage works"


def test_a_log_that_is_gone_or_filled_up_is_found(append_world: World) -> None:
    world = append_world
    closed(world)
    whole = objects_of(world.storage)
    log = world.names.log(1)
    become(world, {name: data for name, data in whole.items() if name != log})
    assert refused(world).object == log
    for kept in (0, 500, len(whole[log]) - 8):
        become(world, {**whole, log: whole[log][:kept] + bytes(len(whole[log]) - kept)})
        assert refused(world).object == log
    become(world, whole)
    assert world.process().open().keys() == KEYS


def test_every_lost_slot_is_found(tmp_path: Path) -> None:
    """Any one, and any that lie behind each other."""
    world = World(make_storage("memory", tmp_path), "slot")
    owner = closed(world)
    whole = objects_of(world.storage)
    slots = [world.names.slot(1, index) for index in range(owner.journal.head.index)]
    for first in range(len(slots)):
        for stop in range(first + 1, len(slots) + 1):
            lost = frozenset(slots[first:stop])
            become(world, {name: data for name, data in whole.items() if name not in lost})
            if stop == len(slots):
                assert refused(world, lost=lost).object in lost
            else:
                unopened(world)
            for name in lost:
                assert not world.storage.exists(name), "no SEAL may take the place of a lost record"
                world.overwrite(name, whole[name])
            assert world.process().open().keys() == KEYS, "a retry after restoring the storage works"


def unopened(world: World) -> None:
    """Nobody may open it; the SEAL behind the last record may be there."""
    with pytest.raises(Damaged):
        world.process().open()
    newest = max(world.names.parse_epoch(name) or 0 for name in objects_of(world.storage))
    assert not world.storage.exists(world.names.slot(newest, 0))


def test_a_hole_is_looked_at_again_before_it_is_believed(slot_world: World) -> None:
    """What another history had at this place, a live owner of the recurring epoch writes between the first look and the end."""
    world = slot_world
    owner = world.process().open()
    head = owner.put("k0", b"0")
    elsewhere = head._replace(lsn=head.lsn + 1, hash=bytes(16), index=head.index + 1)
    opened = world.streams.slot0(1)
    assert isinstance(opened, Opened)

    def looked(own: Position) -> SeenEnds:
        seen = SeenEnds(world.streams, cache=None, own=own, lease=None, latest=None, accept=False)
        assert seen.known(opened) is None
        return seen

    seen = looked(elsewhere)
    second, end = owner.put("k1", b"1"), owner.put("k2", b"2")
    seen.judge(end)
    world.storage.delete(world.names.slot(1, second.index - 1))
    with pytest.raises(Damaged, match="which was seen, is gone"):
        looked(second).judge(end)


def test_a_seal_in_a_lost_place_is_found(slot_world: World) -> None:
    """A claimant that knew of no end, such as one of an earlier version, has sealed where the last record was."""
    world = slot_world
    owner = closed(world)
    lost = world.names.slot(1, owner.journal.head.index - 1)
    record, lease = world.whole(lost), world.whole(world.names.lease)
    world.storage.delete(lost)
    world.storage.delete(world.names.lease)
    world.process().die_at_open(2)
    assert world.streams.read_slot(1, owner.journal.head.index - 1).header.kind == RecordKind.SEAL
    world.storage.put(world.names.lease, lease)
    assert "is missing here" in refused(world).message
    world.overwrite(lost, record)
    assert world.process().open().keys() == KEYS


def test_what_is_missing_is_said(memory_world: World) -> None:
    world = memory_world
    owner = closed(world, shelf := MemoryShelf())
    whole = objects_of(world.storage)
    end = owner.journal.head
    if world.mode == "append":
        world.overwrite(world.names.log(1), whole[world.names.log(1)][: end.end - 700])
    else:
        for index in range(end.index - 4, end.index):
            world.storage.delete(world.names.slot(1, index))
    message = refused(world).message
    assert f"epoch 1 was closed at lsn {end.lsn}, says the lease" in message
    assert f"to {end.lsn} (" in message
    assert f"seen, too, by the local cache (lsn {end.lsn})" in refused(world, shelf).message


def test_an_end_with_another_record_is_found(memory_world: World) -> None:
    world = memory_world
    closed(world)
    lease = read_lease(world.storage, world.names)
    assert lease is not None
    assert lease.released
    world.storage.put(world.names.lease, encode_lease(lease._replace(hash=bytes(16))))
    assert "another record" in refused(world).message
    assert [found.invariant for found in check_journal(world.streams)] == [5]


def test_who_says_nothing_of_the_end_is_not_asked(memory_world: World) -> None:
    """Leases that an earlier version released, of owners that died, of other epochs, and broken ones."""
    world = memory_world
    closed(world)
    lease = read_lease(world.storage, world.names)
    assert lease is not None
    silent = (
        encode_lease(lease._replace(lsn=0, hash=b"")),
        encode_lease(lease._replace(released=False, lsn=0, hash=b"")),
        b"broken",
    )
    whole = objects_of(world.storage)
    end = world.streams.log_reader(1, 0).offset
    for data in silent:
        become(world, {**whole, world.names.lease: data})
        if world.mode == "append":
            world.overwrite(world.names.log(1), whole[world.names.log(1)][: end + 900])
        else:
            last = max(name for name in whole if world.names.parse_slot(name))
            world.storage.delete(last)
        heir = world.process().open()
        assert heir.keys() < KEYS or world.mode == "slot"
    # The lease of epoch 1 says more than stream 1 holds, but stream 2 has ended that: nobody looks any more.
    world.storage.put(world.names.lease, encode_lease(lease._replace(lsn=lease.lsn + 100)))
    heir.put("on")
    assert {"on"} <= world.process().open().keys()
    assert not [found for found in check_journal(world.streams) if found.severity == "error"]


def test_a_released_lease_names_the_last_record(world: World) -> None:
    owner = closed(world)
    lease = read_lease(world.storage, world.names)
    assert lease is not None
    assert (lease.epoch, lease.released, lease.lsn, lease.hash) == (1, True, *owner.journal.head[:2])
    assert world.process().open().keys() == KEYS
    assert [*check_journal(world.streams)] == []


def test_an_epoch_that_the_lease_knows_is_not_voided(memory_world: World) -> None:
    """Its claim is there, its OPEN is gone: a SEAL in its place could not be taken back."""
    world = memory_world
    closed(world)
    second = world.process().open()
    second.service.renew_lease(2, released=False)
    whole = objects_of(world.storage)
    slot0 = world.names.slot(2, 0)
    become(world, {name: data for name, data in whole.items() if name not in (slot0, world.names.log(2))})
    error = refused(world, lost=frozenset((slot0,)))
    assert error.object == slot0
    assert [found.object for found in check_journal(world.streams) if found.invariant == 5] == [world.names.lease]
    become(
        world,
        {name: data for name, data in whole.items() if name not in (slot0, world.names.log(2), world.names.epoch(2))},
    )
    assert refused(world).object == world.names.epoch(2)
    become(world, whole)
    assert world.process().open().keys() == KEYS


# --- restored backups ------------------------------------------------------------------------------------------------


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
    assert not [found for found in check_journal(world.streams, heir.store.head()) if found.severity == "error"]


def test_nothing_is_accepted_where_nothing_was_lost(world: World) -> None:
    shelf = MemoryShelf()
    closed(world, shelf)
    heir = world.process(shelf)
    ownership = heir.service.take_over(own=None, accept_rollback=True)
    assert (ownership.report.source, ownership.report.findings) == ("cache", ())
    assert world.opened(2).payload.flags == 0


def test_a_cut_tail_can_be_accepted(world: World) -> None:
    owner = closed(world, shelf := MemoryShelf())
    end = owner.journal.head
    if world.mode == "append":
        world.overwrite(world.names.log(1), world.whole(world.names.log(1))[: end.end - 700])
    else:
        for index in range(end.index - 3, end.index):
            world.storage.delete(world.names.slot(1, index))
    heir = world.process(shelf)
    ownership = heir.service.take_over(own=None, accept_rollback=True)
    assert len([finding for finding in ownership.report.findings if finding.startswith("accepted: ")]) == 2
    lease = read_lease(world.storage, world.names)
    assert lease is not None
    assert (lease.epoch, lease.released) == (1, False), (
        "nobody judges by the old one any more, nor by an epoch that is not open yet"
    )
    assert world.process().open().keys() == world.process(shelf).open().keys()


def test_a_cache_of_what_was_given_up_is_put_aside(world: World) -> None:
    """Another machine had seen the lost records, too; history says itself that it goes on without them."""
    first, second = MemoryShelf(), MemoryShelf()
    owner = closed(world, first)
    end = owner.journal.head
    whole = objects_of(world.storage)
    copy = world.process(second).open()
    assert copy.store.head().position.epoch == 2
    become(world, whole)
    if world.mode == "append":
        world.overwrite(world.names.log(1), whole[world.names.log(1)][: end.end - 700])
    else:
        for index in range(end.index - 3, end.index):
            world.storage.delete(world.names.slot(1, index))
    world.process(MemoryShelf()).service.take_over(own=None, accept_rollback=True)
    heir = world.process(first).open()
    assert any("a part of history that was given up" in finding for finding in heir.report.findings)
    assert heir.keys() < KEYS
    # The second machine has seen epoch 2, and that number recurred: it cannot tell, and asks.
    assert heir.journal.head.lsn < copy.journal.head.lsn
    assert isinstance(refused(world, second), RolledBack)


def test_another_history_at_a_lower_lsn_is_put_aside(world: World) -> None:
    shelf = MemoryShelf()
    rolled_back(world, shelf, epochs=1)
    stranger = world.process().open()
    for number in range(20):
        stranger.put(f"another {number}")
    heir = world.process(shelf).open()
    assert heir.report.source != "cache"
    assert any("the local cache" in finding for finding in heir.report.findings)
    assert heir.keys() == stranger.keys()


def test_a_cache_ahead_of_another_history_is_a_rollback(world: World) -> None:
    """Whatever epochs were claimed since: no history that this cache saw ends before it."""
    shelf = MemoryShelf()
    _, _, lsn = rolled_back(world, shelf, epochs=1)
    for _ in range(2):
        close(world.process().open())
    error = refused(world, shelf)
    assert isinstance(error, RolledBack)
    assert error.lsn_seen == lsn or error.lsn_now >= lsn


def test_a_root_without_any_stream(world: World) -> None:
    empty = objects_of(world.storage)
    owner = closed(world, shelf := MemoryShelf())
    lsn = owner.journal.head.lsn
    become(world, empty)
    error = refused(world, shelf)
    assert isinstance(error, RolledBack)
    assert (error.lsn_seen, error.lsn_now) == (lsn, 0)
    heir = world.process(shelf)
    assert heir.service.take_over(own=None, accept_rollback=True).report.source == "genesis"


def test_a_root_whose_first_epoch_was_voided(world: World) -> None:
    """Every claim is there, and nothing was ever opened here: but it was, says the cache."""
    empty = objects_of(world.storage)
    for epoch in (1, 2):
        world.process().die_at_open(epoch)
    voided = objects_of(world.storage)
    become(world, empty)
    closed(world, shelf := MemoryShelf())
    become(world, voided)
    error = refused(world, shelf)
    assert isinstance(error, RolledBack)
    assert error.lsn_now == 0


def test_a_hole_where_the_cache_stands_is_found(slot_world: World) -> None:
    world = slot_world
    owner = world.process().open()
    positions = [owner.put(f"k{number}") for number in range(8)]
    [third] = [position for position in positions if position.index == 4]
    plant_cache(world, shelf := MemoryShelf(), third)
    lost = world.names.slot(1, 3)
    world.storage.delete(lost)
    error = refused(world, shelf, frozenset((lost,)))
    assert (type(error), error.object) == (Damaged, lost)


def test_a_torn_end_that_a_snapshot_has_seen_more_of(append_world: World) -> None:
    world = append_world
    owner = world.process().open()
    end = owner.put("a").end
    owner.put("b")
    owner.snapshot()
    log = world.names.log(1)
    world.overwrite(log, world.whole(log)[: end + 20])
    assert "snapshot LATEST has seen lsn 3" in refused(world).message


def test_a_snapshot_beyond_the_end_is_told(memory_world: World) -> None:
    world = memory_world
    owner = world.process().open()
    owner.put("a")
    before = objects_of(world.storage)
    for number in range(4):
        owner.put(f"b{number}")
    name = owner.snapshot()
    after = objects_of(world.storage)
    become(world, {**before, **{key: after[key] for key in (name, world.names.latest)}})
    heir = world.process().open()
    assert heir.keys() == {"a"}
    assert any(f"snapshot {name} stands at lsn" in finding for finding in heir.report.findings)


def test_check_compares_with_what_was_seen_here(world: World) -> None:
    shelf = MemoryShelf()
    rolled_back(world, shelf, epochs=3)
    store = world.process(shelf).cache.open_current()
    assert store is not None
    found = [*check_journal(open_streams(world.storage, world.names), None, store.head())]
    assert {(item.invariant, item.severity) for item in found} == {(12, "error")}
    assert [item.object for item in found] == ["metadata cache of an owner on this machine"] * 2
    stranger = world.process().open()
    for number in range(20):
        stranger.put(f"another {number}")
    found = [*check_journal(open_streams(world.storage, world.names), None, store.head())]
    assert {item.severity for item in found} <= {"error", "warning"}


@contextmanager
def following(world: World, shelf: MemoryShelf) -> Iterator[Follower]:
    """A replica, and its place on the shelf given back when it ends."""
    cache = MemoryMetadataCache(world.format.uuid, "replica", shelf=shelf)
    follower = Follower(world.storage, world.names, world.format, cache, world.settings)
    yield follower
    follower.close()
    cache.close()


def test_a_replica_says_that_it_had_applied_more(world: World) -> None:
    shelf, replicas = MemoryShelf(), MemoryShelf()
    closed(world, shelf)
    backup = objects_of(world.storage)
    owner = world.process(shelf).open()
    owner.put("later")
    close(owner)
    with following(world, replicas) as follower:
        assert follower.catch_up().position.lsn == owner.journal.head.lsn
        assert follower.ahead == ""
    newer = objects_of(world.storage)
    for state in (backup, {name: data for name, data in backup.items() if name == world.names.format}):
        become(world, state)
        with following(world, replicas) as again:
            lsn = again.catch_up().position.lsn
            assert (
                f"this replica had applied lsn {owner.journal.head.lsn}, and the journal ends at lsn {lsn}"
                in again.ahead
            )
        with following(world, replicas) as calm:
            calm.catch_up()
            assert calm.ahead == ""
        become(world, newer)
        with following(world, replicas) as whole:
            whole.catch_up()


def test_a_replica_notices_a_cut_of_its_own_stream(memory_world: World) -> None:
    world = memory_world
    replicas = MemoryShelf()
    owner = closed(world)
    with following(world, replicas) as follower:
        follower.catch_up()
    end = owner.journal.head
    if world.mode == "append":
        world.overwrite(world.names.log(1), world.whole(world.names.log(1))[: end.end - 700])
    else:
        for index in range(end.index - 3, end.index):
            world.storage.delete(world.names.slot(1, index))
    with following(world, replicas) as again:
        assert again.catch_up().position.lsn < end.lsn
        assert f"had applied lsn {end.lsn}" in again.ahead
