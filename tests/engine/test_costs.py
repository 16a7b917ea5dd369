"""What operations cost where every call is a request: counted by the metered wrapper on a storage of objects."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator

import pytest

from chunkstore import changes
from chunkstore.assembly import open_store_on
from chunkstore.config import RollingPolicy, Settings
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore_bindings.memory import MemoryChunkStorage, forget_memory
from chunkstore_bindings.wrappers.metered import MeteredChunkStorage
from chunkstore_bindings.wrappers.wrapping import WRITING
from tests.support.alone import alone
from tests.support.forwarding import Hooked
from tests.support.hooked import hold_first
from tests.support.worlds import World


@pytest.fixture
def opened() -> Iterator[tuple[ChunkedSegmentStorage, MeteredChunkStorage, Hooked]]:
    url = f"memory://{uuid.uuid4()}"
    gate = Hooked(MemoryChunkStorage(url, append=False))
    metered = MeteredChunkStorage(gate)
    settings = Settings(lease_s=0, default_rolling=RollingPolicy(chunk_size_bytes_max=10), inline_bytes_max=0)
    with open_store_on(metered, settings=settings) as store:
        alone(store)
        yield store, metered, gate
    forget_memory(url)


def test_a_commit_is_one_put_for_each_chunk_and_one_for_the_record(
    opened: tuple[ChunkedSegmentStorage, MeteredChunkStorage, Hooked],
) -> None:
    store, metered, _ = opened
    with metered.counting() as cost:
        store.create("s")
    assert cost.requests == {"create_if_absent": 1}
    for size, chunks in ((10, 1), (25, 3)):
        with metered.counting() as cost:
            store.append("s", b"x" * size)
        assert cost.requests == {"create": chunks, "create_if_absent": 1}
        assert cost.calls["create"].sent_bytes == size
    with metered.counting() as cost:
        store.commit([changes.Append("s", b"y" * 20), changes.Create("t"), changes.TablePut("r", b"k", b"v")])
    assert cost.requests == {"create": 2, "create_if_absent": 1}
    with metered.counting() as cost:
        assert store.read("s", 0, 5) == b"x" * 5
    assert cost.requests == {"read": 1, "exists": 1}  # the bytes, and the fence


def test_a_group_shares_its_record(opened: tuple[ChunkedSegmentStorage, MeteredChunkStorage, Hooked]) -> None:
    """While one record is under way the others gather: D appends, two records."""
    store, metered, gate = opened
    for number in range(8):
        store.create(f"s{number}")
    under_way, go = hold_first(gate, lambda operation, name: operation == "create_if_absent")
    with metered.counting() as cost:
        threads = [threading.Thread(target=store.append, args=(f"s{number}", b"x")) for number in range(8)]
        threads[0].start()
        assert under_way.wait(30)
        for thread in threads[1:]:
            thread.start()
        while len(store._container.current.queue._queue) < 7:
            threads[1].join(0.001)
        go.set()
        for thread in threads:
            thread.join(30)
    assert cost.requests == {"create": 8, "create_if_absent": 2}


def test_small_appends_cost_their_record_alone(world: World) -> None:
    """One append, many of several segments in one commit, a spill, and the collection of what many spills have left."""
    metered = MeteredChunkStorage(world.raw_storage())
    store = world.open(storage=metered, inline_bytes_max=None, spill_s=3600.0, gc_grace_s=0.0)
    alone(store)
    names = ["a", "b", "c"]
    store.commit([changes.Create(name) for name in names])
    record = {"create_if_absent": 1} if world.mode == "slot" else {"exists": 2, "write": 1, "sync": 1}
    record |= {"identity": 1} if world.kind == "filesystem" else {}  # whether it is still the same tree
    with metered.counting() as cost:
        store.append("a", b"x" * 1000)
    assert cost.requests == record
    with metered.counting() as cost:
        store.commit([changes.Append(name, b"x" * 1000) for name in names * 10])
    assert cost.requests == record
    assert 30_000 < cost.total.sent_bytes < 33_000
    chunk = {"create": 1, "sync": 1} if world.appends else {"create": 1}
    with metered.counting() as cost:
        store.spill(["a"])
    assert cost.requests == {key: record.get(key, 0) + chunk.get(key, 0) for key in record | chunk}
    assert 11_000 < cost.total.sent_bytes < 12_000
    for number in range(20):
        store.append(names[number % 3], b"more")
        store.spill([names[number % 3]])
    with metered.counting() as cost:
        store.collect()
    written = {key: count for key, count in cost.requests.items() if key in WRITING}
    assert written == {key: count for key, count in record.items() if key in WRITING}
