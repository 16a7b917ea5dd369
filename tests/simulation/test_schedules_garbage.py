"""Named schedules: collectors, sweepers, zombies after them, lists that lag, and pins (protocol 3.18: 12 to 14, 30 to 32, 34, 41, 51)."""

from __future__ import annotations

from typing import Any

import pytest

from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import InvalidArgument, NotOwner, OutcomeUnknown
from chunkstore.records.names import chunk_id
from chunkstore.upkeep.sweep import SweepReport
from tests.simulation.scene import ALL, S3, SEGMENT, SLOT, Owner, Scene, scene_of, worlds
from tests.simulator import Rule, Weather
from tests.simulator.checks import patiently
from tests.support.past import live_chunks, rows_at, rows_of


@worlds(*ALL)
def test_12_gc_then_zombie_put(scene: Scene) -> None:
    z = scene.first("z", "a", "b")
    late = z.begin("late")
    call = z.process.until_record()
    z.process.stall()
    n = scene.owner("n", "other", snapshots_kept=1)
    n.append("c")
    n.run(lambda store: store.snapshot())
    report = n.run(lambda store: store.collect())
    assert report.journal_objects > 0 and scene.records(1) == [], "what z has written is gone"
    if scene.slot:
        assert scene.seal(1) == 4 and call.name == scene.names.slot(1, 4), "but for the SEAL in its next slot"
    n.append("d")
    z.process.wake(slept_s=7 * 86_400)
    call.release()
    assert isinstance(late.failure(), NotOwner)
    assert isinstance(z.begin("later").failure(), NotOwner)
    assert scene.judge() == ["a", "b", "c", "d"]


@worlds(*ALL)
def test_13_gc_own_stream(scene: Scene) -> None:
    """Negative: the collector is told to trim the stream that it writes itself."""
    z = scene.first("z", "a", snapshots_kept=1)
    for tag in ("b", "c", "d"):
        z.append(tag)
        z.run(lambda store: store.snapshot())
    container = z.store._container
    for epoch in (0, 2, 3):
        with pytest.raises(InvalidArgument):
            z.run(
                lambda store, epoch=epoch: container.service.collect(  # type: ignore[misc]
                    head=container.current.store.head(), epoch=epoch, dry_run=False
                )
            )
    before = scene.records(1)
    z.run(lambda store: store.collect())
    assert scene.records(1) == before, "every record is there that another claimant will count"
    assert len([name for name in scene.world.backend.names() if name.endswith(".sn")]) == 1, "it did collect"
    z.process.crash()
    assert scene.judge() == ["a", "b", "c", "d"]


@worlds(*SLOT)
def test_14_doomed_claimant_seals_collected_slot(scene: Scene) -> None:
    z = scene.first("z", "a")
    r = scene.replica()
    assert r.content() == ["a"]
    z.process.stall()
    doomed, opening = scene.opening("doomed", "third")
    the_seal = doomed.until(op="create_if_absent", name=scene.names.slot(1, 3))
    doomed.stall()
    event = z.begin("b")
    z.process.wake()
    event.acknowledged()
    m = scene.owner("m", "other", snapshots_kept=1)
    assert m.epoch == 3 and scene.seal(1) == 4
    m.append("c")
    m.run(lambda store: store.snapshot())
    m.run(lambda store: store.collect())
    assert scene.records(1) == [] and not scene.there(the_seal.name), "a hole, in front of the SEAL that counts"
    doomed.wake(slept_s=86_400)
    the_seal.release()
    assert isinstance(opening.failure(), NotOwner)
    assert scene.seal(1) == 3, "its SEAL lies in the hole"
    r.refresh()
    assert r.content() == ["a", "b", "c"], "a replica that has not come beyond the hole is not misled"
    m.append("d")
    r.refresh()
    head = m.store._container.current.store.head()
    assert r.position() == (head.position.lsn, head.position.hash, head.digest)
    assert scene.judge() == ["a", "b", "c", "d"]


