"""Rows as bytes: golden bytes, the format's tables against the code, and everything that can be wrong with a row."""

from __future__ import annotations

import re
import tracemalloc
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkstore.errors import Damaged, InvalidArgument
from chunkstore.metadata import codec, lines
from chunkstore.metadata import store as metadata_store
from chunkstore.records.segments import (
    ChunkRecord,
    GarbageRecord,
    PinRecord,
    SegmentRecord,
    SessionRecord,
    TableRecord,
)
from tests.golden.metadata_samples import CHUNK, DECODERS, ENCODERS, GOLDEN, SAMPLES, SEGMENT, kind_of

ROOT = Path(__file__).resolve().parents[2]
FORMAT = (ROOT / "chunkstore" / "metadata" / "FORMAT.md").read_text(encoding="utf-8")

FIELDS = {
    "segment": codec.SEGMENT_FIELDS,
    "chunk": codec.CHUNK_FIELDS,
    "garbage": codec.GARBAGE_FIELDS,
    "table": codec.TABLE_FIELDS,
    "session": codec.SESSION_FIELDS,
    "pin": codec.PIN_FIELDS,
}
RECORDS: dict[str, Any] = {
    "segment": SegmentRecord,
    "chunk": ChunkRecord,
    "garbage": GarbageRecord,
    "table": TableRecord,
    "session": SessionRecord,
    "pin": PinRecord,
}


def place(row: list[Any], number: int) -> int:
    """The byte where an element of the packed row begins."""
    return (1 if len(row) < 16 else 3) + sum(len(msgpack.packb(item)) for item in row[:number])


