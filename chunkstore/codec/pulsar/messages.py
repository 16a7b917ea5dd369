"""The messages inside entries of Pulsar, one by one, as a consumer gets them; FORMAT_MESSAGES.md next to this file has the bytes.

Promises: every message a consumer would get, in the order of the entries; those of aborted transactions, markers and messages that
compaction took out are left out. Broken entries are ``Damaged`` with ledger, entry and offset, or stay raw (``messages="lenient"``).
Memory: one entry, and chunks that wait (``CHUNKED_BYTES_MAX``). Leaves out: decryption, schemas; messages that were sent twice come
twice, as consumers get them.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterable, Iterator
from typing import Any, Final, Literal

from chunkstore.codec.pulsar.message_entries import (
    EntryOpener,
    Message,
    MessageSummary,
    Opened,
    OpenedItems,
    RawEntry,
    Transactions,
    opener_of,
    scan_transactions,
)
from chunkstore.codec.pulsar.message_metadata import (
    MESSAGE_METADATA_BYTES_MAX,
    broken_entry,
    parse_single,
    single_metadata,
)

__all__ = [
    "Message",
    "MessageIterator",
    "MessageSummary",
    "Transactions",
    "iter_messages",
    "rows_of",
    "scan_transactions",
]

_NOTHING: Final = single_metadata()
SINGLE_BYTES_MIN = 6
"""What a message in a batch takes at least: its metadata's length, and a payload size."""


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
    return _message(
        opened.common,
        _NOTHING if opened.batch_size else metadata,
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
    sequence_id, data, count = opened.head.metadata.sequence_id, opened.data, opened.batch_size
    if count * SINGLE_BYTES_MIN > len(data):
        raise ValueError(f"a batch of {count} messages in {len(data)} bytes")
    index, common = opened.head.last_index, opened.common
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
            what = f"message {number} of {count}, at byte {payload_at} of {len(data)}"
            raise ValueError(f"{what}: {single.payload_size} bytes of payload")
        if single.compacted_out:
            continue
        own_id = single.HasField("sequence_id")
        yield _message(
            common,
            single,
            batch_index=number,
            batch_size=count,
            sequence_id=single.sequence_id if own_id else signed64(sequence_id + number),
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
    common: Message,
    metadata: Any,
    *,
    batch_index: int,
    batch_size: int,
    sequence_id: int,
    index: int | None,
    payload: bytes | None,
    encrypted: bool = False,
    raw: bool = False,
) -> Message:
    """A row; ``metadata`` is the message's own, of whichever of the two kinds. Raises ``ValueError`` about text and base64."""
    key: str | None = None
    key_bytes: bytes | None = None
    if metadata.HasField("partition_key"):
        key_bytes = key_bytes_of(metadata.partition_key, base64=metadata.partition_key_b64_encoded)
        key = None if metadata.partition_key_b64_encoded else key_bytes.decode()
    # By position: it takes half as long as by names.
    return Message(
        common.ledger,
        common.entry,
        batch_index,
        batch_size,
        common.first_chunk,
        common.producer,
        sequence_id,
        common.publish_time,
        metadata.event_time,
        key,
        None if key_bytes is None else key_bytes.hex(),
        metadata.partition_key_b64_encoded,
        metadata.null_partition_key,
        metadata.ordering_key.hex() if metadata.HasField("ordering_key") else None,
        {pair.key.decode(): pair.value.decode() for pair in metadata.properties},
        metadata.null_value,
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
