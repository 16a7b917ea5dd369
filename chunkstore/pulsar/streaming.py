"""Streaming offload (PIP-76): entries go into an offload segment of the container while their ledger still grows.

Promises: offering never waits for storage; bytes that are held are bounded and counted; entries are consecutive, so gaps and
duplicates never get in; an offload segment that failed, or whose owner died, is resumed before another one begins. An entry counts
once the result of its segment, or a later handle's ``last_offered``, has reached it. Leaves out: when to stream (``policies``), reading
a source again (``streaming_offloader``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from typing import ClassVar, Final, NamedTuple

from chunkstore import runtime
from chunkstore.codec.pulsar.frames import BLOCK_HEADER_BYTES, ENTRY_HEADER_BYTES, Entry, check_entry
from chunkstore.config import KIB, MIB
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import ChunkstoreError, Conflict, DeadlineExceeded, InvalidArgument, StorageUnavailable
from chunkstore.pulsar.contexts import (
    NAMESPACE,
    Context,
    check_driver,
    check_topic,
    dashed,
    encode_context,
    iter_contexts,
    key_of,
    uuid_bytes,
)
from chunkstore.pulsar.ledgers import Position
from chunkstore.pulsar.writer import OffloadWriter

__all__ = [
    "OfferResult",
    "OffloadException",
    "OffloadHandle",
    "OffloadResult",
    "StreamingPolicy",
    "streaming_offload",
]

_SEGMENT_BYTES_MAX: Final = 1 << 40
"""The writer never ends a segment by its size: the handle does."""
_NO_LAST_ENTRY: Final = BLOCK_HEADER_BYTES - 1
"""Pulsar's own reader fails on a segment that goes on with the entry after it."""


class OfferResult(Enum):
    """What became of an entry that was offered; true only for ``SUCCESS``."""

    SUCCESS = "success"
    BUFFER_FULL = "buffer full"
    SEGMENT_CLOSED = "segment closed"
    NOT_CONSECUTIVE = "not consecutive"

    def __bool__(self) -> bool:
        return self is OfferResult.SUCCESS


class OffloadResult(NamedTuple):
    """A complete offload segment: its uuid (lower case, with dashes), its first and its last entry."""

    uuid: str
    begin_ledger_id: int
    begin_entry_id: int
    end_ledger_id: int
    end_entry_id: int


class OffloadException(ChunkstoreError):
    """An offload segment did not become complete. ``error``: the class of the cause; ``Suspended`` and ``Empty`` are no failures."""

    fields: ClassVar[tuple[str, ...]] = ("topic", "uuid", "error")

    def __init__(self, topic: str, uuid: str, error: str, message: str) -> None:
        super().__init__(f"offload of topic {topic!r}, segment {uuid or 'not assigned'}: {message}")
        self.topic = topic
        self.uuid = uuid
        self.error = error


class StreamingPolicy(NamedTuple):
    """When an offload segment ends (MiB of data, minutes since its first entry), bytes that may wait for storage, bytes of a block."""

    max_size_per_offload_segment_mbytes: int = 1024
    max_offload_segment_rollover_time_minutes: float = 10
    write_buffer_bytes: int = 64 * MIB
    block_bytes: int = 1 * MIB


