"""What is known of each ledger of a topic: rows of the table ``offload-ledgers`` (FORMAT.md).

Promises: rows are versioned, and checked before they are believed; each change expects the version it was made from.
Leaves out: when a row changes (``managed``), and deleting what it names (``removal``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgpack

from chunkstore.codec.pulsar.offload_metadata import (
    DriverMetadata,
    OffloadContext,
    OffloadSegment,
    Pairs,
    encode_metadata,
)
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import Conflict
from chunkstore.pulsar.contexts import (
    MAJOR,
    LedgerNotFound,
    Stored,
    check_topic,
    damaged_row,
    data_segment,
    iter_contexts,
    key_of,
    require_numbers,
    row_fields,
    topic_and_number,
)

__all__ = ["Attempt", "LedgerRow", "LedgerRows", "offload_context"]

NAMESPACE: Final = "offload-ledgers"
MINOR: Final = 0
_ARRAY_MAX: Final = 1024


class Attempt(NamedTuple):
    """An attempt to offload a ledger: the UUID of its objects, its driver's name and properties."""

    uuid: bytes
    driver: str
    properties: Pairs = ()


class LedgerRow(NamedTuple):
    """A ledger. ``stale``: earlier attempts whose objects may still be there. Times are ms since 1970, 0: none. The fields from
    ``complete`` on are stored in this order. ``bookkeeper_deleted``: the source's copy goes; ``deleted``: every copy does. A ledger whose
    source's copy goes without a complete attempt was streamed."""

    topic: str
    ledger: int
    complete: bool = False
    bookkeeper_deleted: bool = False
    deleted: bool = False
    timestamp_ms: int = 0
    entries: int = 0
    size_bytes: int = 0
    closed_ms: int = 0
    attempt: Attempt | None = None
    stale: tuple[Attempt, ...] = ()

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """All attempts whose objects may be there."""
        return self.stale if self.attempt is None else (*self.stale, self.attempt)

    @property
    def is_offloaded(self) -> bool:
        """Whether a whole copy is in an attempt, or in offload segments."""
        return self.complete or self.bookkeeper_deleted

    def given_up(self, row: LedgerRow) -> LedgerRow:
        """``row``, which was as this one and may have changed since, once the source's copy goes."""
        if row.complete != self.complete or row.deleted:
            return row
        return self._replace(bookkeeper_deleted=True, attempt=row.attempt, stale=row.stale)

    def without(self, gone: Attempt) -> LedgerRow:
        """The row once the objects of an attempt are deleted."""
        row = self._replace(stale=tuple(item for item in self.stale if item != gone))
        return row._replace(attempt=None, complete=False) if row.attempt == gone else row

    def is_gone(self, segment: str) -> bool:
        """Whether the ledger's entries in this data segment are given up."""
        own = self.attempt is not None and segment == data_segment(self.topic, self.attempt.uuid)
        return self.deleted or (self.bookkeeper_deleted and self.complete and not own)


class LedgerRows:
    """The rows of a topic. Every call raises ``Damaged`` and what tables raise."""

    def __init__(self, store: Stored, topic: str) -> None:
        self._store = store
        self.topic: str = check_topic(topic)

    def get(self, ledger: int) -> LedgerRow:
        """The ledger's row; an empty one where there is none."""
        row = self._store.table(NAMESPACE).get(key_of(self.topic, ledger))
        return LedgerRow(self.topic, ledger) if row is None else _decode(row.key, row.value)

    def all(self) -> dict[int, LedgerRow]:
        """All rows, by ledger."""
        rows = self._store.table(NAMESPACE).scan(self.topic.encode() + b"\0")
        return {row.ledger: row for row in (_decode(row.key, row.value) for row in rows)}

    def update(self, ledger: int, change: Callable[[LedgerRow], LedgerRow]) -> LedgerRow:
        """Set the row to ``change`` of what it is, expecting that version; again where another change came between.

        An empty row is deleted. Durable when it returns. Raises as ``change`` and ``Table.put``, too. Retry: safe where ``change`` is.
        """
        assert isinstance(self._store, ChunkedSegmentStorage)
        table, key, empty = self._store.table(NAMESPACE), key_of(self.topic, ledger), LedgerRow(self.topic, ledger)
        while True:
            found = table.get(key)
            version = 0 if found is None else found.version
            row = empty if found is None else _decode(key, found.value)
            after = change(row)
            try:
                if after == empty:
                    table.delete(key, expected_version=version)
                elif after != row:
                    table.put(key, msgpack.packb((MAJOR, MINOR, *after[2:])), expected_version=version)
                return after
            except Conflict:
                continue


def _decode(key: bytes, value: bytes) -> LedgerRow:
    try:
        *facts, attempt, stale = row_fields(value, 9, _ARRAY_MAX, minor=MINOR)
        if any(type(item) is not bool for item in facts[:3]) or (facts[0] and attempt is None):
            raise ValueError("its state is wrong")
        require_numbers(*facts[3:])
        current = None if attempt is None else _attempt(attempt)
        return LedgerRow._make((*topic_and_number(key), *facts, current, tuple(map(_attempt, stale))))
    except (ValueError, TypeError) as error:
        raise damaged_row(NAMESPACE, key, error) from error


def _attempt(row: Any) -> Attempt:
    uuid, driver, pairs = row
    if type(uuid) is not bytes or len(uuid) != 16 or any(len(pair) != 2 for pair in pairs):
        raise ValueError("an attempt has 16 bytes of UUID, a driver and pairs")
    if any(type(text) is not str for text in (driver, *(text for pair in pairs for text in pair))):
        raise ValueError("driver and properties are text")
    return Attempt(uuid, driver, pairs)


def offload_context(store: Stored, topic: str, ledger: int) -> bytes:
    """Pulsar's protobuf ``OffloadContext`` of a ledger: its ledger-based attempt, and the offload segments that hold entries of it.

    Raises ``LedgerNotFound`` (there is neither, or the ledger is deleted), ``Damaged`` and what tables raise. Retry: safe.
    """
    row = LedgerRows(store, topic).get(ledger)
    own = None if row.attempt is None else row.attempt.uuid
    segments = tuple(
        OffloadSegment(**_halves(context.uuid), complete=True, end_entry=item.last_entry)
        for context in iter_contexts(store, topic)
        for item in context.ranges
        if item.ledger == ledger and context.uuid != own
    )
    if row.deleted or not (row.attempt or segments):
        raise LedgerNotFound(topic, ledger)
    context = OffloadContext(
        **({} if own is None else _halves(own)),
        complete=row.complete,
        bookkeeper_deleted=row.bookkeeper_deleted,
        timestamp_ms=row.timestamp_ms or None,
        driver=row.attempt and DriverMetadata(name=row.attempt.driver, properties=row.attempt.properties),
        segments=segments,
    )
    return encode_metadata(context)


def _halves(uuid: bytes) -> dict[str, Any]:
    """A UUID as Pulsar's fields."""
    msb, lsb = (int.from_bytes(half, "big", signed=True) for half in (uuid[:8], uuid[8:]))
    return {"uid_msb": msb, "uid_lsb": lsb}
