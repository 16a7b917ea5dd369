"""Named schedules: who may acknowledge once somebody else has claimed (protocol 3.18: 1 to 4, 42, 45, 52)."""

from __future__ import annotations

import pytest

from chunkstore.errors import BadOffset, NotOwner, OutcomeUnknown, StorageUnavailable
from chunkstore_journal.payloads import SealPayload
from tests.simulation.scene import ALL, APPEND, POSIX, SEGMENT, Owner, Scene, scene_of, worlds
from tests.simulator import Rule
from tests.simulator.posix import PosixBackend


def rename_folder(backend: PosixBackend, folder: str, to: str) -> None:
    """Rename a folder of the root."""
    entries, dirty = backend.entries, backend._dirty
    for name in [name for name in entries if name.startswith(f"{folder}/")]:
        entries[to + name.removeprefix(folder)] = entries.pop(name)
    for known in [known for known in dirty if f"{known}/".startswith(f"{folder}/")]:
        names = dirty.pop(known)
        dirty[to + known.removeprefix(folder)] = {to + name.removeprefix(folder): names[name] for name in names}
    for held in backend.held:
        for first, place in held.items():
            held[first] = to if place == folder else place
    backend._names = None


def copy_folder(backend: PosixBackend, folder: str, to: str) -> None:
    """Copy a folder of the root, durably: the same names and bytes, in other files."""
    for name in [name for name in backend.entries if name.startswith(f"{folder}/")]:
        backend.overwrite(to + name.removeprefix(folder), bytes(backend.entries[name].data))


@worlds(*ALL)
@pytest.mark.parametrize("held", ["data", "record"])
def test_01_zombie_append_after_tail(scene: Scene, held: str) -> None:
    z = scene.first("z", "a")
    late = z.begin("late")
    call = z.process.until(name="*/d/*") if held == "data" else z.process.until_record()
    n = scene.owner("n", "other")
    cut = scene.opened(2)
    assert cut.payload.previous_epoch == 1 and not call.applied, "the successor has opened before z writes"
    n.append("b")
    call.release()
    assert isinstance(late.failure(), NotOwner)
    assert call.applied, "nothing physical has stopped it"
    if not scene.slot and held == "record":
        behind = scene.records(1)[-1].header
        assert (behind.epoch, behind.index) == (1, cut.payload.end_index + 1), "its record lies behind the cut"
    assert scene.judge() == ["a", "b"]


@worlds(*APPEND)
@pytest.mark.parametrize("kept", [1, 20, 152, 0.5, -1])
def test_02_zombie_append_during_tail(scene: Scene, kept: float) -> None:
    z = scene.first("z", "a")
    late = z.begin("late")
    call = z.process.until_record()
    assert call.data is not None
    size = len(call.data)
    half = int(size * kept) if kept == 0.5 else int(kept) % size
    scene.posix.tear(call, half)
    n = scene.owner("n", "other")
    assert n.store.report.tail_cut is not None
    assert n.store.report.tail_cut.bytes == half, "the half was there when the tail was read"
    call.release()
    assert isinstance(late.failure(), NotOwner)
    assert scene.content(scene.names.log(1)).endswith(call.data), "the late half has arrived, too"
    n.append("b")
    assert scene.judge() == ["a", "b"]


@worlds(*ALL)
def test_03_check_then_claim(scene: Scene) -> None:
    z = scene.first("z", "a")
    event = z.begin("x")
    call = z.until_decided()
    assert event.outcome == "unknown" and scene.records(1)[-1].header.lsn == scene.opened(1).header.lsn + 3
    n = scene.owner("n", "other")
    assert scene.opened(2).payload.last_lsn == scene.records(1)[-1].header.lsn
    n.append("b")
    call.release()
    event.acknowledged()
    assert event.epoch == 1
    assert isinstance(z.begin("y").failure(), NotOwner)
    assert scene.judge() == ["a", "x", "b"]


@worlds(*ALL)
def test_04_third_owner_longer_tail(scene: Scene) -> None:
    z = scene.first("z", "a")
    late = z.begin("late")
    call = z.process.until_record()
    n, _ = scene.opening("n")
    n.until(op="create_if_absent", name=scene.names.slot(2, 0), stage="send")
    short = len(scene.records(1))
    n.crash()
    call.release()
    if scene.slot:
        assert isinstance(late.failure(), NotOwner), "n has sealed before it died"
        n2 = scene.owner("n2", "other")
    else:
        z.process.until(op="exists", name=scene.names.epoch(2), stage="reply").release()
        assert len(scene.records(1)) == short + 1, "the tail is longer than n has seen it"
        n2 = scene.owner("n2", "other")
        late.acknowledged()  # z has asked n2's OPEN
    assert isinstance(scene.decided(2), SealPayload)
    assert scene.opened(3).payload.previous_epoch == 1
    n2.append("b")
    assert scene.judge() == (["a", "b"] if scene.slot else ["a", "late", "b"])