def table(name: str) -> list[list[str]]:
    text = FORMAT.split(f"<!-- table: {name} -->\n", 1)[1].split("\n\n", 1)[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    return rows[2:]


@pytest.mark.parametrize("name", RECORDS)
def test_format_tables_say_what_the_code_does(name: str) -> None:
    rows = table(name)
    assert [row[1] for row in rows] == list(RECORDS[name]._fields[:-1])
    assert [(row[1], row[2]) for row in rows] == [(field.name, field.rule) for field in FIELDS[name]]
    assert [int(row[0]) for row in rows] == list(range(2, 2 + len(rows)))
    rules = set(re.findall(r"^\| ([^|]+?) \| ", FORMAT.split("| rule | meaning |")[1].split("\n\n")[0], re.MULTILINE))
    assert {field.rule for field in FIELDS[name]} <= rules


@pytest.mark.parametrize(("name", "size_bytes"), [("head", metadata_store._HEAD.size), ("writer", lines._EVENT.size)])
def test_format_tables_of_packed_values(name: str, size_bytes: int) -> None:
    position = 0
    for row in table(name):
        assert int(row[0]) == position
        position += int(row[1])
    assert position == size_bytes


def test_the_head_has_its_key_and_writers_their_version() -> None:
    assert lines.encode_writer_row(lines.WriterEvent(1, 2, 3, 4)).hex() == "02" + f"{1:016x}{2:016x}{3:016x}{4:08x}"
    assert bytes.fromhex("0068656164") == metadata_store.HEAD_KEY


@pytest.mark.parametrize("sample", SAMPLES)
def test_golden_bytes(sample: str) -> None:
    kind, record = kind_of(sample), SAMPLES[sample]
    assert ENCODERS[kind](record).hex() == GOLDEN[sample]
    found = DECODERS[kind](b"key", bytes.fromhex(GOLDEN[sample]))
    assert found == record
    assert type(found) is RECORDS[kind]


def test_golden_file_has_no_strangers() -> None:
    assert set(GOLDEN) == set(SAMPLES)


def test_a_newer_minor_version_survives_a_rewrite() -> None:
    plain = msgpack.unpackb(codec.encode_row(CHUNK), use_list=False)
    newer = msgpack.packb((1, 3, *plain[2:], 1, b"two", ("three",)))
    record = codec.decode_chunk(b"C", newer)
    assert record.extra == (1, b"two", ("three",))
    assert codec.encode_row(record) == newer
    grown = codec.encode_row(record._replace(length=record.length + 1))
    assert codec.decode_chunk(b"C", grown).extra == record.extra


@pytest.mark.parametrize("kind", DECODERS)
@pytest.mark.parametrize("major", [0, 2, 255, 1 << 40, True, "1", None, 1.0, b"\x01"])
def test_another_major_version_is_refused(kind: str, major: object) -> None:
    row = msgpack.unpackb(ENCODERS[kind](SAMPLES[kind]))
    row[0] = major
    with pytest.raises(Damaged, match="major version") as caught:
        DECODERS[kind](b"key", msgpack.packb(row))
    assert caught.value.position == place(row, 0)


@pytest.mark.parametrize("kind", DECODERS)
def test_every_truncation_is_damage_and_so_is_more(kind: str) -> None:
    raw = ENCODERS[kind](SAMPLES[kind])
    for length in range(len(raw)):
        with pytest.raises(Damaged):
            DECODERS[kind](b"key", raw[:length])
    with pytest.raises(Damaged, match="extra bytes after") as caught:
        DECODERS[kind](b"key", raw + b"\x00")
    assert caught.value.position == len(raw)


@pytest.mark.parametrize("kind", DECODERS)
def test_minor_version_and_number_of_fields_belong_together(kind: str) -> None:
    row = msgpack.unpackb(ENCODERS[kind](SAMPLES[kind]))
    for minor, more in ((1, []), (0, [1]), (2, [1]), (-1, []), (True, [1]), (65, [0] * 65), ("0", [])):
        with pytest.raises(Damaged):
            DECODERS[kind](b"key", msgpack.packb([row[0], minor, *row[2:], *more]))


def test_what_cannot_be_stored_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="too long"):
        codec.encode_row(TableRecord(1, b"x" * (1 << 20)))
    with pytest.raises(InvalidArgument):
        codec.encode_segment(SEGMENT._replace(length=1 << 64))
    with pytest.raises(InvalidArgument):
        codec.encode_segment(SEGMENT._replace(attributes={"a": object()}))  # type: ignore[dict-item]
    assert codec.decode_segment(b"S", codec.encode_segment(SEGMENT)) == SEGMENT  # the packer is as it was


@given(st.sampled_from(sorted(DECODERS)), st.data())
@settings(max_examples=400)
def test_flipped_bytes_are_read_alike_or_refused(kind: str, data: st.DataObject) -> None:
    """No input crashes; what is accepted is what the slow rules accept, and it can be written again."""
    raw = bytearray(ENCODERS[kind](SAMPLES[kind]))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        record = DECODERS[kind](b"key", bytes(raw))
    except Damaged as error:
        position = error.position
    else:
        values = msgpack.unpackb(bytes(raw), use_list=False)
        assert all(field.holds(value) for field, value in zip(FIELDS[kind], values[2:], strict=False))
        assert DECODERS[kind](b"key", ENCODERS[kind](record)) == record
        position = 0
    assert 0 <= position <= len(raw)


@pytest.mark.parametrize("kind", DECODERS)
@pytest.mark.parametrize(
    "raw",
    [b"\x94\x40\x00\x01\xc2", b"\xdc\x01\x40" * 1000, b"\x9f" * 3000, b"\x92\x01\x00" + b"\xdc\x01\x40" * 999],
    ids=["few bytes", "nested claims", "nested", "nested claims behind the version"],
)
def test_hostile_rows_take_memory_in_proportion(kind: str, raw: bytes) -> None:
    """Every level of nesting may claim as many elements as a row may have: none of them may be believed."""
    tracemalloc.start()
    try:
        with pytest.raises(Damaged):
            DECODERS[kind](b"key", raw)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 200 * len(raw) + (64 << 10)
