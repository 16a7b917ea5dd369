"""What operations cost where every call is a request: counted by the metered wrapper on a storage of objects."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator

import pytest

from chunkstore import changes
from chunkstore.assembly import open_store_on
from chunkstore.config import RollingPolicy, Settings
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore_bindings.memory import MemoryChunkStorage, forget_memory
from chunkstore_bindings.wrappers.metered import MeteredChunkStorage
from tests.support.alone import alone
from tests.support.forwarding import Hooked
from tests.support.hooked import hold_first


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
        assert under_way.wait(60)
        for thread in threads[1:]:
            thread.start()
        while len(store._container.current.queue._queue) < 7:
            threads[1].join(0.001)
        go.set()
        for thread in threads:
            thread.join(60)
    assert cost.requests == {"create": 8, "create_if_absent": 2}
