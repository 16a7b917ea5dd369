"""Named schedules: a restore in place, and those who do not know of it (protocol 3.18: 44, 50)."""

from __future__ import annotations

import pytest

from chunkstore.errors import NotOwner
from tests.simulation.scene import ALL, Event, Owner, Scene, worlds
from tests.simulator.finals import patiently


def head(owner: Owner) -> int:
    """The last record of an owner."""
    return owner.run(lambda store: store._container.current.queue.head.lsn)


def cut_off(scene: Scene, *tags: str) -> None:
    """These events were acknowledged, and a person has given them up."""
    gone: list[Event] = [event for event in scene.events if event.tag in tags]
    assert len(gone) == len(tags)
    for event in gone:
        scene.events.remove(event)


@worlds(*ALL)
@pytest.mark.parametrize("behind", ["the cut", "at its lsn", "further on"])
def test_44_restore_cuts_history(scene: Scene, behind: str) -> None:
    """Wherever the new history has come to when the replica looks again, it sees the hash."""
    z = scene.first("z", "a", "b")
    then = head(z)
    z.append("c", "d", "e", "f", "g", "h")
    r = scene.replica()
    r.refresh()
    seen = r.position()
    assert r.content() == list("abcdefgh")
    z.process.stall()
    n = scene.world.process("n", "other")
    report = n.run(n.going_back(then))
    assert report.lsn == then and report.last_lsn >= head_of(scene, 1)
    cut_off(scene, *"cdefgh")
    expected = ["a", "b"]
    if behind != "the cut":
        m = scene.owner("m", "third")
        for number in range(100):
            if head(m) >= seen[0] + (behind == "further on"):
                break
            m.append(f"m{number}")
            expected.append(f"m{number}")
        assert head(m) >= seen[0] and (behind == "further on" or head(m) == seen[0])
    r.refresh()
    assert r.content() == expected and r.position() != seen
    late = z.begin("late")
    z.process.wake(slept_s=86_400)
    assert isinstance(late.failure(), NotOwner)
    assert scene.judge() == expected


def head_of(scene: Scene, epoch: int) -> int:
    """The last record that lies in a stream."""
    return max(record.header.lsn for record in scene.records(epoch))


@worlds(*ALL)
@pytest.mark.parametrize("dies", [False, True])
def test_50_restore_vs_old_delete(scene: Scene, dies: bool) -> None:
    """z has removed a segment and is about to delete its chunks when somebody goes back to before that; its deletions land at last.
    ``dies``: whoever goes back, right behind its OPEN."""
    little = {"gc_grace_s": 0, "snapshots_kept": 1}
    z = scene.first("z", "a", **little)
    z.run(lambda store: store.create("old"))
    for part in (b"of some ", b"use"):
        z.run(lambda store, part=part: store.append("old", part))  # type: ignore[misc]
    then = head(z)
    z.run(lambda store: store.delete("old"))
    z.append("b")
    collection = z.process.start(z.store.collect)
    deletion = z.process.until(op="delete", name="*/d/*")
    z.process.stall()

    n = scene.world.process("n", "other")
    back = n.start(n.going_back(then, **little))
    if dies:
        n.until(op="create_if_absent", name=scene.names.slot(2, 0), stage="reply")
        n.crash()
    else:
        assert back.result().copied_chunks
    cut_off(scene, "b")
    assert scene.opened(2).payload.last_lsn == then

    z.process.wake(slept_s=86_400)
    deletion.release()
    if not collection.done:
        scene.world.run_until(lambda: collection.done)
    assert not scene.there(deletion.name), "it has landed"
    for machine in ("third", "fourth"):
        m = scene.owner(machine, machine, **little)
        assert m.run(lambda store: patiently(lambda: store.read("old", 0, 99))) == b"of some use"
        m.run(lambda store: store.collect())
        assert m.run(lambda store: patiently(lambda: store.read("old", 0, 99))) == b"of some use"
    assert scene.judge() == ["a"]
