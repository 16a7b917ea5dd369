"""Deleting ledgers from a container: offload segments, and the marks in rows.

Promises: a ledger is marked first, and no longer read then; a segment goes with the last of its ledgers, index, data and context in one
commit; after a crash the same call goes on. Leaves out: sources, and objects in buckets (``managed``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final

from chunkstore.changes import Change, Delete, TableDelete
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import Unsupported
from chunkstore.pulsar.contexts import NAMESPACE, Context, Stored, data_segment, iter_contexts, key_of
from chunkstore.pulsar.ledger_rows import LedgerRow, LedgerRows
from chunkstore.pulsar.planning import plan

__all__ = ["CONTAINER", "delete_attempt", "forget", "gone_segments", "remove_ledger"]

CONTAINER: Final = "chunkstore"
"""Driver of attempts whose objects are segments of the container itself."""


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
