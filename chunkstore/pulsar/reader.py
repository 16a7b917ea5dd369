"""``open_ledger`` and ``LedgerReader``: a ledger's entries over many offload segments, open ones included, at an owner or a replica.

Promises: entries come once each, in order, and gaps are left out; what was acknowledged before the call is there. Every byte
is checked as the codec says. Leaves out: checksums of chunks (the engine's), following a ledger that grows (call again).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from chunkstore.codec.pulsar.block_index import INDEX_BYTES_MAX
from chunkstore.codec.pulsar.frames import Entry
from chunkstore.codec.pulsar.pip76 import read_index
from chunkstore.errors import InvalidArgument
from chunkstore.pulsar.contexts import LedgerNotFound, Stored, iter_topics
from chunkstore.pulsar.planning import LedgerRange, TopicPlanner, plan, reader_of
from chunkstore.pulsar.read_handle import LedgerPart, StoredLedger

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["LedgerReader", "LedgerSummary", "open_ledger"]


class LedgerSummary(NamedTuple):
    """A ledger: its first and last entry, in how many offload segments it is, its bytes there, whether all are complete. ``entries``:
    how many there are; None: an offload segment does not say so, because it grows, or another writer wrote a part of it."""

    topic: str
    ledger: int
    first_entry: int
    last_entry: int
    segments: int
    size_bytes: int
    complete: bool
    entries: int | None = None


class LedgerReader:
    """Reads ledgers from ``store`` (an owner or a replica); needs no closing. Thread-safe as the store."""

    def __init__(self, store: Stored) -> None:
        self._store = store

    def topics(self) -> list[str]:
        """The topics, in the order of their bytes. Raises ``Damaged`` and what tables raise."""
        return list(iter_topics(self._store))

    def ledgers(self, topic: str, ledgers: Sequence[int] | None = None, *, sizes: bool = True) -> list[LedgerSummary]:
        """The topic's ledgers (None: all), ascending. Without ``sizes`` those of complete offload segments count as 0, and nothing of
        these is read, not even their index. Raises as ``plan``."""
        parts: dict[int, list[LedgerRange]] = {}
        for item in TopicPlanner(self._store, topic).plan(ledgers, blocks=lambda _part: sizes):
            parts.setdefault(item.ledger, []).append(item)
        return [
            LedgerSummary(
                topic,
                ledger,
                row[0].first_entry,
                row[-1].last_entry,
                len(row),
                sum(item.size_bytes for item in row),
                all(item.complete for item in row),
                sum(item.entries for item in row) if all(item.entries for item in row) else None,
            )
            for ledger, row in parts.items()
        ]

    def read(self, topic: str, ledger: int, first: int = 0, last: int | None = None) -> Iterator[Entry]:
        """The entries ``first`` to ``last`` (both included; ``None``: to the end), one object each.

        Arguments are checked and the plan is made at the call. Raises ``InvalidArgument``, ``LedgerNotFound``; while iterating
        ``Damaged`` at the first byte that is wrong, and what reading raises.
        """
        handle, stop = self._opened(topic, ledger, first, last)
        return handle.iter_entries(first, stop) if first <= stop else iter(())

    def read_batches(
        self, topic: str, ledger: int, first: int = 0, last: int | None = None
    ) -> Iterator[pa.RecordBatch]:
        """As ``read``, as Arrow record batches of about 1 MiB with the columns ledger, entry and payload. Needs pyarrow."""
        handle, stop = self._opened(topic, ledger, first, last)
        return handle.read_batches(first, stop) if first <= stop else iter(())

    def _opened(self, topic: str, ledger: int, first: int, last: int | None) -> tuple[StoredLedger, int]:
        """A handle, and the last entry to be read that is there."""
        for value, argument in ((first, "first"), (first if last is None else last, "last")):
            if type(value) is not int or value < 0:
                raise InvalidArgument(f"{argument} is an entry id from 0 on, not {value!r}", argument=argument)
        if last is not None and last < first:
            raise InvalidArgument(f"entries {first} to {last}: not a range", argument="last")
        handle = open_ledger(self._store, topic, ledger)
        return handle, handle.last_add_confirmed if last is None else min(last, handle.last_add_confirmed)


def open_ledger(store: Stored, topic: str, ledger: int, segment: str | None = None) -> StoredLedger:
    """One ledger of a topic in ``store``, as far as it is acknowledged now: a ``ReadHandle``, open offload segments included.

    ``segment``: only what this data segment has of it. ``closed``: all its offload segments are complete. ``length`` is known where the
    last index says it. Raises as ``plan``.
    """
    items = [item for item in plan(store, topic, (ledger,)) if segment in (None, item.segment)]
    if not items:
        raise LedgerNotFound(topic, ledger)
    parts = []
    for item in items:
        identity = (store.container, item.segment, store.open_read(item.segment).segment_id)
        reader = reader_of(store, item.segment, ledger, item.blocks)
        parts.append(LedgerPart(reader, item.first_entry, item.last_entry, identity))
    last, length = items[-1], None
    if last.complete:
        name = f"{last.segment}-index"
        index = read_index(store.read(name, 0, INDEX_BYTES_MAX), object=f"segment {name}")
        length = index.group(ledger).info.size
    closed = all(item.complete for item in items)
    return StoredLedger(ledger, parts, last_add_confirmed=last.last_entry, length=length, closed=closed)
