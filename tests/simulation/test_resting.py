"""Behind a network an owner's lease has a longer period (protocol 3.4, 3.13): who is alive is not taken for dead, who died is followed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from chunkstore.config import Settings, Tuning
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import ContainerBusy
from tests.simulator.scheduler import NS
from tests.simulator.world import Job, Process, World

LEASE_S, PERIOD_S = 5.0, 30.0
LATE_S = 1.0
"""A beat comes with the keeper's next tick."""


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


@pytest.mark.parametrize("wait_s", [1.0, 11.0, 200.0])
def test_an_idle_owner_is_not_taken_for_dead(world: World, wait_s: float) -> None:
    process, store = _owner(world)
    world.advance(3600)
    opening, took_s = _claim(world, wait_s)
    assert isinstance(opening.failure(), ContainerBusy)
    assert wait_s <= took_s < wait_s + PERIOD_S + LATE_S + 15
    process.run(lambda: store.create("s"))


def test_an_owner_that_died_is_followed_after_a_period_and_a_little_more(world: World) -> None:
    process, _ = _owner(world)
    world.advance(3600)
    process.crash()
    opening, took_s = _claim(world, 1.0)
    assert opening.result().epoch == 2
    assert PERIOD_S + LEASE_S <= took_s < PERIOD_S + LEASE_S + 15