def streaming_offload(
    store: ChunkedSegmentStorage,
    topic: str,
    uuid: object = None,
    driver_metadata: Mapping[str, str] | None = None,
    *,
    policy: StreamingPolicy | None = None,
) -> OffloadHandle:
    """A handle that streams entries of ``topic`` into the offload segment that is open (it failed, or its owner died), else a new one.

    The first entry is the one after the topic's last offloaded entry, or entry 0 of a later ledger; it is recorded with uuid and driver
    metadata when it was taken. ``uuid``: of the segment, as text or ``UUID`` (None: random); ``driver_metadata``: at most 64 pairs of
    texts, 8 KiB.

    Raises ``InvalidArgument``, ``Conflict`` (the open segment has another uuid, or belongs to a ledger-based offload, which has to end
    first), ``StorageUnavailable`` (no thread), ``Damaged``, and what reading and table rows raise. Retry: safe.
    """
    chosen = size_mbytes, minutes, buffer_bytes, block_bytes = policy or StreamingPolicy()
    if not 1 <= size_mbytes <= 1 << 20 or not 0 < minutes < 1 << 32:
        raise InvalidArgument("an offload segment has 1 to 1048576 MiB, and more than 0 minutes", argument="policy")
    if not 64 * KIB <= buffer_bytes <= 1 << 40 or block_bytes > buffer_bytes:
        raise InvalidArgument("write_buffer_bytes is 64 KiB to 1 TiB, and at least block_bytes", argument="policy")
    given, driver = None if uuid is None else uuid_bytes(uuid), check_driver(driver_metadata or {})
    found = next((context for context in iter_contexts(store, check_topic(topic)) if not context.complete), None)
    if found is not None and found.begin is None:
        remedy = "complete it with OffloadWriter, then stream"
        raise Conflict(f"open segment {found.data}", expected="streaming", found="ledger-based", remedy=remedy)
    if found is not None and given not in (None, found.uuid):
        raise Conflict(f"open segment of topic {topic!r}", expected=uuid, found=dashed(found.uuid))
    if found is not None and found.failed:
        _record(store, found._replace(failed=False))
    writer = OffloadWriter(store, topic, segment_bytes_max=_SEGMENT_BYTES_MAX, block_bytes=chosen.block_bytes)
    return OffloadHandle(store, writer, chosen, given, driver)


