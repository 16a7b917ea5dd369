"""The messages of one run of a topic's entries, when other runs are read elsewhere at the same time.

Promises: over all runs of a topic, each message that one reader of all entries would get, once. The run in which a chunked message
begins has it. For the ends of transactions and for missing chunks a run reads on in the entries after it, metadata only.
Leaves out: which runs there are (``pulsar_offload``). Memory: the entries of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Literal

import pyarrow as pa

from chunkstore.codec.pulsar.message_batches import MessageBatches
from chunkstore.codec.pulsar.message_entries import (
    EntryOpener,
    RawEntry,
    Transactions,
    TxnState,
    opener_of,
    scan_transactions,
)
from chunkstore.codec.pulsar.message_metadata import TxnId, parse_head
from chunkstore.errors import Damaged

__all__ = ["CHUNK_WAIT_MS", "run_messages"]

CHUNK_WAIT_MS: Final = 3_600_000
"""A chunked message is unfinished when an hour of the topic's publish times has passed. Pulsar's consumers wait a minute."""


def run_messages(
    own: Sequence[pa.RecordBatch],
    later: Callable[[], Iterator[RawEntry]],
    *,
    columns: Sequence[str],
    transactions: Literal["committed", "all"],
    messages: Literal["strict", "lenient"],
) -> MessageBatches:
    """The messages of the entries in ``own`` (columns ledger, entry, payload), as ``message_batches``.

    ``later`` gives the topic's entries after these, from the first one, each time it is called. Raises as ``message_batches``, and
    what ``later`` raises.
    """
    known = _with_ends(scan_transactions(_entries(own)), later)
    opener = opener_of((), transactions, known, messages)
    return MessageBatches(_with_chunks(_entries(own), opener, later), opener, columns)


def _entries(batches: Sequence[pa.RecordBatch]) -> Iterator[RawEntry]:
    for batch in batches:
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _with_ends(known: Transactions, later: Callable[[], Iterator[RawEntry]]) -> Transactions:
    """These transactions, with the ends that the entries after the run have."""
    waiting = set(known.those("open"))
    ends: dict[TxnId, TxnState] = {}
    entries = later() if waiting else iter(())
    for item in entries:
        for txn, state in scan_transactions([item]).states.items():
            if state != "open" and txn in waiting:
                ends[txn] = state
                waiting.remove(txn)
        if not waiting:
            break
    return known | Transactions(ends)


def _with_chunks(
    own: Iterator[RawEntry], opener: EntryOpener, later: Callable[[], Iterator[RawEntry]]
) -> Iterator[RawEntry]:
    """The run's entries, then the chunks after it of messages that began in it. ``opener`` has opened each entry before the next one."""
    last: RawEntry | None = None
    for item in own:
        yield item
        last = item
    if last is None or not opener.waiting:
        return
    until_ms = _publish_ms(last) + CHUNK_WAIT_MS
    begun_again: set[bytes] = set()
    for item in later():
        try:
            metadata = parse_head(item[0], item[1], bytes(item[2]), checked=False).metadata
        except Damaged:
            continue  # the run that has this entry raises about it
        if metadata.publish_time > until_ms:
            return
        if metadata.uuid in opener.waiting and metadata.num_chunks_from_msg > 1:
            if not metadata.chunk_id:
                begun_again.add(metadata.uuid)  # by a producer that reconnected: the run of this entry has the message
            elif metadata.uuid not in begun_again:
                yield item
            if opener.waiting <= begun_again:
                return


def _publish_ms(item: RawEntry) -> int:
    try:
        return int(parse_head(item[0], item[1], bytes(item[2]), checked=False).metadata.publish_time)
    except Damaged:
        return 0
