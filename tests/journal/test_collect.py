"""What the collector takes, and above all what it leaves (protocol 3.14.5, 3.14.6, A10)."""

from __future__ import annotations

import pytest

from chunkstore.checksum import DIGEST_MODULUS, row_digest
from chunkstore.config import Settings, Tuning
from chunkstore.errors import InvalidArgument
from chunkstore.journal import Batch, RecordKind
from chunkstore.metadata.codec import encode_row
from chunkstore.metadata.keys import pin_key
from chunkstore.metadata.port import Commit
from chunkstore.records.segments import PinRecord
from chunkstore_journal.check import check_pinned
from tests.journal.world import Process, World
from tests.support.past import rows_at, rows_of


def settings(world: World, kept: int) -> Settings:
    return Settings(journal_mode=world.mode, op_deadline_s=60.0, tuning=Tuning(snapshots_kept=kept))


def names(world: World) -> set[str]:
    return {info.name for info in world.storage.list("", limit=100_000).items}


def epochs(world: World, count: int, kept: int = 3) -> Process:
    process = world.process()
    for i in range(count):
        process = world.process(settings=settings(world, kept)).open()
        process.put(f"k{i}")
        process.put(f"l{i}")
        process.snapshot()
    return process


def collect(process: Process, *, dry_run: bool = False) -> tuple[int, int]:
    return process.service.collect(head=process.store.head(), epoch=process.journal.epoch, dry_run=dry_run)


def never_deleted(world: World, top: int) -> set[str]:
    kept = {world.names.format}
    for epoch in range(1, top + 1):
        kept |= {world.names.epoch(epoch), world.names.slot(epoch, 0)}
        if world.mode == "slot" and epoch < top:
            kept.add(world.names.slot(epoch, world.opened(epoch + 1).payload.end_index))
    return kept


@pytest.mark.parametrize("kept", [1, 3])
def test_old_streams_go_and_the_fence_stays(world: World, kept: int) -> None:
    owner = epochs(world, 6, kept)
    before = names(world)
    foretold = collect(owner, dry_run=True)
    assert names(world) == before
    done = collect(owner)
    assert done == foretold
    after = names(world)
    assert done[0] == len(before - after) > 0
    assert never_deleted(world, 6) <= after
    snapshots = sorted(name for name in after if name.endswith(".sn"))
    assert len(snapshots) == max(kept, 2), "the one our OPEN names stays as well"
    gone = world.names.log(1) if world.mode == "append" else world.names.slot(1, 1)
    assert gone in before - after
    own = {name for name in before if name.startswith(world.names.stream(6))}
    assert own <= after, "our own stream is not touched"
    assert collect(owner) == (0, 0)
    # Recovery works from each snapshot that was kept, the oldest alone included.
    for name in snapshots[1:]:
        world.storage.delete(name)
    heir = world.process().open()
    assert heir.keys() == owner.keys()


def test_nothing_goes_without_a_snapshot(world: World) -> None:
    world.process().open().put("a")
    owner = world.process().open()
    assert collect(owner) == (0, 0)


def test_only_the_owner_collects_and_never_its_own_stream(world: World) -> None:
    """#13."""
    owner = epochs(world, 3, 1)
    with pytest.raises(InvalidArgument):
        owner.service.collect(head=owner.store.head(), epoch=owner.journal.epoch + 1, dry_run=False)
    with pytest.raises(InvalidArgument):
        world.process().service.collect(head=owner.store.head(), epoch=3, dry_run=False)
    for i in range(5):
        owner.put(f"m{i}")
    owner.snapshot()
    collect(owner)
    own = [name for name in names(world) if name.startswith(world.names.stream(3))]
    assert len(own) == (owner.journal.head.index if world.mode == "slot" else 2)


def pin(process: Process, name: str, lsn: int = 0) -> int:
    """Commit a pin, of the record's own lsn unless it shall lie."""
    previous, old = process.journal.head, process.store.head().digest
    lsn = lsn or previous.lsn + 1
    value = encode_row(PinRecord(lsn, 0, 0, "somebody", ""))
    digest = (old + row_digest(pin_key(name), value)) % DIGEST_MODULUS
    batch = Batch(RecordKind.PIN, [], [(pin_key(name), value)], digest, 0, (name,))
    position = process.journal.append(batch)
    assert process.store.apply([Commit(position, previous.hash, digest, [], batch.rows)], verify=True)
    return lsn


