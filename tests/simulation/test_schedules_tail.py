"""Named schedules: what of a journal's end is history after power cuts, failed syncs, rot and full disks (protocol 3.18: 18 to 23, 29)."""

from __future__ import annotations

import pytest

from chunkstore.errors import Damaged, OutcomeUnknown, StorageFull, StorageUnavailable
from tests.simulation.scene import ALL, APPEND, POSIX, SLOT, Owner, Scene, scene_of, worlds
from tests.simulator import Call

SEEDS = range(4)
"""What a power cut leaves is chance: each seed is another cut."""


def unsynced_record(z: Owner) -> Call:
    """Held: the system call that would make the record durable, which is visible already."""
    if z.scene.slot:
        return z.process.until(op="create_if_absent", step="fsync-folder", name="*/j/*")
    return z.process.until(op="sync", step="fsync", name="*/log.a")


@pytest.mark.parametrize("kind", POSIX)
def test_18_power_cut_after_adopt(kind: str) -> None:
    survived = set()
    for seed in SEEDS:
        with scene_of(kind, seed) as scene:
            z = scene.first("z", "a")
            event = z.begin("b")
            call = unsynced_record(z)
            assert len(scene.records(1)) == 3, "create, a, b: visible"
            before = scene.posix.durable(call.name)
            assert before is None or b"<" not in before[-1:], "and not durable"
            z.process.crash()
            n = scene.owner("n")
            assert n.content() == ["a", "b"], "adopted"
            scene.world.machine("host").power_cut()
            m = scene.owner("m")
            assert m.content() == ["a", "b"], "no hole: it was made durable before OPEN pointed behind it"
            m.append("c")
            survived.add(event.outcome)
            assert scene.judge() == ["a", "b", "c"]
    assert survived == {"unknown"}


def steps_of_an_append(kind: str) -> int:
    """How many system calls an append makes that begins a chunk."""
    with scene_of(kind) as scene:
        z = scene.first("z")
        before = len(scene.calls)
        z.append("b")
        return len(scene.calls) - before


@pytest.mark.parametrize("stage", ["apply", "reply"])
@pytest.mark.parametrize("kind", POSIX)
def test_19_power_cut_dir_entry(kind: str, stage: str) -> None:
    """The power goes at every system call of an append, names and bytes surviving independently: never half, never lost."""
    found = set()
    steps = steps_of_an_append(kind)
    assert steps >= 8
    for step in range(steps):
        for seed in SEEDS:
            with scene_of(kind, seed) as scene:
                z = scene.first("z")
                z.begin("b")
                z.process.until(stage=stage, skip=step)  # type: ignore[arg-type]
                scene.world.machine("host").power_cut()
                n = scene.owner("n")
                n.append("c")
                history = scene.judge()
                assert history in (["c"], ["b", "c"])
                found.add(len(history))
    assert found == {1, 2}, "some cuts took it and some did not"


@pytest.mark.parametrize("kind", POSIX)
def test_19_power_cut_dir_entry_that_was_acknowledged(kind: str) -> None:
    for seed in SEEDS:
        with scene_of(kind, seed) as scene:
            z = scene.first("z", "a", "b")
            z.process.stall()
            scene.world.machine("host").power_cut()
            assert scene.judge() == ["a", "b"]


@pytest.mark.parametrize("where", ["record", "folder", "data"])
@pytest.mark.parametrize("kind", POSIX)
def test_20_fsync_eio_then_ok(kind: str, where: str) -> None:
    """The failed sync takes what was dirty; the next one "succeeds" and saves nothing; then the power goes."""
    patterns = {
        ("posix-append", "record"): {"op": "sync", "step": "fsync", "name": "*/log.a"},
        ("posix-append", "folder"): {"op": "sync", "step": "fsync-folder", "name": "*/d/*"},
        ("posix-append", "data"): {"op": "sync", "step": "fsync", "name": "*/d/*"},
        ("posix-slot", "record"): {"op": "create_if_absent", "step": "fsync-temporary"},
        ("posix-slot", "folder"): {"op": "create_if_absent", "step": "fsync-folder", "name": "*/j/*"},
        ("posix-slot", "data"): {"op": "sync", "step": "fsync", "name": "*/d/*"},
    }
    for seed in SEEDS:
        with scene_of(kind, seed) as scene:
            z = scene.first("z", *["a"] * (where != "folder"))
            event = z.begin("b")
            call = z.process.until(**patterns[kind, where])  # type: ignore[arg-type]
            inode = scene.posix.entries.get(call.name)
            if inode is not None and call.step != "fsync-folder":
                inode.sync_fails()
            call.fail(StorageUnavailable("Input/output error", object=call.name))
            assert event.job is not None
            event.job.run_to_end()
            data = call.name.startswith(scene.names.data_prefix())
            if data:
                assert isinstance(event.error, StorageUnavailable), "nothing was journaled"
                assert z.epoch == 2, "what the sync was for is in an unknown state: the epoch has ended"
            else:
                assert event.outcome == "acknowledged"
            if (kind, where) == ("posix-append", "record"):
                assert z.epoch == 2, "the epoch has ended with the file"
                assert scene.opened(2).embedded is not None, "and what was read of it is in our OPEN"
            elif not data:
                assert z.epoch == 1
            z.append("c")
            if data:
                assert scene.content(call.name).endswith(b"<b>"), "that chunk is closed for ever"
            scene.world.machine("host").power_cut()
            assert scene.judge() == [*["a"] * (where != "folder"), *["b"] * (not data), "c"]


