"""``StreamingOffloader``: keeps a topic's streaming offload going, segment after segment, and reads again what was not taken.

Promises: live entries are offered without waiting; what was refused is fed later, from the source's cache first, then from the ledger;
each entry gets in once. Leaves out: which ledgers there are when (``LedgerSource``), other formats than PIP-76.
"""

from __future__ import annotations

from contextlib import closing
from typing import Final

from chunkstore.codec.pulsar.frames import Entry
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import DeadlineExceeded, InvalidArgument, Unsupported
from chunkstore.pulsar.ledger_rows import LedgerRows
from chunkstore.pulsar.ledgers import LedgerSource, Position
from chunkstore.pulsar.offload_metrics import PROCESS_METRICS, OffloadMetrics
from chunkstore.pulsar.permits import BROKER_PERMITS, OffloadReadHandle
from chunkstore.pulsar.streaming import (
    OfferResult,
    OffloadException,
    OffloadHandle,
    OffloadResult,
    StreamingPolicy,
    streaming_offload,
)

__all__ = ["StreamingOffloader", "stream_directory"]

_CACHED_ENTRIES: Final = 100
_TIMEOUT_S: Final = 600.0


class StreamingOffloader:
    """Streams one topic, segment after segment. One thread may ``feed`` while another one makes live ``offer`` calls.

    ``source``: where entries are read again; ``metrics``: where errors and bytes are counted. No step waits for storage more than ten
    minutes. Raises as ``streaming_offload``.
    """

    def __init__(
        self,
        store: ChunkedSegmentStorage,
        topic: str,
        source: LedgerSource,
        *,
        policy: StreamingPolicy | None = None,
        metrics: OffloadMetrics | None = None,
    ) -> None:
        self._store, self._topic, self._source = store, topic, source
        self._policy = policy or StreamingPolicy()
        self._metrics = metrics or PROCESS_METRICS
        self._refused: dict[int, int] = {}
        """By ledger, the last live entry that was refused and is not offered yet: no later ledger may pass it."""
        self._handle: OffloadHandle | None = None
        self.results: list[OffloadResult] = []
        """The segments that were completed here, as they were found to be."""
        self._current()

    def takes(self, ledger: int) -> bool:
        """Whether entries of ``ledger`` are in the current segment, or may get into it."""
        handle = self._handle
        return handle is not None and ledger >= handle.first_ledger

    def offer(self, entry: Entry) -> OfferResult:
        """Offer a live entry, as ``OffloadHandle.offer_entry``. After a refusal, later entries are refused until ``feed`` has caught up."""
        handle = self._handle
        if handle is None:
            outcome = OfferResult.SEGMENT_CLOSED
        elif self._passed(handle, Position(entry.ledger, entry.entry)) is not None:
            outcome = OfferResult.NOT_CONSECUTIVE
        else:
            outcome = self._offered(handle, entry)
        if outcome:
            self._refused.clear()  # all of them came before
        else:
            self._refused[entry.ledger] = max(entry.entry, self._refused.get(entry.ledger, -1))
        return outcome

    def feed(self, ledger: int, last: int | None = None) -> None:
        """Offer all entries of ``ledger`` that are not offloaded, up to ``last`` (included; None: its end now). Waits for storage.

        It is read within the broker's permits. One that a ledger-based offload has is passed over.

        Ledgers are fed in ascending order, each to its end. Raises ``OffloadException`` (a segment failed, and the next call resumes it;
        or entries are missing in the ledger), ``DeadlineExceeded``, ``InvalidArgument`` (an earlier ledger has to be fed first), and what
        the source and ``streaming_offload`` raise. Retry: safe.
        """
        if LedgerRows(self._store, self._topic).get(ledger).complete:
            return
        inner = self._source.open(ledger)
        with OffloadReadHandle.create(inner, BROKER_PERMITS, metrics=self._metrics, topic=self._topic) as reader:
            stop = reader.last_add_confirmed if last is None else min(last, reader.last_add_confirmed)
            while True:
                handle = self._current()
                passed = self._passed(handle, Position(ledger, 0))
                if passed is not None:
                    raise InvalidArgument(f"ledger {passed.ledger} has to be fed first", argument="ledger")
                before, first = handle.last_offered(), handle.next_entry(ledger)
                if first > stop or (before is not None and before.ledger > ledger):
                    return
                cached = self._source.cached(ledger, first, min(first + _CACHED_ENTRIES - 1, stop))
                outcome, size = OfferResult.SUCCESS, 0
                for entry in reader.iter_entries(first, stop) if cached is None else cached:
                    outcome, size = self._offered(handle, entry), len(entry.payload)
                    if not outcome:
                        break
                if outcome is OfferResult.BUFFER_FULL:
                    # Half of the buffer at once: each time, reading begins anew.
                    handle.wait_for_room(max(size, self._policy.write_buffer_bytes // 2), _TIMEOUT_S)
                elif outcome is not OfferResult.SEGMENT_CLOSED and handle.last_offered() == before:
                    text = f"entry {first} of ledger {ledger} is missing in the source"
                    raise OffloadException(self._topic, handle.uuid, "NotConsecutive", text)

    def offload_now(self) -> OffloadResult | None:
        """Complete the current segment and wait for it; None if it has no entries. Raises as ``feed``. Retry: safe."""
        before = len(self.results)
        if self._handle is not None:
            self._handle.close()
            self._take_result(self._handle)
        return self.results[-1] if len(self.results) > before else None

    def finish(self, ledger: int) -> OffloadResult | None:
        """Back to ledger-based offload, which goes on with the next ledger: stream this one, which is closed, to its end, and complete the
        segment. Raises as ``feed``, and ``InvalidArgument`` (it is open). Retry: safe."""
        with self._source.open(ledger) as found:
            if not found.closed:
                raise InvalidArgument(f"ledger {ledger} is open: finish when it is closed", argument="ledger")
        self.feed(ledger)
        return self.offload_now()

    def close(self) -> None:
        """Have everything stored that was taken, and leave the segment open; another offloader goes on with it. Raises as ``suspend``."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.suspend(_TIMEOUT_S)

    # Helpers

    def _offered(self, handle: OffloadHandle, entry: Entry) -> OfferResult:
        outcome = handle.offer_entry(entry)
        if outcome:
            self._metrics.record("offload_rate", self._topic, len(entry.payload))
        return outcome

    def _current(self) -> OffloadHandle:
        """The handle that takes entries; the next one begins when the last one's segment is offloaded."""
        if self._handle is not None and not self._handle.is_open:
            self._take_result(self._handle)
        if self._handle is None:
            self._handle = streaming_offload(self._store, self._topic, policy=self._policy)
        return self._handle

    def _take_result(self, handle: OffloadHandle) -> None:
        try:
            self.results.append(handle.get_offload_result_async().result(_TIMEOUT_S))
        except TimeoutError as late:
            raise DeadlineExceeded("completing an offload segment", deadline_s=_TIMEOUT_S) from late
        except OffloadException as error:
            self._handle = None
            if error.error != "Empty":
                for name in ("offload_error", "write_storage_error"):
                    self._metrics.record(name, self._topic)
                raise error.copy() from error.__cause__
        self._handle = None

    def _passed(self, handle: OffloadHandle, position: Position) -> Position | None:
        """A live entry that was refused and would be left out if ``position`` were next."""
        last = handle.last_offered() or Position(-1, -1)
        return next((Position(*item) for item in list(self._refused.items()) if last < item < position), None)


def stream_directory(
    store: ChunkedSegmentStorage,
    topic: str,
    source: LedgerSource,
    *,
    policy: StreamingPolicy | None = None,
    close: bool = False,
    format: str = "v2",
    end: Position | None = None,
) -> list[OffloadResult]:
    """Stream all of the source's ledgers that are not offloaded yet, up to ``end`` (excluded); the segments that were completed.

    ``close``: complete the last segment, too ("offload now"); else it stays open, with everything stored, and the next call goes on in it.
    Raises ``Unsupported`` (``format`` is not "v2"), and as ``StreamingOffloader.feed``. Retry: safe.
    """
    if format != "v2":
        raise Unsupported("streaming needs the format v2: a v1 object holds one closed ledger", feature="streaming")
    with closing(StreamingOffloader(store, topic, source, policy=policy)) as offloader:
        for found in source.ledgers():
            if end is None or found.ledger < end.ledger:
                offloader.feed(found.ledger)
            elif found.ledger == end.ledger:
                offloader.feed(found.ledger, end.entry - 1)
        if close:
            offloader.offload_now()
        return offloader.results