@pytest.mark.parametrize(
    ("kind", "trusted", "remote"),
    [*((kind, True, False) for kind in ALL), *((kind, False, False) for kind in POSIX), ("s3-slot", True, True)],
)
def test_42_stale_owner_reads(kind: str, trusted: bool, remote: bool) -> None:
    """``trusted``: a stat tells the truth. Where it may not, a fenced read commits an empty record instead (A13).
    ``remote``: it asks for the fence beside its chunks."""
    with scene_of(kind, fence_by_stat=trusted, remote=remote) as scene:
        z = scene.first("z", "a")
        reading = z.process.start(lambda: z.store.read(SEGMENT, 0, 99))
        held = z.process.until(op="exists", name=scene.names.epoch(2)) if trusted else z.process.until_record()
        n = scene.owner("n", "other")
        n.append("b")
        assert not held.applied, "z has read its own state, and has not yet asked whether it may answer"
        held.release()
        assert isinstance(reading.failure(), NotOwner)
        with pytest.raises(NotOwner):
            z.content()
        assert scene.judge() == ["a", "b"]


@worlds(*ALL)
def test_42_stale_owner_reads_what_it_asked_in_time(scene: Scene) -> None:
    """Asked before the claim: the answer was true when it was read."""
    z = scene.first("z", "a")
    reading = z.process.start(lambda: z.store.read(SEGMENT, 0, 99))
    asked = z.process.until(op="exists", name=scene.names.epoch(2), stage="reply")
    n = scene.owner("n", "other")
    n.append("b")
    asked.release()
    assert reading.result() == b"<a>"
    assert scene.judge() == ["a", "b"]


@worlds(*ALL)
def test_a_deposed_owner_that_looks_at_the_tail_gives_only_what_stays(scene: Scene) -> None:
    """Bytes before the end it knows are history for ever; at the end it asks, and hears that it is deposed."""
    z = scene.first("z", "a", "b", read_fence="tail")
    scene.world.advance(2)  # it has looked for claims since it wrote
    n = scene.owner("n", "other")
    n.append("c")
    assert z.run(lambda store: store.read(SEGMENT, 0, 5)) == b"<a><b" == n.run(lambda store: store.read(SEGMENT, 0, 5))
    with pytest.raises(NotOwner):
        z.content()
    assert scene.judge() == ["a", "b", "c"]


def an_outcome_unknown(scene: Scene, z: Owner, tag: str, ask: object, *, adopted: bool) -> Owner:
    """z is told "unknown" while its successor is at work; its record is in history (``adopted``) or not. The successor."""
    event = z.begin(tag, ask)  # type: ignore[arg-type]
    call = z.process.until_record()
    n, job = scene.opening("n")
    if adopted:
        held = n.until(op="create_if_absent", name=scene.names.epoch(2), stage="reply")
    else:
        held = n.until(op="create_if_absent", name=scene.names.slot(2, 0), stage="send")
    if scene.slot:
        Rule(z.process, op="create_if_absent", name=call.name)  # no other attempt gets through
        if adopted:
            call.drop_reply()
        else:
            call.drop()
    else:
        call.release()
    error = event.failure()
    assert isinstance(error, OutcomeUnknown), repr(error)
    assert scene.decided(2) is None
    held.release()
    return scene.served(n, job)


@worlds(*ALL)
@pytest.mark.parametrize("adopted", [True, False])
@pytest.mark.parametrize("by", ["expected offset", "event number"])
def test_45_client_retry_across_failover(scene: Scene, by: str, adopted: bool) -> None:
    z = scene.first("z", "a")

    def ask(owner: Owner, data: bytes) -> int:
        if by == "expected offset":
            return owner.store.append(SEGMENT, data, expected_offset=3)
        return owner.store.append(SEGMENT, data, writer_id=b"client", event_number=1)

    n = an_outcome_unknown(scene, z, "x", lambda data: ask(z, data), adopted=adopted)
    there = n.content()
    assert there == (["a", "x"] if adopted else ["a"])
    event = scene.events[-1]
    if by == "expected offset" and adopted:
        with pytest.raises(BadOffset) as refused:
            n.process.run(lambda: ask(n, event.data))
        assert refused.value.expected == 6, "which tells the client that it has happened"
    else:
        assert n.process.run(lambda: ask(n, event.data)) == 3
    assert scene.judge() == ["a", "x"]


@worlds(*POSIX)
@pytest.mark.parametrize("held", ["data", "record", "nothing"])
def test_52_root_moved_under_owner(scene: Scene, held: str) -> None:
    """The container's folder is moved aside and a copy put in its place: z's folder, which it holds, shows no successor."""
    z = scene.first("z", "a")
    call = None
    if held != "nothing":
        late = z.begin("late")
        call = z.process.until(name="*/d/*") if held == "data" else z.process.until_record()
    container = scene.names.container
    rename_folder(scene.posix, container, "aside")
    copy_folder(scene.posix, "aside", container)
    n = scene.owner("n", "other")
    n.append("b")
    if call is None:
        late = z.begin("late")
    else:
        call.release()
    assert isinstance(late.failure(), (OutcomeUnknown, StorageUnavailable))
    with pytest.raises(StorageUnavailable, match="moved, unmounted or replaced"):
        z.content()
    again = z.begin("again")
    assert "moved, unmounted or replaced" in str(again.failure())
    assert not scene.there(scene.names.epoch(2).replace(container, "aside", 1)), "it takes over nothing in another tree"
    assert scene.judge() == ["a", "b"]
    assert late.outcome == "unknown" and again.outcome == "refused"
