"""Named schedules: what a follower may show (protocol 3.18: 24, 25; P9)."""

from __future__ import annotations

import pytest

from chunkstore.errors import NotOwner
from chunkstore_journal.history import Opened
from tests.simulation.scene import ALL, APPEND, POSIX, Scene, scene_of, worlds
from tests.simulation.test_schedules_tail import SEEDS, unsynced_record


@worlds(*APPEND)
def test_24_replica_ahead(scene: Scene) -> None:
    """It reads a whole record, durable even, that a successor cuts: the successor has claimed before."""
    z = scene.first("z", "a")
    r = scene.replica()
    late = z.begin("late")
    call = z.process.until_record()
    n, opening = scene.opening("n")
    the_open = n.until(op="create_if_absent", name=scene.names.slot(2, 0), stage="send")
    call.release()
    looked = z.process.until(op="exists", name=scene.names.epoch(2), stage="reply")
    assert len(scene.records(1)) == 3 and scene.posix.durable(call.name) == scene.content(call.name)
    before = r.position()
    r.refresh()
    assert r.content() == ["a"] and r.position()[0] <= before[0] + 1
    the_open.release()
    owner = scene.served(n, opening)
    r.refresh()
    assert r.content() == ["a"]
    owner.append("b")
    r.refresh()
    assert r.content() == ["a", "b"]
    looked.release()
    assert isinstance(late.failure(), NotOwner)
    assert scene.judge() == ["a", "b"]


@pytest.mark.parametrize("kind", POSIX)
def test_24_replica_ahead_of_what_is_durable(kind: str) -> None:
    """It reads a record that nobody has synced; then the power goes. What it has shown must not vanish."""
    shown = set()
    for seed in SEEDS:
        with scene_of(kind, seed) as scene:
            z = scene.first("z", "a")
            r = scene.replica("r", "host")
            event = z.begin("b")
            unsynced_record(z)
            r.refresh()
            content = r.content()
            position = r.position()
            shown.add(len(content))
            scene.world.machine("host").power_cut()
            assert event.outcome == "unknown"
            n = scene.owner("n")
            assert n.content()[: len(content)] == content
            again = scene.replica("r again", "elsewhere")
            assert again.position()[0] >= position[0]
            n.append("c")
            assert scene.judge() in (["a", "b", "c"], ["a", "c"])
    assert shown == {2}, "it has shown what it had made durable itself"


@worlds(*ALL)
def test_25_replica_across_5_epochs(scene: Scene) -> None:
    z = scene.first("z", "a")
    r = scene.replica()
    assert r.content() == ["a"]
    r.process.stall()
    z.append("b")
    for number in range(3):
        owner = scene.owner(f"n{number}", f"m{number}")
        owner.append(f"c{number}")
        for dying in range(number):
            dead, _ = scene.opening(f"dead {number} {dying}", "third")
            dead.until(op="create_if_absent", name=scene.names.slot(owner.epoch + dying + 1, 0), stage="send")
            dead.crash()
    last = scene.owner("last", "m9")
    last.append("d")
    kinds = "".join("O" if isinstance(scene.decided(epoch), Opened) else "v" for epoch in range(1, last.epoch + 1))
    assert kinds == "OOOvOvvO"
    r.process.wake(slept_s=3600)
    r.refresh()
    assert r.content() == ["a", "b", "c0", "c1", "c2", "d"]
    head = last.store._container.current.store.head()
    assert r.position() == (head.position.lsn, head.position.hash, head.digest)
    assert scene.judge() == ["a", "b", "c0", "c1", "c2", "d"]
