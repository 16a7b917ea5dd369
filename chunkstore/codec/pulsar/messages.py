"""The messages inside entries of Pulsar, one by one, as a consumer gets them; FORMAT_MESSAGES.md next to this file has the bytes.

Promises: every message a consumer would get, in the order of the entries; those of aborted transactions, markers and messages that
compaction took out are left out. Broken entries are ``Damaged`` with ledger, entry and offset, or stay raw (``messages="lenient"``).
Memory: one entry, and chunks that wait (``CHUNKED_BYTES_MAX``). Leaves out: decryption, schemas; messages that were sent twice come
twice, as consumers get them.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterable, Iterator
from typing import Any, Literal, NamedTuple

from chunkstore.codec.pulsar.message_entries import (
    EntryOpener,
    MessageSummary,
    Opened,
    OpenedItems,
    RawEntry,
    Transactions,
    TxnState,
    opener_of,
    scan_transactions,
)
from chunkstore.codec.pulsar.message_metadata import MESSAGE_METADATA_BYTES_MAX, TxnId, broken_entry, parse_single

__all__ = [
    "Message",
    "MessageIterator",
    "MessageSummary",
    "Transactions",
    "iter_messages",
    "rows_of",
    "scan_transactions",
]

SINGLE_BYTES_MIN = 6
"""What a message in a batch takes at least: its metadata's length, and a payload size."""


class Message(NamedTuple):
    """A message; times in milliseconds since 1970. Of a damaged entry only ``ledger``, ``entry``, ``payload`` and the flags are there.

    Attributes:
      ledger, entry: its entry; of a chunked message the last one's.
      batch_index, batch_size: place in its batch; -1 and 0 for none. -1 and a size: an encrypted batch, or one of an unknown compression.
      first_chunk: ledger and entry of the first chunk, where it was chunked.
      producer, sequence_id: who sent it, and as which one.
      publish_time, event_time, broker_time, deliver_at: ``event_time`` is 0, the others ``None``, where there is none.
      key, key_hex: the key as text (``None`` where it was given as bytes: ``key_b64``), and its bytes in hex; ``None`` for none.
      null_key, null_value: a key/value schema's null key; a value that is null, so that ``payload`` is ``None``.
      ordering_key_hex, schema_version_hex: bytes in hex, ``None`` for none.
      properties: of the message; of a name that is there twice the last one.
      compression, entry_uncompressed_size: NONE, LZ4, ZLIB, ZSTD, SNAPPY or an unknown number; the size (bytes) as it was written.
      txn, txn_state: most and least significant 64 bits of the transaction; "committed", "aborted", or "open" without a marker.
      encryption_keys: how many there are.
      index: of the message, where brokers counted.
      payload: the value's bytes.
      encrypted: ``payload`` is still encrypted, and compressed; of a batch it is the whole batch.
      raw: ``payload`` is as it was stored, because it is encrypted, damaged or of an unknown compression.
      damaged: ``payload`` is the whole entry, which cannot be read.
    """

    ledger: int
    entry: int
    batch_index: int | None = None
    batch_size: int | None = None
    first_chunk: tuple[int, int] | None = None
    producer: str | None = None
    sequence_id: int | None = None
    publish_time: int | None = None
    event_time: int | None = None
    key: str | None = None
    key_hex: str | None = None
    key_b64: bool | None = None
    null_key: bool | None = None
    ordering_key_hex: str | None = None
    properties: dict[str, str] | None = None
    null_value: bool | None = None
    schema_version_hex: str | None = None
    compression: str | None = None
    entry_uncompressed_size: int | None = None
    txn: TxnId | None = None
    encryption_keys: int | None = None
    deliver_at: int | None = None
    broker_time: int | None = None
    index: int | None = None  # type: ignore[assignment]  # the method of tuples is not missed
    payload: bytes | None = None
    encrypted: bool = False
    damaged: bool = False
    raw: bool = False
    txn_state: TxnState | None = None


class MessageIterator(OpenedItems[Message]):
    """The messages of some entries."""


def iter_messages(
    entries: Iterable[RawEntry],
    *,
    transactions: Literal["committed", "all"] = "committed",
    known: Transactions | None = None,
    messages: Literal["strict", "lenient"] = "strict",
) -> MessageIterator:
    """The messages in ``entries``: (ledger, entry, bytes), in a topic's order.

    Args:
      entries: read twice unless ``known`` is given, so an iterator without it is ``InvalidArgument``.
      transactions: "committed" gives what consumers get: no message of a transaction that was aborted, or whose marker is not known
        (``summary`` counts them). "all" gives every message, with ``txn_state``.
      known: how transactions ended, from ``scan_transactions``: of more entries than these, where an end may be in a later ledger.
      messages: "strict" raises ``Damaged`` at what is no message of Pulsar. "lenient" gives its entry as a row with ``damaged``; messages
        before the damage in the same batch come first.

    Raises:
      Damaged: see ``messages``; names ledger, entry and the offset in the entry.
      Unsupported: the package of a compression is missing (extra ``messages``).
      InvalidArgument: an argument is none of these.
    """
    opener = opener_of(entries, transactions, known, messages)
    return MessageIterator(_rows(entries, opener), opener)


