"""Protobuf metadata: round trips, absent fields, and bytes that are none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkstore.codec.pulsar.offload_metadata import (
    METADATA_BYTES_MAX,
    DriverMetadata,
    LedgerInfo,
    OffloadContext,
    OffloadSegment,
    decode_metadata,
    encode_metadata,
)
from chunkstore.errors import Damaged, InvalidArgument

NUMBER = st.integers(-(1 << 63), (1 << 63) - 1)
PAIRS = st.lists(st.tuples(st.text(max_size=5), st.text(max_size=5)), max_size=3).map(tuple)
DRIVER = st.builds(DriverMetadata, name=st.text(max_size=8), properties=PAIRS)
SEGMENT = st.builds(
    OffloadSegment,
    uid_msb=st.none() | NUMBER,
    uid_lsb=st.none() | NUMBER,
    complete=st.none() | st.booleans(),
    assigned_ms=st.none() | NUMBER,
    offloaded_ms=st.none() | NUMBER,
    end_entry=st.none() | NUMBER,
    driver=st.none() | DRIVER,
)
CONTEXT = st.builds(
    OffloadContext,
    uid_msb=st.none() | NUMBER,
    uid_lsb=st.none() | NUMBER,
    complete=st.none() | st.booleans(),
    bookkeeper_deleted=st.none() | st.booleans(),
    timestamp_ms=st.none() | NUMBER,
    driver=st.none() | DRIVER,
    segments=st.lists(SEGMENT, max_size=3).map(tuple),
)
INFO = st.builds(
    LedgerInfo,
    ledger=NUMBER,
    entries=st.none() | NUMBER,
    size=st.none() | NUMBER,
    timestamp_ms=st.none() | NUMBER,
    offload=st.none() | CONTEXT,
    properties=PAIRS,
)


@given(INFO)
def test_ledger_info_round_trip(info: LedgerInfo) -> None:
    assert decode_metadata(LedgerInfo, encode_metadata(info), object="o") == info


@given(CONTEXT)
def test_context_round_trip(context: OffloadContext) -> None:
    data = encode_metadata(context)
    assert decode_metadata(OffloadContext, memoryview(data), object="o") == context


def test_negative_halves_are_ten_byte_varints() -> None:
    assert encode_metadata(OffloadContext(uid_msb=-1)) == b"\x08" + b"\xff" * 9 + b"\x01"


def test_unknown_fields_are_skipped() -> None:
    assert decode_metadata(LedgerInfo, b"\x08\x05\xfa\x06\x03new", object="o") == LedgerInfo(ledger=5)


@pytest.mark.parametrize(
    "data",
    [
        b"\xff",
        b"\x08",
        b"\x08\x01\x2a\x05",  # a context that is cut off
        b"",  # no ledger id
        b"\x08\x01\x32\x02\x0a\x00",  # a property without a value
        b"\x08\x01\x32\x06\x0a\x01\xff\x12\x01v",  # a key that is no UTF-8
        b"\x08\x01\x2a\x00" * 3 + b"\x0b" * 200,  # groups in groups
    ],
)
def test_what_is_none_is_damaged(data: bytes) -> None:
    with pytest.raises(Damaged) as caught:
        decode_metadata(LedgerInfo, data, object="index", position=40)
    assert (caught.value.object, caught.value.position) == ("index", 40)


def test_length_is_bounded_both_ways() -> None:
    with pytest.raises(Damaged, match="at most"):
        decode_metadata(LedgerInfo, bytes(METADATA_BYTES_MAX + 1), object="o")
    with pytest.raises(InvalidArgument, match="at most"):
        encode_metadata(LedgerInfo(ledger=1, properties=(("k", "v" * METADATA_BYTES_MAX),)))


@pytest.mark.parametrize("info", [LedgerInfo(ledger=1 << 63), LedgerInfo(ledger=1, properties=(("k", "\ud800"),))])
def test_what_does_not_fit_is_an_argument_error(info: LedgerInfo) -> None:
    with pytest.raises(InvalidArgument):
        encode_metadata(info)