class OffloadHandle:
    """One offload segment under way; made by ``streaming_offload``. Thread-safe; a background thread stores what is offered.

    ``uuid``: of the segment; empty until its first entry was taken.
    """

    def __init__(
        self,
        store: ChunkedSegmentStorage,
        writer: OffloadWriter,
        policy: StreamingPolicy,
        uuid: bytes | None,
        driver: tuple[tuple[str, str], ...],
    ) -> None:
        self._store, self._writer, self._policy = store, writer, policy
        self._given, self._driver = uuid, driver
        self._last = None if writer.last_position is None else Position(*writer.last_position)
        self._begin: Position | None = None
        """The first entry of a resumed segment that has none."""
        self._first_ledger: int | None = None
        self._segment_bytes = 0
        self._began_s: float | None = None
        context = writer.open_context
        self.uuid: str = "" if context is None else dashed(context.uuid)
        if context is not None and context.begin is not None:
            self._first_ledger = context.begin[0]
            self._segment_bytes = store.info(context.data).length
            self._begin = None if self._segment_bytes else Position(*context.begin)
            self._began_s = runtime.monotonic_s()
        self._missing: Position | None = None
        """What was refused because the buffer was full: no later ledger may pass it."""
        self._state = runtime.condition()
        self.is_open: bool = True
        """Whether it takes entries."""
        self._completes = True
        self._queue: deque[Entry] = deque()
        self._accepted_bytes = self._stored_bytes = 0
        self._result: runtime.Future[OffloadResult] = runtime.future()
        self._result.set_running_or_notify_cancel()
        if runtime.spawn_if_possible(self._run, "chunkstore-offload") is None:
            raise StorageUnavailable("the system gives no thread for an offload; retry later", object=writer.topic)

    @property
    def first_ledger(self) -> int:
        """The first ledger of the segment; before it has entries, the first one that it may begin with."""
        if self._first_ledger is not None:
            return self._first_ledger
        return 0 if self._last is None else self._last.ledger

    @property
    def held_bytes(self) -> int:
        """Bytes of accepted entries, 12 more each, that are not durable yet: at most ``write_buffer_bytes``, or one entry."""
        return self._accepted_bytes - self._stored_bytes

    def can_offer(self, size: int) -> bool:
        """Whether an entry of ``size`` bytes would be taken now, if it is the next one."""
        return self.is_open and self._fits(ENTRY_HEADER_BYTES + size)

    def last_offered(self) -> Position | None:
        """The last entry that was taken, by this handle or before it; None: none of the topic."""
        return self._last

    def next_entry(self, ledger: int) -> int:
        """The entry of ``ledger`` that has to be offered next, if that ledger is next."""
        if self._begin is not None:
            return self._begin.entry if self._begin.ledger == ledger else 0
        return self._last.entry + 1 if self._last is not None and self._last.ledger == ledger else 0

    def get_offload_result_async(self) -> runtime.Future[OffloadResult]:
        """What the segment became, once it is complete and durable; else ``OffloadException``: the next handle resumes it."""
        return self._result

    def offer_entry(self, entry: Entry) -> OfferResult:
        """Take one entry: the next of the ledger, or entry 0 of a later one. Never waits for storage; not durable yet.

        BUFFER_FULL: offer it again later. SEGMENT_CLOSED: the segment has ended or failed; ask for its result, then make the next handle.
        NOT_CONSECUTIVE: it was offered before, or entries before it are missing. Raises ``InvalidArgument`` (no such entry can be).
        """
        check_entry(entry.entry, len(entry.payload), -1)
        position = Position(entry.ledger, entry.entry)
        size = ENTRY_HEADER_BYTES + len(entry.payload)
        with self._state:
            rest_s = self._rest_s()
            if rest_s is not None and rest_s <= 0:
                self._end(completes=True)
            if not self.is_open:
                return OfferResult.SEGMENT_CLOSED
            if not self._is_next(position):
                return OfferResult.NOT_CONSECUTIVE
            if not self._fits(size):
                self._missing = position
                self._state.notify_all()
                return OfferResult.BUFFER_FULL
            if self._missing == position:
                self._missing = None
            if self._first_ledger is None:
                self._first_ledger = position.ledger
            self._last, self._begin = position, None
            self._accepted_bytes += size
            self._segment_bytes += size
            if self._began_s is None:
                self._began_s = runtime.monotonic_s()
            self._queue.append(entry if type(entry.payload) is bytes else entry._replace(payload=bytes(entry.payload)))
            is_full = self._segment_bytes >= self._policy.max_size_per_offload_segment_mbytes * MIB
            if is_full and entry.entry != _NO_LAST_ENTRY:
                self._end(completes=True)
            self._state.notify_all()
        return OfferResult.SUCCESS

    def wait_for_room(self, size: int, timeout_s: float) -> None:
        """Wait until ``can_offer(size)``, or until the handle ends. Raises ``DeadlineExceeded``."""
        end_s = runtime.monotonic_s() + timeout_s
        with self._state:
            while self.is_open and not self._fits(ENTRY_HEADER_BYTES + size):
                left_s = end_s - runtime.monotonic_s()
                if left_s <= 0:
                    raise DeadlineExceeded("waiting for the write buffer", deadline_s=timeout_s)
                self._state.wait(left_s)

    def close(self) -> bool:
        """Take no more, and have the segment completed in the background (its result tells). True if it was open. Safe to repeat."""
        with self._state:
            return self._end(completes=True)

    def suspend(self, timeout_s: float = 600.0) -> None:
        """Take no more, have everything that was taken stored, and leave the segment open for the next handle.

        Durable when it returns. Raises ``OffloadException`` (it failed) and ``DeadlineExceeded``. Safe to repeat.
        """
        with self._state:
            self._end(completes=False)
        try:
            error = self._result.exception(timeout_s)
        except TimeoutError as late:
            raise DeadlineExceeded("suspending the offload", deadline_s=timeout_s) from late
        if isinstance(error, OffloadException) and error.error not in ("Suspended", "Empty"):
            raise error.copy()

    # Helpers, with the lock held

    def _fits(self, size: int) -> bool:
        held = self.held_bytes
        return held == 0 or held + size <= self._policy.write_buffer_bytes

    def _is_next(self, position: Position) -> bool:
        if self._begin is not None:
            return position == self._begin
        if self._missing is not None and position > self._missing:
            return False
        if self._last is not None and position.ledger == self._last.ledger:
            return position.entry == self._last.entry + 1
        return position.entry == 0 and (-1 if self._last is None else self._last.ledger) < position.ledger < 1 << 63

    def _rest_s(self) -> float | None:
        """Seconds until the segment is to end; None: only after another entry."""
        if self._began_s is None or (self._last is not None and self._last.entry == _NO_LAST_ENTRY):
            return None
        return self._began_s + 60 * self._policy.max_offload_segment_rollover_time_minutes - runtime.monotonic_s()

    def _end(self, *, completes: bool) -> bool:
        was_open, self.is_open = self.is_open, False
        if was_open:
            self._completes = completes
            self._state.notify_all()
        return was_open

    # The background thread

    def _run(self) -> None:
        writer = self._writer
        became: OffloadResult | OffloadException
        try:
            self._store_queued()
            if writer.completed is None:
                (writer.complete if self._completes else writer.flush)()
            done = writer.completed
            if done is not None and done.begin is not None and done.end is not None:
                became = OffloadResult(self.uuid, *done.begin, *done.end)
            else:
                error = "Empty" if self._completes else "Suspended"
                became = OffloadException(writer.topic, self.uuid, error, "ended before it was complete")
        except Exception as cause:  # noqa: BLE001  (handed to the caller through the result)
            with suppress(ChunkstoreError):
                self._record_failure()
            text = f"{cause}; make another handle, which resumes it"
            became = OffloadException(writer.topic, self.uuid, type(cause).__name__, text)
            became.__cause__ = cause
        with self._state:
            self.is_open = False
            self._queue.clear()
            self._stored_bytes = self._accepted_bytes
            self._state.notify_all()
        if isinstance(became, OffloadException):
            self._result.set_exception(became)
        else:
            self._result.set_result(became)

    def _store_queued(self) -> None:
        """Write what is offered until the handle ends."""
        writer, added_bytes = self._writer, 0
        while self._queue or self._wait():
            if not self._queue:
                writer.flush()  # an entry waits for the bytes of an unfinished block
            else:
                item = self._queue.popleft()
                if writer.open_context is None:
                    writer.assign((item.ledger, item.entry), uuid=self._given, driver=self._driver)
                    assert writer.open_context is not None
                    self.uuid = dashed(writer.open_context.uuid)
                writer.append(*item)
                if writer.completed is not None:
                    return  # no block or ledger more fits: entries from this one on belong to the next segment
                added_bytes += ENTRY_HEADER_BYTES + len(item.payload)
            if added_bytes - writer.pending_bytes != self._stored_bytes:
                with self._state:
                    self._stored_bytes = added_bytes - writer.pending_bytes
                    self._state.notify_all()

    def _wait(self) -> bool:
        """Wait for an offer, or until it is time to end. False: nothing more comes."""
        with self._state:
            while not self._queue and (self._missing is None or not self._writer.pending_bytes):
                rest_s = self._rest_s()
                if rest_s is not None and rest_s <= 0:
                    self._end(completes=True)
                if not self.is_open:
                    return False
                self._state.wait(rest_s)
            return self.is_open or bool(self._queue)

    def _record_failure(self) -> None:
        context = self._writer.open_context
        uuid = None if context is None else context.uuid
        for stored in iter_contexts(self._store, self._writer.topic):
            if stored.uuid == uuid and not stored.complete:
                _record(self._store, stored._replace(failed=True, failures=stored.failures + 1))


def _record(store: ChunkedSegmentStorage, context: Context) -> None:
    key = key_of(context.topic, context.sequence)
    store.table(NAMESPACE).put(key, encode_context(context), expected_version=context.version)
