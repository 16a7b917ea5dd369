"""Named schedules: what becomes of a slot when answers get lost and requests come late (protocol 3.18: 8 to 11, 40; 2.3)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from chunkstore.errors import NotOwner, StorageUnavailable
from tests.simulation.scene import ALL, S3, SEGMENT, SLOT, Event, Owner, Scene, worlds
from tests.simulator import Call, Rule


@worlds(*SLOT)
@pytest.mark.parametrize("first", ["seal", "record"])
def test_08_delayed_seal_on_live_stream(scene: Scene, first: str) -> None:
    z = scene.first("z", "a")
    z.process.stall()  # long enough not to see the claim before it is asked for something
    n, _ = scene.opening("n")
    late_seal = n.until(op="create_if_absent", name=scene.names.slot(1, 3)).outlive()
    if first == "record":
        event = z.begin("b")
        z.process.wake()
        event.acknowledged()
        assert late_seal() is False, "the owner was faster: nothing has happened to it"
        scene.world.advance(2)
        assert isinstance(z.begin("c").failure(), NotOwner), "it has looked up and given way"
        assert scene.judge() == ["a", "b"]
        return
    assert late_seal() is True and scene.seal(1) == 3, "it lies in front of a live owner"
    event = z.begin("b")
    z.process.wake()
    error = event.failure()
    assert isinstance(error, NotOwner) and error.owner == 2
    assert len(scene.seen(op="create_if_absent", name=scene.names.slot(1, 3), process="z")) >= 1, "it has tried"
    assert isinstance(z.begin("c").failure(), NotOwner)
    assert not scene.there(scene.names.epoch(3)), "it does not climb over a claim by itself"
    assert scene.judge() == ["a"]


def lose_the_reply(call: Call) -> None:
    assert not call.applied
    call.drop_reply()


@worlds(*ALL)
@pytest.mark.parametrize("what", ["claim", "void", "seal", "open"])
def test_09_put_reply_lost_in_a_take_over(scene: Scene, what: str) -> None:
    scene.first("z", "a")
    if what == "seal" and not scene.slot:
        what = "open"
    if what == "void":
        dead, _ = scene.opening("dead", "fourth")
        dead.until(op="create_if_absent", name=scene.names.slot(2, 0), stage="send")
        dead.crash()
    epoch = 3 if what == "void" else 2
    places = {
        "claim": scene.names.epoch(epoch),
        "void": scene.names.slot(2, 0),
        "seal": scene.names.slot(1, 3),
        "open": scene.names.slot(epoch, 0),
    }
    n, opening = scene.opening("n")
    lose_the_reply(n.until(op="create_if_absent", name=places[what]))
    owner = scene.served(n, opening)
    assert owner.epoch == epoch, "it has recognised what it had done, and has not climbed on"
    tries = [call for call in scene.seen(op="create_if_absent", name=places[what]) if call.step in ("PUT*", "link")]
    assert [call.result for call in tries] == [True, False]
    owner.append("b")
    assert scene.judge() == ["a", "b"]


@worlds(*SLOT)
def test_09_put_reply_lost(scene: Scene) -> None:
    z = scene.first("z", "a")
    event = z.begin("b")
    call = z.process.until_record()
    lose_the_reply(call)
    event.acknowledged()
    tries = [seen for seen in scene.seen(op="create_if_absent", name=call.name) if seen.step in ("PUT*", "link")]
    assert [seen.result for seen in tries] == [True, False] and len({seen.data for seen in tries}) == 1
    assert z.epoch == 1
    z.append("c")
    assert scene.judge() == ["a", "b", "c"]


def delayed(scene: Scene) -> tuple[Owner, Event, Call, Callable[[], object]]:
    """z waits for the answer to a put of its record that has not arrived anywhere; the last one makes it arrive."""
    z = scene.first("z", "a")
    event = z.begin("b")
    call = z.process.until_record()
    return z, event, call, call.delay()


@worlds(*S3)
@pytest.mark.parametrize("first", ["retry", "late"])
def test_10_put_delayed_404(scene: Scene, first: str) -> None:
    z, event, call, late = delayed(scene)
    retry = z.process.until_record()
    assert retry.name == call.name and retry.data == call.data, "the bytes are frozen"
    assert not scene.there(call.name)
    if first == "late":
        assert late() is True
    retry.release()
    event.acknowledged()
    if first == "retry":
        assert late() is False
    assert z.epoch == 1
    z.append("c")
    assert scene.judge() == ["a", "b", "c"]


@worlds(*S3)
@pytest.mark.parametrize("lands", ["before the seal", "after the seal", "never"])
def test_10_put_delayed_404_until_the_owner_gives_up(scene: Scene, lands: str) -> None:
    """No attempt is answered within the deadline: the epoch ends, and its successor, the same process, decides."""
    z, event, call, late = delayed(scene)
    silence = Rule(z.process, op="create_if_absent", name=call.name)
    the_seal_s_claim = z.process.until(op="create_if_absent", name=scene.names.epoch(2))
    assert silence.calls >= 1 and not scene.there(call.name)
    silence.end()
    if lands == "before the seal":
        assert late() is True
    the_seal_s_claim.release()
    assert event.job is not None
    event.job.run_to_end()
    if lands == "after the seal":
        assert late() is False
    if lands == "before the seal":
        assert event.outcome == "acknowledged" and event.epoch == 2, "found in history"
    else:
        assert isinstance(event.error, StorageUnavailable), "which means that it did not happen"
    assert z.epoch == 2
    z.append("c")
    assert scene.judge() == (["a", "b", "c"] if lands == "before the seal" else ["a", "c"])


@worlds(*S3)
@pytest.mark.parametrize("collected", [False, True])
def test_11_late_duplicate_put_after_seal(scene: Scene, collected: bool) -> None:
    z = scene.first("z", "a")
    event = z.begin("b")
    call = z.process.until_record("reply")
    call.release()
    event.acknowledged()
    n = scene.owner("n", "other", snapshots_kept=1)
    assert scene.seal(1) == 4
    n.append("c")
    if not collected:
        assert call.late() is False
    else:
        n.run(lambda store: store.snapshot())
        n.run(lambda store: store.collect())
        assert not scene.there(call.name) and scene.seal(1) == 4
        assert call.late() is True, "a name of a sealed stream is made again"
        n.append("d")
        n.run(lambda store: store.collect())
        assert not scene.there(call.name), "and collected again"
        assert call.late() is True
    assert scene.judge() == (["a", "b", "c", "d"] if collected else ["a", "b", "c"])


@worlds(*S3)
def test_11_late_duplicate_put_after_seal_of_an_undecided_record(scene: Scene) -> None:
    z = scene.first("z", "a")
    z.begin("b")
    late = z.process.until_record().outlive()
    n = scene.owner("n", "other")
    assert scene.seal(1) == 3
    assert late() is False
    n.append("c")
    assert scene.judge() == ["a", "c"]


@worlds(*S3)
def test_40_409_storm(scene: Scene) -> None:
    storm, history = [], []
    undecided = StorageUnavailable("409 ConditionalRequestConflict")
    for number in range(6):
        process = scene.world.process(f"p{number}", f"machine {number % 2}")
        storm.append(Rule(process, op="create_if_absent", step="PUT*", error=undecided, every=3))
        owner = Owner(scene, process, process.open())
        assert owner.epoch == number + 1, "a claim that was not decided was made, not climbed over"
        if number == 0:
            owner.run(lambda store: store.create(SEGMENT))
        tags = [f"{number}{letter}" for letter in "abcdef"]
        owner.append(*tags)
        history += tags
        assert owner.epoch == number + 1, "no answer of these has ended its stream"
    assert all(rule.calls >= 3 for rule in storm)
    assert scene.judge() == history
