"""Arrow batches hold the rows of the iterator, whatever the entries are: made by hypothesis, sound and broken."""

from __future__ import annotations

import base64
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chunkstore.codec.pulsar import message_batches as arrow
from chunkstore.codec.pulsar.frames import Entry
from chunkstore.codec.pulsar.message_batches import MESSAGE_SCHEMA, message_batches
from chunkstore.codec.pulsar.messages import Message, iter_messages
from chunkstore.errors import Damaged, InvalidArgument
from tests.support.pulsar_entries import CODECS, marker, message, single, varint
from tests.support.pulsar_messages import arrow_rows

TEXT = st.text(max_size=6)
NUMBERS = st.one_of(
    st.integers(0, 200), st.integers(0, (1 << 64) - 1), st.sampled_from([(1 << 49) - 1, 1 << 49, 1 << 62])
)


@st.composite
def fields(draw: st.DrawFn, *, alone: bool) -> dict[str, Any]:
    """What a message and a message of a batch have in common."""
    found: dict[str, Any] = {}
    if draw(st.booleans()):
        found["key"] = draw(TEXT)
        if draw(st.integers(0, 4)) == 0:
            found["key"], found["key_b64"] = base64.b64encode(draw(st.binary(max_size=5))), 1
        elif draw(st.integers(0, 20)) == 0:
            found["key"], found["key_b64"] = draw(st.sampled_from([(b"\xff", 0), (b"%%%", 1), (b"a", 1)]))
    if draw(st.booleans()):
        found["properties"] = draw(st.lists(st.tuples(TEXT, TEXT), max_size=3))
    for name in (
        "event_time",
        "ordering_key",
        "null_value",
        "null_key",
        *(() if alone else ("sequence_id", "compacted_out")),
    ):
        if draw(st.integers(0, 3)) == 0:
            values = {"ordering_key": st.binary(max_size=4), "event_time": NUMBERS, "sequence_id": NUMBERS}
            found[name] = draw(values.get(name, st.integers(0, 1)))
    return found


@st.composite
def entry(draw: st.DrawFn, at: tuple[int, int], *, sound: bool) -> Entry:
    codec = draw(st.sampled_from(CODECS))
    values: dict[str, Any] = {"broker": draw(st.none() | st.tuples(NUMBERS, NUMBERS)), "sequence_id": draw(NUMBERS)}
    values |= draw(st.fixed_dictionaries({}, optional={"schema_version": st.binary(max_size=8), "deliver_at": NUMBERS}))
    kind = draw(st.integers(0, 9))
    txn = {"txn_most": draw(st.integers(0, 1)), "txn_least": draw(st.integers(0, 3))}
    if kind == 0:
        return marker(draw(st.sampled_from([21, 22, 23])), (txn["txn_most"], txn["txn_least"]), at)
    if draw(st.integers(0, 3)) == 0:
        values |= txn
    if draw(st.integers(0, 9)) == 0:
        values["encryption_keys"] = draw(st.integers(1, 2))
    content: Any
    if kind == 1:
        number = draw(st.integers(0, 2))
        values |= {
            "uuid": draw(st.sampled_from(["u", "v"])),
            "chunks": 3,
            "chunk": number,
            "chunked_bytes": 6,
            "codec": "NONE",
        }
        return message(b"%02d" % number, at=at, **values)
    if kind < 4:
        content = draw(st.binary(max_size=20))
        values |= draw(fields(alone=True))
    else:
        several = draw(st.lists(st.tuples(st.binary(max_size=12), fields(alone=False)), min_size=1, max_size=5))
        content = [single(payload, **more) for payload, more in several]
    made = message(content, at=at, codec=codec, **values)
    if sound or draw(st.integers(0, 3)):
        return made
    return broken(draw, made, at, content, codec, values)


