"""Pulsar's ledger and offload metadata as protobuf: ``LedgerInfo`` and ``OffloadContext`` with all they hold.

The messages are described below instead of being generated, so that neither building nor installing needs ``protoc``; they
live in a descriptor pool of their own and do not collide with other descriptions of the same messages in the process.
Field numbers are the merged ones (FORMAT.md, section 3), where the text of PIP-76 differs.

Promises: bytes are canonical (fields by number); decoding is bounded and raises ``Damaged``. Leaves out: fields that are not
in FORMAT.md are skipped when decoding, so encode again only what was made here; an index keeps the raw bytes beside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, EncodeError, Message
from google.protobuf.message_factory import GetMessageClass

from chunkstore.checksum import BytesLike
from chunkstore.config import MIB
from chunkstore.errors import Damaged, InvalidArgument

__all__ = [
    "METADATA_BYTES_MAX",
    "DriverMetadata",
    "LedgerInfo",
    "OffloadContext",
    "OffloadSegment",
    "decode_ledger_info",
    "decode_offload_context",
    "encode_ledger_info",
    "encode_offload_context",
]

METADATA_BYTES_MAX = 1 * MIB
Pairs = tuple[tuple[str, str], ...]
_Decoded = TypeVar("_Decoded")
_PACKAGE = "chunkstore.pulsar"

# name -> fields (number, label, type, name). A type that begins with a capital is another message.
MESSAGES: Final[dict[str, tuple[tuple[int, str, str, str], ...]]] = {
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
}


def _describe() -> dict[str, type[Message]]:
    labels = {
        "required": FieldDescriptorProto.LABEL_REQUIRED,
        "optional": FieldDescriptorProto.LABEL_OPTIONAL,
        "repeated": FieldDescriptorProto.LABEL_REPEATED,
    }
    scalars = {
        "bool": FieldDescriptorProto.TYPE_BOOL,
        "int64": FieldDescriptorProto.TYPE_INT64,
        "string": FieldDescriptorProto.TYPE_STRING,
    }
    file = FileDescriptorProto(name="chunkstore/offload_metadata.proto", package=_PACKAGE, syntax="proto2")
    for message, fields in MESSAGES.items():
        described = DescriptorProto(name=message)
        for number, label, kind, name in fields:
            field = described.field.add(name=name, number=number, label=labels[label])
            if kind in scalars:
                field.type = scalars[kind]
            else:
                field.type = FieldDescriptorProto.TYPE_MESSAGE
                field.type_name = f".{_PACKAGE}.{kind}"
        file.message_type.append(described)
    pool = DescriptorPool()
    pool.Add(file)
    return {name: GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")) for name in MESSAGES}


_CLASSES: Final[dict[str, Any]] = dict(_describe())


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


def encode_ledger_info(info: LedgerInfo) -> bytes:
    """The raw protobuf bytes of ``info``. ``InvalidArgument`` where a value does not fit its field."""
    return _encode(_ledger_message, info)


def decode_ledger_info(data: BytesLike, *, object: str, position: int = 0) -> LedgerInfo:
    """The ledger info in ``data``; ``Damaged`` (of ``object`` at ``position``) where it is not one."""
    return _decode("LedgerInfo", _ledger_of, data, object, position)


def encode_offload_context(context: OffloadContext) -> bytes:
    """The raw protobuf bytes of ``context``. ``InvalidArgument`` where a value does not fit its field."""
    return _encode(_context_message, context)


def decode_offload_context(data: BytesLike, *, object: str, position: int = 0) -> OffloadContext:
    """The offload context in ``data``; ``Damaged`` (of ``object`` at ``position``) where it is not one."""
    return _decode("OffloadContext", _context_of, data, object, position)


def _decode(name: str, convert: Callable[[Any], _Decoded], data: BytesLike, object: str, position: int) -> _Decoded:
    if len(data) > METADATA_BYTES_MAX:
        raise Damaged(
            f"{len(data)} bytes of metadata; at most {METADATA_BYTES_MAX} are read", object=object, position=position
        )
    message = _CLASSES[name]()
    try:
        message.ParseFromString(bytes(data))
        missing = message.FindInitializationErrors()
        if missing:
            raise DecodeError(f"lacks {', '.join(missing)}")
        return convert(message)
    except (DecodeError, ValueError) as error:
        raise Damaged(f"not a protobuf {name}: {error}", object=object, position=position) from error


def _optional(message: Any, field: str) -> Any:
    return getattr(message, field) if message.HasField(field) else None


def _text(value: object) -> str:
    """Text that is no UTF-8 comes as bytes from some implementations of protobuf, and as an error from others."""
    if not isinstance(value, str):
        raise DecodeError(f"{value!r} is no UTF-8")
    return value


def _pairs_of(repeated: Any) -> Pairs:
    return tuple((_text(pair.key), _text(pair.value)) for pair in repeated)


def _ledger_of(message: Any) -> LedgerInfo:
    return LedgerInfo(
        ledger=message.ledgerId,
        entries=_optional(message, "entries"),
        size=_optional(message, "size"),
        timestamp_ms=_optional(message, "timestamp"),
        offload=_context_of(message.offloadContext) if message.HasField("offloadContext") else None,
        properties=_pairs_of(message.properties),
    )


def _driver_of(message: Any) -> DriverMetadata | None:
    if not message.HasField("driverMetadata"):
        return None
    driver = message.driverMetadata
    return DriverMetadata(name=_text(driver.name), properties=_pairs_of(driver.properties))


def _segment_of(message: Any) -> OffloadSegment:
    return OffloadSegment(
        uid_msb=_optional(message, "uidMsb"),
        uid_lsb=_optional(message, "uidLsb"),
        complete=_optional(message, "complete"),
        assigned_ms=_optional(message, "assignedTimestamp"),
        offloaded_ms=_optional(message, "offloadedTimestamp"),
        end_entry=_optional(message, "endEntryId"),
        driver=_driver_of(message),
    )


def _context_of(message: Any) -> OffloadContext:
    return OffloadContext(
        uid_msb=_optional(message, "uidMsb"),
        uid_lsb=_optional(message, "uidLsb"),
        complete=_optional(message, "complete"),
        bookkeeper_deleted=_optional(message, "bookkeeperDeleted"),
        timestamp_ms=_optional(message, "timestamp"),
        driver=_driver_of(message),
        segments=tuple(_segment_of(segment) for segment in message.offloadSegment),
    )


def _encode(convert: Any, value: object) -> bytes:
    try:
        data: bytes = convert(value).SerializeToString(deterministic=True)
    except (EncodeError, TypeError, ValueError) as error:
        raise InvalidArgument(f"{type(value).__name__} cannot be written: {error}", argument="metadata") from error
    if len(data) > METADATA_BYTES_MAX:
        raise InvalidArgument(f"at most {METADATA_BYTES_MAX} bytes of metadata, {len(data)} given", argument="metadata")
    return data


def _pair_messages(pairs: Pairs) -> list[Any]:
    return [_CLASSES["KeyValue"](key=key, value=value) for key, value in pairs]


def _driver_message(driver: DriverMetadata | None) -> Any:
    if driver is None:
        return None
    return _CLASSES["OffloadDriverMetadata"](name=driver.name, properties=_pair_messages(driver.properties))


def _segment_message(segment: OffloadSegment) -> Any:
    return _CLASSES["OffloadSegment"](
        uidMsb=segment.uid_msb,
        uidLsb=segment.uid_lsb,
        complete=segment.complete,
        assignedTimestamp=segment.assigned_ms,
        offloadedTimestamp=segment.offloaded_ms,
        endEntryId=segment.end_entry,
        driverMetadata=_driver_message(segment.driver),
    )


def _context_message(context: OffloadContext) -> Any:
    return _CLASSES["OffloadContext"](
        uidMsb=context.uid_msb,
        uidLsb=context.uid_lsb,
        complete=context.complete,
        bookkeeperDeleted=context.bookkeeper_deleted,
        timestamp=context.timestamp_ms,
        driverMetadata=_driver_message(context.driver),
        offloadSegment=[_segment_message(segment) for segment in context.segments],
    )


def _ledger_message(info: LedgerInfo) -> Any:
    return _CLASSES["LedgerInfo"](
        ledgerId=info.ledger,
        entries=info.entries,
        size=info.size,
        timestamp=info.timestamp_ms,
        offloadContext=None if info.offload is None else _context_message(info.offload),
        properties=_pair_messages(info.properties),
    )
