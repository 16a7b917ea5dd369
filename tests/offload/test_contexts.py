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
GOLDEN_OPEN = "9a0102c410000102030405060708090a0b0c0d0e0f01000090909300000090"
GOLDEN_COMPLETE = "9a0102c410000102030405060708090a0b0c0d0e0f02cd1388649307000a910993010200" + "90"
COMPLETE = Context("t", 3, UUID, True, 5000, 100, (EntryRange(7, 0, 10, 9),), assigned_ms=1, offloaded_ms=2)
GOLDEN_STREAMING = "9a0102c410000102030405060708090a0b0c0d0e0f0300009090950100020504" + "92a162a163"
STREAMING = Context("t", 3, UUID, False, assigned_ms=1, failures=2, failed=True, begin=(5, 4), driver=(("b", "c"),))


def test_golden_bytes() -> None:
    new = Context("t", 3, UUID, complete=False)
    for context, golden in ((new, GOLDEN_OPEN), (COMPLETE, GOLDEN_COMPLETE), (STREAMING, GOLDEN_STREAMING)):
        assert encode_context(context).hex() == golden
        assert decode_context(key_of("t", 3), bytes.fromhex(golden)) == context
    assert [item.status for item in (new, COMPLETE, STREAMING)] == ["Assigned", "Offloaded", "Failed"]
    assert (COMPLETE.end, STREAMING.end) == ((7, 10), None)
    assert key_of("t", 258) == b"t\x00\x00\x00\x00\x00\x00\x00\x01\x02"
    assert COMPLETE.data == "offload/t/00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert COMPLETE.index_segment == COMPLETE.data + "-index"


def test_fields_of_a_newer_minor_version_are_passed_over() -> None:
    row = [1, 3, UUID, 2, 5000, 100, [7, 0, 10], [9], [1, 2, 0], [], "newer"]
    assert decode_context(key_of("t", 3), msgpack.packb(row)) == COMPLETE


def row(at: int, value: object) -> list[object]:
    """A correct row from its field 2 on, but for field ``at``."""
    return [value if number == at else field for number, field in enumerate([UUID, 2, 0, 0, [], [], [1, 2, 0], []], 2)]


@pytest.mark.parametrize(
    "row",
    [
        [2, 2, *row(2, UUID)],
        [1, 2, *row(2, UUID[:15])],
        *([1, 2, *row(3, value)] for value in (0, 4)),
        *([1, 2, *row(4, value)] for value in (-1, 1 << 63)),
        [1, 2, *row(5, True)],
        *([1, 2, *row(6, value)] for value in ([1, 2], [1, 5, 4], 7)),
        *([1, 2, *row(7, value)] for value in ([9], 9)),
        *([1, 2, UUID, 2, 0, 0, *wrong, [1, 2, 0], []] for wrong in ([[7, 5, 4], [1]], [[7, 0, 10], [12]])),
        *([1, 2, *row(8, value)] for value in ([1, 2], [1, 2, 0, 3], [1, 2, "0"], 1)),
        *([1, 2, *row(9, value)] for value in (["a"], ["a", 1], "a")),
        *([1, minor, *row(2, UUID)][:length] for minor, length in ((0, 7), (1, 8), (2, 9), ("2", 10))),
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
