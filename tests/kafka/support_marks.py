"""The headers of record batches, read with as little as the indexes need: a second opinion, and no decoder of this project."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from struct import Struct

from chunkstore.codec.kafka.checkpoints import LeaderEpoch
from chunkstore.codec.kafka.indexes import BatchMark
from chunkstore.codec.kafka.remote_metadata import MetadataRecord, RecordKind, SegmentState

__all__ = ["FIXTURES", "LOG_DIR", "SEGMENT", "marks_of", "values_of"]

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "kafka"
LOG_DIR = FIXTURES / "logdir-3.9"
SEGMENT = MetadataRecord(
    RecordKind.SEGMENT_METADATA, SegmentState.COPY_SEGMENT_STARTED, 3, 99, "t", bytes(range(16)), 7, b"segment-segment-", 10, 20, 98,
    (LeaderEpoch(1, 10), LeaderEpoch(4, 15)), 4096, b"x",
)  # fmt: skip
"""A record with a value in every field of version 0 but its tag."""
_BATCH = Struct(">qiibIhiqqqhii")
_MARKER = Struct(">hh")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift += 7
        at += 1
        if data[at - 1] < 128:
            return (value >> 1) ^ -(value & 1), at


def _fields(data: bytes, at: int) -> tuple[bytes, bytes, int]:
    """Key, value and end of the uncompressed record at ``at``."""
    length, at = _varint(data, at)
    end = at + length
    for _ in range(2):
        _, at = _varint(data, at + (_ == 0))  # attributes, then time and offset deltas
    pieces = []
    for _ in range(2):
        size, at = _varint(data, at)
        pieces.append(data[at : at + max(0, size)])
        at += max(0, size)
    return pieces[0], pieces[1], end


def marks_of(data: bytes) -> Iterator[BatchMark]:
    """The batches of a log, as the indexes see them."""
    at = 0
    while at < len(data):
        base, length, _, _, _, bits, delta, _, largest, producer, epoch, sequence, count = _BATCH.unpack_from(data, at)
        control, committed, coordinator = bool(bits & 32), None, -1
        if control and count and producer >= 0:
            key, value, _ = _fields(data, at + _BATCH.size)
            committed = _MARKER.unpack(key)[1] == 1
            coordinator = int.from_bytes(value[2:6], "big")
        last = -1 if sequence < 0 else (sequence + delta) & 0x7FFFFFFF
        yield BatchMark(
            base, base + delta, at, largest, producer, epoch, last, bool(bits & 16), control, committed, coordinator
        )
        at += 12 + length


def values_of(data: bytes) -> Iterator[bytes]:
    """The values of the records of an uncompressed log."""
    at = 0
    while at < len(data):
        *_, count = _BATCH.unpack_from(data, at)
        end = at + _BATCH.size
        for _ in range(count):
            _, value, end = _fields(data, end)
            yield value
        at = end
