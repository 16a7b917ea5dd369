"""Named schedules: who gets an epoch, and what becomes of those who are late (protocol 3.18: 5 to 7, 38, 48; A1)."""

from __future__ import annotations

from random import Random

import pytest

from chunkstore import runtime
from chunkstore.errors import ChunkstoreError, NotOwner, StorageUnavailable
from chunkstore_journal.payloads import SealPayload
from tests.simulation.scene import ALL, Event, Scene, scene_of, worlds
from tests.simulator import Call, Process, Rule


def deciding(scene: Scene, process: Process, epoch: int) -> Call:
    """Held: the process is about to put something into slot 0 of an epoch."""
    return process.until(op="create_if_absent", name=scene.names.slot(epoch, 0))


def voided_by(scene: Scene, epoch: int) -> int:
    """The epoch that voided another."""
    found = scene.decided(epoch)
    assert isinstance(found, SealPayload), f"epoch {epoch} is not void: {found!r}"
    return found.by_epoch


@worlds(*ALL)
def test_05_open_race_void(scene: Scene) -> None:
    z = scene.first("z", "a")
    n, opening = scene.opening("n")
    call = deciding(scene, n, 2)
    n.stall()
    n2 = scene.owner("n2", "third")
    assert voided_by(scene, 2) == 3
    n2.append("b")
    n.wake(slept_s=3600)
    call.release()
    error = opening.failure()
    assert isinstance(error, NotOwner)
    assert (error.epoch, error.owner) == (2, 3)
    assert scene.opened(3).payload.previous_epoch == 1 and voided_by(scene, 2) == 3
    n2.append("c")
    assert isinstance(z.begin("y").failure(), NotOwner)
    assert scene.judge() == ["a", "b", "c"]


@worlds(*ALL)
def test_06_delayed_open(scene: Scene) -> None:
    scene.first("z", "a")
    n, _ = scene.opening("n")
    late_open = deciding(scene, n, 2).outlive()
    n2 = scene.owner("n2", "third")
    n2.append("b")
    assert late_open() is False, "the name is taken, for ever"
    assert voided_by(scene, 2) == 3
    n2.append("c")
    assert scene.judge() == ["a", "b", "c"]


@worlds(*ALL)
@pytest.mark.parametrize("dead", [True, False])
def test_07_delayed_void(scene: Scene, dead: bool) -> None:
    z = scene.first("z", "a")
    n, opening = scene.opening("n")
    the_open = deciding(scene, n, 2)
    m, other = scene.opening("m", "third")
    the_void = deciding(scene, m, 2)
    the_open.release()
    assert isinstance(opening.failure(), NotOwner), "it has opened, and then seen the claim above it"
    before = scene.content(scene.names.slot(2, 0))
    assert scene.opened(2).payload.previous_epoch == 1
    if dead:
        assert the_void.outlive()() is False
    else:
        the_void.release()
        owner = scene.served(m, other)
        assert scene.opened(3).payload.previous_epoch == 2
        owner.append("b")
    assert scene.content(scene.names.slot(2, 0)) == before
    assert isinstance(z.begin("y").failure(), NotOwner)
    assert scene.judge() == (["a"] if dead else ["a", "b"])


class Claimant:
    """A process that opens, appends, is deposed, waits a random while, and opens again, until it is told to stop."""

    def __init__(self, scene: Scene, name: str, machine: str) -> None:
        self.scene = scene
        self.process = scene.world.process(name, machine)
        self.chance = Random(name)
        self.stop = False
        self.asked = 0
        self.served = 0
        self.process.start(self._fight, name)

    def _fight(self) -> None:
        while not self.stop:
            try:
                store = self.process.opening()()
            except (NotOwner, StorageUnavailable):
                self._rest()
                continue
            try:
                while not self.stop:
                    self.asked += 1
                    Event(self.scene, f"{self.process.name}.{self.asked}").ask(store)
                    self.served += 1
            except ChunkstoreError:
                self._rest()
            store.close()

    def _rest(self) -> None:
        runtime.sleep_s(self.scene.world.latency_ns / 1e9 * self.chance.uniform(5, 200))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", ALL)
def test_38_claim_storm(kind: str, seed: int) -> None:
    chance = Random(seed)
    with scene_of(kind, seed) as scene:
        scene.first("z", "a")
        latency_s = scene.world.latency_ns / 1e9
        storm = [Claimant(scene, f"c{number}", f"machine {number % 3}") for number in range(5)]
        for _ in range(40):
            for claimant in storm:
                if chance.random() < 0.4:
                    claimant.process.stall()
                else:
                    claimant.process.wake(slept_s=chance.choice([0, 60, 7 * 86_400]))
            scene.world.advance(latency_s * chance.uniform(5, 100))
        for claimant in storm:
            claimant.process.wake()
            claimant.stop = claimant is not storm[0]
        before = storm[0].served
        for _ in range(1000):
            if storm[0].served > before + 3:
                break
            scene.world.advance(latency_s * 100)
        assert storm[0].served > before + 3, "one is left, and it gets on in bounded time"
        storm[0].stop = True
        scene.world.advance(10)
        answered = [event for event in scene.events if event.answered is not None]
        assert len({event.epoch for event in answered}) > 5, "ownership has changed hands"
        newest = 0
        moments = [(e.asked, 1, e) for e in answered] + [(e.answered or 0, 0, e) for e in answered]
        for _, asking, event in sorted(moments, key=lambda moment: moment[:2]):
            if asking:
                assert event.epoch >= newest, f"{event.tag} was acknowledged by {event.epoch} although {newest} served"
            newest = max(newest, 0 if asking else event.epoch)
        scene.judge()


@worlds(*ALL)
@pytest.mark.parametrize("opened", [True, False])
def test_48_self_takeover_versus_claim(scene: Scene, opened: bool) -> None:
    """The owner's journal fails while somebody has claimed the next epoch (``opened``: and has opened it)."""
    z = scene.first("z", "a")
    event = z.begin("x")
    call = z.process.until_record("send")
    n, opening = scene.opening("n")
    the_open = n.until(op="create_if_absent", name=scene.names.slot(2, 0), stage="send")
    if opened:
        the_open.release()
        opening.result()
    if scene.slot:
        Rule(z.process, op="create_if_absent", name=scene.names.slot(1, 3))  # its journal is out of reach
        call.drop()
    else:
        call.fail(StorageUnavailable("Input/output error", object=call.name))
    error = event.failure()
    assert isinstance(error, NotOwner) is opened, "without the OPEN nobody knows what became of the record"
    assert scene.seen(op="create_if_absent", name=scene.names.epoch(2), process="z"), "z has tried to climb by one"
    assert not scene.there(scene.names.epoch(3)), "and no further"
    for tag in ("y1", "y2"):
        assert isinstance(z.begin(tag).failure(), NotOwner)
    if not opened:
        the_open.release()
    owner = scene.served(n, opening)
    owner.append("b")
    assert not scene.there(scene.names.epoch(3))
    assert scene.judge() == ["a", "b"]
