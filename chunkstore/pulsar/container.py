"""A topic's ledgers in the offload segments of a container: read at an owner or a replica, offloaded into, deleted; and as a source.

Promises: entries come once each, in order, and gaps are left out; what was acknowledged before the call is there, open offload segments
included. A ledger is marked before it is deleted, and no longer read then; a segment goes with the last of its ledgers, index, data and
context in one commit; after a crash the same call goes on. Leaves out: checksums of chunks (the engine's), following a ledger that grows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from chunkstore import runtime
from chunkstore.changes import Change, Create, Delete, TableDelete
from chunkstore.codec.pulsar.block_index import INDEX_BYTES_MAX
from chunkstore.codec.pulsar.encoding import EncodedBlock
from chunkstore.codec.pulsar.frames import Entry
from chunkstore.codec.pulsar.pip76 import read_index
from chunkstore.config import MIB
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import Conflict, Damaged, InvalidArgument, Unsupported
from chunkstore.pulsar.contexts import (
    NAMESPACE,
    Context,
    LedgerNotFound,
    Stored,
    check_topic,
    data_segment,
    iter_contexts,
    iter_topics,
    key_of,
    uuid_bytes,
)
from chunkstore.pulsar.cursors import LedgerPart
from chunkstore.pulsar.ledger_rows import LedgerRow, LedgerRows
from chunkstore.pulsar.ledgers import LedgerSource, SourceLedger
from chunkstore.pulsar.offload_ledger import LedgerOffloader, managed_ledger_name
from chunkstore.pulsar.planning import LedgerRange, TopicPlanner, plan, reader_of
from chunkstore.pulsar.read_handle import ReadHandle, StoredLedger
from chunkstore.pulsar.writer import Filled, SegmentFiller, completion

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "CONTAINER",
    "ContainerOffloader",
    "ContainerSource",
    "LedgerReader",
    "LedgerSummary",
    "delete_attempt",
    "forget",
    "gone_segments",
    "open_ledger",
    "remove_ledger",
]

CONTAINER: Final = "chunkstore"
"""Driver of attempts whose objects are segments of the container itself."""
_SEGMENT_BYTES_MAX: Final = 1 << 40
_BLOCK_BYTES_MAX: Final = 1 * MIB


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

    def plan(self, topic: str, ledgers: Sequence[int] | None = None) -> tuple[LedgerRange, ...]:
        """See ``chunkstore.pulsar.plan``."""
        return plan(self._store, topic, ledgers)

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


def remove_ledger(
    store: Stored, topic: str, ledger: int, *, offloaded: bool = True, dry_run: bool = False
) -> list[tuple[str, int]]:
    """Mark a ledger, and delete the offload segments all of whose ledgers are marked; these segments, by data's name, and their bytes.

    Its attempts in this container go as well, and objects in a bucket with the next ``ManagedLedger.trim``; without ``offloaded`` what was
    offloaded stays. Entries that are still being written keep their segment. ``dry_run`` changes nothing, and takes a replica. Durable.
    Raises ``LedgerNotFound``, ``Damaged`` and what ``commit`` raises. Retry: safe (``LedgerNotFound``: it is done).
    """

    def mark(row: LedgerRow) -> LedgerRow:
        stays = row.is_offloaded and not row.deleted and not offloaded
        return row._replace(bookkeeper_deleted=True) if stays else row._replace(deleted=True)

    rows = LedgerRows(store, topic)
    known = rows.all()
    if ledger not in known:
        plan(store, topic, (ledger,), blocks=lambda _part: False)  # LedgerNotFound where it is nowhere
    row = known[ledger] = mark(known.get(ledger, LedgerRow(topic, ledger)))
    doomed = gone_segments(store, topic, known)
    if not dry_run:
        if not isinstance(store, ChunkedSegmentStorage):
            raise Unsupported("a replica deletes nothing: ask the owner", feature="remove_ledger")
        rows.update(ledger, mark)
        for context in doomed:
            delete_attempt(store, topic, context.uuid)
        for attempt in row.attempts if row.deleted else ():
            if attempt.driver == CONTAINER:
                delete_attempt(store, topic, attempt.uuid)
                rows.update(ledger, partial(LedgerRow.without, gone=attempt))
        forget(store, topic, {ledger, *(item.ledger for context in doomed for item in context.ranges)})
    return [(context.data, context.data_length + context.index_length) for context in doomed]


def gone_segments(store: Stored, topic: str, rows: Mapping[int, LedgerRow]) -> list[Context]:
    """The complete offload segments all of whose ledgers are given up."""
    return [
        context
        for context in iter_contexts(store, topic)
        if context.complete
        and all(item.ledger in rows and rows[item.ledger].is_gone(context.data) for item in context.ranges)
    ]


def forget(store: ChunkedSegmentStorage, topic: str, ledgers: Iterable[int]) -> None:
    """Drop the marks of deleted ledgers of which nothing is left. Raises as ``Table.delete``. Retry: safe."""

    def drop(row: LedgerRow) -> LedgerRow:
        return LedgerRow(topic, row.ledger) if row.deleted and not row.attempts else row

    contexts = iter_contexts(store, topic)
    if all(context.complete for context in contexts):  # what an open segment holds is not known here
        held = {item.ledger for context in contexts for item in context.ranges}
        for ledger in set(ledgers) - held:
            LedgerRows(store, topic).update(ledger, drop)


def delete_attempt(store: ChunkedSegmentStorage, topic: str, uuid: bytes) -> None:
    """Delete an offload segment, complete or not: index, data and context in one commit. Of one that is gone: nothing. Raises as
    ``commit``. Retry: safe."""
    data = data_segment(topic, uuid)
    changes: list[Change] = [Delete(name) for name in (data + "-index", data) if store.exists(name)]
    changes += [
        TableDelete(NAMESPACE, key_of(topic, context.sequence), context.version)
        for context in iter_contexts(store, topic)
        if context.uuid == uuid
    ]
    if changes:
        store.commit(changes)


class ContainerSource(LedgerSource):
    """The ledgers in a topic's offload segments of a container. The newest one counts as open: a writer may go on in it. A deleted one
    is listed, without entries, while it shares a segment with others."""

    def __init__(self, store: ChunkedSegmentStorage, topic: str) -> None:
        self.topic: str = check_topic(topic)
        self._store = store

    def ledgers(self) -> list[SourceLedger]:
        closed_ms = {
            item.ledger: self._store.info(context.data).modified_at
            for context in iter_contexts(self._store, self.topic)
            for item in context.ranges
        }
        found = {ledger: SourceLedger(ledger, 0, 0, closed) for ledger, closed in closed_ms.items()}
        with suppress(LedgerNotFound):
            for item in LedgerReader(self._store).ledgers(self.topic):
                entries = item.entries or item.last_entry - item.first_entry + 1
                closed = closed_ms[item.ledger] if item.complete else None
                found[item.ledger] = SourceLedger(item.ledger, entries, item.size_bytes, closed)
        return [item._replace(closed_ms=None) if item.ledger == max(found) else item for item in sorted(found.values())]

    def open(self, ledger: int) -> ReadHandle:
        return open_ledger(self._store, self.topic, ledger)

    def delete(self, ledger: int) -> None:
        with suppress(LedgerNotFound):
            remove_ledger(self._store, self.topic, ledger, offloaded=False)


class ContainerOffloader(LedgerOffloader):
    """Offloads the ledgers of ``topic`` into a container: segments ``offload/TOPIC/UUID`` and ``-index``, and a context once both are
    whole, so that ``LedgerReader`` and Spark read them. Extra metadata become attributes of the data segment. Blocks have at most 1 MiB.

    A ledger that offload segments hold a part of is a ``Conflict``, extra metadata of another topic ``InvalidArgument``.
    """

    driver_name = CONTAINER

    def __init__(self, store: ChunkedSegmentStorage, topic: str) -> None:
        self.topic: str = check_topic(topic)
        self._store = store
        self._completing = runtime.lock()

    def do_offload(self, handle: ReadHandle, uuid: str, extra_metadata: Mapping[str, str]) -> None:
        named = managed_ledger_name(self.topic)
        if extra_metadata.get("ManagedLedgerName", named) != named:
            raise InvalidArgument(f"this offloader is for {named}, not {extra_metadata}", argument="extra_metadata")
        self._contexts_without(handle.ledger)
        name = data_segment(self.topic, uuid_bytes(uuid))
        filled: list[Filled] = []

        def put(block: EncodedBlock) -> None:
            if filled:
                raise Unsupported(f"ledger {handle.ledger} is too long for one offload segment", feature="offload")
            self._store.append_many(name, block.buffers, expected_offset=block.offset)

        block_bytes = min(self.block_bytes_max, _BLOCK_BYTES_MAX)
        filler = SegmentFiller(put, filled.append, segment_bytes_max=_SEGMENT_BYTES_MAX, block_bytes=block_bytes)
        self._store.commit([Create(name, attributes=dict(extra_metadata))])
        for entry in handle.iter_entries():
            filler.append(handle.ledger, entry.entry, entry.payload)
        filler.complete()
        last = filler.lasts.get(handle.ledger)
        if last != handle.last_add_confirmed:
            text = f"its entries end with {last}, not {handle.last_add_confirmed}"
            raise Damaged(text, object=f"ledger {handle.ledger}")
        with self._completing:  # sequence numbers are taken one by one
            contexts = self._contexts_without(handle.ledger)
            sequence = contexts[-1].sequence + 1 if contexts else 0
            begun = Context(self.topic, sequence, uuid_bytes(uuid), complete=False)
            done = begun.completed(filled[0].data_length, len(filled[0].index_data), filled[0].ranges)
            self._store.commit(completion(done, filled[0]))

    def do_read(self, ledger: int, uuid: str) -> ReadHandle:
        return open_ledger(self._store, self.topic, ledger, data_segment(self.topic, uuid_bytes(uuid)))

    def do_delete(self, ledger: int | None, uuid: str) -> None:
        delete_attempt(self._store, self.topic, uuid_bytes(uuid))

    def _contexts_without(self, ledger: int) -> list[Context]:
        contexts = iter_contexts(self._store, self.topic)
        for context in contexts:
            if any(item.ledger == ledger for item in context.ranges):
                raise Conflict(f"ledger {ledger}", expected="not offloaded", found=context.data)
        return contexts
