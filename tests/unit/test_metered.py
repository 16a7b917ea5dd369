"""Counts of calls, bytes and time; what a block cost; and what Prometheus is told."""

from __future__ import annotations

import pytest

from chunkstore.errors import ChunkNotFound
from chunkstore.metrics import storage_collector, total_of
from chunkstore.storage import ChunkRange, ConcatArgument
from chunkstore_bindings.memory import MemoryChunkStorage
from chunkstore_bindings.wrappers.metered import MeteredChunkStorage
from tests.support.clock import StoppedClock, stopped_clock
from tests.support.forwarding import Hooked


def test_everything_is_counted(binding: MemoryChunkStorage) -> None:
    storage = MeteredChunkStorage(binding)
    assert storage.snapshot() == {}
    handle = storage.create("a", b"12345")
    storage.create("b")
    storage.create_if_absent("c", b"123")
    storage.put("d", b"12")
    storage.write(handle, 5, b"678")
    storage.read(handle, 2, 100)
    storage.read_into(handle, 0, bytearray(4))
    storage.exists("a")
    storage.stat("a")
    storage.list()
    storage.open_read("a")
    storage.open_write("a")
    storage.sync(["a", "b"])
    storage.harden("a")
    storage.truncate(handle, 7)
    storage.set_read_only(handle, read_only=False)
    storage.concat([ConcatArgument("a", 7), ConcatArgument("b", 0)])
    storage.compose("e", [ChunkRange("a", 1, 5)])
    storage.delete("d")
    with pytest.raises(ChunkNotFound):
        storage.stat("d")
    counts = {name: item[:4] for name, item in storage.snapshot().items()}
    once = (1, 0, 0, 0)
    assert counts == {
        "create": (2, 0, 5, 0),
        "create_if_absent": (1, 0, 3, 0),
        "put": (1, 0, 2, 0),
        "write": (1, 0, 3, 0),
        "read": (2, 0, 0, 6 + 4),
        "stat": (2, 1, 0, 0),
        **dict.fromkeys(("exists", "list", "open_read", "open_write", "sync", "harden"), once),
        **dict.fromkeys(("truncate", "set_read_only", "compose", "concat", "delete"), once),
    }
    total = total_of(storage.snapshot())
    assert total[:4] == (20, 1, 13, 10)
    assert sum(total.latency_buckets) == 20
    storage.reset()
    assert storage.snapshot() == {}


def slow(clock: StoppedClock, binding: MemoryChunkStorage, seconds: list[float]) -> MeteredChunkStorage:
    """A storage whose calls take the given times, one after the other."""
    behind = Hooked(binding)
    times = iter(seconds)

    def take(operation: str, names: tuple[str, ...]) -> None:
        clock.now_s += next(times)

    behind.before = take
    return MeteredChunkStorage(behind)


TIMES = [0.0, 0.0003, 0.003, 0.003, 0.7, 61.0, 5000.0]


def test_prometheus(binding: MemoryChunkStorage) -> None:
    client = pytest.importorskip("prometheus_client")
    with stopped_clock() as clock:
        storage = slow(clock, binding, TIMES)
        storage.put("a", b"12345")
        for _ in TIMES[1:]:
            storage.exists("a")
        registry = client.CollectorRegistry()
        registry.register(storage_collector("orders", storage.snapshot))
        text = client.generate_latest(registry).decode()
        lines = set(text.splitlines())
        of_exists = '{operation="exists",storage="orders"}'
        assert f"chunkstore_storage_requests_total{of_exists} 6.0" in lines
        assert 'chunkstore_storage_sent_bytes_total{operation="put",storage="orders"} 5.0' in lines
        assert f"chunkstore_storage_errors_total{of_exists} 0.0" in lines
        assert 'chunkstore_storage_seconds_bucket{le="0.005",operation="exists",storage="orders"} 3.0' in lines
        assert 'chunkstore_storage_seconds_bucket{le="+Inf",operation="exists",storage="orders"} 6.0' in lines
        assert f"chunkstore_storage_seconds_count{of_exists} 6.0" in lines
