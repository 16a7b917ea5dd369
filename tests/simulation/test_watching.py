"""The invariants of steps, over random walks of the production code: silent while it is right (tests/unit shows that they speak)."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any

import pytest

from chunkstore.config import Settings
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import ChunkstoreError, OutcomeUnknown
from tests.judges.checker import check_history
from tests.judges.events import Event, error_fields
from tests.simulator import Process, World
from tests.simulator.watching import Watch
from tests.simulator.world import ProcessDied

KINDS = {"s3-slot": ("s3", "slot"), "posix-slot": ("posix", "slot"), "posix-append": ("posix", "append")}


class Run:
    """A few processes that fight for a container, one event after the other, with power cuts and crashes between."""

    def __init__(self, kind: str, seed: int) -> None:
        storage: Any
        mode: Any
        storage, mode = KINDS[kind]
        self.random = random.Random(seed)
        settings = Settings(journal_mode=mode, op_deadline_s=5, lease_s=0, gc_grace_s=0, snapshots_kept=1)
        self.world = World(seed, storage, settings=settings)
        self.watch = Watch(self.world, fail=False)
        self.events: list[Event] = []
        self.stores: dict[Process, ChunkedSegmentStorage] = {}
        self.number = 0

    def open(self) -> None:
        self.number += 1
        process = self.world.process(f"p{self.number}", f"m{self.number % 2}")
        self.stores[process] = store = process.open()
        process.run(lambda: self.watch.serving(process, store))

    def call(self, process: Process, kind: str, name: str, args: tuple[Any, ...], call: Any) -> None:
        invoked = self.world.scheduler.now
        store = self.stores[process]
        outcome: Any = "ok"
        fields: tuple[Any, ...] = ()
        try:
            result = process.run(call)
        except ProcessDied:
            outcome, result = "unknown", None
        except OutcomeUnknown:
            outcome, result = "unknown", "OutcomeUnknown"
        except ChunkstoreError as error:
            outcome, result, fields = "failed", type(error).__name__, error_fields(error)
        now = self.world.scheduler.now
        event = Event(process.name, kind, name, args, invoked, now, outcome, result, store.epoch, process.name, fields)
        self.events.append(event)
        self.watch.told(event)

    def step(self) -> None:
        chance = self.random
        alive = [process for process in self.stores if not process.dead]
        dice = chance.random()
        if not alive or dice < 0.1:
            self.open()
            return
        process = chance.choice(alive[-2:])
        store = self.stores[process]
        if dice < 0.14:
            process.machine.power_cut() if chance.random() < 0.5 else process.crash()
            return
        self.number += 1
        name = chance.choice(("a", "b"))
        data = b"<%d>" % self.number
        match chance.choice(("create", "append", "append", "append", "read", "truncate", "delete", "seal", "upkeep")):
            case "create":
                self.call(process, "create", name, (4,), lambda: store.create(name).segment_id)
            case "append":
                self.call(process, "append", name, (data, None, None, None), lambda: store.append(name, data))
            case "read":
                self.call(process, "read", name, (0, 999), lambda: store.read(name, 0, 999))
            case "truncate":
                self.call(process, "truncate", name, (3,), lambda: store.truncate(name, 3))
            case "delete":
                self.call(process, "delete", name, (), lambda: store.delete(name))
            case "seal":
                self.call(process, "seal", name, (), lambda: store.seal(name))
            case _:
                with suppress(ChunkstoreError, ProcessDied):
                    process.run(store.snapshot)
                    process.run(store.collect)

    def go(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
        self.watch.invariants.finish()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(12))
def test_nothing_is_said_of_what_is_right(kind: str, seed: int) -> None:
    run = Run(kind, seed)
    try:
        run.go(60)
        assert run.watch.invariants.violations == []
        history = run.watch.invariants.history
        assert history.lsn > 3
        assert len(history.opens) > 1
        verdict = check_history(history.entries, run.events, owners=run.watch.invariants.owners)
        assert verdict.anomalies == ()
    finally:
        run.world.close()