@worlds(*ALL)
def test_34_pin_vs_old_delete(scene: Scene) -> None:
    """z has decided what to delete when n takes over and pins: z's deletion lands, z goes on with what it believes, and n collects
    what was removed since. Every pinned state can be restored: its rows replayed, its chunks there."""
    little = {"gc_grace_s": 0, "snapshots_kept": 1}
    z = scene.first("z", "a", "b", **little)
    for name in ("old", "kept", "last"):
        z.run(lambda store, name=name: store.create(name))  # type: ignore[misc]
        z.run(lambda store, name=name: store.append(name, b"of some use"))  # type: ignore[misc]
    z.run(lambda store: store.delete("old"))
    collection = z.process.start(z.store.collect)
    deletion = z.process.until(op="delete", name="*/d/*")
    z.process.stall()

    n = scene.owner("n", "other", **little)
    pin = n.run(lambda store: store.pin("p", "against z"))
    there = n.run(lambda store: rows_of(store._container.current.store))
    n.run(lambda store: store.delete("kept"))
    assert n.run(lambda store: store.snapshot()).lsn == pin.lsn + 1
    n.append("c")

    z.process.wake(slept_s=86_400)
    deletion.release()
    if not collection.done:
        scene.world.run_until(lambda: collection.done)
    assert not scene.there(deletion.name), "it has landed"
    for machine in ("third", "fourth"):
        n = scene.owner(machine, machine, **little)
        n.append(machine)
        n.run(lambda store: store.snapshot())
        n.run(lambda store: store.collect())
        _restorable(scene, pin.lsn, there)
    assert n.run(lambda store: store.collect()).pinned == 1
    n.run(lambda store: store.unpin("p"))
    assert n.run(lambda store: store.collect()).chunks == 1
    assert n.run(lambda store: [info.name for info in store.segments(prefix="l")]) == ["last"]
    assert scene.judge() == ["a", "b", "c", "third", "fourth"]


def _restorable(scene: Scene, lsn: int, there: dict[bytes, bytes]) -> None:
    storage = scene.world.observer_storage()
    assert rows_at(storage, scene.names, lsn) == there
    for chunk, length in live_chunks(scene.names, there).items():
        assert scene.there(chunk) and storage.stat(chunk).length >= length


def sweep(store: ChunkedSegmentStorage) -> SweepReport:
    return store.sweep(delete=True, age_s_min=0)


def written(scene: Scene, process: str) -> set[str]:
    """The chunks that a process has written so far."""
    return {item.name for item in scene.seen(process=process) if "/d/" in item.name and item.op in ("create", "write")}


def with_an_orphan(scene: Scene, **settings: Any) -> tuple[Owner, str]:
    """An owner of epoch 2, which can append, and a chunk that epoch 1 wrote for nothing."""
    dead = scene.first("dead", "a")
    dead.begin("of no use")
    call = dead.process.until(op="create", name="*/d/*", stage="reply") if scene.s3 else None
    dead.process.crash()
    z = scene.owner("z", **settings)
    orphan = call.name if call is not None else scene.names.chunk(chunk_id(1, 1, 99, 1))
    if call is None:
        z.run(lambda store: store._container.storage.create(orphan, b"of no use"))
    return z, orphan


@pytest.mark.parametrize("late", ["list", "delete"])
@worlds(*ALL)
def test_30_orphan_sweep_by_zombie(scene: Scene, late: str) -> None:
    """z lists after n has begun to upload, or deletes what it chose before."""
    z, orphan = with_an_orphan(scene)
    job = z.process.start(lambda: sweep(z.store), "sweep")
    call = z.process.until(op=late, name="*/d/*")
    z.process.stall()
    n = scene.owner("n", "other")
    event = n.begin("b")
    record = n.until_decided() if not scene.slot else n.process.until_record()
    uploaded = written(scene, "n")
    assert uploaded, "the bytes are there, and no record says so yet"
    z.process.wake(slept_s=7 * 86_400)
    call.release()
    job.run_to_end()
    if late == "list":
        assert isinstance(job.error, NotOwner) and scene.there(orphan)
    else:
        assert not scene.there(orphan)
    record.release()
    event.acknowledged()
    assert all(scene.there(name) for name in uploaded)
    assert scene.judge() == ["a", "b"]


