"""What the simulator found in production code, each reduced to a directed schedule."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from chunkstore.config import JournalMode, RollingPolicy, Settings, Tuning
from chunkstore.errors import Damaged, DeadlineExceeded, NotOwner, OutcomeUnknown, StorageUnavailable
from tests.simulation.scene import ALL, SEGMENT, Event, Scene, scene_of, worlds
from tests.simulator import World


def test_an_undecided_claim_is_not_its_own_cause() -> None:
    """Found by seed 8: whoever walks ``__cause__`` of the error walked for ever."""
    with World(1, "s3", settings=Settings(op_deadline_s=0.5, lease_s=0, inline_bytes_max=0), timeout_s=1.0) as world:
        n = world.process("n")
        job = n.start(n.opening())
        n.until(op="create_if_absent", name="c/epoch/*").drop()
        error = job.failure()
        assert isinstance(error, StorageUnavailable)
        seen: list[BaseException] = []
        cause: BaseException | None = error
        while cause is not None:
            assert all(cause is not one for one in seen), f"{cause!r} is its own cause"
            seen.append(cause)
            cause = cause.__cause__
        with pytest.raises(StorageUnavailable):
            job.result()


def test_a_roll_that_gives_up_forgets_no_reservation() -> None:
    """Found by seed 132: two appends were acknowledged at one offset, and the chunk list was torn.

    The roll shut the gate and waited in vain for an append whose data write hung; when it gave up, it let everybody in
    again with fresh pending states, which knew nothing of the reserved append.
    """
    settings = Settings(
        op_deadline_s=1.0, lease_s=0, inline_bytes_max=0, tuning=Tuning(slot_roll_records=2, roll_interval_s_min=0)
    )
    with World(1, "s3", settings=settings) as world:
        z = world.process("z")
        store = z.open()
        for name in ("orders", "other"):
            z.run(partial(store.create, name))
        slow = z.start(lambda: store.append("orders", b"first"))
        chunk = z.until(op="create", name="c/d/*")
        for number in range(4):
            z.run(partial(store.append, "other", b"%d" % number))
        second = z.start(lambda: store.append("orders", b"second"))
        world.advance(3.0)
        chunk.release()
        offsets = []
        for job, data in ((slow, b"first"), (second, b"second")):
            job.run_to_end()
            if job.error is None:
                offsets.append((job.value, data))
            else:
                assert isinstance(job.error, OutcomeUnknown | DeadlineExceeded)
        found = z.run(lambda: store.read("orders", 0, 100))
        for offset, data in offsets:
            assert offset is not None
            assert found[offset : offset + len(data)] == data, f"lost: {data!r}, acknowledged at {offset}"
        assert z.run(lambda: [finding for finding in store.check("deep") if finding.severity == "damage"]) == []
        assert z.run(lambda: store.append("orders", b"third")) == len(found)


def test_records_that_come_back_are_no_damage() -> None:
    """Found by seed 39: the power was cut after a collection, one of the deleted records was there again, and check said
    that history had lost the records behind it."""
    settings = Settings(
        op_deadline_s=1.0, lease_s=0, inline_bytes_max=0, journal_mode="slot", tuning=Tuning(snapshots_kept=1)
    )
    with World(1, "posix", settings=settings) as world:
        z = world.process("z")
        store = z.open()
        z.run(partial(store.create, "orders"))
        for number in range(5):
            z.run(partial(store.append, "orders", b"%d" % number))
        first = world.names.slot(1, 1)
        kept = world.backend.content(first)
        z.run(store.close)
        n = world.process("n")
        store = n.open()
        n.run(store.snapshot)
        n.run(store.close)
        n = world.process("n2")
        store = n.open()
        n.run(store.collect)
        assert kept is not None
        assert world.backend.content(first) is None
        world.backend.overwrite(first, kept)
        findings = n.run(lambda: list(store.check("deep")))
        assert [finding for finding in findings if finding.severity == "damage"] == []
        assert [finding.invariant for finding in findings] == [4]


@pytest.mark.parametrize("verb", ["truncate", "append", "seal"])
@pytest.mark.parametrize("change", ["delete", "truncate"])
def test_an_owner_deposed_on_its_own_machine_does_not_cry_damage(verb: str, change: str) -> None:
    """Found by seeds 21 and 1260: two owners of one machine share the metadata cache. The deposed one planned with what it
    remembered of a segment, over rows that the new one had removed meanwhile, and told its client that data was damaged."""
    settings = Settings(
        op_deadline_s=1.0,
        lease_s=0,
        inline_bytes_max=0,
        journal_mode="append",
        default_rolling=RollingPolicy(chunk_size_bytes_max=4),
    )
    with World(1, "posix", settings=settings, preempt_every=1.0) as world:
        z, n = world.process("z"), world.process("n")
        old = z.open()
        z.run(partial(old.create, "orders"))
        for number in range(5):
            z.run(partial(old.append, "orders", b"%04d" % number))
        new = n.open()
        n.run(partial(new.delete, "orders") if change == "delete" else partial(new.truncate, "orders", 20))
        if change == "truncate":
            n.run(new.collect)
        calls: dict[str, Callable[[], object]] = {
            "truncate": partial(old.truncate, "orders", 10),
            "append": partial(old.append, "orders", b"more", expected_offset=20),
            "seal": partial(old.seal, "orders"),
        }
        assert isinstance(z.start(calls[verb]).failure(), NotOwner)


@worlds(*ALL)
def test_a_replica_that_was_overtaken_looks_again(scene: Scene) -> None:
    """Found by seed 799049429660: between a replica's look for the end and its look for a snapshot, history went on and
    everything up to that end was collected. It told its user that data was damaged."""
    z = scene.first("z", "a")
    r = scene.world.process("r", "far away")
    job = r.start(r.opening_replica())
    reading = r.until(op="read", name=scene.names.latest, skip=1)
    z.append("b")
    n = scene.owner("n", "other", snapshots_kept=1)
    n.append("c")
    n.run(lambda store: store.snapshot())
    n = scene.owner("n2", "other", snapshots_kept=1)
    assert n.run(lambda store: store.collect()).journal_objects > 0
    reading.release()
    replica = job.result()
    assert scene.events_of(r.run(lambda: replica.read(SEGMENT, 0, 100))) == ["a", "b", "c"]
    assert scene.judge() == ["a", "b", "c"]


@worlds("posix-slot", "posix-append")
def test_a_snapshot_that_nobody_vouches_for_is_not_relied_upon(scene: Scene) -> None:
    """Found by seed 138: an owner died before it had synced its snapshot. The next one found it by a list, named it in its
    OPEN, and collected the journal up to it; then the power was cut, and neither was there any more."""
    z = scene.first("z", "a")
    z.process.start(z.store.snapshot)
    z.process.until(op="sync", name=f"{scene.names.snapshot_prefix()}*")
    z.process.crash()
    n = scene.owner("n", "other")
    assert n.store.report.source == "snapshot", "it is good enough to start from"
    n.append("b")
    collector = scene.owner("n2", "other", snapshots_kept=1)
    collector.run(lambda store: store.collect())
    for epoch in (n.epoch, collector.epoch):
        assert scene.opened(epoch).payload.snapshot is None
    scene.world.power_cut()
    assert scene.judge() == ["a", "b"]


@worlds(*ALL)
def test_a_fenced_owner_that_remembers_more_than_its_rows_does_not_cry_damage(scene: Scene) -> None:
    """Found by seed 50225: a deposed owner learned from its successor's OPEN that its last append counts, and acknowledged it; what
    was planned next, upon a chunk that its own rows had never heard of, told its client that data was damaged."""
    z = scene.first("z", "a")
    fence, owned = z.store._container.fence, z.store._container.current
    damage = Damaged("the metadata refers to a chunk it has no record of", object="c/d/00/1")
    with pytest.raises(Damaged):
        z.run(lambda _: fence.explain(owned, damage))
    fence.close(NotOwner(epoch=z.epoch, owner=z.epoch + 1))
    with pytest.raises(NotOwner):
        z.run(lambda _: fence.explain(owned, damage))


@pytest.mark.parametrize("mode", ["slot", "append"])
def test_the_sequence_of_claims_survives_a_power_cut_without_holes(mode: JournalMode) -> None:
    """Found by seed 70479: two claimants died one after the other before they had synced their claims, and the power cut kept
    the upper name only."""
    kept: set[bool] = set()
    for seed in range(20):
        with World(
            seed, "posix", settings=Settings(op_deadline_s=1.0, lease_s=0, inline_bytes_max=0, journal_mode=mode)
        ) as world:
            z = world.process("z")
            z.run(z.open().close)
            for epoch in (2, 3):
                claimant = world.process(f"n{epoch}")
                claimant.start(claimant.opening())
                claimant.until(op="create_if_absent", step="fsync-folder", name=world.names.epoch(epoch))
                claimant.crash()
            world.power_cut()
            claims = [world.backend.content(world.names.epoch(epoch)) is not None for epoch in (2, 3)]
            assert claims[0], "whoever claims the next epoch has made this name durable"
            kept.add(claims[1])
            last = world.process("last")
            store = last.open()
            assert last.run(partial(list, store.check("deep"))) == []
    assert kept == {True, False}, "the newest name was not synced by anybody"


def lost_in_vain(scene: Scene) -> Event:
    """The sync of an owner's last record fails, and it dies before it says so: the next sync reports success and saves nothing."""
    z = scene.first("z", "a")
    event = z.begin("b")
    call = z.process.until(op="sync", step="fsync", name="*/log.a")
    scene.posix.entries[call.name].sync_fails()
    z.process.crash()
    return event


def test_a_sync_behind_one_that_failed_shows_nothing() -> None:
    """Found by seed 2023001224: the owner's sync of its last record failed, and it died before it said so. A replica on its machine synced
    the log, which succeeded and saved nothing, and showed a record that a power cut took."""
    for seed in range(4):
        with scene_of("posix-append", seed) as scene:
            event = lost_in_vain(scene)
            assert scene.replica("r", "host").content() == ["a"]
            scene.world.machine("host").power_cut()
            scene.owner("n").append("c")
            assert scene.judge() == ["a", "c"]
            assert event.outcome == "unknown"
