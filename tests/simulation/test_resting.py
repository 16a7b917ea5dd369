"""Behind a network an owner's lease has a longer period, and requests and followers are looked for less often while nothing is written
(protocol 3.4, 3.13, A15)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from chunkstore.assembly import open_asker_on
from chunkstore.changes import TablePut
from chunkstore.config import Settings, Tuning
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import ContainerBusy
from chunkstore.replica import Replica
from tests.simulator.jobs import Job
from tests.simulator.scheduler import NS
from tests.simulator.wire import Call
from tests.simulator.world import Process, World

LEASE_S, PERIOD_S = 5.0, 30.0
LATE_S = 1.0
"""A beat comes with the keeper's next tick."""


class Beats:
    """When leases were written, and who has asked for how much."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.seen: list[float] = []
        self.asked: dict[str, int] = {}
        world.observers.append(self._observe)

    def _observe(self, call: Call, _result: Any, _late: bool) -> None:
        self.asked[call.process.name] = self.asked.get(call.process.name, 0) + 1
        if call.name == self.world.names.lease and call.step == "PUT":
            self.seen.append(self.world.scheduler.now / NS)


@pytest.fixture
def world() -> Iterator[World]:
    with World(1, "s3", bindings=True, settings=Settings(tuning=Tuning(collect_s=0))) as made:
        yield made


def _owner(world: World, name: str = "owner", machine: str = "here") -> tuple[Process, ChunkedSegmentStorage]:
    process = world.process(name, machine)
    return process, process.open()


def _claim(world: World, wait_s: float) -> tuple[Job[ChunkedSegmentStorage], float]:
    """Somebody on another machine who looks before he claims; the job, and how long it took."""
    began = world.scheduler.now
    job = world.process("claimant", "elsewhere")
    opening = job.start(job.opening(wait_s=wait_s), "open")
    world.run_until(lambda: opening.done)
    return opening, (world.scheduler.now - began) / NS


def test_the_period_of_a_lease_is_the_same_whether_something_is_written_or_not(world: World) -> None:
    beats = Beats(world)
    process, store = _owner(world)
    process.run(lambda: store.create("s"))
    for _ in range(20):
        world.advance(60)
        process.run(lambda: store.append("s", b"x"))
    world.advance(1200)
    for at_s, then_s in pairwise(beats.seen):
        assert PERIOD_S <= then_s - at_s <= PERIOD_S + LATE_S


@pytest.mark.parametrize("wait_s", [1.0, 11.0, 200.0])
def test_an_idle_owner_is_not_taken_for_dead(world: World, wait_s: float) -> None:
    process, store = _owner(world)
    world.advance(3600)
    opening, took_s = _claim(world, wait_s)
    assert isinstance(opening.failure(), ContainerBusy)
    assert wait_s <= took_s < wait_s + PERIOD_S + LATE_S + 15
    process.run(lambda: store.create("s"))


def test_who_asks_now_and_then_is_answered_soon(world: World) -> None:
    """A stream's micro-batches may be minutes apart."""
    beats = Beats(world)
    _, _kept = _owner(world)
    process = world.process("asker", "there")
    opening = process.opening_replica()
    asker = process.run(lambda: open_asker_on(process.storage, opening()))
    version = 0

    def took_s() -> float:
        nonlocal version
        began, row = world.scheduler.now, TablePut("sink", b"query", b"%d" % version, version)
        version = process.run(lambda: asker.commit((), row, wait_s=60.0))
        return (world.scheduler.now - began) / NS

    world.advance(3600)
    assert took_s() < 25
    for _ in range(3):
        world.advance(840)
        assert took_s() < 3
    world.advance(1800)
    beats.asked.clear()
    world.advance(600)
    assert 0 < beats.asked["owner"] < 600 / 10, "nobody asks any more"


def test_an_owner_that_died_is_followed_after_a_period_and_a_little_more(world: World) -> None:
    process, _ = _owner(world)
    world.advance(3600)
    process.crash()
    opening, took_s = _claim(world, 1.0)
    assert opening.result().epoch == 2
    assert PERIOD_S + LEASE_S <= took_s < PERIOD_S + LEASE_S + 15


def _following(world: World) -> tuple[Process, Replica, list[float]]:
    """A follower that reads along, and when it was given something."""
    process = world.process("follower", "there")
    replica = process.replica()
    got: list[float] = []

    def follow() -> None:
        for piece in replica.reader("s", follow=True, prefetch_bytes=0):
            assert piece == b"x"
            got.append(world.scheduler.now / NS)

    process.start(follow, "follow")
    return process, replica, got


def test_a_follower_is_less_than_a_second_behind_while_records_come(world: World) -> None:
    process, store = _owner(world)
    process.run(lambda: store.create("s"))
    _, _, got = _following(world)
    for number in range(20):
        world.advance(0.3 + number % 5)
        process.run(lambda: store.append("s", b"x"))
        answered_s = world.scheduler.now / NS
        world.advance(1.0)
        assert len(got) == number + 1
        assert got[-1] - answered_s < 1.0


def test_a_follower_rests_while_nothing_comes_and_wait_looks_at_once(world: World) -> None:
    beats = Beats(world)
    process, store = _owner(world)
    process.run(lambda: store.create("s"))
    follower, replica, got = _following(world)
    world.advance(3600)
    beats.asked.clear()
    world.advance(600)
    assert 0 < beats.asked["follower"] <= 600 / 10 * 3 + 6, "three requests each ten seconds"
    process.run(lambda: store.append("s", b"x"))
    began_s = world.scheduler.now / NS
    assert follower.run(lambda: replica.wait("s", 0, 60.0)).length == 1
    assert world.scheduler.now / NS - began_s < 1.0
    world.advance(11)
    assert len(got) == 1