@worlds(*ALL)
def test_21_torn_mid_file(scene: Scene) -> None:
    """Rot in front of valid records is damage for whoever comes, and nothing is cut or sealed because of it."""
    z = scene.first("z", "a", "b", "c")
    z.process.crash()
    name = scene.names.slot(1, 3) if scene.slot else scene.names.log(1)
    good = scene.content(name)
    at = len(good) // 2
    scene.world.backend.overwrite(name, good[:at] + bytes((good[at] ^ 0x40,)) + good[at + 1 :])
    process, opening = scene.opening("n", "elsewhere")
    error = opening.failure()
    assert isinstance(error, Damaged) and error.object == name
    process.crash()
    assert scene.decided(2) is None
    assert scene.content(name) != good
    scene.world.backend.overwrite(name, good)
    assert scene.judge() == ["a", "b", "c"]


@worlds(*APPEND)
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("zeros", [1, 100, 5000])
def test_22_zero_tail(scene: Scene, zeros: int, half: bool) -> None:
    z = scene.first("z", "a")
    log = scene.names.log(1)
    if half:
        z.begin("b")
        call = z.process.until_record()
        assert call.data is not None
        scene.posix.tear(call, len(call.data) // 2)
        call.outlive()
    z.process.crash()
    whole = scene.content(log)
    end = scene.records(1)[-1]
    scene.posix.overwrite(log, whole + bytes(zeros))
    scene.world.machine("host").shelf.clear()
    n = scene.owner("n")
    cut = n.store.report.tail_cut
    if half:
        torn = whole[end.header.at + end.size :].rstrip(b"\0")
        assert cut is not None and (cut.lsn, cut.bytes) == (end.header.lsn, len(torn))
    else:
        assert cut is None
    n.append("c")
    assert scene.judge() == ["a", "c"]


@worlds(*POSIX)
@pytest.mark.parametrize("kept", [0, 1, 30, 160, -1])
def test_23_enospc_partial_record(scene: Scene, kept: int) -> None:
    z = scene.first("z", "a")
    event = z.begin("b")
    call = z.process.until_record() if not scene.slot else z.process.until(op="create_if_absent", step="temporary")
    assert call.data is not None
    if not scene.slot:
        scene.posix.tear(call, kept % len(call.data))
    call.fail(StorageFull("no space left on device", object=call.name))
    error = event.failure()
    assert isinstance(error, StorageFull), "which means that it did not happen"
    z.append("c")
    assert z.epoch == 2, "it has taken over from itself"
    before = scene.opened(2).previous_end
    if not scene.slot:
        assert before.end == len(scene.content(scene.names.log(1))) - kept % len(call.data) or kept == 0
    assert scene.judge() == ["a", "c"]


@worlds(*SLOT)
def test_23_enospc_partial_record_while_an_attempt_is_on_its_way(scene: Scene) -> None:
    """An attempt without an answer, then no space for the next one: that is not "did not happen"."""
    z = scene.first("z", "a")
    event = z.begin("b")
    call = z.process.until_record()
    call.drop_reply() if not scene.s3 else call.delay()()
    again = z.process.until(op="create_if_absent", step="temporary" if not scene.s3 else "PUT*", stage="send")
    again.fail(StorageFull("no space left on device", object=call.name))
    assert event.job is not None
    event.job.run_to_end()
    assert not isinstance(event.error, StorageFull | OutcomeUnknown)
    assert scene.judge() == ["a", "b"]


@pytest.mark.parametrize("kind", POSIX)
def test_29_partial_append_survives(kind: str) -> None:
    """Not a byte of an append whose writer died in the middle of it."""
    with scene_of(kind) as scene:
        z = scene.first("z", "a", "b")
        z.begin("late")
        call = z.process.until(name="*/d/*")
        scene.posix.tear(call, 3)
        z.process.crash()
        n = scene.owner("n", "other")
        assert n.content() == ["a", "b"]
        n.append("c")
        assert scene.judge() == ["a", "b", "c"]