def broken(
    draw: st.DrawFn, made: Entry, at: tuple[int, int], content: Any, codec: str, values: dict[str, Any]
) -> Entry:
    """The same with a byte changed, before or after the checksum was made, or with another size or count."""
    raw = bytearray(b"".join(content) if isinstance(content, list) else content)
    place, byte = draw(st.integers(0, 300)), draw(st.integers(0, 255))
    kind = draw(st.integers(0, 2))
    if kind == 0 or not raw:
        payload = bytearray(made.payload)
        payload[place % len(payload)] = byte
        return Entry(*at, bytes(payload))
    batch: dict[str, Any] = {"batch": len(content)} if isinstance(content, list) else {}
    if kind == 1:
        raw[place % len(raw)] = byte
        return message(bytes(raw), at=at, codec=codec, **batch, **values)
    changed = {"uncompressed_size": len(raw) + byte - 100} if not batch or byte % 2 else {"batch": byte - 100}
    return message(bytes(raw), at=at, codec=codec, **{**batch, **values, **changed})


@st.composite
def topics(draw: st.DrawFn, *, sound: bool) -> list[Entry]:
    count = draw(st.integers(0, 12))
    return [draw(entry((1 + number // 5, number % 5), sound=sound)) for number in range(count)]


def until_damage(found: Any, rows: Any) -> tuple[Any, Any]:
    """The rows, and the error that ended them."""
    seen = []
    try:
        for item in found:
            seen += rows(item)
    except Damaged as error:
        return seen, (error.object, error.position, str(error))
    return seen, found.summary


@pytest.mark.parametrize("sound", [True, False])
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_the_rows_of_the_iterator(sound: bool, data: st.DataObject) -> None:
    entries = data.draw(topics(sound=sound))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(arrow, "_WIDTH_MIN", 0)
        for messages in ("strict", "lenient"):
            for transactions in ("committed", "all"):
                how: dict[str, Any] = {"messages": messages, "transactions": transactions}
                rows = until_damage(iter_messages(entries, **how), lambda row: [row])
                batches = until_damage(message_batches(entries, **how), lambda batch: arrow_rows(iter([batch])))
                assert batches == rows
                assert messages == "strict" or not isinstance(rows[1], tuple)


SIZE = b"\x18\x01"  # payload_size 1
SHAPES = {
    "number of 7 bytes": SIZE + b"\x40" + varint((1 << 49) - 1),
    "number of 8 bytes": SIZE + b"\x40" + varint(1 << 49),
    "number of 9 bytes": SIZE + b"\x28" + varint(1 << 62),
    "negative number": SIZE + b"\x28" + varint(-1),
    "number with zeros at its end": b"\x18\x81\x80\x00" + b"\x28\x85\x80\x80\x80\x80\x80\x80\x00",
    "tag with zeros at its end": SIZE + b"\x92\x00\x01k",
    "length with zeros at its end": b"\x12\x81\x00k" + SIZE,
    "truth of two bytes": SIZE + b"\x48\x80\x01",
    "field twice": b"\x12\x01a\x12\x02bc" + SIZE + SIZE,
    "size first too large": b"\x18\x7f" + SIZE,
    "payload beyond the batch": b"\x18\xff\x7f",
    "payload beyond everything": b"\x18\xff\xff\xff\x7f",
    "field out of order": SIZE + b"\x40\x05\x12\x01k",
    "unknown number": SIZE + b"\x58\x05",
    "unknown field of two bytes": SIZE + b"\xa2\x06\x01x",
    "unknown fixed numbers": SIZE + b"\x5d1234" + b"\x5912345678",
    "known field of another type": SIZE + b"\x10\x05" + b"\x42\x01x",
    "group": SIZE + b"\x5b\x08\x01\x5c",
    "end of a group": SIZE + b"\x5c",
    "field 0": SIZE + b"\x00\x01",
    "key beyond the metadata": SIZE + b"\x12\x02k",
    "number beyond the metadata": SIZE + b"\x28\x80",
    "no payload size": b"\x12\x01k",
    "property": SIZE + b"\x0a\x06\x0a\x01a\x12\x01b",
    "property, value first": SIZE + b"\x0a\x06\x12\x01b\x0a\x01a",
    "property with more": SIZE + b"\x0a\x08\x0a\x01a\x12\x01b\x18\x05",
    "property with two values": SIZE + b"\x0a\x09\x0a\x01a\x12\x01b\x12\x01c",
    "property without a name": SIZE + b"\x0a\x03\x12\x01b",
    "property without a value": SIZE + b"\x0a\x03\x0a\x01a",
    "property without anything": SIZE + b"\x0a\x00",
    "property whose value is in the next field": SIZE + b"\x0a\x03\x0a\x01a\x12\x01b",
    "property whose value is too long": SIZE + b"\x0a\x06\x0a\x01a\x12\x02b",
    "property whose name is too long": SIZE + b"\x0a\x06\x0a\x05a\x12\x01b",
    "property twice": SIZE + b"\x0a\x06\x0a\x01a\x12\x01b" * 2,
    "property that is not UTF-8": SIZE + b"\x0a\x06\x0a\x01a\x12\x01\xff",
    "compacted out": SIZE + b"\x20\x01",
    "null with a value": SIZE + b"\x48\x01",
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("more", [b"", b"\0", b"\0\0\0\2\x18\0"], ids=["whole", "a byte more", "a message more"])
def test_shapes_that_are_rare(shape: str, more: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """After batches that are alike, in the first, a middle and the last place of a batch."""
    monkeypatch.setattr(arrow, "_WIDTH_MIN", 0)
    metadata = SHAPES[shape]
    rare = len(metadata).to_bytes(4, "big") + metadata + b"x"
    alike = single(b"y", key="k", event_time=5)
    contents = [[rare, alike, alike], [alike, rare, alike], [alike, alike, rare], [rare, rare, rare]]
    entries = wide(4, 3)
    for at, content in enumerate(contents):
        entries.append(message(b"".join(content) + more, at=(2, at), batch=3, codec="LZ4"))
        entries += [entry._replace(ledger=3 + at) for entry in wide(2, 5)]
    rows = list(iter_messages(entries, messages="lenient"))
    assert arrow_rows(message_batches(entries, messages="lenient")) == rows
    strict = until_damage(iter_messages(entries), lambda row: [row])
    assert until_damage(message_batches(entries), lambda batch: arrow_rows(iter([batch]))) == strict
    assert any(row.damaged for row in rows) == isinstance(strict[1], tuple) == (bool(more) or shape in BROKEN)


BROKEN = {
    "payload beyond the batch", "payload beyond everything",
    "end of a group", "field 0", "key beyond the metadata", "number beyond the metadata", "no payload size", "property without a name",
    "property without a value", "property without anything", "property whose value is in the next field",
    "property whose value is too long", "property whose name is too long", "property that is not UTF-8",
}  # fmt: skip


def wide(count: int, each: int, **values: Any) -> list[Entry]:
    return [
        message([single(b"%d" % number, key=f"k{number}", **values) for number in range(each)], at=(1, at), codec="LZ4")
        for at in range(count)
    ]


def test_columns_come_in_the_order_asked_for() -> None:
    batches = message_batches(wide(20, 5), columns=["payload", "key"])
    assert batches.schema == pa.schema([MESSAGE_SCHEMA.field("payload"), MESSAGE_SCHEMA.field("key")])
    [batch] = batches
    assert batch.schema == batches.schema
    assert batch.to_pylist()[3] == {"payload": b"3", "key": "k3"}


def test_the_schema_has_the_fields_of_a_message() -> None:
    assert tuple(MESSAGE_SCHEMA.names) == Message._fields
    assert next(message_batches(wide(1, 1))).schema == MESSAGE_SCHEMA


@pytest.mark.parametrize("columns", [[], ["nonsense"], ["key", "key"]])
def test_columns_that_are_none(columns: list[str]) -> None:
    with pytest.raises(InvalidArgument, match="columns are some of"):
        message_batches([], columns=columns)
