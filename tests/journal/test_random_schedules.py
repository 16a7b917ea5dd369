"""Many processes, interleaved at storage calls, with faults and crashes: no acknowledged record is lost, none comes twice.

Each storage call of one process may be the moment at which another one acts, fails or dies. Interleavings are nested
(the other process finishes its step first), which reaches the directed schedules of protocol 3.18 and their mixtures.
``CHUNKSTORE_FAULTS=full`` runs thirty times as many; ``make simulate`` runs those of the whole engine.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TypeVar

import pytest

from chunkstore import runtime
from chunkstore.config import Settings
from chunkstore.errors import ChunkstoreError, NotOwner, OutcomeUnknown, StorageUnavailable
from chunkstore.journal import Batch, JournalBroken, RecordKind
from chunkstore.metadata.memory import MemoryShelf
from chunkstore.metadata.port import Commit
from chunkstore_bindings.memory import MemoryChunkStorage
from chunkstore_journal.history import Streams
from chunkstore_journal.inspect import check_journal
from tests.journal.world import Process, World, keys_of

T = TypeVar("T")
SEEDS = range(240 if os.environ.get("CHUNKSTORE_FAULTS", "") == "full" else 8)
STEPS = 60


class SerialPool:
    def run_all(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        return [call() for call in calls]

    def close(self) -> None:
        return None


class Virtual(runtime._Production):
    """Time that passes only by sleeping, chance from a seed, no threads."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = random.Random(seed)
        self.time_s = 0.0

    def monotonic_s(self) -> float:
        return self.time_s

    def now_ns(self) -> int:
        return int(self.time_s * 1_000_000_000)

    def sleep_s(self, seconds: float) -> None:
        self.time_s += seconds

    def token(self, size_bytes: int) -> bytes:
        return self.random.randbytes(size_bytes)

    def pool(self, name: str, workers: int) -> runtime.Pool:
        return SerialPool()


@pytest.fixture(autouse=True)
def virtual(seed: int) -> Iterator[None]:
    runtime.install(Virtual(seed))
    yield
    runtime.install(None)


class Crash(BaseException):
    """The process is gone."""


class Actor:
    def __init__(self, schedule: Schedule, process: Process) -> None:
        self.schedule = schedule
        self.process = process
        self.busy = False
        self.dead = False
        process.wire.before = self.before
        process.wire.after = self.after

    def before(self, _operation: str, name: str) -> None:
        self.chaos(name)

    def after(self, _operation: str, name: str) -> None:
        self.chaos(name)

    def chaos(self, name: str) -> None:
        schedule = self.schedule
        if schedule.calm:
            return
        dice = schedule.random.random()
        if dice < 0.02:
            raise StorageUnavailable("fault", object=name)
        if dice < 0.025:
            raise Crash
        if dice < 0.10 and schedule.depth < 4:
            schedule.step()

    def act(self) -> None:
        schedule, process = self.schedule, self.process
        self.busy = True
        schedule.depth += 1
        try:
            dice = schedule.random.random()
            if process.ownership is None:
                process.open()
            elif dice < 0.70:
                self.put()
            elif dice < 0.80:
                self.snapshot()
            elif dice < 0.90:
                process.service.collect(head=process.store.head(), epoch=process.journal.epoch, dry_run=False)
            else:
                process.again()
        except NotOwner:
            self.dead = True
        except OutcomeUnknown:
            self.dead = True
        except JournalBroken:
            self.recover()
        except StorageUnavailable:
            if process.ownership is not None and dice >= 0.90:
                self.recover()
        except Crash:
            self.dead = True
        finally:
            schedule.depth -= 1
            self.busy = False

    def put(self) -> None:
        schedule, process = self.schedule, self.process
        schedule.count += 1
        key = f"k{schedule.count}"
        batch = process.batch(key, b"v")
        schedule.unknown.add(key)
        try:
            self.commit(batch)
        except NotOwner:
            schedule.unknown.discard(key)
            schedule.refused.add(key)
            raise
        except JournalBroken as broken:
            if broken.happened is False:
                schedule.unknown.discard(key)
                schedule.refused.add(key)
            raise
        schedule.unknown.discard(key)
        schedule.acknowledged.add(key)

    def commit(self, batch: Batch) -> None:
        """What the engine does: commit, then apply; a deposed owner's apply does nothing, and it halts (A12)."""
        process = self.process
        previous = process.journal.head
        position = process.journal.append(batch)
        commit = Commit(position, previous.hash, batch.digest, batch.ops, batch.rows)
        if not process.store.apply([commit], owner_epoch=process.journal.epoch, verify=True):
            self.dead = True

    def snapshot(self) -> None:
        process = self.process
        epoch = process.journal.epoch
        report = process.service.write_snapshot(process.store, epoch=epoch)
        self.commit(Batch(RecordKind.SNAPSHOT_NOTE, [], [], process.store.head().digest, 0, report.note))
        process.service.publish_latest(report, epoch=epoch)

    def recover(self) -> None:
        try:
            self.process.again()
        except (NotOwner, Crash):
            self.dead = True
        except StorageUnavailable:
            self.dead = True


class Schedule:
    def __init__(self, seed: int, mode: Literal["slot", "append"]) -> None:
        self.random = random.Random(seed)
        self.calm = False
        self.depth = 0
        self.count = 0
        self.acknowledged: set[str] = set()
        self.refused: set[str] = set()
        self.unknown: set[str] = set()
        settings = Settings(journal_mode=mode, op_deadline_s=0.02, snapshots_kept=self.random.choice([1, 2, 3]))
        self.world = World(MemoryChunkStorage(f"memory://schedule-{mode}-{seed}-{id(self)}"), mode, settings)
        self.shelves = [MemoryShelf() for _ in range(2)]
        self.actors: list[Actor] = []
        self.follower = self.world.follower()

    def step(self) -> None:
        self.actors = [actor for actor in self.actors if not actor.dead]
        idle = [actor for actor in self.actors if not actor.busy]
        if len(self.actors) < 4 and (not idle or self.random.random() < 0.15):
            process = self.world.process(self.random.choice([*self.shelves, MemoryShelf()]))
            idle.append(Actor(self, process))
            self.actors.append(idle[-1])
        if idle:
            self.random.choice(idle).act()
        if self.random.random() < 0.2 and not self.follower_busy:
            self.follower_busy = True
            self.follower.catch_up()
            self.follower_busy = False

    follower_busy = False


@pytest.mark.parametrize("mode", ["slot", "append"])
@pytest.mark.parametrize("seed", SEEDS)
def test_schedule(seed: int, mode: Literal["slot", "append"]) -> None:
    schedule = Schedule(seed, mode)
    for _ in range(STEPS):
        schedule.step()
    schedule.calm = True
    heir = schedule.world.process().open()
    found = heir.keys()
    assert schedule.acknowledged <= found, f"lost: {schedule.acknowledged - found}"
    assert not found & schedule.refused, f"refused, yet there: {found & schedule.refused}"
    assert found <= schedule.acknowledged | schedule.unknown
    heir.put("last")
    head = schedule.follower.catch_up()
    assert head.position == heir.journal.head
    assert keys_of(schedule.follower.store) == heir.keys()
    streams = Streams(schedule.world.storage, schedule.world.names, schedule.world.format)
    assert [finding for finding in check_journal(streams) if finding.severity == "error"] == []
    for actor in schedule.actors:
        if actor.process.ownership is not None and not actor.dead:
            with pytest.raises((ChunkstoreError, JournalBroken)):
                actor.process.put("zombie")
