"""Every third call of the storage fails once: behind ``retrying`` nobody notices, from the first open to a take-over."""

from __future__ import annotations

import pytest

from chunkstore import changes
from chunkstore.storage import ChunkStorage
from chunkstore_bindings.wrappers.retrying import RetryingChunkStorage, RetryPolicy
from tests.support.data import pattern, problems
from tests.support.flaky import Flaky
from tests.support.worlds import World

QUICK = RetryPolicy(tries_max=40, budget_s=600.0, pause_s_first=0.0005, pause_s_max=0.002)


class Weather:
    """Makes storages that fail now and then, and remembers them."""

    def __init__(self, *, lost: bool, spared: tuple[str, ...] = ()) -> None:
        self.lost = lost
        self.spared = spared
        self.made: list[tuple[Flaky, RetryingChunkStorage]] = []

    def wrap(self, inner: ChunkStorage) -> ChunkStorage:
        flaky = Flaky(inner, every=3, lost=self.lost, spared=self.spared)
        storage = RetryingChunkStorage(flaky, QUICK)
        self.made.append((flaky, storage))
        return storage

    def check(self, *operations: str) -> None:
        """Something failed in every storage, and nothing was given up."""
        for flaky, storage in self.made:
            assert sum(flaky.failed.values()) > 5
            assert storage.counts().given_up == {}
        failed = {operation for flaky, _ in self.made for operation in flaky.failed}
        assert failed >= set(operations), failed


@pytest.fixture(params=[False, True], ids=["nothing-happened", "reply-lost"])
def weather(request: pytest.FixtureRequest, world: World) -> Weather:
    if world.kind == "filesystem":
        # Above a page cache a failed sync, or a failed write, is for the engine to judge, not to be repeated.
        return Weather(lost=request.param, spared=("write", "create", "sync", "harden"))
    # An append that did not happen is the caller's to repeat; its lost reply is recognised.
    return Weather(lost=request.param, spared=() if request.param else ("write",))


def fill(world: World, weather: Weather) -> bytes:
    content = b""
    with world.open(wrap=weather.wrap, rolling=40, snapshot_slots_min=5) as store:
        store.create("log")
        for number in range(12):
            store.append("log", pattern(number, 17))
            content += pattern(number, 17)
        store.snapshot()
        store.commit([changes.Create("other"), changes.Append("other", b"o" * 100), changes.TablePut("t", b"k", b"v")])
        store.append("log", b"last")
        assert store.read("log", 0, 1 << 20) == content + b"last"
        assert problems(store.check("deep")) == []
    return content + b"last"


def test_everyday_work(world: World, weather: Weather) -> None:
    content = fill(world, weather)
    with world.open(wrap=weather.wrap, gc_grace_s=0) as store:
        assert store.read("log", 0, 1 << 20) == content
        store.truncate("log", 50)
        store.delete("other")
        store.collect()
        assert store.read("log", 50, 1 << 20) == content[50:]
        assert problems(store.check("deep")) == []
    weather.check("create_if_absent", "read", "exists")


def test_take_over(world: World, weather: Weather) -> None:
    """With a cache, without one, over an owner that lives on, over a claim that was never opened, and from oneself."""
    content = fill(world, weather)
    left = world.open()
    left.append("log", b" and more")
    content += b" and more"
    world.crash(left)
    for forget in (False, True):
        if forget:
            world.forget_cache()
        store = world.open(wrap=weather.wrap)
        assert store.read("log", 0, 1 << 20) == content
        store.append("log", b"!")
        content += b"!"
        epoch = store.epoch
        store._maintenance._recovery.roll()
        assert store.epoch == epoch + 1
        assert store.read("log", 0, 1 << 20) == content
        world.crash(store)
    weather.check()


def test_replicas(world: World, weather: Weather) -> None:
    content = fill(world, weather)
    replica = world.replica(wrap=weather.wrap)
    assert replica.read("log", 0, 1 << 20) == content
