"""What the collector takes, and above all what it leaves (protocol 3.14.5, 3.14.6, A10)."""

from __future__ import annotations

import pytest

from chunkstore.config import Settings
from chunkstore.errors import InvalidArgument
from chunkstore.journal import Batch, RecordKind
from chunkstore.metadata.memory import MemoryShelf
from tests.journal.world import Process, World


def settings(world: World, kept: int) -> Settings:
    return Settings(journal_mode=world.mode, op_deadline_s=30.0, snapshots_kept=kept)


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


def test_what_another_collector_has_deleted_is_no_error(world: World) -> None:
    owner = epochs(world, 6, 1)

    def be_faster(operation: str, name: str) -> None:
        if operation == "delete":
            world.storage.delete(name)

    owner.wire.before = be_faster
    assert collect(owner)[0] > 0
    assert collect(owner) == (0, 0)
    assert world.process().open().keys() == owner.keys()


def test_pins_stop_the_collector(world: World) -> None:
    owner = epochs(world, 6, 1)
    world.storage.put(world.names.pin("1234"), b"somebody's")
    assert collect(owner) == (0, 0)
    world.storage.delete(world.names.pin("1234"))
    owner.journal.append(Batch(RecordKind.HEARTBEAT, [], [], owner.store.head().digest, 0))
    assert collect(owner)[0] > 0


def test_the_horizon_keeps_what_time_travel_needs(world: World) -> None:
    long = Settings(journal_mode=world.mode, op_deadline_s=30.0, snapshots_kept=1, pitr_horizon_s=3600)
    epochs(world, 4, 1)
    owner = world.process(settings=long).open()
    owner.put("x")
    owner.snapshot()
    assert collect(owner) == (0, 0)


def test_a_broken_snapshot_does_not_count(world: World) -> None:
    owner = epochs(world, 4, 2)
    snapshots = sorted(name for name in names(world) if name.endswith(".sn"))
    world.overwrite(snapshots[-3], b"broken")
    heir = world.process(MemoryShelf(), settings(world, 3)).open()
    collect(heir)
    left = sorted(name for name in names(world) if name.endswith(".sn"))
    assert left == snapshots, "three good ones are kept, and the broken one lies between them"
    assert owner.keys() == heir.keys()