@worlds(*ALL)
def test_31_sweep_vs_inflight(scene: Scene) -> None:
    """Of the own epoch nothing is an orphan, whatever its age and however long it takes."""
    z, orphan = with_an_orphan(scene)
    event = z.begin("b")
    record = z.process.until_record()
    uploaded = written(scene, "z") - {orphan}
    report = z.run(sweep)
    assert (report.deleted, scene.there(orphan)) == (1, False)
    assert uploaded and all(scene.there(name) for name in uploaded)
    record.release()
    event.acknowledged()
    assert z.content() == ["a", "b"]
    assert scene.judge() == ["a", "b"]


@pytest.mark.parametrize("lands", [True, False])
@worlds(*S3)
def test_32_cleanup_on_unknown(scene: Scene, lands: bool) -> None:
    """Its caller is told "unknown" and sweeps at once: whether the bytes stay, history decides first."""
    z, orphan = with_an_orphan(scene, op_deadline_s=1.0)
    event = z.begin("b")
    call = z.process.until_record()
    late = call.delay()
    silence = Rule(z.process, op="create_if_absent", name=call.name)
    assert isinstance(event.failure(), OutcomeUnknown)
    if lands:
        assert late() is True
    silence.end()
    uploaded = written(scene, "z") - {orphan}
    sweeping = z.process.start(lambda: patiently(lambda: sweep(z.store)), "sweep")
    sweeping.run_to_end()
    assert sweeping.error is None and not scene.there(orphan)
    # What the take-over from itself did not find in history is no commit's any more.
    assert z.epoch == 3 and uploaded and all(scene.there(name) is lands for name in uploaded)
    z.append("c")
    assert scene.judge() == (["a", "b", "c"] if lands else ["a", "c"])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", S3)
def test_41_list_lags(kind: str, seed: int) -> None:
    """Whoever lists misses what is new and sees what was deleted: nobody decides by it."""
    with scene_of(kind, seed, weather=Weather(stale_list=1.0)) as scene:
        scene.world.faults.active = True
        history: list[str] = []
        for number in range(8):
            owner = scene.owner(f"p{number}", f"machine {number}", snapshots_kept=1, gc_grace_s=0)
            assert owner.epoch == number + 1
            if number == 0:
                owner.run(lambda store: store.create(SEGMENT))
            else:
                assert owner.content() == history
            owner.run(lambda store, number=number: store.create(f"gone {number}"))  # type: ignore[misc]
            owner.run(lambda store, number=number: store.append(f"gone {number}", b"x"))  # type: ignore[misc]
            owner.run(lambda store, number=number: store.delete(f"gone {number}"))  # type: ignore[misc]
            owner.append(f"{number}a", f"{number}b")
            history += [f"{number}a", f"{number}b"]
            if number % 2:
                owner.run(lambda store: store.snapshot())
            owner.run(lambda store: store.collect())
            if number == 5:
                # No hint left: only a list could show the snapshots now, and it lags.
                scene.world.backend.remove(scene.names.latest)
        assert scene.world.faults.fired["stale_list"] >= 10
        assert scene.judge() == history


@worlds(*S3)
def test_51_late_put_after_deletion(scene: Scene) -> None:
    """A duplicate request makes a deleted chunk again. Nothing refers to it, and the next owner's sweep deletes it again."""
    z = scene.first("z", "a", gc_grace_s=0)
    z.run(lambda store: store.create("gone"))
    job = z.process.start(lambda: z.store.append("gone", b"of no use"))
    call = z.process.until(op="create", name="*/d/*", stage="reply")
    call.release()
    job.result()
    z.run(lambda store: store.delete("gone"))
    assert z.run(lambda store: store.collect()).chunks == 1
    assert not scene.there(call.name)
    assert call.late() is True and scene.content(call.name) == b"of no use"
    z.append("b")
    n = scene.owner("n", "other")
    named = n.run(lambda store: [chunk.name for info in store.segments() for chunk in store.layout(info.name)])
    assert named and call.name not in named
    assert n.run(sweep).deleted == 1 and not scene.there(call.name)
    assert scene.judge() == ["a", "b"]
