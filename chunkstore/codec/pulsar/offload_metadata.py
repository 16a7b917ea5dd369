"""Ledger and offload metadata as protobuf: Pulsar's ``LedgerInfo`` and ``OffloadContext``, BookKeeper's ``LedgerMetadataFormat``.

The messages are described below instead of being generated (``protobuf``). Field numbers are the merged ones (FORMAT.md, section 3), where
the text of PIP-76 differs.

Promises: bytes are canonical (fields by number); decoding is bounded and raises ``Damaged``. Leaves out: fields that are not
in FORMAT.md are skipped when decoding, so encode again only what was made here; an index keeps the raw bytes as well.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final, TypeVar

from google.protobuf.message import DecodeError, EncodeError

from chunkstore.checksum import BytesLike
from chunkstore.codec.pulsar.protobuf import Described, message_classes
from chunkstore.config import MIB
from chunkstore.errors import Damaged, InvalidArgument

__all__ = [
    "METADATA_BYTES_MAX",
    "REPEATED_MAX",
    "TOPIC_KEY",
    "DriverMetadata",
    "Ensemble",
    "LedgerInfo",
    "LedgerMetadata",
    "OffloadContext",
    "OffloadSegment",
    "decode_metadata",
    "encode_metadata",
]

METADATA_BYTES_MAX = 1 * MIB
REPEATED_MAX = 10_000
"""How often a repeated field may occur in one message: an element of two bytes becomes an object of a hundred."""
TOPIC_KEY = "pulsar/managed-ledger"
"""The custom metadata of a BookKeeper ledger in which Pulsar notes whose it is: tenant/namespace/persistent/topic."""
Pairs = tuple[tuple[str, str], ...]
_Decoded = TypeVar("_Decoded")

MESSAGES: Final[Described] = {
    "KeyValue": (
        (1, "required", "string", "key"),
        (2, "required", "string", "value"),
    ),
    "OffloadDriverMetadata": (
        (1, "required", "string", "name"),
        (2, "repeated", "KeyValue", "properties"),
    ),
    "OffloadSegment": (
        (1, "optional", "int64", "uidMsb"),
        (2, "optional", "int64", "uidLsb"),
        (3, "optional", "bool", "complete"),
        (4, "optional", "int64", "assignedTimestamp"),
        (5, "optional", "int64", "offloadedTimestamp"),
        (6, "optional", "int64", "endEntryId"),
        (7, "optional", "OffloadDriverMetadata", "driverMetadata"),
    ),
    "OffloadContext": (
        (1, "optional", "int64", "uidMsb"),
        (2, "optional", "int64", "uidLsb"),
        (3, "optional", "bool", "complete"),
        (4, "optional", "bool", "bookkeeperDeleted"),
        (5, "optional", "int64", "timestamp"),
        (6, "optional", "OffloadDriverMetadata", "driverMetadata"),
        (7, "repeated", "OffloadSegment", "offloadSegment"),
    ),
    "LedgerInfo": (
        (1, "required", "int64", "ledgerId"),
        (2, "optional", "int64", "entries"),
        (3, "optional", "int64", "size"),
        (4, "optional", "int64", "timestamp"),
        (5, "optional", "OffloadContext", "offloadContext"),
        (6, "repeated", "KeyValue", "properties"),
    ),
    "Segment": (
        (1, "repeated", "string", "ensembleMember"),
        (2, "required", "int64", "firstEntryId"),
    ),
    "cMetadataMapEntry": (
        (1, "optional", "string", "key"),
        (2, "optional", "bytes", "value"),
    ),
    # ``state`` and ``digestType`` are enums, whose bytes are the same; as numbers, those of a later version are no errors.
    "LedgerMetadataFormat": (
        (1, "required", "int32", "quorumSize"),
        (2, "required", "int32", "ensembleSize"),
        (3, "required", "int64", "length"),
        (4, "optional", "int64", "lastEntryId"),
        (5, "required", "int32", "state"),
        (6, "repeated", "Segment", "segment"),
        (7, "optional", "int32", "digestType"),
        (9, "optional", "int32", "ackQuorumSize"),
        (10, "optional", "int64", "ctime"),
        (11, "repeated", "cMetadataMapEntry", "customMetadata"),
    ),
}


_CLASSES: Final = message_classes(MESSAGES, "chunkstore/offload_metadata.proto")


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverMetadata:
    """How to find the objects again: the driver's name and its properties, in their stored order."""

    name: str
    properties: Pairs = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadSegment:
    """One offload segment of a ledger. ``None`` means the field is absent; times in milliseconds since 1970.

    ``uid_msb`` and ``uid_lsb`` are the halves of the objects' UUID as signed 64-bit numbers.
    """

    uid_msb: int | None = None
    uid_lsb: int | None = None
    complete: bool | None = None
    assigned_ms: int | None = None
    offloaded_ms: int | None = None
    end_entry: int | None = None
    driver: DriverMetadata | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadContext:
    """Where a ledger was offloaded to: ledger-based (its own uid) or streaming (segments)."""

    uid_msb: int | None = None
    uid_lsb: int | None = None
    complete: bool | None = None
    bookkeeper_deleted: bool | None = None
    timestamp_ms: int | None = None
    driver: DriverMetadata | None = None
    segments: tuple[OffloadSegment, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerInfo:
    """A ledger as Pulsar's managed ledger knows it. ``entries`` and ``size`` (bytes) are set when it is closed;
    ``timestamp_ms`` is 0 while it is open.
    """

    ledger: int
    entries: int | None = None
    size: int | None = None
    timestamp_ms: int | None = None
    offload: OffloadContext | None = None
    properties: Pairs = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ensemble:
    """The bookies that hold a ledger's entries from ``first_entry`` on, as "host:port" or by their ids."""

    members: tuple[str, ...]
    first_entry: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerMetadata:
    """A ledger as BookKeeper knows it, in the index of a PIP-17 pair. ``None`` means the field is absent.

    ``length`` is the bytes of all payloads, ``state`` 1 open, 2 in recovery, 3 closed; ``digest_type`` 1 CRC32, 2 HMAC,
    3 CRC32C, 4 none; ``created_ms`` milliseconds since 1970. ``custom`` are keys and values in their stored order.
    An encoder fills in ``length`` and ``last_entry`` where they are ``None``.
    """

    write_quorum: int
    ensemble_size: int
    length: int | None = None
    last_entry: int | None = None
    state: int = 3
    ensembles: tuple[Ensemble, ...] = ()
    digest_type: int | None = None
    ack_quorum: int | None = None
    created_ms: int | None = None
    custom: tuple[tuple[str, bytes], ...] = ()

    @property
    def topic(self) -> str | None:
        """What ``TOPIC_KEY`` says, bytes that are no UTF-8 replaced; ``None`` where it is absent."""
        return next((value.decode(errors="replace") for key, value in self.custom if key == TOPIC_KEY), None)


_RECORDS: Final[dict[str, type]] = {
    "OffloadDriverMetadata": DriverMetadata,
    "OffloadSegment": OffloadSegment,
    "OffloadContext": OffloadContext,
    "LedgerInfo": LedgerInfo,
    "Segment": Ensemble,
    "LedgerMetadataFormat": LedgerMetadata,
}
"""Message -> record, whose fields are those of ``MESSAGES`` in the same order. Messages of a key and a value are pairs."""
_NAMES: Final = {record: name for name, record in _RECORDS.items()}


def decode_metadata(record: type[_Decoded], data: BytesLike, *, object: str, position: int = 0) -> _Decoded:
    """The record in ``data``, of one of the classes above; ``Damaged`` (of ``object`` at ``position``) where it is none."""
    if len(data) > METADATA_BYTES_MAX:
        text = f"{len(data)} bytes of metadata; at most {METADATA_BYTES_MAX} are read"
        raise Damaged(text, object=object, position=position)
    name = _NAMES[record]
    message = _CLASSES[name]()
    try:
        message.ParseFromString(bytes(data))
        found: _Decoded = _value_of(name, message)
        return found
    except (DecodeError, ValueError) as error:
        raise Damaged(f"not a protobuf {name}: {error}", object=object, position=position) from error


def _value_of(kind: str, value: Any) -> Any:
    """What a field of this type holds; of a message the record."""
    if kind == "string" and not isinstance(value, str):
        # Text that is no UTF-8 comes as bytes from some implementations of protobuf, and as an error from others.
        raise DecodeError(f"{value!r} is no UTF-8")
    if kind not in MESSAGES:
        return value
    record = _RECORDS.get(kind)
    values: list[Any] = []
    for _, label, inner, name in MESSAGES[kind]:
        if label == "repeated":
            if len(getattr(value, name)) > REPEATED_MAX:
                raise DecodeError(f"more than {REPEATED_MAX} of {name}")
            values.append(tuple(_value_of(inner, item) for item in getattr(value, name)))
        else:
            there = value.HasField(name)
            if label == "required" and not there:
                raise DecodeError(f"lacks {name}")
            values.append(_value_of(inner, getattr(value, name)) if there or record is None else None)
    return tuple(values) if record is None else record(**dict(zip(_fields(record), values, strict=True)))


def encode_metadata(value: object) -> bytes:
    """The raw protobuf bytes of a record. ``InvalidArgument`` where a value does not fit its field, or a required one is absent."""
    try:
        data: bytes = _message_of(_NAMES[type(value)], value).SerializeToString(deterministic=True)
    except (EncodeError, TypeError, ValueError) as error:
        raise InvalidArgument(f"{type(value).__name__} cannot be written: {error}", argument="metadata") from error
    if len(data) > METADATA_BYTES_MAX:
        raise InvalidArgument(f"at most {METADATA_BYTES_MAX} bytes of metadata, {len(data)} given", argument="metadata")
    return data


def _message_of(kind: str, value: Any) -> Any:
    """Inverse of ``_value_of``."""
    if kind not in MESSAGES or value is None:
        return value
    record = _RECORDS.get(kind)
    values = value if record is None else [getattr(value, name) for name in _fields(record)]
    for (_, label, _, name), item in zip(MESSAGES[kind], values, strict=True):
        if label == "repeated" and len(item) > REPEATED_MAX:
            raise ValueError(f"more than {REPEATED_MAX} of {name}")
    given = {
        name: [_message_of(inner, each) for each in item] if label == "repeated" else _message_of(inner, item)
        for (_, label, inner, name), item in zip(MESSAGES[kind], values, strict=True)
    }
    return _CLASSES[kind](**given)


def _fields(record: type) -> list[str]:
    return [item.name for item in fields(record)]
