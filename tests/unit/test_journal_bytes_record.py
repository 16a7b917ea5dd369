"""Records as bytes: golden values, every flipped bit, every cut, files of records with every kind of end."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkstore.checksum import crc32c, crc32c_extend, record_hash
from chunkstore.config import LIMITS
from chunkstore.errors import Damaged, InvalidArgument
from chunkstore.journal import RecordKind
from chunkstore_journal.record import (
    HEADER_BYTES,
    OVERHEAD_BYTES,
    LogReader,
    Record,
    RecordHeader,
    decode_record,
    decode_slot,
    encode_record,
    peek_length,
)
from tests.golden.journal_samples import CONTAINER, GOLDEN, RECORDS, TOKEN

NAMES = sorted(RECORDS)
OTHER = bytes(16)


def _reheadered(raw: bytes, at: int, value: bytes) -> bytes:
    """``raw`` with some header bytes replaced and all checksums made right again."""
    head = bytearray(raw[:HEADER_BYTES])
    head[at : at + len(value)] = value
    head[12:16] = struct.pack(">I", crc32c_extend(crc32c(bytes(head[:12])), bytes(head[16:])))
    body = bytes(head) + raw[HEADER_BYTES:-16]
    return body + record_hash(body)


def _log(count: int, *, size: int = 20, stray: bytes = b"") -> tuple[bytes, list[int]]:
    """A log of ``count`` chained records and the offset of each; ``stray`` bytes lie in front of the last one."""
    raw, offsets, previous = b"", [], bytes(16)
    for lsn in range(1, count + 1):
        raw += stray if lsn == count else b""
        offsets.append(len(raw))
        header = RecordHeader(RecordKind.OPS, 0, CONTAINER, 4, lsn, lsn, lsn - 1, previous, lsn, TOKEN, 0, len(raw))
        data, previous = encode_record(header, bytes([lsn % 251]) * (size * lsn))
        raw += data
    return raw, offsets


def _reader(data: bytes, *, window: int = 4096, offset: int = 0, stop: int | None = None) -> LogReader:
    return LogReader(
        lambda at, length: data[at : at + length],
        object="log.a", container=CONTAINER, window_bytes=window, offset=offset, stop=stop,
    )  # fmt: skip


# --- one record ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_golden_bytes_are_written_and_read(name: str) -> None:
    header, payload = RECORDS[name]
    raw, identity = encode_record(header, payload)
    assert raw == GOLDEN[f"record/{name}"]
    expected = Record(header, payload, identity, len(raw))
    at = header.at
    assert decode_record(raw, 0, object="x", container=CONTAINER, at=at) == expected
    assert decode_slot(raw, object="x", container=CONTAINER, at=at) == expected
    with pytest.raises(Damaged, match=f"written at byte {at}, not here"):
        decode_record(raw, 0, object="x", container=CONTAINER, at=at + 1)
    assert decode_record(memoryview(b"ab" + raw + b"tail"), 2, object="x", container=None, at=at) == expected
    assert decode_record(bytearray(b"ab" + raw + b"tail"), 2, object="x", container=None, at=at) == expected
    assert type(decode_record(memoryview(raw), 0, object="x", container=None, at=at).payload) is bytes


@pytest.mark.parametrize("name", NAMES)
def test_every_flipped_bit_is_damage(name: str) -> None:
    raw, at = bytearray(GOLDEN[f"record/{name}"]), RECORDS[name].header.at
    for bit in range(len(raw) * 8):
        raw[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Damaged) as caught:
            decode_record(bytes(raw), 0, object="x", container=CONTAINER, at=at)
        assert (caught.value.object, caught.value.position) == ("x", 0)
        raw[bit // 8] ^= 1 << bit % 8


@pytest.mark.parametrize("name", NAMES)
def test_every_cut_is_damage(name: str) -> None:
    raw, at = GOLDEN[f"record/{name}"], RECORDS[name].header.at
    for length in range(len(raw)):
        with pytest.raises(Damaged):
            decode_record(raw[:length], 0, object="x", container=CONTAINER, at=at)
        with pytest.raises(Damaged):
            decode_record(memoryview(raw)[:length], 0, object="x", container=CONTAINER, at=at)


@pytest.mark.parametrize(("at", "value"), [(4, b"\x02"), (5, b"\x00"), (5, b"\x0b"), (5, b"\xff"), (6, b"\x02")])
def test_versions_types_and_algorithms_we_do_not_know_are_refused_even_if_intact(at: int, value: bytes) -> None:
    raw = _reheadered(GOLDEN["record/ops"], at, value)
    with pytest.raises(Damaged, match="upgrade"):
        decode_record(raw, 0, object="x", container=CONTAINER)


def test_a_length_beyond_the_limit_is_refused_before_anything_of_that_length_is_touched() -> None:
    for length in (LIMITS.record_bytes_max - OVERHEAD_BYTES + 1, 0xFFFFFFFF):
        raw = _reheadered(GOLDEN["record/ops"], 8, struct.pack(">I", length))
        with pytest.raises(Damaged, match="limit"):
            decode_record(raw, 0, object="x", container=CONTAINER)
        assert peek_length(raw, 0, 0) is None


def test_a_payload_crc_that_disagrees_with_the_payload_is_refused_though_hash_and_header_agree() -> None:
    raw = _reheadered(GOLDEN["record/ops"], 144, b"\0\0\0\0")
    with pytest.raises(Damaged, match="payload"):
        decode_record(raw, 0, object="x", container=CONTAINER)


@pytest.mark.parametrize(
    "change",
    [
        {"container": b"short"}, {"previous_hash": b""}, {"token": bytes(17)}, {"epoch": -1}, {"lsn": 1 << 64},
        {"digest": 1 << 256}, {"digest": -1}, {"flags": 256}, {"kind": 0}, {"kind": 11}, {"kind": 999}, {"kind": -1},
        {"time_ms": -5},
    ],
)  # fmt: skip
def test_what_no_reader_would_accept_is_not_written(change: dict[str, object]) -> None:
    header, payload = RECORDS["ops"]
    with pytest.raises(InvalidArgument):
        encode_record(header._replace(**change), payload)  # type: ignore[arg-type]


# --- a file of records -----------------------------------------------------------------------------------------------


def test_every_cut_of_a_file_is_a_tail() -> None:
    raw, offsets = _log(3)
    for length in range(len(raw)):
        reader = _reader(raw[:length], window=300)
        whole = [record.header.lsn for record in reader]
        good = max(offset for offset in [*offsets, len(raw)] if offset <= length)
        assert (reader.offset, reader.tail_bytes) == (good, len(raw[good:length].rstrip(b"\0")))
        assert reader.ended == ("tail" if length > good else "clean")
        assert len(whole) == [*offsets, len(raw)].index(good)
        assert reader.find_record_after(reader.offset, lsn=len(whole), token=TOKEN) is None


def test_every_flipped_bit_of_a_middle_record_is_corruption_not_a_tail() -> None:
    raw, offsets = _log(3, size=4)
    damaged = bytearray(raw)
    for bit in range(offsets[1] * 8, offsets[2] * 8):
        damaged[bit // 8] ^= 1 << bit % 8
        reader = _reader(bytes(damaged), window=256)
        assert [record.header.lsn for record in reader] == [1]
        assert (reader.ended, reader.offset, reader.tail_bytes) == ("tail", offsets[1], len(raw) - offsets[1])
        found = reader.find_record_after(reader.offset, lsn=1, token=TOKEN)
        assert found is not None
        assert (found[0], found[1].lsn) == (offsets[2], 3)
        damaged[bit // 8] ^= 1 << bit % 8


def test_every_flipped_bit_of_the_last_record_ends_as_a_tail() -> None:
    raw, offsets = _log(2, size=4)
    damaged = bytearray(raw)
    for bit in range(offsets[1] * 8, len(raw) * 8):
        damaged[bit // 8] ^= 1 << bit % 8
        reader = _reader(bytes(damaged))
        assert [record.header.lsn for record in reader] == [1]
        assert (reader.ended, reader.offset) == ("tail", offsets[1])
        assert reader.find_record_after(reader.offset, lsn=1, token=TOKEN) is None
        damaged[bit // 8] ^= 1 << bit % 8


@pytest.mark.parametrize("torn", [0, 1, 60, 200])
@pytest.mark.parametrize("zeros", [1, 3, 600, 10_000])
def test_zeros_after_the_end_are_no_tail_but_a_torn_record_before_them_is_one(zeros: int, torn: int) -> None:
    raw, offsets = _log(4)
    end = offsets[3]
    data = bytearray(raw[: end + torn] + bytes(zeros))
    reader = LogReader(lambda at, n: bytes(data[at : at + n]), object="log.a", container=CONTAINER, window_bytes=512)
    assert [record.header.lsn for record in reader] == [1, 2, 3]
    torn_bytes = len(raw[end : end + torn].rstrip(b"\0"))
    assert (reader.ended, reader.offset, reader.tail_bytes) == ("tail" if torn else "clean", end, torn_bytes)
    assert reader.find_record_after(end, lsn=3, token=TOKEN) is None
    data[end : len(raw)] = raw[end:]
    data += bytes(700)
    assert [record.header.lsn for record in reader] == [4]
    assert (reader.ended, reader.offset, reader.tail_bytes) == ("clean", len(raw), 0)


def test_evidence_behind_damage_counts_only_of_this_container_claim_and_a_higher_lsn() -> None:
    data, offsets = _log(3, stray=b"CKSJ" * 500)
    reader = _reader(data, window=256)
    assert len(list(reader)) == 2
    found = reader.find_record_after(reader.offset, lsn=2, token=TOKEN)
    assert found is not None
    assert (found[0], found[1].lsn) == (offsets[2], 3)
    assert reader.find_record_after(reader.offset, lsn=3, token=TOKEN) is None
    assert reader.find_record_after(reader.offset, lsn=2, token=OTHER) is None
    stranger = LogReader(lambda at, n: data[at : at + n], object="log.a", container=OTHER)
    assert list(stranger) == []
    assert stranger.ended == "tail"
    assert stranger.find_record_after(0, lsn=0, token=TOKEN) is None


def test_a_torn_record_that_carries_old_records_inside_is_still_a_tail() -> None:
    raw, _ = _log(2)
    header = RecordHeader(RecordKind.OPS, 0, CONTAINER, 4, 3, 3, 2, bytes(16), 0, TOKEN, 0, len(raw))
    outer, _ = encode_record(header, raw)
    reader = _reader(raw + outer[:-1])
    assert len(list(reader)) == 2
    assert reader.find_record_after(reader.offset, lsn=2, token=TOKEN) is None


@pytest.mark.parametrize(("at", "value"), [(4, b"\x02"), (5, b"\x63"), (6, b"\x07"), (8, b"\xff\xff\xff\xff")])
def test_an_intact_record_of_a_newer_program_is_never_cut_off_as_torn(at: int, value: bytes) -> None:
    raw, offsets = _log(2)
    newer = raw[: offsets[1]] + _reheadered(raw[offsets[1] :], at, value)
    reader = _reader(newer)
    with pytest.raises(Damaged) as caught:
        list(reader)
    assert (caught.value.object, caught.value.position) == ("log.a", offsets[1])
    assert reader.offset == offsets[1]


@given(st.lists(st.sampled_from(NAMES), max_size=6), st.binary(max_size=300), st.integers(OVERHEAD_BYTES, 5000))
@settings(max_examples=80, deadline=None)
def test_any_file_gives_its_good_records_and_the_rest_as_tail(names: list[str], rest: bytes, window: int) -> None:
    good, headers = b"", []
    for name in names:
        headers.append(RECORDS[name].header._replace(at=len(good)))
        good += encode_record(headers[-1], RECORDS[name].payload)[0]
    reader = _reader(good + rest, window=window)
    payloads_in = [RECORDS[name].payload for name in names]
    assert [(record.header, record.payload) for record in reader] == list(zip(headers, payloads_in, strict=True))
    assert (reader.offset, reader.tail_bytes) == (len(good), len(rest.rstrip(b"\0")))
