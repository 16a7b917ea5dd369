"""Bytes of the contexts: golden, versioned, and refused where they are wrong."""

from __future__ import annotations

import tracemalloc

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkstore.errors import Damaged, InvalidArgument
from chunkstore.pulsar.contexts import (
    Context,
    EntryRange,
    check_topic,
    decode_context,
    encode_context,
    key_of,
)

UUID = bytes(range(16))
GOLDEN_OPEN = "970100c410000102030405060708090a0b0c0d0e0f01000090"
GOLDEN_COMPLETE = "970100c410000102030405060708090a0b0c0d0e0f02cd1388649307000a"
COMPLETE = Context("t", 3, UUID, True, 5000, 100, (EntryRange(7, 0, 10),))
GOLDEN_COUNTED_OPEN = "980101c410000102030405060708090a0b0c0d0e0f0100009090"
GOLDEN_COUNTED = "980101c410000102030405060708090a0b0c0d0e0f02cd1388649307000a9109"
COUNTED = COMPLETE._replace(ranges=(EntryRange(7, 0, 10, 9),))


def test_golden_bytes() -> None:
    assert encode_context(Context("t", 3, UUID, complete=False)).hex() == GOLDEN_COUNTED_OPEN
    assert encode_context(COUNTED).hex() == GOLDEN_COUNTED
    assert decode_context(key_of("t", 3), bytes.fromhex(GOLDEN_COUNTED)) == COUNTED
    assert decode_context(key_of("t", 3), bytes.fromhex(GOLDEN_OPEN)) == Context("t", 3, UUID, complete=False)
    assert key_of("t", 258) == b"t\x00\x00\x00\x00\x00\x00\x00\x01\x02"
    assert decode_context(key_of("t", 3), bytes.fromhex(GOLDEN_COMPLETE)) == COMPLETE
    assert COMPLETE.data == "offload/t/00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert COMPLETE.index_segment == COMPLETE.data + "-index"


def test_fields_of_a_newer_minor_version_are_passed_over() -> None:
    row = [1, 2, UUID, 2, 5000, 100, [7, 0, 10], [9], "newer"]
    assert decode_context(key_of("t", 3), msgpack.packb(row)) == COUNTED
    row = [1, 0, UUID, 2, 5000, 100, [7, 0, 10], "of nobody"]
    assert decode_context(key_of("t", 3), msgpack.packb(row)) == COMPLETE


@pytest.mark.parametrize(
    "row",
    [
        [2, 0, UUID, 2, 0, 0, []],
        [1, 0, UUID[:15], 2, 0, 0, []],
        [1, 0, UUID, 3, 0, 0, []],
        [1, 0, UUID, 2, -1, 0, []],
        [1, 0, UUID, 2, 1 << 63, 0, []],
        [1, 0, UUID, 2, 0, True, []],
        [1, 0, UUID, 2, 0, 0, [1, 2]],
        [1, 0, UUID, 2, 0, 0, [1, 5, 4]],
        [1, 0, UUID, 2, 0, 0, 7],
        [1, 0, UUID, 2, 0, 0],
        [1, 1, UUID, 2, 0, 0, [7, 0, 10]],
        [1, 1, UUID, 2, 0, 0, [7, 0, 10], 9],
        [1, 1, UUID, 2, 0, 0, [7, 0, 10], [9, 9]],
        [1, 1, UUID, 2, 0, 0, [7, 0, 10], [12]],
        [1, 1, UUID, 2, 0, 0, [7, 0, 10], [-1]],
        [1, "1", UUID, 2, 0, 0, [7, 0, 10], []],
        7,
        {},
    ],
)
def test_wrong_rows_are_damage(row: object) -> None:
    with pytest.raises(Damaged, match="offload"):
        decode_context(key_of("t", 0), msgpack.packb(row))


@given(st.binary(max_size=40), st.binary(max_size=80))
def test_hostile_rows_are_damage(key: bytes, value: bytes) -> None:
    try:
        decode_context(key, value)
    except Damaged:
        return


@given(st.integers(0, len(GOLDEN_COMPLETE) // 2 - 1), st.integers(0, 255))
def test_a_changed_byte_is_read_as_something_else_or_refused(at: int, byte: int) -> None:
    raw = bytearray.fromhex(GOLDEN_COMPLETE)
    raw[at] = byte
    try:
        found = decode_context(key_of("t", 3), bytes(raw))
    except Damaged:
        return
    assert decode_context(key_of("t", 3), encode_context(found)) == found


@pytest.mark.parametrize("topic", ["", "x" * 201, "a\0b", "\ud800", 7, None])
def test_topics_are_checked(topic: object) -> None:
    with pytest.raises(InvalidArgument):
        check_topic(topic)


def test_nested_claims_take_memory_in_proportion() -> None:
    row = b"\xdc\x30\x00" * 1000
    tracemalloc.start()
    try:
        with pytest.raises(Damaged):
            decode_context(key_of("t", 0), row)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 200 * len(row) + (64 << 10)


def test_as_many_ledgers_as_a_row_holds() -> None:
    ranges = tuple(EntryRange(number, 0, number) for number in range(4096))
    full = COMPLETE._replace(ranges=ranges)
    assert decode_context(key_of("t", 3), encode_context(full)) == full
