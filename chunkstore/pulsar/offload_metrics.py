"""Metrics of offloading under the names that Pulsar's brokers give them, with the labels namespace and topic, for Prometheus.

Promises: the page is what a broker's looks like: counters without ``_total``, summaries in microseconds with the quantiles 0.5, 0.95,
0.99 and 1. Memory is bounded by the number of topics. Leaves out: serving HTTP.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import ceil
from typing import TYPE_CHECKING, Any, Final, TypeVar

from chunkstore import runtime
from chunkstore.errors import InvalidArgument
from chunkstore.metrics import collector_of
from chunkstore.pulsar.read_handle import ReadHandle, SteppedLedger

if TYPE_CHECKING:
    from prometheus_client.core import Metric
    from prometheus_client.registry import Collector

__all__ = ["METRICS", "PROCESS_METRICS", "MeasuredReadHandle", "OffloadMetrics", "namespace_of"]

T = TypeVar("T")

METRICS: Final = {
    "offload_error": ("counter", "Offloads that failed"),
    "offload_rate": ("gauge", "Bytes offloaded in a second"),
    "read_offload_error": ("counter", "Reads of offloaded ledgers that failed"),
    "read_offload_rate": ("gauge", "Bytes of offloaded ledgers read in a second"),
    "read_bytes": ("counter", "Bytes of offloaded ledgers read"),
    "write_storage_error": ("counter", "Writes to the tiered storage that failed"),
    "delete_offload_ops": ("counter", "Deletions of offloaded ledgers, by status"),
    "read_offload_index_latency": ("summary", "Time to read an index, in microseconds"),
    "read_offload_data_latency": ("summary", "Time to read data, in microseconds"),
    "read_ledger_latency": ("summary", "Time to read a ledger that is being offloaded, in microseconds"),
    "ledger_offload_limited": ("counter", "Reads that waited for flow permits"),
    "ledger_offload_time": ("counter", "Time of reads within flow permits, waiting included, in microseconds"),
    "ledger_reading_max_bytes": ("gauge", "Bytes of the largest read within flow permits"),
}
"""Kind and help of each metric by its name without the prefix ``brk_ledgeroffloader_``."""
QUANTILES: Final = (0.5, 0.95, 0.99, 1.0)
_KEPT: Final = 1024
"""Observations that quantiles are of: the last ones."""
RATE_S: Final = 60.0
"""A rate is of an interval of at least so long, which ends when it is asked for."""


class _PlainCounter(str):
    """The type "counter", to whose name the client library adds nothing."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other


_COUNTER: Final = _PlainCounter("counter")


class _Series:
    def __init__(self) -> None:
        self.count = 0
        self.total = self.largest = 0.0
        self.recent: deque[float] = deque(maxlen=_KEPT)
        self.rate = self.rated_total = 0.0
        self.rated_s = runtime.monotonic_s()

    def rate_now(self) -> float:
        now_s = runtime.monotonic_s()
        if now_s - self.rated_s >= RATE_S:
            self.rate = (self.total - self.rated_total) / (now_s - self.rated_s)
            self.rated_total, self.rated_s = self.total, now_s
        return self.rate


class OffloadMetrics:
    """What offloading counts, of any number of topics. Thread-safe."""

    def __init__(self) -> None:
        self._lock = runtime.lock()
        self._series: dict[str, dict[tuple[str, str], _Series]] = {name: {} for name in METRICS}

    def record(self, name: str, topic: str, value: float = 1, *, status: str = "") -> None:
        """Add to a counter, add bytes to a rate, observe a time (microseconds), or a size of which the largest counts.

        ``name``: one of ``METRICS``; ``status``: "succeed" or "failed" of ``delete_offload_ops``. Raises ``InvalidArgument``.
        """
        if name not in METRICS:
            raise InvalidArgument(f"no metric {name!r} of offloading", argument="name")
        with self._lock:
            series = self._series[name].setdefault((topic, status), _Series())
            series.count += 1
            series.total += value
            series.largest = max(series.largest, value)
            series.recent.append(value)

    @contextmanager
    def timed(self, name: str, topic: str, *, error: str) -> Iterator[None]:
        """Observe as ``name`` how long the block takes; one that raises counts as ``error`` instead."""
        begin_s = runtime.monotonic_s()
        try:
            yield
        except Exception:
            self.record(error, topic)
            raise
        self.record(name, topic, (runtime.monotonic_s() - begin_s) * 1e6)

    def collector(self) -> Collector:
        """To ``register`` with a Prometheus registry. Raises ``Unsupported`` without the extra ``prometheus``."""
        return collector_of(self._families)

    def _families(self, core: Any) -> Iterator[Metric]:
        for name, (kind, text) in METRICS.items():
            full = f"brk_ledgeroffloader_{name}"
            metric = core.Metric(full, text, kind)
            with self._lock:
                for (topic, status), series in sorted(self._series[name].items()):
                    labels = {"namespace": namespace_of(topic), "topic": topic}
                    if status:
                        labels["status"] = status
                    if kind == "summary":
                        recent = sorted(series.recent)
                        for quantile in QUANTILES:
                            at = max(0, ceil(quantile * len(recent)) - 1)
                            metric.add_sample(full, {**labels, "quantile": str(quantile)}, recent[at])
                        metric.add_sample(full + "_count", labels, series.count)
                        metric.add_sample(full + "_sum", labels, series.total)
                    elif kind == "counter":
                        metric.add_sample(full, labels, series.total)
                    else:
                        metric.add_sample(full, labels, series.rate_now() if name.endswith("_rate") else series.largest)
            if kind == "counter":
                metric.type = _COUNTER
            yield metric


PROCESS_METRICS: Final = OffloadMetrics()
"""Of all offloads that are given no others."""


class MeasuredReadHandle(SteppedLedger):
    """An offloaded ledger whose reads are counted as of ``topic``."""

    def __init__(self, inner: ReadHandle, metrics: OffloadMetrics, topic: str) -> None:
        super().__init__(inner)
        self._metrics, self._topic = metrics, topic

    def _step(self, call: Callable[[], tuple[list[T], int]]) -> list[T]:
        with self._metrics.timed("read_offload_data_latency", self._topic, error="read_offload_error"):
            found, size_bytes = call()
        self._metrics.record("read_offload_rate", self._topic, size_bytes)
        self._metrics.record("read_bytes", self._topic, size_bytes)
        return found


def namespace_of(topic: str) -> str:
    """The tenant and namespace of ``persistent://tenant/namespace/topic``, or of ``tenant/namespace/persistent/topic``; else nothing."""
    parts = topic.rpartition("://")[2].split("/")
    return "/".join(parts[:2]) if len(parts) > 2 else ""
