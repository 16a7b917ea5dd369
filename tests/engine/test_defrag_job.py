"""What the job that merges looks at: what has changed, and everything seldom; and when."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from chunkstore.assembly import open_store_on
from chunkstore.config import DefragPolicy, OptimiserPolicy, RollingPolicy, Settings, Tuning
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.upkeep import defrag
from chunkstore.upkeep.jobs import DefragJob, Step
from chunkstore_bindings.memory import MemoryChunkStorage
from tests.support.data import pattern
from tests.support.hooked import wait_for

LARGE = RollingPolicy(chunk_size_bytes_max=1000)
Opened = Callable[..., ChunkedSegmentStorage]


@pytest.fixture
def opened() -> Iterator[Opened]:
    """Opens a container where every append is a chunk of its own."""
    stores: list[ChunkedSegmentStorage] = []

    def call(**options: Any) -> ChunkedSegmentStorage:
        storage = MemoryChunkStorage(f"memory://defrag-job-{random.random()}", append=False)
        settings = Settings(lease_s=0, gc_grace_s=0, inline_bytes_max=0, tuning=Tuning(collect_s=0))
        stores.append(open_store_on(storage, settings=settings, close_storage=True, **options))
        return stores[-1]

    yield call
    for store in stores:
        store.close()


class Looked:
    """Where the job began to look, segment by segment."""

    def __init__(self, store: ChunkedSegmentStorage, monkeypatch: pytest.MonkeyPatch, **policy: Any) -> None:
        self.job = DefragJob(store._container, store._context, DefragPolicy(**policy))
        self.findings: list[str] = []
        self._at: list[tuple[str, int]] = []
        step = defrag.defrag_step

        def looking(container: Any, context: Any, name: str, chosen: Any, position: int, **more: Any) -> Any:
            self._at.append((name, position))
            return step(container, context, name, chosen, position, **more)

        monkeypatch.setattr(defrag, "defrag_step", looking)

    def a_pass(self) -> list[tuple[str, int]]:
        self._at.clear()
        step = Step(float("inf"), lambda: False)
        while self.job.step(step):
            pass
        self.findings += step.findings
        return [*self._at]


def append(store: ChunkedSegmentStorage, name: str, count: int, size: int = 10) -> None:
    if not store.exists(name):
        store.create(name, rolling=LARGE)
    for _ in range(count):
        length = store.info(name).length
        store.append(name, pattern(length, size))


@pytest.mark.parametrize("inline", [False, True])
def test_inline_a_full_run_begins_a_pass(opened: Opened, inline: bool) -> None:
    policy = OptimiserPolicy(defrag=DefragPolicy(), defrag_inline=inline, interval_s=1000)
    store = opened(optimiser=policy)
    store.optimiser.run_once()
    append(store, "a", 7)
    (job,) = [job for job in store.optimiser._entries if job.job.name == "defrag"]
    assert not job.job.pressing
    append(store, "a", 1)
    assert job.job.pressing is inline
    if inline:
        wait_for(lambda: len([*store.layout("a")]) == 1)
        assert not job.job.pressing
        assert store.read("a", 0, 99) == pattern(0, 80)
    else:
        assert job.due_s(0) > 100


@pytest.mark.parametrize("seed", range(8))
def test_passes_leave_nothing_that_a_look_at_everything_would_merge(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance = random.Random(seed)
    store = opened()
    looked = Looked(store, monkeypatch, fanout=3)
    looked.a_pass()
    parts = 0
    rare = ["truncate", "concat", "again"] if seed % 2 else []
    for _ in range(60):
        name = chance.choice("ab")
        what = chance.choice(["append", "append", "append", "pass", "pass", *rare])
        if what == "append" or not store.exists(name):
            append(store, name, chance.randrange(1, 6), size=chance.choice([1, 10, 10, 30, 90, 270]))
        elif what == "truncate":
            info = store.info(name)
            store.truncate(name, chance.randrange(info.start_offset, info.length + 1))
        elif what == "concat":
            parts += 1
            length = store.info(name).length
            store.create("part", rolling=LARGE)
            for at in range(chance.randrange(1, 5)):
                store.append("part", pattern(length + at * 9, 9))
            store.seal("part")
            store.concat(name, length, "part")
        elif what == "again":
            store.delete(name)
        else:
            looked.a_pass()
    while looked.a_pass():
        pass
    for name in "ab":
        if store.exists(name):
            info = store.info(name)
            assert store.read(name, info.start_offset, 1 << 20) == pattern(
                info.start_offset, info.length - info.start_offset
            )
            policy = DefragPolicy(fanout=3)
            assert not defrag.plan_defrag_step(store._context, name, policy, 0, wait=True).runs, name
