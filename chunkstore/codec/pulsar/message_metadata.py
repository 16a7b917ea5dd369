"""What an entry of Pulsar begins with: broker entry metadata, CRC32C, ``MessageMetadata``; FORMAT_MESSAGES.md has the bytes.

Promises: bounded, checked, ``Damaged`` with ledger, entry and offset for all that is none. Numbers are signed 64-bit, as Pulsar's Java
client shows them. Leaves out: the payload (``message_entries``), and text: texts are bytes here, decoded where they are shown.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from chunkstore.checksum import crc32c_of_bytes
from chunkstore.codec.pulsar.protobuf import DecodeError, Described, message_classes
from chunkstore.config import MIB
from chunkstore.errors import Damaged

__all__ = [
    "BROKER_ENTRY_MAGIC",
    "CRC32C_MAGIC",
    "MESSAGES",
    "MESSAGE_METADATA_BYTES_MAX",
    "Head",
    "TxnId",
    "broken_entry",
    "parse_head",
    "parse_single",
    "txn_of",
]

BROKER_ENTRY_MAGIC: Final = b"\x0e\x02"
CRC32C_MAGIC: Final = b"\x0e\x01"
MESSAGE_METADATA_BYTES_MAX = 8 * MIB
"""Longest metadata of an entry or of a message in a batch: a broker takes 5 MiB by default, payload included."""
TxnId = tuple[int, int]
"""A transaction: most and least significant 64 bits."""

MESSAGES: Final[Described] = {
    "BrokerEntryMetadata": (
        (1, "optional", "int64", "broker_timestamp"),
        (2, "optional", "int64", "index"),
    ),
    "KeyValue": (
        (1, "required", "bytes", "key"),
        (2, "required", "bytes", "value"),
    ),
    "EncryptionKeys": (
        (1, "required", "bytes", "key"),
        (2, "required", "bytes", "value"),
        (3, "repeated", "KeyValue", "metadata"),
    ),
    "MessageMetadata": (
        (1, "required", "bytes", "producer_name"),
        (2, "required", "int64", "sequence_id"),
        (3, "required", "int64", "publish_time"),
        (4, "repeated", "KeyValue", "properties"),
        (6, "optional", "bytes", "partition_key"),
        (8, "optional", "int32", "compression"),
        (9, "optional", "uint32", "uncompressed_size"),
        (11, "optional", "int32", "num_messages_in_batch"),
        (12, "optional", "int64", "event_time"),
        (13, "repeated", "EncryptionKeys", "encryption_keys"),
        (16, "optional", "bytes", "schema_version"),
        (17, "optional", "bool", "partition_key_b64_encoded"),
        (18, "optional", "bytes", "ordering_key"),
        (19, "optional", "int64", "deliver_at_time"),
        (20, "optional", "int32", "marker_type"),
        (22, "optional", "int64", "txnid_least_bits"),
        (23, "optional", "int64", "txnid_most_bits"),
        (25, "optional", "bool", "null_value"),
        (26, "optional", "bytes", "uuid"),
        (27, "optional", "int32", "num_chunks_from_msg"),
        (28, "optional", "int32", "total_chunk_msg_size"),
        (29, "optional", "int32", "chunk_id"),
        (30, "optional", "bool", "null_partition_key"),
    ),
    "SingleMessageMetadata": (
        (1, "repeated", "KeyValue", "properties"),
        (2, "optional", "bytes", "partition_key"),
        (3, "required", "int32", "payload_size"),
        (4, "optional", "bool", "compacted_out"),
        (5, "optional", "int64", "event_time"),
        (6, "optional", "bool", "partition_key_b64_encoded"),
        (7, "optional", "bytes", "ordering_key"),
        (8, "optional", "int64", "sequence_id"),
        (9, "optional", "bool", "null_value"),
        (10, "optional", "bool", "null_partition_key"),
    ),
}
_CLASSES: Final = message_classes(MESSAGES, "chunkstore/message_metadata.proto")
_BROKER: Final = _CLASSES["BrokerEntryMetadata"]
_METADATA: Final = _CLASSES["MessageMetadata"]
_SINGLE: Final = _CLASSES["SingleMessageMetadata"]


class Head(NamedTuple):
    """The metadata of an entry. ``begin``: the offset of its payload. ``broker_time`` (ms) and ``last_index`` (of its last
    message): ``None`` where the broker wrote none.
    """

    metadata: Any
    begin: int
    broker_time: int | None
    last_index: int | None


def broken_entry(ledger: int, entry: int, position: int, what: str) -> Damaged:
    """The error about byte ``position`` of an entry."""
    return Damaged(what, object=f"ledger {ledger} entry {entry}", position=position)


def parse_head(ledger: int, entry: int, data: bytes, *, checked: bool = True) -> Head:
    """The metadata that ``data``, an entry, begins with. Raises ``Damaged``; ``checked=False`` does not compare the CRC32C."""
    at = 0
    broker_time = index = None
    if data[:2] == BROKER_ENTRY_MAGIC:
        broker, at = _sized(_BROKER, ledger, entry, data, 2)
        broker_time = broker.broker_timestamp if broker.HasField("broker_timestamp") else None
        index = broker.index if broker.HasField("index") else None
    if data[at : at + 2] == CRC32C_MAGIC:
        at += 6
        stored = int.from_bytes(data[at - 4 : at], "big")
        if len(data) < at:
            raise broken_entry(ledger, entry, at - 4, "the entry ends in its CRC32C")
        if checked and stored != (found := crc32c_of_bytes(data[at:])):
            raise broken_entry(ledger, entry, at - 4, f"CRC32C {stored:08x} is stored, the bytes have {found:08x}")
    metadata, at = _sized(_METADATA, ledger, entry, data, at)
    return Head(metadata, at, broker_time, index)


def _sized(kind: Any, ledger: int, entry: int, data: bytes, at: int) -> tuple[Any, int]:
    """The message after its length at ``at``, and where it ends."""
    begin = at + 4
    size = int.from_bytes(data[at:begin], "big")
    if len(data) < begin or size > len(data) - begin:
        raise broken_entry(ledger, entry, at, f"{size} bytes of metadata where {max(0, len(data) - begin)} are left")
    if size > MESSAGE_METADATA_BYTES_MAX:
        text = f"{size} bytes of metadata; at most {MESSAGE_METADATA_BYTES_MAX} are read"
        raise broken_entry(ledger, entry, at, text)
    try:
        return _parsed(kind, data[begin : begin + size]), begin + size
    except ValueError as error:
        raise broken_entry(ledger, entry, begin, str(error)) from error


def _parsed(kind: Any, data: bytes) -> Any:
    message = kind()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise ValueError(f"no {kind.DESCRIPTOR.name}: {error}") from error
    if not message.IsInitialized():
        # Protobuf's own list would name every one of a million empty messages.
        name = kind.DESCRIPTOR.name
        lacks = [each for _, label, _, each in MESSAGES[name] if label == "required" and not message.HasField(each)]
        raise ValueError(f"no {name}: lacks {', '.join(lacks) or 'a field of a message inside it'}")
    return message


def parse_single(data: bytes) -> Any:
    """The ``SingleMessageMetadata`` in ``data``. Raises ``ValueError`` where it is none."""
    return _parsed(_SINGLE, data)


def txn_of(metadata: Any) -> TxnId | None:
    """The transaction of a message or marker; ``None``: of none."""
    if metadata.HasField("txnid_most_bits") and metadata.HasField("txnid_least_bits"):
        return metadata.txnid_most_bits, metadata.txnid_least_bits
    return None
