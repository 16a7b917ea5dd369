"""A storage that counts: calls, errors, bytes in and out, and how long calls take, for each operation.

Promises: every call is counted once, when it ends, however it ends; ``snapshot`` is consistent; ``counting`` says what a block
of code cost. Next to a binding it counts what the engine asks of the storage, in front of ``retrying`` what callers ask for.
Leaves out: the requests that a binding makes of one call (a split read, the parts of an upload): bindings count these
themselves; showing the counts (``chunkstore.metrics.storage_collector``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from chunkstore import runtime
from chunkstore.metrics import LATENCY_BOUNDS_S, NO_CALLS, CallCounts, total_of
from chunkstore.storage import ChunkStorage
from chunkstore_bindings.wrappers.wrapping import OPERATIONS, WrappingChunkStorage, bytes_carried, bytes_read

__all__ = ["Counting", "MeteredChunkStorage"]

T = TypeVar("T")


class Counting:
    """What a block of code cost; complete when the block has ended, up to now before that."""

    def __init__(self, read: Callable[[], dict[str, CallCounts]]) -> None:
        self._read = read
        self._before = read()
        self._after: dict[str, CallCounts] | None = None

    def stop(self) -> None:
        """What comes now does not count any more."""
        if self._after is None:
            self._after = self._read()

    @property
    def calls(self) -> dict[str, CallCounts]:
        """By operation; those that did not occur are left out."""
        after = self._after if self._after is not None else self._read()
        differences = {name: counts.plus(self._before.get(name, NO_CALLS), -1) for name, counts in after.items()}
        return {name: counts for name, counts in differences.items() if counts.requests}

    @property
    def requests(self) -> dict[str, int]:
        """How many calls of each operation."""
        return {name: counts.requests for name, counts in self.calls.items()}

    @property
    def total(self) -> CallCounts:
        """All operations together."""
        return total_of(self.calls)


class _Meter:
    """The counts of one operation while they grow."""

    __slots__ = ("buckets", "errors", "received_bytes", "requests", "seconds", "sent_bytes")

    def __init__(self) -> None:
        self.requests = self.errors = self.sent_bytes = self.received_bytes = 0
        self.seconds = 0.0
        self.buckets = [0] * (len(LATENCY_BOUNDS_S) + 1)

    def read(self) -> CallCounts:
        return CallCounts(
            self.requests, self.errors, self.sent_bytes, self.received_bytes, self.seconds, tuple(self.buckets)
        )


class MeteredChunkStorage(WrappingChunkStorage):
    """See the module. Thread-safe."""

    def __init__(self, inner: ChunkStorage) -> None:
        super().__init__(inner)
        self._lock = runtime.lock()
        self._meters: dict[str, _Meter] = {}
        self.reset()

    def snapshot(self) -> dict[str, CallCounts]:
        """Counts by operation since the last ``reset``; operations that never occurred are left out."""
        with self._lock:
            return {name: meter.read() for name, meter in self._meters.items() if meter.requests}

    def reset(self) -> None:
        """Begin at zero. Not inside ``counting``, or a Prometheus server is fed with the counts."""
        with self._lock:
            self._meters = {name: _Meter() for name in OPERATIONS}

    @contextmanager
    def counting(self) -> Iterator[Counting]:
        """What the block costs: all calls that end meanwhile, in whatever thread (the work of one operation is spread over
        several; so let nothing else run next to it)."""
        counting = Counting(self.snapshot)
        try:
            yield counting
        finally:
            counting.stop()

    def around(self, operation: str, names: Sequence[str], size_bytes: int, call: Callable[[], T]) -> T:
        began_s = runtime.monotonic_s()
        failed = True
        received_bytes = carried_bytes = 0
        try:
            answer = call()
            failed = False
            if operation == "read":
                received_bytes = bytes_read(answer)
            elif operation == "compose":
                carried_bytes = bytes_carried(answer)
            return answer
        finally:
            took_s = runtime.monotonic_s() - began_s
            bucket = bisect_left(LATENCY_BOUNDS_S, took_s)
            with self._lock:
                meter = self._meters[operation]
                meter.requests += 1
                meter.errors += failed
                meter.sent_bytes += size_bytes + carried_bytes
                meter.received_bytes += received_bytes + carried_bytes
                meter.seconds += took_s
                meter.buckets[bucket] += 1
