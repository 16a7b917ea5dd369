"""Looking without owning (protocol 4)."""

from __future__ import annotations

import pytest

from chunkstore.config import Settings, Tuning
from chunkstore.errors import InvalidArgument
from chunkstore_journal.check import check_journal
from chunkstore_journal.history import Streams
from chunkstore_journal.inspect import describe_owner, iter_records
from tests.journal.world import Process, World


def history(world: World) -> Process:
    owner = world.process().open()
    owner.put("a")
    owner.put("b")
    world.process().die_at_open(2)
    owner = world.process().open()
    owner.put("c")
    owner.snapshot()
    return owner


def fresh(world: World) -> Streams:
    return Streams(world.storage, world.names, world.format)


def test_records_of_history(world: World) -> None:
    owner = history(world)
    records = list(iter_records(fresh(world)))
    assert [record.lsn for record in records] == list(range(1, owner.journal.head.lsn + 1))
    assert [record.kind for record in records] == ["OPEN", "OPS", "OPS", "OPEN", "OPS", "SNAPSHOT_NOTE"]
    assert [record.epoch for record in iter_records(fresh(world), 3) if not record.embedded] == [3, 3, 3]
    with pytest.raises(InvalidArgument, match=r"no records of epoch 4: there are those of 1, 3$") as caught:
        list(iter_records(fresh(world), 4))
    assert caught.value.argument == "epoch"
    assert sum(record.embedded for record in records) == (world.mode == "append")
    assert records[-1].hash == owner.journal.head.hash


def test_the_owner(world: World) -> None:
    assert describe_owner(fresh(world)).opened_epoch == 0
    history(world).service.renew_lease(3, released=False)
    info = describe_owner(fresh(world))
    assert (info.claimed_epoch, info.opened_epoch) == (3, 3)
    assert info.claim is not None
    assert info.lease is not None
    assert info.lease.epoch == 3


def test_a_sound_journal_has_no_findings(world: World) -> None:
    assert list(check_journal(fresh(world))) == []
    history(world)
    assert list(check_journal(fresh(world))) == []
    for i in range(5):
        settings = Settings(journal_mode=world.mode, tuning=Tuning(snapshots_kept=1))
        owner = world.process(settings=settings).open()
        owner.put(f"k{i}")
        owner.snapshot()
    assert owner.service.collect(head=owner.store.head(), epoch=owner.journal.epoch, dry_run=False)[0]
    assert list(check_journal(fresh(world))) == []
    assert next(iter_records(fresh(world))).kind == "OPEN"


@pytest.mark.parametrize(
    ("what", "invariant"),
    [("claim", 1), ("claim bytes", 1), ("slot 0", 2), ("format", 25), ("snapshot", 11), ("record", 6)],
)
def test_what_is_broken_is_found(world: World, what: str, invariant: int) -> None:
    history(world)
    names, storage = world.names, world.storage
    snapshot = next(info.name for info in storage.list(names.snapshot_prefix()).items if info.name.endswith(".sn"))
    record = names.log(1) if world.mode == "append" else names.slot(1, 1)
    if what == "claim":
        storage.delete(names.epoch(2))
    elif what == "claim bytes":
        world.overwrite(names.epoch(2), b"x")
    elif what == "slot 0":
        world.overwrite(names.slot(2, 0), b"x" * 300)
    elif what == "format":
        storage.delete(names.format)
    elif what == "snapshot":
        world.overwrite(snapshot, world.whole(snapshot)[:-3])
    else:
        raw = bytearray(world.whole(record))
        raw[150] ^= 1
        world.overwrite(record, bytes(raw))
    findings = list(check_journal(fresh(world)))
    assert invariant in {finding.invariant for finding in findings if finding.severity == "damage"}, findings
