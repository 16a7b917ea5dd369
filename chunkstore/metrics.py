"""What is counted about a storage's calls, and the same for Prometheus.

Promises: counts are plain data that can be added, subtracted and kept; the collector reads them when it is scraped and
needs the extra ``prometheus`` only when it is made.
Leaves out: counting (``chunkstore_bindings.wrappers.metered``), serving HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from chunkstore.errors import Unsupported

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from prometheus_client.registry import Collector

__all__ = ["LATENCY_BOUNDS_S", "NO_CALLS", "CallCounts", "exposition", "storage_collector", "total_of"]

LATENCY_BOUNDS_S: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
"""Upper bounds of the latency histogram's buckets; one more bucket takes the rest."""


class CallCounts(NamedTuple):
    """Calls of one operation: how many, how many of them failed (an answer such as "not found" is no failure of the storage,
    but counts as one here), bytes sent and received, seconds in all, and how many fell into each latency bucket."""

    requests: int
    errors: int
    sent_bytes: int
    received_bytes: int
    seconds: float
    latency_buckets: tuple[int, ...]

    def plus(self, other: CallCounts, sign: int = 1) -> CallCounts:
        """The sum, or with ``sign`` -1 the difference."""
        return CallCounts(
            self.requests + sign * other.requests,
            self.errors + sign * other.errors,
            self.sent_bytes + sign * other.sent_bytes,
            self.received_bytes + sign * other.received_bytes,
            self.seconds + sign * other.seconds,
            tuple(a + sign * b for a, b in zip(self.latency_buckets, other.latency_buckets, strict=True)),
        )


NO_CALLS: Final = CallCounts(0, 0, 0, 0, 0.0, (0,) * (len(LATENCY_BOUNDS_S) + 1))


def total_of(counts: Mapping[str, CallCounts]) -> CallCounts:
    """All operations together."""
    total = NO_CALLS
    for item in counts.values():
        total = total.plus(item)
    return total


def storage_collector(name: str, read: Callable[[], Mapping[str, CallCounts]]) -> Collector:
    """A collector to ``register`` with a Prometheus registry. ``name`` becomes the label ``storage`` (no credentials, please);
    ``read`` is asked at every scrape, as ``MeteredChunkStorage.snapshot``.

    Raises ``Unsupported`` without the extra ``prometheus``.
    """
    try:
        from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
        from prometheus_client.registry import Collector as Base
    except ImportError as error:
        raise _missing() from error

    class StorageCollector(Base):
        def describe(self) -> list[Metric]:
            return []  # nothing is asked before the first scrape

        def collect(self) -> Iterator[Metric]:
            labels = ["storage", "operation"]
            counters = [
                CounterMetricFamily(f"chunkstore_storage_{field}", text, labels=labels)
                for field, text in (
                    ("requests", "Calls of the chunk storage"),
                    ("errors", "Calls that raised an error"),
                    ("sent_bytes", "Bytes handed to the storage"),
                    ("received_bytes", "Bytes read from the storage"),
                )
            ]
            latency = HistogramMetricFamily("chunkstore_storage_seconds", "Time of one call", labels=labels)
            for operation, counts in read().items():
                for family, value in zip(counters, counts[:4], strict=True):
                    family.add_metric([name, operation], value)
                latency.add_metric([name, operation], _cumulative(counts.latency_buckets), counts.seconds)
            yield from (*counters, latency)

    return StorageCollector()


def exposition(collectors: Iterable[Collector]) -> bytes:
    """What these collectors say now, in Prometheus' text format. Raises ``Unsupported`` without the extra ``prometheus``."""
    try:
        from prometheus_client import CollectorRegistry, generate_latest
    except ImportError as error:
        raise _missing() from error
    registry = CollectorRegistry(auto_describe=False)
    for collector in collectors:
        registry.register(collector)
    return generate_latest(registry)


def _missing() -> Unsupported:
    what = "metrics for Prometheus need the extra 'prometheus': pip install 'chunkstore-engine[prometheus]'"
    return Unsupported(what, feature="prometheus")


def _cumulative(buckets: tuple[int, ...]) -> list[tuple[str, float]]:
    bounds = [*(str(bound) for bound in LATENCY_BOUNDS_S), "+Inf"]
    so_far = 0
    result: list[tuple[str, float]] = []
    for bound, count in zip(bounds, buckets, strict=True):
        so_far += count
        result.append((bound, so_far))
    return result
