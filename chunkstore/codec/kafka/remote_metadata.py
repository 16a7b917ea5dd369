"""The records of ``__remote_log_metadata``: what a broker's metadata manager says of remote log segments.

Promises: versions 0 and 1 of the four records are read, tagged fields that are not known are passed over, version 0 is written; a
record is whole, in range and alone in its bytes, or ``Damaged`` with object and position. Leaves out: the topic's batches, and what a
sequence of records means. FORMAT_FILES.md has the fields.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from enum import IntEnum
from itertools import pairwise
from struct import Struct
from typing import Any, Final, NamedTuple, NoReturn

from chunkstore.codec.kafka.checkpoints import LeaderEpoch
from chunkstore.codec.kafka.names import is_topic
from chunkstore.errors import Damaged, InvalidArgument

__all__ = [
    "NEXT_STATES", "RECORDS", "MetadataRecord", "PartitionDeleteState", "RecordKind", "SegmentState", "decode_metadata_record",
    "encode_metadata_record", "fault_of",
]  # fmt: skip


class RecordKind(IntEnum):
    """The records of the topic, by api key."""

    SEGMENT_METADATA = 0
    SEGMENT_METADATA_UPDATE = 1
    PARTITION_DELETE = 2
    SEGMENT_METADATA_SNAPSHOT = 3


class SegmentState(IntEnum):
    """Kafka's RemoteLogSegmentState: 0 -> 1 -> 2 -> 3, or 0 -> 2."""

    COPY_SEGMENT_STARTED = 0
    COPY_SEGMENT_FINISHED = 1
    DELETE_SEGMENT_STARTED = 2
    DELETE_SEGMENT_FINISHED = 3


NEXT_STATES: Final[Mapping[int | None, tuple[int, ...]]] = {None: (0,), 0: (0, 1, 2), 1: (1, 2), 2: (2, 3), 3: ()}
"""Which states may follow each one, or none; brokers drop events that say otherwise."""


class PartitionDeleteState(IntEnum):
    """Kafka's RemotePartitionDeleteState: 0 -> 1 -> 2."""

    DELETE_PARTITION_MARKED = 0
    DELETE_PARTITION_STARTED = 1
    DELETE_PARTITION_FINISHED = 2


class MetadataRecord(NamedTuple):
    """A record of any kind; what its kind does not have keeps its default (``RECORDS``). Uuids are their 16 bytes.

    ``end_offset`` is inclusive, as Kafka's is. A snapshot does not name its partition.
    """

    kind: RecordKind
    state: SegmentState | PartitionDeleteState
    broker_id: int
    event_timestamp_ms: int
    topic: str = ""
    topic_id: bytes = bytes(16)
    partition: int = -1
    segment_id: bytes = bytes(16)
    start_offset: int = -1
    end_offset: int = -1
    max_timestamp_ms: int = -1
    leader_epochs: tuple[LeaderEpoch, ...] = ()
    size_bytes: int = 0
    custom_metadata: bytes | None = None
    txn_index_empty: bool = False
    broker_leader_epoch: int = -1


_PARTITION: Final = "topic:topic topic_id:uuid partition:i32 :tags"
_ID: Final = f"{_PARTITION} segment_id:uuid :tags"
_SEGMENT: Final = (
    "start_offset:i64 end_offset:i64 broker_id:i32 max_timestamp_ms:i64 event_timestamp_ms:i64 leader_epochs:epochs "
    "size_bytes:i32 custom_metadata:bytes state:segment"
)
_EVENT: Final = "broker_id:i32 event_timestamp_ms:i64"
_SEGMENT_TAGS: Final = "txn_index_empty:bool broker_leader_epoch:i32"
_EVENT_TAGS: Final = "broker_leader_epoch:i32 end_offset:i64"
RECORDS: Final[Mapping[RecordKind, tuple[str, str]]] = {
    RecordKind.SEGMENT_METADATA: (f"{_ID} {_SEGMENT}", _SEGMENT_TAGS),
    RecordKind.SEGMENT_METADATA_UPDATE: (f"{_ID} {_EVENT} custom_metadata:bytes state:segment", _EVENT_TAGS),
    RecordKind.PARTITION_DELETE: (f"{_PARTITION} {_EVENT} state:partition", _EVENT_TAGS),
    RecordKind.SEGMENT_METADATA_SNAPSHOT: (f"segment_id:uuid {_SEGMENT}", _SEGMENT_TAGS),
}
"""The fields of each record in their order, and its tagged fields from tag 0 on; all tags but ``txn_index_empty`` are of version 1."""

_FIELDS: Final = {
    kind: tuple([each.partition(":")[::2] for each in names.split()] for names in parts) for kind, parts in RECORDS.items()
}  # fmt: skip
_VERSION_MAX: Final = 1
_EPOCH: Final = Struct(">iqx")
_NUMBERS: Final = {"bool": Struct(">?"), "i32": Struct(">i"), "i64": Struct(">q"), "uuid": Struct("16s")}
_STATES: Final = {"segment": SegmentState, "partition": PartitionDeleteState}


