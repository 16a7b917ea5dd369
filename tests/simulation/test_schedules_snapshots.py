"""Named schedules: where a state comes from while others write, collect and lie (protocol 3.18: 15 to 17; P8)."""

from __future__ import annotations

import pytest

from chunkstore.metadata.memory import MemoryMetadataCache, MemoryShelf
from chunkstore_journal.claim import read_latest
from chunkstore_journal.payloads import SnapshotLink
from tests.simulation.scene import ALL, Owner, Scene, worlds


def latest(scene: Scene) -> SnapshotLink:
    """The snapshot that LATEST names."""
    found = read_latest(scene.world.observer_storage(), scene.names)
    assert found is not None
    return found.snapshot


@worlds(*ALL)
@pytest.mark.parametrize("told", [True, False])
def test_15_bootstrap_vs_gc(scene: Scene, told: bool) -> None:
    """``told``: LATEST names the newer snapshot; else the older one and its records stay, for whoever looks goes by LATEST."""
    scene.first("y", "a")
    z = scene.owner("z", snapshots_kept=1)
    z.append("b")
    z.run(lambda store: store.snapshot())
    first = latest(scene)
    z.append("c")
    snapshot = z.process.start(z.store.snapshot)
    the_latest = z.process.until(op="put", name=scene.names.latest)
    z.process.stall()
    n, opening = scene.opening("n")
    loading = n.until(op="read", name=first.name)
    z.process.wake()
    if told:
        the_latest.release()
        snapshot.result()
    z.process.start(z.store.collect).result()
    assert scene.there(first.name) is not told, "what n is about to read is gone"
    assert scene.records(1) == []
    assert (latest(scene) == first) is not told
    loading.release()
    owner = scene.served(n, opening)
    assert owner.content() == ["a", "b", "c"]
    assert owner.store.report.source == "snapshot"
    again = any(first.name in finding for finding in owner.store.report.findings)
    assert again is told, "it has started again, and says so"
    owner.append("d")
    assert scene.judge() == ["a", "b", "c", "d"]


@worlds(*ALL)
@pytest.mark.parametrize("collected", [False, True])
def test_16_zombie_overwrites_latest(scene: Scene, collected: bool) -> None:
    """``collected``: the older snapshot that the zombie names is deleted by then."""
    z = scene.first("z", "a")
    z.process.start(z.store.snapshot)
    the_latest = z.process.until(op="put", name=scene.names.latest)
    z.process.stall()
    n = scene.owner("n", "other", snapshots_kept=1)
    history = ["a"]
    for number in range(2):
        tags = [f"b{number}{place}" for place in range(10)]
        n.append(*tags)
        history += tags
        n.run(lambda store: store.snapshot())
        if collected:
            n = scene.owner(f"n{number}", "other", snapshots_kept=1)
            n.run(lambda store: store.collect())
    newest = latest(scene)
    z.process.wake(slept_s=86_400)
    the_latest.release()
    scene.world.advance(2)
    old = latest(scene)
    assert old.lsn < newest.lsn and scene.there(old.name) is not collected
    fresh = scene.owner("fresh", "nobody has been here")
    assert fresh.content() == history
    assert fresh.store.report.source == "snapshot"
    named = scene.opened(fresh.epoch).payload.snapshot
    assert named is not None and named.lsn == newest.lsn, "the newest usable one is found all the same"
    if collected:
        assert fresh.store.report.replayed_records < 10
    assert scene.judge() == history


def phantom_snapshot(z: Owner, scene: Scene) -> str:
    """Planted: a snapshot of z's state with its undecided batch in it, and LATEST names it."""
    call = z.process.until_record("send")
    commit = scene.commit_in(call)
    container = z.store._container

    def write() -> str:
        rogue = MemoryMetadataCache(scene.world.format.uuid, "here", shelf=MemoryShelf()).create()
        with container.current.store.view() as view:
            rogue.load(view.scan(b"\x01", b"\xff"))
            rogue.finish_load(view.head)
        assert rogue.apply([commit], verify=True)
        report = container.service.write_snapshot(rogue, epoch=z.epoch)
        container.service.publish_latest(report, epoch=z.epoch)
        return report.name

    name = z.process.run(write)
    z.process.crash()
    return name


@worlds(*ALL)
def test_17_zombie_snapshot_of_uncommitted(scene: Scene) -> None:
    z = scene.first("z", "a")
    event = z.begin("phantom")
    name = phantom_snapshot(z, scene)
    assert event.outcome == "unknown" and latest(scene).name == name
    n = scene.owner("n", "other")
    assert any(name in finding for finding in n.store.report.findings), "it lies behind the end of history"
    assert n.content() == ["a"]
    n.append("b", "c")
    assert latest(scene).name == name
    m = scene.owner("m", "third")
    assert any(name in finding for finding in m.store.report.findings), "another record stands in its place"
    assert m.content() == ["a", "b", "c"]
    assert scene.opened(m.epoch).payload.snapshot is None
    assert scene.judge(damaged=name) == ["a", "b", "c"]
