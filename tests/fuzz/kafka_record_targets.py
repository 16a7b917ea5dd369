"""The decoders of Kafka's record batches: segments with headers, checksums, streams, records and lengths changed; Arrow gives the same."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from chunkstore.codec.kafka import batches, record_batches, records
from chunkstore.codec.kafka.batches import ReadOptions
from chunkstore.codec.kafka.compression import CODECS
from chunkstore.config import MIB
from chunkstore.errors import Damaged, Unsupported
from tests.fuzz.chance import Chance, mangled
from tests.fuzz.target import Gate, Spy, Target
from tests.kafka.support_batches import Made, batch_of, compressed, control_of, record_of, source_of

__all__ = ["KAFKA_RECORD_TARGETS"]

_RECORDS = [
    record_of(Made(b"value %d" % number, b"k" * number, [(b"h", None), (b"\xff", b"x")] * (number % 3), number * 999), number)
    for number in range(9)
]  # fmt: skip
_NAMES = (
    ("length", 32), ("magic", 8), ("attributes", 16), ("last_offset_delta", 32), ("base_timestamp", 64), ("producer_id", 64), ("count", 32),
)  # fmt: skip
_OPTIONS = ReadOptions(unfinished=True, records_bytes_max=MIB, batch_bytes_max=MIB)


def _batch(chance: Chance, base: int) -> bytes:
    if chance.random() < 0.1:
        return control_of(base, chance.below(3), chance.below(3))
    count = chance.below(len(_RECORDS))
    raw = b"".join(_RECORDS[:count])
    if chance.random() < 0.3:
        raw = mangled(chance, raw, b"".join(_RECORDS))
    codec = chance.one_of((*CODECS, "snappy-raw", "zstd-unsized"))
    stored = compressed(codec, raw)
    if chance.random() < 0.15:
        stored = mangled(chance, stored)
    fields: dict[str, Any] = {"stored": stored, "count": count, "last_offset_delta": max(0, count - 1)}
    if chance.random() < 0.3:
        fields |= {"transactional": True, "producer_id": chance.below(3)}
    if chance.random() < 0.2:
        name, bits = chance.one_of(_NAMES)
        value = chance.number(fields.get(name, 0)) & ((1 << bits) - 1)
        fields[name] = value - (1 << bits) if value >> (bits - 1) else value
    return batch_of([], base, codec, **fields)


def _make(chance: Chance) -> bytes:
    base, made = 0, b""
    for _ in range(1 + chance.below(4)):
        made += _batch(chance, base)
        base += chance.one_of((9, 9, 9, 20, -5))
        base = max(0, base)
    return mangled(chance, made) if chance.random() < 0.2 else made


def _decode(data: bytes, gate: Gate) -> None:
    source = source_of(data)
    found = records.scan_transactions(batches.iter_batches(source, _OPTIONS))
    last = -1
    for record in records.iter_records(
        source, "t", 0, isolation="read_committed", transactions=found, options=_OPTIONS
    ):
        assert last < record.offset
        last = record.offset


def _rows(data: bytes) -> list[records.Record]:
    found = []
    for batch in record_batches.record_batches(source_of(data), "t", 0, options=_OPTIONS):
        for row in batch.to_pylist():
            headers = tuple((one["name"], one["value"]) for one in row.pop("headers"))
            found.append(records.Record(**row, headers=headers))
    return found


def _decode_arrow(data: bytes, gate: Gate) -> Callable[[], None]:
    return partial(_same, data, _rows(data))


def _same(data: bytes, found: list[records.Record]) -> None:
    assert found == list(records.iter_records(source_of(data), "t", 0, options=_OPTIONS))


KAFKA_RECORD_TARGETS: tuple[Target, ...] = (
    Target(
        "kafka-records", "headers, checksums and offsets of batches", _make, _decode, (Damaged, Unsupported),
        (Spy(records, "records_data"),), memory_bytes=2 * MIB,
    ),
    Target(
        "kafka-records-arrow", "headers, checksums and offsets of batches", _make, _decode_arrow, (Damaged, Unsupported),
        (Spy(record_batches, "records_data"),), each=10, memory_bytes=4 * MIB,
    ),
)  # fmt: skip
