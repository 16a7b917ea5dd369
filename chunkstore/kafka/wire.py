"""Frames and values of the protocol between a broker's plug-in and ``chunkstore kafka serve`` (FORMAT_WIRE.md), without I/O.

Promises: what is decoded is bounded by the frame that holds it. What is no frame, or no request, is ``Damaged``, and ends a connection;
impossible arguments of a request are ``InvalidArgument`` with their position. Leaves out: sockets, and what is done (``server``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from struct import Struct
from typing import Any, Final, NamedTuple

from chunkstore.checksum import crc32c
from chunkstore.config import KIB, MIB
from chunkstore.errors import Damaged, InvalidArgument
from chunkstore.kafka import model

__all__ = [
    "BODY_BYTES_MAX", "DATA_BYTES_MAX", "FRAME", "GREETING", "Operation", "Request", "Status", "answer_head", "checked_body",
    "checked_length", "decode_request", "encode_bytes", "encode_segment", "encode_text", "frame",
]  # fmt: skip

GREETING: Final = b"CSKP\x01"
"""Then 32 random bytes come."""
VERSION: Final = 1
DATA_BYTES_MAX: Final = 8 * MIB
BODY_BYTES_MAX: Final = DATA_BYTES_MAX + 64 * KIB
FRAME: Final = Struct(">II")
"""Length and CRC-32C of the body."""
_PEER: Final = "a client's connection"
_TEXT_CHARACTERS_MAX: Final = 4096
_ANSWER: Final = Struct(">BQB")
_REQUEST: Final = Struct(">BQIB")
_LENGTHS: Final = Struct(">6q")
_SEGMENT: Final = Struct(">qqqiqi")
_EPOCH: Final = Struct(">iq")
_I8, _U16, _I32, _I64 = Struct(">b"), Struct(">H"), Struct(">i"), Struct(">q")


class Operation(IntEnum):
    """What a broker asks for."""

    COPY, FETCH, FETCH_INDEX, DELETE, ADD, UPDATE, PARTITION_DELETE, LOOKUP = range(1, 9)
    NEXT_TXN, HIGHEST, LIST, SIZE, LEADERSHIP, STOP, PING = range(9, 16)


class Status(IntEnum):
    """How an answer begins. Only MORE has another answer after it."""

    OK, MORE, NOT_FOUND, INVALID, RETRY, FAILED, DENIED = range(7)


class _Fields:
    """The fields of a body, one after another."""

    def __init__(self, body: bytes, at: int) -> None:
        self._body, self._at = body, at

    def take(self, count: int) -> bytes:
        taken = self._body[self._at : self._at + max(0, count)]
        if len(taken) != count:
            raise self.wrong(f"{count} bytes named, {len(taken)} are here")
        self._at += count
        return taken

    def numbers(self, kind: Struct) -> tuple[int, ...]:
        return kind.unpack(self.take(kind.size))

    def number(self, kind: Struct) -> int:
        return self.numbers(kind)[0]

    def many(self, read: Callable[[], Any]) -> list[Any]:
        count = self.number(_I32)
        if not 0 <= count <= len(self._body):
            raise self.wrong(f"a count of {count}")
        return [read() for _ in range(count)]

    def partition(self) -> model.TopicIdPartition:
        topic_id, topic = self.take(16), self.take(self.number(_U16))
        try:
            return model.TopicIdPartition(topic_id, topic.decode(), self.number(_I32))
        except ValueError as error:
            raise self.wrong("the name of a topic is not UTF-8") from error

    def optional(self) -> bytes | None:
        length = self.number(_I32)
        return None if length == -1 else self.take(length)

    def state(self, kind: type[IntEnum] = model.RemoteLogSegmentState) -> Any:
        number = self.number(_I8)
        try:
            return kind(number)
        except ValueError as error:
            raise self.wrong(f"{number} is not a state") from error

    def segment(self) -> model.RemoteLogSegmentMetadata:
        identity = model.RemoteLogSegmentId(self.partition(), self.take(16))
        start, end, stamp, broker, event, size = self.numbers(_SEGMENT)
        epochs = dict(self.many(lambda: self.numbers(_EPOCH)))
        custom, state, empty = self.optional(), self.state(), bool(self.number(_I8))
        place = identity, start, end, stamp, broker, event, size
        return model.RemoteLogSegmentMetadata(*place, epochs, custom, state, empty)

    def update(self) -> model.RemoteLogSegmentMetadataUpdate:
        identity = model.RemoteLogSegmentId(self.partition(), self.take(16))
        event, custom, state = self.number(_I64), self.optional(), self.state()
        return model.RemoteLogSegmentMetadataUpdate(identity, event, custom, state, self.number(_I32))

    def end(self) -> None:
        if self._at != len(self._body):
            raise self.wrong(f"{len(self._body) - self._at} bytes too many")

    def wrong(self, what: str) -> InvalidArgument:
        return InvalidArgument(f"the request is wrong at byte {self._at}: {what}", argument="request")


_TYPES: Final[Mapping[str, Callable[[_Fields], Any]]] = {
    "i8": lambda fields: fields.number(_I8),
    "i32": lambda fields: fields.number(_I32),
    "i64": lambda fields: fields.number(_I64),
    "state": lambda fields: fields.state(model.RemotePartitionDeleteState),
    "partition": _Fields.partition,
    "partitions": lambda fields: fields.many(fields.partition),
    "segment": _Fields.segment,
    "update": _Fields.update,
}
_ARGUMENTS: Final[Mapping[int, str]] = dict(zip(Operation, (
    "segment", "segment i64 i32", "segment i8", "segment", "segment", "update", "partition state i64 i32", "partition i32 i64",
    "partition i32 i64", "partition i32", "partition i32 i64", "partition i32", "partitions partitions", "partitions", "",
), strict=True))  # fmt: skip


class Request(NamedTuple):
    """A request; ``wait_ms``: how long the client waits. ``lengths``: of COPY, those of the log and of five indexes; else empty."""

    id: int
    wait_ms: int
    operation: int
    body: bytes
    lengths: tuple[int, ...]

    def arguments(self) -> tuple[Any, ...]:
        """Those of its operation, but for ``lengths``. Raises ``InvalidArgument``."""
        fields = _Fields(self.body, _REQUEST.size)
        if self.operation not in _ARGUMENTS:
            raise fields.wrong(f"no operation {self.operation}")
        found = tuple(_TYPES[name](fields) for name in _ARGUMENTS[self.operation].split())
        fields.end()
        return found


def decode_request(body: bytes) -> Request:
    """The request of a body. Raises ``Damaged``: the connection is of no use any more."""
    if len(body) < _REQUEST.size or body[0] != VERSION:
        raise Damaged(f"not a request of version {VERSION}", object=_PEER)
    _, number, wait_ms, operation = _REQUEST.unpack_from(body)
    lengths: tuple[int, ...] = ()
    if operation == Operation.COPY:
        # Decoded first, from the end: what comes after the request is taken where the segment is refused, too.
        begin = max(_REQUEST.size, len(body) - _LENGTHS.size)
        lengths = _LENGTHS.unpack(body[begin:]) if len(body) - begin == _LENGTHS.size else (-1,)
        if lengths[0] < 0 or min(lengths) < -1:
            raise Damaged("the lengths of a copy are wrong", object=_PEER, position=begin)
        body = body[:begin]
    return Request(number, wait_ms, operation, body, lengths)


def checked_length(head: bytes, most: int = BODY_BYTES_MAX) -> int:
    """The length of the body after a frame's first bytes. Raises ``Damaged``."""
    length: int = FRAME.unpack(head)[0]
    if not 0 < length <= most:
        raise Damaged(f"a frame of {length} bytes, and 1 to {most} are allowed", object=_PEER)
    return length