class _Reader:
    def __init__(self, data: bytes, object: str, position: int) -> None:
        self.data, self.at, self._object, self._position = data, 0, object, position

    def fail(self, message: str) -> NoReturn:
        raise Damaged(message, object=self._object, position=self._position + self.at)

    def take(self, size: int) -> bytes:
        if size > len(self.data) - self.at:
            self.fail(f"{size} bytes wanted, {len(self.data) - self.at} are left")
        self.at += size
        return self.data[self.at - size : self.at]

    def uvarint(self) -> int:
        value = 0
        for shift in range(0, 35, 7):
            byte = self.take(1)[0]
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        return self.fail("a number of more than 35 bits")

    def field(self, kind: str) -> Any:
        if kind in _NUMBERS:
            return _NUMBERS[kind].unpack(self.take(_NUMBERS[kind].size))[0]
        if kind in _STATES:
            number = self.take(1)[0]
            return _STATES[kind](number) if number < len(_STATES[kind]) else self.fail(f"state {number} is unknown")
        if kind == "tags":
            return self.tags(())
        size = self.uvarint() - 1  # -1: null
        if kind == "epochs":
            if size > (len(self.data) - self.at) // _EPOCH.size:
                self.fail(f"{size} leader epochs are more than the bytes hold")
            return tuple(self._epoch() for _ in range(size))
        raw = None if size < 0 else self.take(size)
        return (raw or b"").decode(errors="replace") if kind == "topic" else raw

    def _epoch(self) -> LeaderEpoch:
        epoch = LeaderEpoch(self.field("i32"), self.field("i64"))
        self.tags(())
        return epoch

    def tags(self, known: Sequence[tuple[str, str]]) -> dict[str, Any]:
        """The tagged fields of a structure that are ``known``, by their tags from 0 on; the others are passed over."""
        found: dict[str, Any] = {}
        last = -1
        for _ in range(self.uvarint()):
            tag, size = self.uvarint(), self.uvarint()
            if tag <= last:
                self.fail(f"tag {tag} follows {last}: tags ascend")
            last, value = tag, _Reader(self.take(size), self._object, self._position + self.at - size)
            if tag < len(known):
                name, kind = known[tag]
                found[name] = value.field(kind)
                value.end()
        return found

    def end(self) -> None:
        if self.at != len(self.data):
            self.fail(f"{len(self.data) - self.at} bytes follow")


def fault_of(record: MetadataRecord) -> str:
    """What makes the values of a record impossible; empty if nothing does."""
    if record.kind != RecordKind.SEGMENT_METADATA_SNAPSHOT and (not is_topic(record.topic) or record.partition < 0):
        return f"{record.topic[:40]!r}, {record.partition}: no partition"
    if record.kind not in (RecordKind.SEGMENT_METADATA, RecordKind.SEGMENT_METADATA_SNAPSHOT):
        return ""
    if not 0 <= record.start_offset <= record.end_offset or record.size_bytes < 0:
        return f"offsets {record.start_offset} to {record.end_offset}, {record.size_bytes} bytes: no segment"
    epochs = record.leader_epochs
    if not epochs or min(map(min, epochs)) < 0 or any(left.epoch >= right.epoch for left, right in pairwise(epochs)):
        return f"leader epochs {epochs[:9]}: there is one at least, and they ascend"
    return ""


def decode_metadata_record(data: bytes, *, object: str = "record", position: int = 0) -> MetadataRecord:
    """The record in the value of one record of the topic; ``object`` and ``position`` are those of ``data``, for errors.

    ``Damaged`` for an unknown frame, api key, version or state, for fields that are out of range or cut, and for bytes that follow.
    """
    reader = _Reader(data, object, position)
    frame, key, version = reader.uvarint(), reader.uvarint(), reader.uvarint()
    if frame != 1 or key >= len(RECORDS) or version > _VERSION_MAX:
        reader.fail(f"frame {frame}, api key {key}, version {version}: 1, 0 to 3, and 0 to {_VERSION_MAX} are known")
    fields, tagged = _FIELDS[RecordKind(key)]
    values = {name: reader.field(kind) for name, kind in fields}
    values |= reader.tags(tagged if version else [item for item in tagged[:1] if item[1] == "bool"])
    values.pop("", None)
    reader.end()
    record = MetadataRecord(RecordKind(key), **values)
    if fault := fault_of(record):
        reader.fail(fault)
    return record


def _uvarint(value: int) -> bytes:
    return bytes((value,)) if value < 128 else bytes((value & 127 | 128,)) + _uvarint(value >> 7)


def _packed(kind: str, value: Any) -> bytes:
    if kind in _NUMBERS:
        return _NUMBERS[kind].pack(value)
    if kind in _STATES:
        return bytes((value,))
    if kind == "epochs":
        return _uvarint(len(value) + 1) + b"".join(_EPOCH.pack(*epoch) for epoch in value)
    raw = value.encode() if kind == "topic" else value
    return b"\0" if raw is None else _uvarint(len(raw) + 1) + raw


def encode_metadata_record(record: MetadataRecord) -> bytes:
    """The bytes of ``record`` in version 0, which every broker reads: ``broker_leader_epoch``, and the ``end_offset`` of an update or a
    deletion, are not in it. ``InvalidArgument`` for values that would not be read again.
    """
    fields, _ = _FIELDS[record.kind]
    tags = b"\1\0\1\1" if record.txn_index_empty else b"\0"
    try:
        parts = [_packed(kind, getattr(record, name, None)) for name, kind in fields]
        data = b"".join([bytes((1, record.kind, 0)), *parts, tags])
        found = decode_metadata_record(data)
        if any(getattr(found, name, 0) != getattr(record, name, 0) for name, _ in fields):
            raise struct.error("a field changes its value")
    except (Damaged, struct.error) as error:
        raise InvalidArgument(f"{record} is no such record: {error}", argument="record") from error
    return data
