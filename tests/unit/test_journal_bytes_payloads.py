"""Payloads and small objects: golden values, garbage with right checksums, and how much memory garbage may cost."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import msgpack
import pytest

from chunkstore.config import KIB, LIMITS
from chunkstore.errors import Damaged, InvalidArgument
from chunkstore.journal import OpCode, RecordKind
from chunkstore_journal import payloads
from chunkstore_journal.extents import lines_of
from chunkstore_journal.record import FLAG_LINES, Record
from chunkstore_journal.wire import FRAME_HEADER_BYTES, encode_frame
from tests.golden import journal_samples as samples
from tests.golden.journal_samples import GOLDEN, OBJECTS, OPS, RECORDS, ROWS

HASH = bytes(16)
Decoder = Callable[[bytes], object]


def _decoder(name: str) -> Decoder:
    header = RECORDS[name].header
    kind = header.kind
    if header.flags & FLAG_LINES:
        return lambda raw: lines_of(Record(header, raw, HASH, len(raw)), 5, object="x", position=5)
    if kind == RecordKind.OPEN:
        return lambda raw: payloads.decode_open(raw, object="x", position=5)
    if kind == RecordKind.SEAL:
        return lambda raw: payloads.decode_seal(raw, object="x", position=5)
    if kind in (RecordKind.OPS, RecordKind.HEARTBEAT, RecordKind.CLOSE):
        return lambda raw: payloads.decode_ops(raw, object="x", position=5)
    return lambda raw: payloads.decode_note(kind, raw, object="x", position=5)


# --- payloads --------------------------------------------------------------------------------------------------------


def test_operations_and_rows_come_back_as_they_went_in() -> None:
    ops, rows = payloads.decode_ops(payloads.encode_ops(OPS, ROWS), object="x", position=0)
    assert ops == tuple(OPS)
    assert rows == list(ROWS)
    assert type(rows) is list
    assert {type(op[0]) for op in ops} == {int}
    assert {op[0] for op in (*ops, *samples.INLINE_OPS)} == {int(code) for code in OpCode}


def test_bytes_of_extents_come_in_front_and_begin_where_their_place_is_known_before() -> None:
    """The length takes four bytes, however short it is: the rows, which say where the bytes lie, are encoded behind them."""
    for blob in (b"x", samples.BLOB, bytes(70_000)):
        raw = payloads.encode_ops(samples.INLINE_OPS, ROWS, blob)
        assert raw[payloads.BLOB_AT : payloads.BLOB_AT + len(blob)] == blob == bytes(payloads.blob_of(raw))
        assert msgpack.unpackb(raw[: payloads.BLOB_AT + len(blob)] + b"\xc0\xc0") == [2, blob, None, None]
        assert payloads.decode_ops(raw, object="x", position=0) == (tuple(samples.INLINE_OPS), list(ROWS))
    assert payloads.encode_ops(OPS, ROWS)[:2] == b"\x93\x01", "without bytes it is what it always was"


def test_an_open_comes_back_as_it_went_in() -> None:
    for value in (samples.OPEN, samples.FIRST_OPEN):
        again = payloads.decode_open(payloads.encode_open(value), object="x", position=0)
        assert again._replace(rows=list(again.rows)) == value._replace(rows=list(value.rows))


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_every_cut_payload_is_damage(name: str) -> None:
    decode, payload = _decoder(name), RECORDS[name].payload
    decode(payload)
    for length in range(len(payload)):
        with pytest.raises(Damaged) as caught:
            decode(payload[:length])
        assert (caught.value.object, caught.value.position) == ("x", 5)
    with pytest.raises(Damaged):
        decode(payload + b"\0")


@pytest.mark.parametrize(
    "op",
    [
        (), (0,), (99, 1), ("APPEND", 1), (True, 7, "x"), (OpCode.SEAL,), (OpCode.SEAL, "7"), (OpCode.SEAL, -1), (OpCode.SEAL, True),
        (OpCode.APPEND, 7, 0, 1), (OpCode.APPEND, 7, 0, 1, 5), (OpCode.APPEND, 7, 0, -1, ()), (OpCode.APPEND, 7, 0, 1, ((1,),)),
        (OpCode.APPEND, 7, 0, 1, ((1, 2),)), (OpCode.APPEND, 7, 0, 1, ((-1, b"x"),)), (OpCode.APPEND, 7, 0, 1, (b"ab",)),
        (OpCode.APPEND, 7, 0, 1, ((1, b"x", 3),)), (OpCode.CREATE, 7, b"name"), (OpCode.COLLECT, "key", 1),
        (OpCode.CONCAT, 1, 2), (OpCode.TRUNCATE, 1, None), (OpCode.TABLE_PUT, b"ns", b"key"),
    ],
)  # fmt: skip
def test_operations_that_are_not_as_documented_are_neither_written_nor_read(op: tuple[object, ...]) -> None:
    with pytest.raises(InvalidArgument):
        payloads.encode_ops((op,), ())
    with pytest.raises(Damaged):
        payloads.decode_ops(msgpack.packb((1, (op,), ())), object="x", position=0)


def test_arguments_behind_the_known_ones_are_a_newer_minor_version() -> None:
    later = ((OpCode.SEAL, 7, "why"), (OpCode.APPEND, 7, 0, 1, ((0, b"c"),), 5))
    assert payloads.decode_ops(payloads.encode_ops(later, ()), object="x", position=0)[0] == later
    for name in sorted(RECORDS):
        value = msgpack.unpackb(RECORDS[name].payload, use_list=False)
        decode = _decoder(name)
        if name in ("ops-inline", "lines"):
            raw = RECORDS[name].payload
            again = bytes((raw[0] + 1,)) + raw[1:] + msgpack.packb("later")
            assert decode(again) == decode(raw)
            assert payloads.blob_of(again) == samples.BLOB
            continue
        missing = (0,) if name in ("open", "open-genesis") else ()  # an element that may be missing
        assert decode(msgpack.packb((*value, *missing, "later"))) == decode(RECORDS[name].payload)
        with pytest.raises(Damaged):
            decode(msgpack.packb((2, *value[1:])))


@pytest.mark.parametrize(
    "row",
    [
        (b"", b"v"), (b"k" * 512, b"v"), ("k", b"v"), (b"k", "v"), (b"k", 1), (b"k",), (b"k", b"v", 1), b"kv", None, 5,
        (b"k", bytes(LIMITS.row_bytes_max + 1)),
    ],
)  # fmt: skip
def test_rows_that_no_store_could_hold_are_neither_written_nor_read(row: object) -> None:
    with pytest.raises(InvalidArgument):
        payloads.encode_ops((), (row,))  # type: ignore[arg-type]
    with pytest.raises(Damaged):
        payloads.decode_ops(msgpack.packb((1, (), (row,))), object="x", position=0)


@pytest.mark.parametrize(
    "bomb",
    [
        b"\xdd\x7f\xff\xff\xff" * 200, b"\xdd\x00\x0f\xff\xff" * 900, b"\xdc\xff\xff" * 900, b"\x9f" * 2000, b"\x91" * 200_000,
        b"\xdf\x00\x07\xff\xff" * 200, b"\xc6\x7f\xff\xff\xff", b"\xdb\x7f\xff\xff\xff", b"\xc9\x7f\xff\xff\xff\x05",
        b"\x93\x01" + b"\x90" * 9,
        b"\x93\x01\xdd\x00\x10\x00\x00" + b"\x90" * (1 << 20) + b"\x90",
    ],
)  # fmt: skip
@pytest.mark.parametrize("padding", [0, 1 << 20])
def test_claims_of_enormous_arrays_cost_no_enormous_memory(bomb: bytes, padding: int) -> None:
    data = bomb + bytes(padding)
    tracemalloc.start()
    try:
        with pytest.raises(Damaged):
            payloads.decode_ops(data, object="x", position=0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 40 * len(data) + 256 * KIB


# --- small objects ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(OBJECTS))
def test_small_objects_are_written_and_read(name: str) -> None:
    sample = OBJECTS[name]
    assert sample.raw == GOLDEN[f"object/{name}"]
    assert sample.decode(sample.raw, object="x") == sample.value
    assert sample.decode(memoryview(sample.raw), object="x") == sample.value


@pytest.mark.parametrize("name", sorted(OBJECTS))
def test_every_flipped_bit_and_every_cut_of_a_small_object_is_damage(name: str) -> None:
    sample = OBJECTS[name]
    raw = bytearray(sample.raw)
    for bit in range(len(raw) * 8):
        raw[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Damaged):
            sample.decode(bytes(raw), object="x")
        raw[bit // 8] ^= 1 << bit % 8
    for length in range(len(raw)):
        with pytest.raises(Damaged):
            sample.decode(sample.raw[:length], object="x")
    for more in (b"\0", b"\xff", sample.raw, bytes(LIMITS.small_object_bytes_max)):
        with pytest.raises(Damaged):
            sample.decode(sample.raw + more, object="x")


@pytest.mark.parametrize("name", sorted(OBJECTS))
def test_newer_small_objects_are_read_if_minor_and_refused_if_major(name: str) -> None:
    sample = OBJECTS[name]
    body, kind = sample.raw[FRAME_HEADER_BYTES:], sample.raw[5]
    value = msgpack.unpackb(body, use_list=False)
    minor = encode_frame(b"CKSO", 1, kind, msgpack.packb((*value, "later")))
    assert sample.decode(minor, object="x") == sample.value
    with pytest.raises(Damaged, match="upgrade"):
        sample.decode(encode_frame(b"CKSO", 2, kind, body), object="x")