def unpin(process: Process, name: str) -> None:
    previous, value = process.journal.head, process.store.get(pin_key(name))
    assert value is not None
    digest = (process.store.head().digest - row_digest(pin_key(name), value)) % DIGEST_MODULUS
    batch = Batch(RecordKind.UNPIN, [], [(pin_key(name), None)], digest, 0, (name,))
    position = process.journal.append(batch)
    assert process.store.apply([Commit(position, previous.hash, digest, [], batch.rows)], verify=True)


def snapshots_of(world: World) -> list[int]:
    return [found[0] for name in sorted(names(world)) if (found := world.names.parse_snapshot(name))]


def test_a_pin_keeps_what_leads_to_it(world: World) -> None:
    """The newest snapshot at or below it, and every record from there on; the older ones go."""
    epochs(world, 3, 1)
    owner = world.process(settings=settings(world, 1)).open()
    owner.put("before")
    first = pin(owner, "first")
    there = rows_of(owner.store)
    owner.put("behind")
    owner.snapshot()
    for _ in range(3):
        owner = world.process(settings=settings(world, 1)).open()
        owner.put("later")
        owner.snapshot()
    second = pin(owner, "second")
    below = max(lsn for lsn in snapshots_of(world) if lsn <= first)
    before = names(world)
    foretold = collect(owner, dry_run=True)
    assert collect(owner) == foretold and foretold[0] == len(before - names(world)) > 0
    assert min(snapshots_of(world)) == below and rows_at(world.storage, world.names, first) == there
    assert [*check_pinned(world.streams, first)] == [*check_pinned(world.streams, second)] == []
    if world.mode == "slot":
        lost = world.names.slot(4, 1)
        data = world.whole(lost)
        world.storage.delete(lost)
        assert [found.object for found in check_pinned(world.streams, first)] == [world.names.stream(4)]
        world.storage.create(lost, data)
    unpin(owner, "first")
    assert collect(owner)[0] > 0 and min(snapshots_of(world)) > first
    assert [*check_pinned(world.streams, second)] == []
    assert {found.invariant for found in check_pinned(world.streams, first)} == {39}, "and nobody is told otherwise"
    heir = world.process().open()
    assert heir.keys() == owner.keys()


def test_a_pin_does_not_rely_on_a_broken_snapshot(world: World) -> None:
    owner = epochs(world, 3, 1)
    world.overwrite(max(name for name in names(world) if name.endswith(".sn")), b"broken")
    owner = world.process(settings=settings(world, 1)).open()
    lsn = pin(owner, "p")
    there = rows_of(owner.store)
    owner.put("behind")
    owner.snapshot()
    owner = epochs(world, 2, 1)
    collect(owner)
    assert len(snapshots_of(world)) >= 4 and rows_at(world.storage, world.names, lsn) == there


def test_the_horizon_keeps_what_time_travel_needs(world: World) -> None:
    long = Settings(journal_mode=world.mode, op_deadline_s=60.0, pitr_horizon_s=3600, tuning=Tuning(snapshots_kept=1))
    epochs(world, 4, 1)
    owner = world.process(settings=long).open()
    owner.put("x")
    owner.snapshot()
    assert collect(owner) == (0, 0)


def test_it_can_be_ended_before_any_deletion_and_goes_on(world: World) -> None:
    owner = epochs(world, 5, 1)
    due, _ = collect(owner, dry_run=True)
    head, epoch = owner.store.head(), owner.journal.epoch
    before, collected, rounds = len(names(world)), 0, 0
    while collected < due:
        asked: list[bool] = []

        def two_more(asked: list[bool] = asked) -> bool:
            asked.append(len(asked) < 2)
            return asked[-1]

        objects, _ = owner.service.collect(head=head, epoch=epoch, dry_run=False, go_on=two_more)
        collected += objects
        rounds += 1
        assert objects and before - len(names(world)) == collected
    assert rounds > 1
    assert collect(owner) == (0, 0)
