"""``ManagedLedger``: offloads, trims and deletes the closed ledgers of one topic (PIP-17), at the owner of a container.

Promises: an attempt's UUID is recorded before its first object, its complete flag after the last; no error of a record deletes objects;
a ledger is marked before any copy of it is deleted; what could not be deleted is tried again by the next call, also of another owner.
Leaves out: cursors (``trim`` goes by retention alone), calling itself: the program decides when.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from chunkstore import runtime
from chunkstore.config import MIB
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import ChunkstoreError, Closed, Conflict, InvalidArgument, StorageUnavailable, Unsupported
from chunkstore.pulsar.container import CONTAINER, ContainerSource, delete_attempt, forget, gone_segments, open_ledger
from chunkstore.pulsar.contexts import LedgerNotFound, check_topic, iter_contexts, new_context
from chunkstore.pulsar.cursors import in_background
from chunkstore.pulsar.ledger_rows import Attempt, LedgerRow, LedgerRows
from chunkstore.pulsar.ledgers import LedgerSource, Position, SourceLedger
from chunkstore.pulsar.offload_ledger import LedgerOffloader, NullLedgerOffloader, managed_ledger_name
from chunkstore.pulsar.offload_metrics import PROCESS_METRICS, MeasuredReadHandle, OffloadMetrics
from chunkstore.pulsar.permits import BROKER_PERMITS, OffloadReadHandle
from chunkstore.pulsar.policies import OffloadPolicies
from chunkstore.pulsar.read_handle import ReadHandle
from chunkstore.pulsar.streaming_offloader import StreamingOffloader
from chunkstore.runtime import Future

__all__ = ["ManagedLedger", "ManagedLedgerConfig"]

_MINUTE_MS: Final = 60_000
_PERMITS: Final = "managed_ledger_offload_broker_flow_permits"
_STALE_MAX: Final = 64
"""Earlier attempts of a ledger whose objects could not be deleted: with more of them nothing new is tried."""


@dataclass(kw_only=True)
class ManagedLedgerConfig(OffloadPolicies):
    """Policies that are set here count before those that are stored of the topic, and these before the broker's.

    ``offload_deletion_lag_s``: how long a source keeps its copy of an offloaded ledger, in seconds; None: for ever.
    ``managed_ledger_offload_broker_flow_permits``: bytes a second that all offloads of the process read, 0: unlimited. Setting it in any
    config holds at once, for running offloads, too; a config that leaves it out changes nothing. ``metrics``: where all is counted.
    """

    offloader: LedgerOffloader = field(default_factory=NullLedgerOffloader)
    offload_deletion_lag_s: float | None = 4 * 3600.0
    offload_threads_max: int = 2
    block_bytes_max: int = 64 * MIB
    managed_ledger_offload_broker_flow_permits: int = 0
    metrics: OffloadMetrics = PROCESS_METRICS

    def __setattr__(self, name: str, value: Any) -> None:
        if name == _PERMITS and value != getattr(self, name):
            BROKER_PERMITS.permits_bytes_per_s = value
        super().__setattr__(name, value)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("offload_threads_max", 1), ("block_bytes_max", 1), ("offload_deletion_lag_s", 0)):
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise InvalidArgument(f"{name} is at least {least}, not {value!r}", argument=name)


class ManagedLedger:
    """The ledgers of ``topic`` that ``source`` has, and those of it that were offloaded. Thread-safe.

    ``config.offloader`` is for this topic alone. Every call raises ``Damaged`` (a row), and what tables, source and offloader raise;
    offloads raise ``Closed``. Retry: always safe. All is durable when a call returns, or its future ends.
    """

    def __init__(
        self, store: ChunkedSegmentStorage, topic: str, source: LedgerSource, config: ManagedLedgerConfig | None = None
    ) -> None:
        self.topic: str = check_topic(topic)
        self.config: ManagedLedgerConfig = ManagedLedgerConfig() if config is None else config
        self.config.offloader.block_bytes_max = self.config.block_bytes_max
        self._offloader = self.config.offloader
        self._store = store
        self._source = source
        self._rows = LedgerRows(store, topic)
        self._lock = runtime.lock()
        self._under_way: set[int] = set()
        self._running: Future[Position] | None = None
        self._stream: StreamingOffloader | None = None
        self._closed = False
        self._policies()

    def ledgers(self) -> list[SourceLedger]:
        """All ledgers, ascending: those of the source, and offloaded ones that it has no longer; without deleted ones."""
        rows = self._rows.all()
        found = {item.ledger: item for item in self._source.ledgers()}
        for row in rows.values():
            if row.is_offloaded:
                found[row.ledger] = SourceLedger(row.ledger, row.entries, row.size_bytes, row.closed_ms)
        return [found[ledger] for ledger in sorted(found) if ledger not in rows or not rows[ledger].deleted]

    def open(self, ledger: int) -> ReadHandle:
        """A ledger, to be read: the offloaded copy where it is complete, else the source's. Raises ``LedgerNotFound``."""
        row = self._rows.get(ledger)
        if row.deleted:
            raise LedgerNotFound(self.topic, ledger)
        return self._open_offloaded(row) if row.is_offloaded else self._source.open(ledger)

    def offload_prefix(self, position: Position) -> Future[Position]:
        """Offload all closed ledgers below ``position.ledger``; the future is of the first position that is not offloaded.

        A ledger that fails does not stop the next; the future raises the first error. ``Conflict`` while another offload of this object
        runs, ``Unsupported`` without an offloader.
        """
        return self._start(lambda ledgers: [item for item in ledgers if item.ledger < position.ledger])

    def offload_triggered(self) -> Future[Position]:
        """As ``offload_prefix``, of the closed ledgers that a trigger names: that are ``offload_time_in_minutes`` old, or exceed
        ``offload_size_in_mb`` together with all newer closed ones."""
        policies = self._policies()
        minutes, size_mb = policies.offload_time_in_minutes, policies.offload_size_in_mb

        def choose(ledgers: Iterable[SourceLedger]) -> list[SourceLedger]:
            chosen, size_bytes = [], 0
            for item in reversed([item for item in ledgers if item.closed_ms is not None]):
                size_bytes += item.size_bytes
                if _is_old(item, minutes) or (size_mb is not None and size_bytes > size_mb * MIB):
                    chosen.append(item)
            return chosen[::-1]

        return self._start(choose)

    def streaming(self) -> StreamingOffloader:
        """Streams the topic by its policies, after what is offloaded; ``finish`` of it goes back to ledger-based offload.

        Raises ``Unsupported`` (streaming is not enabled), ``Conflict`` (an offload of this object runs), and as ``StreamingOffloader``.
        """
        policies = self._policies()
        if not policies.streaming_offload_enabled:
            raise Unsupported("streaming is off: OffloadPolicies(streaming_offload_enabled=1)", feature="streaming")
        with self._lock:
            self._check_idle()
            policy, metrics = policies.streaming_policy(), self.config.metrics
            self._stream = StreamingOffloader(self._store, self.topic, self._source, policy=policy, metrics=metrics)
            return self._stream

    def trim(self) -> list[int]:
        """Delete the oldest closed ledgers, all their copies, by retention: that are too old, or without which enough is left; which ones.

        It ends with a ledger that is being offloaded. Raises the first error, once all is tried.
        """
        policies = self._policies()
        minutes, size_mb = policies.retention_time_in_minutes, policies.retention_size_in_mb
        trimmed: list[int] = []
        with self._lock:
            ledgers = self.ledgers()
            left_bytes = sum(item.size_bytes for item in ledgers)
            for item in ledgers:
                left_bytes -= item.size_bytes
                over = size_mb is not None and left_bytes >= size_mb * MIB
                if item.ledger in self._under_way or item.closed_ms is None or not (over or _is_old(item, minutes)):
                    break
                self._rows.update(item.ledger, lambda row: row._replace(deleted=True))
                trimmed.append(item.ledger)
        self._settle([])
        return trimmed

    def delete_due(self) -> list[int]:
        """Delete the source's copies of ledgers that were offloaded longer than ``offload_deletion_lag_s`` ago; which ones.

        A ledger that was streamed whole counts as well. One whose offloaded copy cannot be opened stays. Raises the first error, once all
        is tried.
        """
        lag_s = self.config.offload_deletion_lag_s
        before_ms = -1.0 if lag_s is None else runtime.now_ms() - lag_s * 1000
        rows = self._rows.all()
        # The ledgers of a container's own segments were not streamed from elsewhere: there is one copy.
        is_own = isinstance(self._source, ContainerSource) and self._source.topic == self.topic
        offloaded = {} if is_own else self._streamed(self._source.ledgers(), rows)
        offloaded |= {row.ledger: row for row in rows.values() if row.is_offloaded or row.deleted}
        errors, due = [], []
        for ledger, row in sorted(offloaded.items()):
            if row.deleted or row.bookkeeper_deleted or row.timestamp_ms > before_ms:
                continue
            try:
                self._open_offloaded(row).close()
                self._rows.update(ledger, partial(LedgerRow.given_up, row))
                due.append(ledger)
            except ChunkstoreError as error:
                errors.append(error)
        self._settle(errors)
        return due

    def close(self) -> None:
        """Wait for the running offload, and start no other. Safe to repeat."""
        with self._lock:
            self._closed = True
            running = self._running
        if running is not None:
            running.exception()

    # Helpers

    def _policies(self) -> OffloadPolicies:
        stored = OffloadPolicies.of(self._store, self.topic).over(OffloadPolicies.of(self._store))
        return self.config.over(stored)

    def _start(self, choose: Callable[[list[SourceLedger]], list[SourceLedger]]) -> Future[Position]:
        if isinstance(self._offloader, NullLedgerOffloader):
            raise Unsupported("no offloader is configured: ManagedLedgerConfig(offloader=...)", feature="offload")
        with self._lock:
            self._check_idle()
            left, _ = self._left()
            chosen = [item for item in choose(self.ledgers()) if item in left and item.closed_ms is not None]
            self._under_way = {item.ledger for item in chosen}
            self._running = in_background(partial(self._run, chosen), "chunkstore-offload")
            return self._running

    def _check_idle(self) -> None:
        if self._closed:
            raise Closed(f"the managed ledger of {self.topic!r}")
        if self._running is not None and not self._running.done():
            raise Conflict(f"offload of {self.topic!r}", expected="none", found="one", remedy="wait for its end")

    def _run(self, chosen: list[SourceLedger]) -> Position:
        errors: dict[int, Exception] = {}

        def offload(item: SourceLedger) -> None:
            try:
                self._offload(item)
            except Exception as error:  # noqa: BLE001  (the next ledger goes on; the first error is raised below)
                errors[item.ledger] = error
                self.config.metrics.record("offload_error", self.topic)
            finally:
                self._under_way.discard(item.ledger)

        try:
            self._settle()
            calls = [partial(offload, item) for item in chosen]
            workers = min(self.config.offload_threads_max, len(calls)) - 1
            if workers > 0:
                with closing(runtime.pool("chunkstore-offload", workers)) as pool:
                    pool.run_all(calls)
            else:
                for call in calls:
                    call()
        finally:
            self._under_way.clear()
        if errors:
            raise errors[min(errors)]
        left, end = self._left()
        return Position(left[0].ledger if left else end, 0)

    def _left(self) -> tuple[list[SourceLedger], int]:
        """The ledgers that are not offloaded, without empty closed ones; and the id after the last of all."""
        ledgers, rows = self.ledgers(), self._rows.all()
        done = {row.ledger for row in rows.values() if row.is_offloaded}
        done |= {item.ledger for item in ledgers if item.closed_ms is not None and item.entries == 0}
        done |= self._streamed(ledgers, rows).keys()
        end = ledgers[-1].ledger + 1 if ledgers else 0
        return [item for item in ledgers if item.ledger not in done], end

    def _streamed(self, ledgers: Iterable[SourceLedger], rows: dict[int, LedgerRow]) -> dict[int, LedgerRow]:
        """Closed ledgers all of whose entries are in complete segments of others than ledger-based attempts, as rows with the time.

        For a bucket they count only while streaming is enabled: going back, they are offloaded once more (PIP-76's roll-back).
        """
        if self._offloader.driver_name != CONTAINER and not self._policies().streaming_offload_enabled:
            return {}
        attempts = {attempt.uuid for row in rows.values() for attempt in row.attempts}
        counts, offloaded_ms = Counter[int](), dict[int, int]()
        for context in iter_contexts(self._store, self.topic):
            for part in context.ranges if context.uuid not in attempts else ():
                span = part.last_entry - part.first_entry + 1 if context.begin is not None else 0  # no gaps there
                counts[part.ledger] += part.entries or span
                offloaded_ms[part.ledger] = context.offloaded_ms
        return {
            item.ledger: _with_facts(rows.get(item.ledger, LedgerRow(self.topic, item.ledger)), item)._replace(
                timestamp_ms=offloaded_ms[item.ledger]
            )
            for item in ledgers
            if item.closed_ms is not None and 0 < item.entries == counts[item.ledger]
        }

    def _check_not_streamed(self, ledger: int) -> None:
        """Streaming takes what it began with, and all that follows; while it is enabled, it keeps what it has."""
        enabled = self._policies().streaming_offload_enabled
        streamed = self._stream is not None and self._stream.takes(ledger)
        for context in iter_contexts(self._store, self.topic):
            if context.begin is not None and not context.complete:
                streamed = streamed or ledger >= context.begin[0]
            elif context.begin is not None and enabled:
                streamed = streamed or any(item.ledger == ledger for item in context.ranges)
        if streamed:
            remedy = "stream it to its end: StreamingOffloader.finish, or --streaming --close"
            raise Conflict(f"ledger {ledger}", expected="not streamed", found="streamed, or to be", remedy=remedy)

    @contextmanager
    def _reading(self, item: SourceLedger) -> Iterator[ReadHandle]:
        """The source's ledger within the broker's permits. An error that is not of a read is of the storage."""
        metrics, inner = self.config.metrics, self._source.open(item.ledger)
        with OffloadReadHandle.create(inner, BROKER_PERMITS, metrics=metrics, topic=self.topic) as handle:
            try:
                yield handle
            except Exception:
                if not handle.failed:
                    metrics.record("write_storage_error", self.topic)
                raise
            metrics.record("offload_rate", self.topic, item.size_bytes)

    def _open_offloaded(self, row: LedgerRow) -> ReadHandle:
        metrics = self.config.metrics
        with metrics.timed("read_offload_index_latency", self.topic, error="read_offload_error"):
            if row.complete and row.attempt is not None:
                driver = dict(row.attempt.properties)
                handle = self._offloader.read_offloaded(row.ledger, row.attempt.uuid, driver).result()
            else:
                handle = open_ledger(self._store, self.topic, row.ledger)
        return MeasuredReadHandle(handle, metrics, self.topic)

    def _offload(self, item: SourceLedger) -> None:
        """One attempt: recorded, earlier ones cleaned up, written, recorded as complete."""
        self._check_not_streamed(item.ledger)
        driver = tuple(self._offloader.driver_metadata.items())
        attempt = Attempt(new_context(self.topic, 0).uuid, self._offloader.driver_name, driver)

        def begin(row: LedgerRow) -> LedgerRow:
            if row.complete or row.deleted:
                raise Conflict(f"ledger {item.ledger}", expected="not offloaded", found="offloaded or deleted")
            if len(row.attempts) > _STALE_MAX:
                raise StorageUnavailable(
                    f"{len(row.attempts)} earlier attempts of ledger {item.ledger} cannot be deleted"
                )
            return _with_facts(row, item)._replace(attempt=attempt, stale=row.attempts)

        self._clean(self._rows.update(item.ledger, begin))
        extra = {"ManagedLedgerName": managed_ledger_name(self.topic)}
        with self._reading(item) as handle:
            self._offloader.offload(handle, attempt.uuid, extra).result()

        def finish(row: LedgerRow) -> LedgerRow:
            if row.attempt == attempt and not row.deleted:
                return row._replace(complete=True, timestamp_ms=runtime.now_ms())
            return row if attempt in row.attempts else row._replace(stale=(*row.stale, attempt))

        row = self._rows.update(item.ledger, finish)
        if row.attempt != attempt or row.deleted:
            self._clean(row._replace(stale=(attempt,)))
            raise Conflict(f"ledger {item.ledger}", expected=attempt.uuid.hex(), found="another attempt, or deleted")

    def _settle(self, errors: list[ChunkstoreError] | None = None) -> None:
        """Delete what an earlier call, perhaps of another owner, did not get to. Raises the first of ``errors`` and its
        own; None: it raises none of its own."""
        found = [] if errors is None else errors
        deleted = []
        listed = {item.ledger for item in self._source.ledgers()}
        for row in self._rows.all().values():
            try:
                if (row.deleted or row.bookkeeper_deleted) and row.ledger in listed:
                    self._source.delete(row.ledger)
                if row.deleted:
                    for attempt in row.attempts:
                        self._delete_objects(row.ledger, attempt)
                    deleted.append(row.ledger)
                elif row.ledger not in self._under_way:
                    self._clean(row)
            except ChunkstoreError as error:
                found.append(error)
        try:
            for context in gone_segments(self._store, self.topic, self._rows.all()):
                delete_attempt(self._store, self.topic, context.uuid)
            forget(self._store, self.topic, deleted)
        except ChunkstoreError as error:
            found.append(error)
        if errors:
            raise errors[0]

    def _clean(self, row: LedgerRow) -> None:
        """Delete the objects of stale attempts; what fails stays in the row."""
        for attempt in row.stale:
            with suppress(ChunkstoreError):
                self._delete_objects(row.ledger, attempt)

    def _delete_objects(self, ledger: int, attempt: Attempt) -> None:
        """Delete an attempt's objects; the row forgets it then."""
        status = "failed"
        try:
            self._offloader.delete_offloaded(attempt.uuid, dict(attempt.properties), ledger_id=ledger).result()
            status = "succeed"
        finally:
            self.config.metrics.record("delete_offload_ops", self.topic, status=status)
        self._rows.update(ledger, partial(LedgerRow.without, gone=attempt))


def _is_old(item: SourceLedger, minutes: int | None) -> bool:
    """Whether a ledger was closed that long ago."""
    return minutes is not None and runtime.now_ms() - (item.closed_ms or 0) >= minutes * _MINUTE_MS


def _with_facts(row: LedgerRow, item: SourceLedger) -> LedgerRow:
    """The row with what the source says of the ledger."""
    return row._replace(entries=item.entries, size_bytes=item.size_bytes, closed_ms=item.closed_ms or 0)
