"""FORMAT.md says what the code does: its tables are read, and batches are taken apart by them alone."""

from __future__ import annotations

from pathlib import Path

from chunkstore.codec.kafka import batches as codec
from chunkstore.codec.kafka.batches import BATCH_HEADER_BYTES, CRC_BEGINS, Batch, iter_batches
from chunkstore.codec.kafka.compression import CODECS
from chunkstore.codec.kafka.records import control_record
from tests.kafka.support_batches import Made, batch_of, control_of, record_of, source_of
from tests.support.format_tables import table

TEXT = (Path(codec.__file__).parent / "FORMAT.md").read_text(encoding="utf-8")


def test_the_header_is_as_the_table_says() -> None:
    rows = table("batch", TEXT)
    data = batch_of(
        [Made(b"v")] * 3, 1 << 40, leader_epoch=7, last_offset_delta=9, base_timestamp=11, max_timestamp=12,
        producer_id=13, producer_epoch=14, base_sequence=15, attributes=0x58,
    )  # fmt: skip
    (batch,) = iter_batches(source_of(data))
    end = 0
    for at, size, field, _ in rows:
        assert int(at) == end
        end += int(size)
        signed = field != "crc"
        assert getattr(batch, field) == int.from_bytes(data[int(at) : end], "big", signed=signed), field
    assert end == BATCH_HEADER_BYTES
    assert [row[2] for row in rows] == list(Batch._fields[2:-1])
    assert int({row[2]: row[0] for row in rows}["attributes"]) == CRC_BEGINS


def test_attributes_are_as_the_table_says() -> None:
    bits = {field: (bit, value) for bit, field, value in table("attributes", TEXT)}
    assert bits["codec"] == ("0-2", ", ".join(f"{number} {name}" for number, name in enumerate(CODECS)))
    for field, read in (("transactional", Batch.transactional), ("control", Batch.control)):
        (batch,) = iter_batches(source_of(batch_of([Made()], attributes=1 << int(bits[field][0]))))
        assert read.__get__(batch) is True
        (batch,) = iter_batches(source_of(batch_of([Made()], attributes=0x78 & ~(1 << int(bits[field][0])))))
        assert read.__get__(batch) is False
    (batch,) = iter_batches(source_of(batch_of([Made()], attributes=1 << int(bits["timestamp type"][0]))))
    assert batch.timestamp_type == "append"


def test_a_record_is_as_the_table_says() -> None:
    fields = [row[:2] for row in table("record", TEXT)]
    values = {
        "attributes": b"\0", "timestamp_delta": b"\6", "offset_delta": b"\4", "key": b"\1", "value": b"\4vv", "headers": b"\2",
    }  # fmt: skip
    body = b"".join(values[name] for name, _ in fields[1:]) + b"\2h\1"
    assert fields[0] == ["length", "varint"]
    assert bytes((2 * len(body),)) + body == record_of(Made(b"vv", None, [(b"h", None)], 3, 2))


def test_a_control_record_is_as_the_table_says() -> None:
    sizes = {field: int(size) for size, field, _ in table("control", TEXT)}
    assert list(sizes) == ["version", "type"]
    key = (3).to_bytes(sizes["version"], "big") + (1).to_bytes(sizes["type"], "big")
    (batch,) = iter_batches(source_of(batch_of([Made(b"\0\0\0\0\0\x05", key)], control=True)))
    found = control_record(batch)
    assert found is not None
    assert (found.version, found.type, found.coordinator_epoch) == (3, "commit", 5)
    for number, kind in ((0, "abort"), (1, "commit"), (2, 2)):
        (batch,) = iter_batches(source_of(control_of(1, 2, number)))
        found = control_record(batch)
        assert found is not None
        assert found.type == kind
