"""The deep check of history: what is planted is found with the number of its invariant, and what is sound is not."""

from __future__ import annotations

import pytest

from chunkstore.checksum import row_digest
from chunkstore.config import Settings, Tuning
from chunkstore.journal import RecordKind
from chunkstore.metadata.keys import table_key
from chunkstore.metadata.memory import MemoryMetadataCache, MemoryShelf
from chunkstore.metadata.port import Head, MetadataStore
from chunkstore.records.invariants import Finding
from chunkstore_journal.check import check_journal
from chunkstore_journal.replay_check import check_replay
from tests.journal.test_inspect import fresh
from tests.journal.world import Process, World


def scratch(world: World) -> MemoryMetadataCache:
    return MemoryMetadataCache(world.format.uuid, "here", "replica", shelf=MemoryShelf())


def replayed(world: World) -> list[Finding]:
    return list(check_replay(fresh(world), scratch(world)))


def errors(world: World, head: Head | None = None) -> set[int]:
    """Invariants that the quick check finds broken."""
    return {finding.invariant for finding in check_journal(fresh(world), head) if finding.severity == "damage"}


def snapshots(world: World) -> list[str]:
    return sorted(info.name for info in world.storage.list(world.names.snapshot_prefix()).items if ".sn" in info.name)


def history(world: World, owners: int = 3) -> Process:
    for number in range(owners):
        owner = world.process(settings=Settings(journal_mode=world.mode, tuning=Tuning(snapshots_kept=2))).open()
        for key in range(4):
            owner.put(f"{number}-{key}")
        owner.snapshot()
        owner.put("behind the snapshot")
    return owner


def test_a_sound_history_has_no_findings(world: World) -> None:
    assert replayed(world) == []
    owner = history(world)
    assert replayed(world) == []
    collected, _ = owner.service.collect(head=owner.store.head(), epoch=owner.journal.epoch, dry_run=False)
    assert collected
    assert replayed(world) == []
    assert errors(world, owner.store.head()) == set()


def test_a_record_with_another_digest_than_its_state(world: World) -> None:
    """Invariant 10: the chain is whole, and what it says is not what follows from it. Only the one record is named."""
    owner = world.process().open()
    owner.put("a")
    batch = owner.batch("b", b"v")
    owner.journal.append(batch._replace(digest=batch.digest ^ 1))
    assert errors(world) == set()
    findings = replayed(world)
    assert [finding.invariant for finding in findings] == [10]
    assert findings[0].position == 3


def another_state(world: World, owner: Process) -> MetadataStore:
    """A store at the owner's position, sound in itself, with rows that history does not have."""
    store = scratch(world).create()
    row = (table_key("t", b"never put"), b"v")
    store.load([row])
    store.finish_load(Head(owner.store.head().position, row_digest(*row)))
    return store


def test_a_snapshot_of_another_state(world: World) -> None:
    """Invariant 11: sound in itself, read back, vouched for, and not what history leads to."""
    owner = world.process().open()
    owner.put("a")
    report = owner.service.write_snapshot(another_state(world, owner), epoch=1)
    owner.note(RecordKind.SNAPSHOT_NOTE, report.note)
    owner.put("b")
    assert errors(world) == set()
    findings = replayed(world)
    assert [(finding.invariant, finding.object) for finding in findings] == [(11, report.name)]
    assert "digest" in findings[0].message


def test_a_damaged_old_snapshot(world: World) -> None:
    """Invariant 11 holds for every snapshot that is kept, not only for the newest; and others are replayed from."""
    history(world)
    oldest = snapshots(world)[0]
    world.overwrite(oldest, world.whole(oldest)[:-3])
    assert errors(world) == set()
    assert [(finding.invariant, finding.object) for finding in replayed(world)] == [(11, oldest)]


@pytest.mark.parametrize("where", ["another hash", "behind the end", "nobody's epoch"])
def test_a_cache_that_is_no_point_of_history(world: World, where: str) -> None:
    """Invariant 12."""
    owner = history(world)
    head = owner.store.head()
    position = head.position
    if where == "another hash":
        head = head._replace(position=position._replace(hash=bytes(16)))
    elif where == "after the end":
        head = head._replace(position=position._replace(lsn=position.lsn + 1))
    else:
        head = head._replace(position=head.position._replace(epoch=9))
    assert errors(world, head) == {12}
