"""Ends that are known: nothing that was acknowledged before a clean close is missing without a word (protocol 3.2, A17)."""

from __future__ import annotations

from pathlib import Path

import pytest

from chunkstore.errors import Damaged
from chunkstore.journal import RecordKind
from chunkstore_journal.check import check_journal
from chunkstore_journal.lease import read_lease
from chunkstore_journal.objects import encode_lease
from tests.journal.ends import KEYS, become, closed, objects_of, refused
from tests.journal.world import World, make_storage


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
                found.invariant in (5, 6) and found.severity == "damage" for found in check_journal(world.streams)
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


def test_a_seal_in_a_lost_place_is_found(slot_world: World) -> None:
    """A claimant that knew of no end has sealed where the last record was."""
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


def test_who_says_nothing_of_the_end_is_not_asked(memory_world: World) -> None:
    """Leases without an end, of owners that died, of other epochs, and broken ones."""
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
    assert not [found for found in check_journal(world.streams) if found.severity == "damage"]


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