def checked_body(head: bytes, body: bytes) -> bytes:
    """``body``, if the frame's CRC is that of it. Raises ``Damaged``."""
    if crc32c(body) != FRAME.unpack(head)[1]:
        raise Damaged("the CRC of a frame differs", object=_PEER, position=FRAME.size)
    return body


def frame(body: bytes) -> bytes:
    """A frame with this body."""
    return FRAME.pack(len(body), crc32c(body)) + body


def answer_head(number: int, status: int) -> bytes:
    """How the body of an answer begins; its result comes next."""
    return _ANSWER.pack(VERSION, number, status)


def encode_text(text: str) -> bytes:
    """A ``str``; a long one is cut."""
    data = text[:_TEXT_CHARACTERS_MAX].encode(errors="replace")
    return _U16.pack(len(data)) + data


def encode_bytes(data: bytes | None) -> bytes:
    """A ``bytes``."""
    return _I32.pack(-1) if data is None else _I32.pack(len(data)) + data


def encode_segment(item: model.RemoteLogSegmentMetadata) -> bytes:
    """A ``segment``."""
    identity, epochs = item.remote_log_segment_id, item.segment_leader_epochs
    partition = identity.topic_id_partition
    head = _SEGMENT.pack(
        item.start_offset, item.end_offset, item.max_timestamp_ms, item.broker_id, item.event_timestamp_ms,
        item.segment_size_in_bytes,
    )  # fmt: skip
    place = partition.topic_id + encode_text(partition.topic) + _I32.pack(partition.partition) + identity.id
    tail = encode_bytes(item.custom_metadata) + bytes((item.state, item.txn_idx_empty))
    return place + head + _I32.pack(len(epochs)) + b"".join(_EPOCH.pack(*pair) for pair in epochs.items()) + tail
