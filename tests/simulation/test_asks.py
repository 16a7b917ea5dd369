"""Asking while the storage fails, and while owners and askers die at any call of theirs."""

from __future__ import annotations

from functools import partial

import pytest

from chunkstore.changes import Create
from chunkstore.errors import OutcomeUnknown, SegmentExists, StorageUnavailable
from tests.simulation.asking import LOOKING, Asking, once, version_of
from tests.simulation.crashing import Story, at_every_call
from tests.simulation.scene import ALL, Scene, scene_of, worlds
from tests.simulator import Process, Rule


@pytest.mark.parametrize("refused", [False, True])
@worlds(*ALL)
def test_who_cannot_see_what_came_of_it_does_not_know(scene: Scene, refused: bool) -> None:
    """What the storage fails to say behind a request that lies there is no refusal."""
    z = scene.first("z", "a", ask_s=LOOKING)
    q = Asking(scene)
    changes = (*((Create("other"),) if refused else ()), *q.written("asked"))
    if refused:
        z.run(lambda store: store.create("other"))
    event, _ = q.begun("asked", changes, once(b"1"))
    failing = Rule(q.process, error=StorageUnavailable("not today"), name="*/epoch/*")
    assert isinstance(event.failure(), OutcomeUnknown)
    failing.end()
    q.again(event, changes, once(b"1"))
    if refused:
        assert isinstance(event.failure(), SegmentExists)
    else:
        event.acknowledged()
    assert scene.judge() == (["a"] if refused else ["a", "asked"])


class _Asked:
    """One commit is asked for, and somebody dies: whoever asks again, of whoever serves then, gets it done once."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.owner = scene.first("z", "a", ask_s=LOOKING)
        self.q = Asking(scene)
        self.changes = self.q.written("asked")
        self.event = self.q.begin("asked", self.changes, once(b"1"), wait_s=30.0)

    def story(self, victim: Process) -> Story:
        job = self.event.job
        assert job is not None
        return Story(victim, job, self.judge)

    def judge(self) -> None:
        scene = self.scene
        if self.owner.process.dead:
            self.owner = scene.owner("n", "other", ask_s=LOOKING)
            self.event.acknowledged()
        else:
            self.q = Asking(scene, "again")
            self.q.again(self.event, self.changes, once(b"1"))
            self.event.acknowledged()
        version = version_of(self.owner)
        self.q.again(self.event, self.changes, once(b"1"))
        self.event.acknowledged()
        assert version_of(self.owner) == version
        assert scene.judge() == ["a", "asked"]


@pytest.mark.proof
@pytest.mark.parametrize("victim", ["owner", "asker"])
@pytest.mark.parametrize("kind", ALL)
def test_crash_points_of_an_ask(kind: str, victim: str) -> None:
    def begin(scene: Scene) -> Story:
        asked = _Asked(scene)
        return asked.story(asked.owner.process if victim == "owner" else asked.q.process)

    assert at_every_call(partial(scene_of, kind), begin) > 10


@worlds(*ALL)
def test_what_takes_longer_than_the_owners_patience_is_done_once_and_not_refused(scene: Scene) -> None:
    """It looks at the requests again, while the records that it has planned for them are still to come."""
    z = scene.first("z", "a", ask_s=LOOKING, op_deadline_s=1.0)
    q = Asking(scene)
    changes = q.written("asked")
    other = Asking(scene, "q2")
    z.run(lambda store: store.create("busy"))
    before = z.process.start(lambda: z.store.append("busy", b"x"))
    record = z.process.until_record()
    event, _ = q.begun("asked", changes, once(b"1"), wait_s=60.0)
    job = other.process.start(lambda: other.asker.session("import", wait_s=60.0))
    scene.world.advance(10.0)
    assert not event.answered and event.error is None
    record.release()
    before.result()
    found = job.result()
    event.acknowledged()
    assert [session.id for session in z.run(lambda store: store.sessions())] == [found.session_id]
    assert scene.judge() == ["a", "asked"]
