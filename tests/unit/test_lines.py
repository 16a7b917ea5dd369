"""Lines of records as bytes: round trips, every cut and every flipped bit, lengths that lie, and what is no record of lines."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkstore.checksum import crc32c
from chunkstore.errors import Damaged
from chunkstore.journal import RecordKind
from chunkstore.metadata.port import Line, Lines
from chunkstore_journal.extents import decode_lines, encode_lines, lines_of
from chunkstore_journal.payloads import BLOB_AT, LINES_HEAD, decode_ops, encode_ops
from chunkstore_journal.record import (
    FLAG_LINES,
    HEADER_BYTES,
    Record,
    RecordHeader,
    decode_record,
    encode_lines_record,
    encode_record,
)
from tests.golden.journal_samples import BLOB, CONTAINER, HASH, LINES, OPS, RECORDS, ROWS, TOKEN

EPOCH, LSN, INDEX, AT, TIME_MS = 4, 45, 45, 5000, 1_700_000_000_000

event = st.tuples(st.binary(min_size=1, max_size=64), st.integers(0, (1 << 63) - 1), st.integers(0, (1 << 32) - 1))
append = st.tuples(
    st.integers(1, 3),
    st.binary(min_size=1, max_size=20),
    st.booleans(),
    st.text(min_size=1, max_size=60).map(str.encode),
    st.none() | event,
)


@st.composite
def records(draw: st.DrawFn) -> tuple[list[Line], list[bytes]]:
    """Lines as an owner writes them, and the bytes of each append."""
    lines: list[Line] = []
    data: list[bytes] = []
    crc_of = b""
    for segment_id, piece, joins, name, made in draw(st.lists(append, min_size=1, max_size=12)):
        joined = joins and bool(lines) and lines[-1].segment_id == segment_id
        crc_of = crc_of + piece if joined else piece
        offset = draw(st.integers(0, (1 << 63) - 1 - len(piece)))
        lines.append(Line(segment_id, offset, len(piece), crc32c(crc_of), joined, name, made))
        data.append(piece)
    return lines, data


def written(lines: Sequence[Line], data: Sequence[bytes]) -> bytes:
    place = INDEX, AT, LSN - 1, HASH
    return encode_lines_record((CONTAINER, EPOCH, TOKEN), place, TIME_MS, data, encode_lines(lines))[0]


def read(raw: bytes) -> Record:
    return decode_record(raw, 0, object="log.a", container=CONTAINER, at=AT)


def of_payload(payload: bytes, *, flags: int = FLAG_LINES, kind: RecordKind = RecordKind.OPS) -> Record:
    """A record whose checksums are right, whatever its payload is."""
    header = RecordHeader(kind, flags, CONTAINER, EPOCH, INDEX, LSN, LSN - 1, HASH, 0, TOKEN, TIME_MS, AT)
    return read(encode_record(header, payload)[0])


def refused(record: Record) -> str:
    with pytest.raises(Damaged) as caught:
        lines_of(record, AT, object="log.a", position=AT)
    assert (caught.value.object, caught.value.position) == ("log.a", AT)
    return str(caught.value)


@given(records())
@settings(max_examples=60, deadline=None)
def test_lines_come_back_as_they_went_in(made: tuple[list[Line], list[bytes]]) -> None:
    lines, data = made
    record = read(written(lines, data))
    for begin, place, at in ((AT, f"{EPOCH:x}", AT), (None, f"{EPOCH:x}/{INDEX:x}", 0)):
        expected = Lines(EPOCH, LSN, TIME_MS, place, at + HEADER_BYTES + BLOB_AT, lines)
        assert lines_of(record, begin, object="log.a", position=AT) == expected
    blob = record.payload[BLOB_AT : BLOB_AT + sum(map(len, data))]
    assert blob == b"".join(data)


def spoilt() -> Iterator[bytes]:
    """The lines of the golden record, cut, longer, and with each of their bits flipped."""
    raw = encode_lines(LINES)
    yield from (raw[:length] for length in range(len(raw)))
    yield raw + b"\0"
    for bit in range(len(raw) * 8):
        yield raw[: bit // 8] + bytes((raw[bit // 8] ^ 1 << bit % 8,)) + raw[bit // 8 + 1 :]


def test_other_bytes_are_other_lines_or_damage() -> None:
    """Also where all checksums are right: nothing is read in two ways, and nothing is left over."""
    sizes = {"damage": 0, "other": 0}
    for raw in spoilt():
        try:
            found = decode_lines(raw, len(BLOB), object="log.a", position=AT)
        except Damaged:
            sizes["damage"] += 1
            continue
        sizes["other"] += 1
        assert encode_lines(found) == raw
        assert found != list(LINES)
        assert sum(line.length for line in found) == len(BLOB)
        assert all(line.length > 0 and line.offset + line.length < 1 << 63 for line in found)
    assert min(sizes.values()) > 100


@pytest.mark.parametrize(
    "change",
    [
        {"length": 0}, {"length": 4}, {"length": 6}, {"length": (1 << 32) - 1}, {"offset": (1 << 63) - 5},
        {"offset": (1 << 64) - 1}, {"name": b""}, {"joined": True},
    ],
)  # fmt: skip
def test_lines_that_cannot_be(change: dict[str, object]) -> None:
    first = LINES[0]._replace(**change)  # type: ignore[arg-type]
    with pytest.raises(Damaged):
        decode_lines(encode_lines([first, *LINES[1:]]), len(BLOB), object="log.a", position=AT)


RAW = encode_lines(LINES)
HEAD = LINES_HEAD + len(BLOB).to_bytes(4)


@pytest.mark.parametrize(
    "payload",
    [
        b"", b"\x93", LINES_HEAD, HEAD, HEAD + BLOB, HEAD + BLOB + b"\xc4", HEAD + BLOB + b"\xc0",
        HEAD + BLOB + bytes((0xC4, len(RAW) + 1)) + RAW, HEAD + BLOB + bytes((0xC4, len(RAW))) + RAW + b"\0",
        HEAD + BLOB + bytes((0xC4, len(RAW) - 1)) + RAW, HEAD + BLOB + b"\xc6\xff\xff\xff\xff" + RAW,
        HEAD + BLOB + b"\xc4\0", HEAD + BLOB + b"\xd9" + bytes((len(RAW),)) + bytes(len(RAW)),
        b"\x92" + HEAD[1:] + BLOB + bytes((0xC4, len(RAW))) + RAW, b"\x93\x02\xc6" + HEAD[3:] + BLOB + bytes((0xC4, len(RAW))) + RAW,
        b"\x93\x04\xc6" + HEAD[3:] + BLOB + bytes((0xC4, len(RAW))) + RAW, LINES_HEAD + b"\xff\xff\xff\xff" + BLOB,
        LINES_HEAD + b"\0\0\0\0" + bytes((0xC4, len(RAW))) + RAW, encode_ops(OPS, ROWS), encode_ops((), ()),
        LINES_HEAD + (len(BLOB) - 1).to_bytes(4) + BLOB[:-1] + bytes((0xC4, len(RAW))) + RAW,
        LINES_HEAD + (len(BLOB) + 1).to_bytes(4) + BLOB + b"x" + bytes((0xC4, len(RAW))) + RAW,
    ],
)  # fmt: skip
def test_a_payload_that_is_not_one_of_lines_is_damage(payload: bytes) -> None:
    """Its record's checksums are right; the length of nothing is believed."""
    tracemalloc.start()
    try:
        refused(of_payload(payload))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_further_elements_are_a_newer_minor_version() -> None:
    payload = b"\x95" + HEAD[1:] + BLOB + bytes((0xC4, len(RAW))) + RAW + b"\x01\xa1x"
    found = lines_of(of_payload(payload), AT, object="log.a", position=AT)
    assert found is not None
    assert tuple(found.lines) == LINES


def test_the_flag_says_what_the_payload_is_and_only_of_operations() -> None:
    payload = RECORDS["lines"].payload
    assert lines_of(of_payload(payload, flags=0x80), AT, object="log.a", position=AT) is None
    with pytest.raises(Damaged):
        decode_ops(payload, object="log.a", position=AT)
    for kind in RecordKind:
        if kind != RecordKind.OPS:
            refused(of_payload(payload, kind=kind))
