"""What is counted about a storage's calls and about upkeep, and the same for Prometheus.

Promises: counts are plain data that can be added, subtracted and kept; the collector reads them when it is scraped and
needs the extra ``prometheus`` only when it is made. Leaves out: counting (``chunkstore_bindings.wrappers.metered``), serving HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from chunkstore.errors import Unsupported

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from prometheus_client.registry import Collector

__all__ = [
    "BACKUP_GAUGES",
    "LATENCY_BOUNDS_S",
    "NO_CALLS",
    "UPKEEP_COUNTERS",
    "UPKEEP_GAUGES",
    "UPKEEP_PARTS",
    "CallCounts",
    "backup_collector",
    "collector_of",
    "exposition",
    "storage_collector",
    "total_of",
    "upkeep_collector",
]

UPKEEP_PARTS: Final = ("collect", "retention", "sweep", "defrag", "scrub", "ask", "spill")
"""What upkeep counts its runs under."""
UPKEEP_COUNTERS: Final = {
    "runs": "Runs, and steps of the optimiser, that ended, also in an error; no dry runs",
    "errors": "Operations that ended in an error",
    "chunks": "Chunks processed: deleted (collect, sweep), truncated (retention), merged (defrag), read (scrub), extents (spill)",
    "reclaimed_bytes": "Bytes deleted from the storage, of chunks and of the journal",
    "moved_bytes": "Bytes of chunks that were made of others (defrag), or of appends in the journal's records (spill)",
    "read_bytes": "Bytes of chunks that were read (scrub)",
    "findings": "Damage found by scrub",
    "tail_hits": "Reads of recent appends that memory answered",
    "tail_misses": "Reads of recent appends that the journal's records answered",
}
"""By part, since the container was opened."""
UPKEEP_GAUGES: Final = {
    "live_bytes": "Readable bytes",
    "dead_head_bytes": "Bytes of first chunks below the start offset",
    "backlog_bytes": "Pending work by part, about: garbage (collect), bytes of appends in the journal's records (spill)",
    "backlog_appends": "Appends in the journal's records that wait to be spilled, about",
    "tail_bytes": "Memory used for recent appends",
    "oldest_garbage_seconds": "Age of the oldest garbage, by the clock of its remover; 0 without garbage",
    "pins": "Pins",
    "oldest_pin_seconds": "Age of the oldest pin, by the clock of its maker; 0 without pins",
    "quota_bytes": "The quota; 0 where there is none",
    "free_bytes": "Left on a local storage's disk; not there elsewhere",
    "safe_mode": "1 while operations that add bytes are refused",
}
"""As they are when asked."""
BACKUP_GAUGES: Final = {
    "age_s": "Seconds since the newest complete backup began, by the clock of its maker; absent without backups",
    "count": "Complete backups",
}
"""As a backup root tells when asked."""

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
    labels = ["storage", "operation"]

    def families(core: Any) -> Iterator[Metric]:
        counters = [
            core.CounterMetricFamily(f"chunkstore_storage_{field}", text, labels=labels)
            for field, text in (
                ("requests", "Calls of the chunk storage"),
                ("errors", "Calls that raised an error"),
                ("sent_bytes", "Bytes handed to the storage"),
                ("received_bytes", "Bytes read from the storage"),
            )
        ]
        latency = core.HistogramMetricFamily("chunkstore_storage_seconds", "Time of one call", labels=labels)
        for operation, counts in read().items():
            for family, value in zip(counters, counts[:4], strict=True):
                family.add_metric([name, operation], value)
            latency.add_metric([name, operation], _cumulative(counts.latency_buckets), counts.seconds)
        yield from (*counters, latency)

    return collector_of(families)


def exposition(collectors: Iterable[Collector]) -> bytes:
    """What these collectors say now, in Prometheus' text format. Raises ``Unsupported`` without the extra ``prometheus``."""
    client = _client()
    registry = client.CollectorRegistry(auto_describe=False)
    for collector in collectors:
        registry.register(collector)
    rendered: bytes = client.generate_latest(registry)
    return rendered


def upkeep_collector(name: str, read: Callable[[], Mapping[str, Mapping[str, float]]]) -> Collector:
    """A collector to ``register``: all ``UPKEEP_COUNTERS`` and ``UPKEEP_GAUGES``, as ``chunkstore_upkeep_<name>``. ``name`` becomes the
    label ``container``; ``read`` is asked at every scrape, as ``store.optimiser.figures``; what it raises fails the scrape.

    Raises ``Unsupported`` without the extra ``prometheus``.
    """

    def families(core: Any) -> Iterator[Metric]:
        figures = read()
        for family, texts in ((core.CounterMetricFamily, UPKEEP_COUNTERS), (core.GaugeMetricFamily, UPKEEP_GAUGES)):
            for metric, text in texts.items():
                found = family(f"chunkstore_upkeep_{metric}", text, labels=["container", "part"])
                for part, value in figures.get(metric, {}).items():
                    found.add_metric([name, part], value)
                yield found

    return collector_of(families)


def backup_collector(name: str, read: Callable[[], Mapping[str, float]]) -> Collector:
    """A collector to ``register``: all ``BACKUP_GAUGES``, as ``chunkstore_backup_<name>``. ``name`` becomes the label ``container``;
    ``read`` is asked at every scrape, as ``chunkstore.backup.backup_figures``; what it raises fails the scrape.

    Raises ``Unsupported`` without the extra ``prometheus``.
    """

    def families(core: Any) -> Iterator[Metric]:
        figures = read()
        for metric, text in BACKUP_GAUGES.items():
            found = core.GaugeMetricFamily(f"chunkstore_backup_{metric}", text, labels=["container"])
            if metric in figures:
                found.add_metric([name], figures[metric])
            yield found

    return collector_of(families)


def collector_of(families: Callable[[Any], Iterator[Metric]]) -> Collector:
    """Asks at every scrape for what ``families`` makes of the client's kinds of metrics; nothing is asked before the first one."""
    client = _client()

    class Families(client.registry.Collector):  # type: ignore[misc, name-defined]
        def describe(self) -> list[Metric]:
            return []

        def collect(self) -> Iterator[Metric]:
            return families(client.core)

    return Families()


def _client() -> ModuleType:
    try:
        import prometheus_client.core
        import prometheus_client.registry
    except ImportError as error:
        raise Unsupported(
            "metrics for Prometheus need the extra 'prometheus': pip install 'chunkstore-engine[prometheus]'",
            feature="prometheus",
        ) from error
    return prometheus_client


def _cumulative(buckets: tuple[int, ...]) -> list[tuple[str, float]]:
    bounds = [*(str(bound) for bound in LATENCY_BOUNDS_S), "+Inf"]
    so_far = 0
    result: list[tuple[str, float]] = []
    for bound, count in zip(bounds, buckets, strict=True):
        so_far += count
        result.append((bound, so_far))
    return result
