"""Named schedules: asking the owner while owners come and go (protocol 3.18: 55 to 59)."""

from __future__ import annotations

import pytest

from chunkstore.changes import Create
from chunkstore.errors import OutcomeUnknown, SegmentExists
from tests.simulation.asking import LOOKING, Asking, once, version_of
from tests.simulation.scene import ALL, S3, Owner, Scene, worlds


def _owner(scene: Scene, name: str = "n") -> Owner:
    return scene.owner(name, "other", ask_s=LOOKING)


@worlds(*ALL)
def test_55_ask_carried_out_twice(scene: Scene) -> None:
    z = scene.first("z", "a", ask_s=LOOKING)
    q = Asking(scene)
    changes = q.written("asked")
    event, request = q.begun("asked", changes, once(b"1"))
    deletion = z.process.until(op="delete", name=request)
    version = version_of(z)
    z.process.stall()
    n = _owner(scene)
    assert not event.answered, "z has committed it, and has not said so"
    event.acknowledged()
    z.process.wake()
    deletion.release()
    scene.world.advance(2.0)
    for process in "nz":
        (answer,) = q.answers(request, process)
        assert (answer.error, answer.result) == (None, version), process
    assert version_of(n) == version
    assert scene.judge() == ["a", "asked"]


@pytest.mark.parametrize("refused", [False, True])
@worlds(*ALL)
def test_56_ask_by_zombie(scene: Scene, refused: bool) -> None:
    """It has looked at the row, and at the fence, and goes on to plan. ``refused``: by the state that z knows."""
    z = scene.first("z", "a", ask_s=LOOKING)
    z.run(lambda store: store.create("other"))
    q = Asking(scene)
    changes = (*((Create("other"),) if refused else ()), *q.written("asked"))
    event, request = q.begun("asked", changes, once(b"1"))
    z.process.until(op="exists", name=f"{request}.r", stage="reply").release()
    looking = z.process.until(op="exists", name=scene.names.epoch(2), stage="reply")
    z.process.stall()
    n = scene.owner("n", "other", ask_s=0)
    n.run(lambda store: store.delete("other"))
    n.run(lambda store: store.close())
    z.process.wake()
    looking.release()
    scene.world.advance(1.0)
    assert q.answers(request, "z") == [] and scene.there(request), "z refuses nothing, and leaves it to others"
    heir = _owner(scene, "heir")
    event.acknowledged()
    (answer,) = q.answers(request, "heir")
    assert answer.result == version_of(heir)
    assert scene.judge() == ["a", "asked"]


@worlds(*ALL)
def test_57_ask_withdrawn_late(scene: Scene) -> None:
    z = scene.first("z", "a", ask_s=LOOKING)
    q = Asking(scene)
    changes = q.written("asked")
    event, request = q.begun("asked", changes, once(b"1"), wait_s=2.0)
    record = z.process.until_record()
    assert isinstance(event.failure(), OutcomeUnknown)
    assert not scene.there(request), "withdrawn"
    record.release()
    q.again(event, changes, once(b"1"))
    event.acknowledged()
    version = version_of(z)
    q.again(event, changes, once(b"1"))
    event.acknowledged()
    assert version_of(z) == version
    assert scene.judge() == ["a", "asked"]


@worlds(*ALL)
def test_58_ask_refused_in_between(scene: Scene) -> None:
    z = scene.first("z", "a", ask_s=LOOKING)
    z.run(lambda store: store.create("other"))
    q = Asking(scene)
    changes = (Create("other"), *q.written("asked"))
    event, request = q.begun("asked", changes, once(b"1"))
    deletion = z.process.until(op="delete", name=request)
    z.process.stall()
    n = _owner(scene)
    n.run(lambda store: store.delete("other"))
    record = n.process.until_record()
    z.process.wake()
    deletion.release()
    assert isinstance(event.failure(), OutcomeUnknown), "n has read it, and carries it out"
    (answer,) = q.answers(request, "z")
    assert isinstance(answer.error, SegmentExists)
    record.release()
    q.again(event, changes, once(b"1"))
    event.acknowledged()
    assert scene.judge() == ["a", "asked"]


@pytest.mark.parametrize("listed", [True, False])
@worlds(*S3)
def test_59_ask_repeated_after_refusal(scene: Scene, listed: bool) -> None:
    """``listed``: the LIST of whoever looks shows the answer; it may lag."""
    z = scene.first("z", "a", ask_s=LOOKING)
    z.run(lambda store: store.create("other"))
    q = Asking(scene)
    changes = (Create("other"), *q.written("asked"))
    gate = q.process.gate(op="create_if_absent", name="*/ask/*", step="PUT*")
    event = q.begin("asked", changes, once(b"1"))
    sending = scene.world.reach(gate)
    sending.release()
    assert isinstance(event.failure(), SegmentExists)
    z.run(lambda store: store.delete("other"))
    sending.late()
    assert scene.there(sending.name), "the network has repeated it"
    token = sending.name.rpartition("/")[2]
    if listed:
        q.process.run(q.box.ring)
        scene.world.advance(5.0)
    else:
        assert q.process.run(lambda: q.box.request(token)) is None
    assert scene.judge() == ["a"]
