"""Record batches of Kafka made for tests: any field may be set, also to what no producer would write."""

from __future__ import annotations

import gzip
import warnings
from collections.abc import Sequence
from struct import pack
from typing import Any, NamedTuple

import zstandard
from cramjam import snappy
from lz4 import frame

from chunkstore.checksum import crc32c
from chunkstore.codec.kafka.compression import CODECS
from chunkstore.codec.kafka.record_batches import record_batches
from chunkstore.codec.kafka.records import Record
from chunkstore.codec.sources import DataSource

with warnings.catch_warnings():  # of how it loads its own files
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record import MemoryRecords, MemoryRecordsBuilder

__all__ = [
    "Made",
    "MemoryRecords",
    "MemoryRecordsBuilder",
    "arrow_of",
    "batch_of",
    "compressed",
    "control_of",
    "record_of",
    "source_of",
    "varint",
]

TIME = 1_700_000_000_000


class Made(NamedTuple):
    """A record to be written; ``offset_delta`` None: its place in the batch."""

    value: bytes | None = b"value"
    key: bytes | None = None
    headers: Sequence[tuple[bytes, bytes | None]] = ()
    time_delta: int = 0
    offset_delta: int | None = None


def varint(value: int) -> bytes:
    """``value`` as a zigzag number."""
    left = value << 1 if value >= 0 else (-value << 1) - 1
    out = bytearray()
    while left > 127:
        out.append(left & 127 | 128)
        left >>= 7
    return bytes((*out, left))


def _sized(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def record_of(made: Made, place: int = 0) -> bytes:
    """The bytes of a record, its length included."""
    delta = place if made.offset_delta is None else made.offset_delta
    body = b"\0" + varint(made.time_delta) + varint(delta) + _sized(made.key) + _sized(made.value)
    body += varint(len(made.headers)) + b"".join(_sized(name) + _sized(value) for name, value in made.headers)
    return varint(len(body)) + body


def compressed(codec: str, data: bytes) -> bytes:
    """``data`` with a codec; "snappy" is in xerial's blocks, "snappy-raw" is not; "zstd-unsized" does not say its size."""
    if codec == "gzip":
        return gzip.compress(data, mtime=0)
    if codec == "snappy-raw":
        return bytes(snappy.compress_raw(data))
    if codec == "snappy":
        blocks = [bytes(snappy.compress_raw(data[at : at + 32768])) for at in range(0, len(data), 32768)]
        return b"\x82SNAPPY\0" + pack(">ii", 1, 1) + b"".join(pack(">i", len(block)) + block for block in blocks)
    if codec == "lz4":
        return bytes(frame.compress(data, store_size=False))
    if codec == "zstd-unsized":
        stream = zstandard.ZstdCompressor().compressobj()
        return stream.compress(data) + stream.flush()
    return zstandard.ZstdCompressor().compress(data) if codec == "zstd" else data


def batch_of(records: Sequence[Made | bytes], base_offset: int = 0, codec: str = "none", **fields: Any) -> bytes:
    """A batch; ``fields``: of its header, and ``stored`` for what comes after the header. ``crc`` None: the right one."""
    data = b"".join(made if isinstance(made, bytes) else record_of(made, at) for at, made in enumerate(records))
    attributes = CODECS.index(codec.partition("-")[0])
    attributes |= 8 * fields.get("appended", False) | 16 * fields.get("transactional", False)
    attributes |= 32 * fields.get("control", False)
    stored = fields.get("stored", compressed(codec, data))
    body = pack(
        ">hiqqqhii",
        fields.get("attributes", attributes),
        fields.get("last_offset_delta", max(0, len(records) - 1)),
        fields.get("base_timestamp", TIME),
        fields.get("max_timestamp", TIME),
        fields.get("producer_id", -1),
        fields.get("producer_epoch", -1),
        fields.get("base_sequence", -1),
        fields.get("count", len(records)),
    ) + bytes(stored)
    crc = fields.get("crc")
    front = pack(
        ">qiibI",
        base_offset,
        fields.get("length", 9 + len(body)),
        fields.get("leader_epoch", 0),
        fields.get("magic", 2),
        crc32c(body) if crc is None else crc,
    )
    return front + body


def control_of(base_offset: int, producer_id: int, kind: int, **fields: Any) -> bytes:
    """A marker: ``kind`` 0 aborts, 1 commits."""
    record = Made(pack(">hi", 0, 7), key=pack(">hh", 0, kind))
    named = {"control": True, "transactional": True, "producer_id": producer_id, "producer_epoch": 3}
    return batch_of([record], base_offset, **(named | fields))


def source_of(data: bytes, name: str = "segment") -> DataSource:
    """A source over bytes, that refuses to be asked for what is outside of them."""

    def read(offset: int, length: int) -> bytes:
        assert offset >= 0
        assert 1 <= length <= len(data) - offset
        return data[offset : offset + length]

    return DataSource(name, len(data), read)


def arrow_of(source: DataSource, topic: str = "t", partition: int = 1, **options: Any) -> list[Record]:
    """The rows of Arrow batches as records."""
    return [
        Record(**{**row, "headers": tuple((one["name"], one["value"]) for one in row["headers"])})
        for batch in record_batches(source, topic, partition, **options)
        for row in batch.to_pylist()
    ]