def _rows(entries: Iterable[RawEntry], opener: EntryOpener) -> Iterator[Message]:
    for ledger, entry, payload in entries:
        opened = opener.open(ledger, entry, payload)
        if opened is not None:
            yield from rows_of(opened, opener)
    opener.finish()


def rows_of(opened: Opened, opener: EntryOpener) -> Iterator[Message]:
    """The messages of an opened entry. Raises ``Damaged``, unless ``opener`` is lenient: then a row with the entry says so."""
    ledger, entry = opened.common[:2]
    if opened.head is None:
        yield Message(ledger, entry, payload=opened.stored, damaged=True, raw=True)
        return
    try:
        if opened.kind == "batch":
            yield from _batch(opened)
        else:
            yield _alone(opened)
    except ValueError as error:
        if not opener.lenient:
            raise broken_entry(ledger, entry, opened.head.begin, str(error)) from error
        yield from rows_of(opener.damaged(ledger, entry, opened.stored), opener)


def _alone(opened: Opened) -> Message:
    """The row of an entry that is not taken apart."""
    assert opened.head is not None
    metadata = opened.head.metadata
    raw = opened.kind == "raw"
    # The metadata of a batch has the key of its first message, which says nothing about the others.
    own = not opened.batch_size
    return _message(
        opened,
        metadata,
        own=own,
        batch_index=-1,
        batch_size=opened.batch_size,
        sequence_id=metadata.sequence_id,
        index=opened.head.last_index,
        payload=opened.data,
        encrypted=raw and len(metadata.encryption_keys) > 0,
        raw=raw,
    )


def _batch(opened: Opened) -> Iterator[Message]:
    """The messages of a batch. Raises ``ValueError``."""
    assert opened.head is not None
    assert opened.data is not None
    metadata, data, count = opened.head.metadata, opened.data, opened.batch_size
    if count * SINGLE_BYTES_MIN > len(data):
        raise ValueError(f"a batch of {count} messages in {len(data)} bytes")
    index = opened.head.last_index
    at = 0
    for number in range(count):
        begin = at + 4
        size = int.from_bytes(data[at:begin], "big")
        payload_at = begin + size
        if payload_at > len(data) or size > MESSAGE_METADATA_BYTES_MAX:
            raise ValueError(f"message {number} of {count}, at byte {at} of {len(data)}: {size} bytes of metadata")
        try:
            single = parse_single(data[begin:payload_at])
        except ValueError as error:
            raise ValueError(f"message {number} of {count}, at byte {begin}: {error}") from error
        at = payload_at + single.payload_size
        if not payload_at <= at <= len(data):
            text = f"message {number} of {count}, at byte {payload_at} of {len(data)}"
            raise ValueError(f"{text}: {single.payload_size} bytes of payload")
        if single.compacted_out:
            continue
        yield _message(
            opened,
            single,
            own=True,
            batch_index=number,
            batch_size=count,
            sequence_id=single.sequence_id
            if single.HasField("sequence_id")
            else signed64(metadata.sequence_id + number),
            index=None if index is None else signed64(index - count + 1 + number),
            payload=None if single.null_value else data[payload_at:at],
        )
    if at != len(data):
        raise ValueError(f"{len(data) - at} bytes after the {count} messages of a batch")


def key_bytes_of(stored: bytes, *, base64: bool) -> bytes:
    """The bytes of a key from those in the metadata. Raises ``ValueError`` where they are not base64 and should be."""
    return b64decode(stored, validate=True) if base64 else stored


def signed64(value: int) -> int:
    """``value`` modulo 2**64, as a signed number: what Java's arithmetic gives."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _message(
    opened: Opened,
    metadata: Any,
    *,
    own: bool,
    batch_index: int,
    batch_size: int,
    sequence_id: int,
    index: int | None,
    payload: bytes | None,
    encrypted: bool = False,
    raw: bool = False,
) -> Message:
    """A row; ``metadata`` is the message's own, of whichever of the two kinds. Raises ``ValueError`` about text and base64."""
    common = opened.common
    key: str | None = None
    key_bytes: bytes | None = None
    if own and metadata.HasField("partition_key"):
        key_bytes = key_bytes_of(metadata.partition_key, base64=metadata.partition_key_b64_encoded)
        key = None if metadata.partition_key_b64_encoded else key_bytes.decode()
    ordered = own and metadata.HasField("ordering_key")
    return Message(
        common.ledger,
        common.entry,
        batch_index,
        batch_size,
        opened.first_chunk,
        common.producer,
        sequence_id,
        common.publish_time,
        metadata.event_time if own else 0,
        key,
        None if key_bytes is None else key_bytes.hex(),
        own and metadata.partition_key_b64_encoded,
        own and metadata.null_partition_key,
        metadata.ordering_key.hex() if ordered else None,
        {pair.key.decode(): pair.value.decode() for pair in metadata.properties} if own else {},
        own and metadata.null_value,
        common.schema_version_hex,
        common.compression,
        common.entry_uncompressed_size,
        common.txn,
        common.encryption_keys,
        common.deliver_at,
        common.broker_time,
        index,
        payload,
        encrypted,
        False,  # damaged
        raw,
        common.txn_state,
    )
