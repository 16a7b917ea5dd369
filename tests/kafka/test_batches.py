"""The framing of record batches: order, tails, what is passed over, how much is read, and damage of every kind."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkstore.codec.kafka.batches import CRC_BEGINS, LogSummary, ReadOptions, Tail, iter_batches, validate
from chunkstore.errors import Damaged, InvalidArgument, Unsupported
from tests.kafka.support_batches import Made, batch_of, source_of

FIRST, SECOND, THIRD = (batch_of([Made(), Made(b"w" * 40)], base) for base in (10, 12, 20))
LOG = FIRST + SECOND + THIRD
EDGES = (0, len(FIRST), len(FIRST + SECOND), len(LOG))
UNFINISHED = ReadOptions(unfinished=True)


def bases_of(data: bytes, options: ReadOptions = UNFINISHED) -> list[int]:
    """The base offsets of the batches in ``data``."""
    return [batch.base_offset for batch in iter_batches(source_of(data), options)]


def refused_at(data: bytes, options: ReadOptions = UNFINISHED) -> int:
    """The position of the damage."""
    with pytest.raises(Damaged) as caught:
        bases_of(data, options)
    assert caught.value.object == "segment"
    return caught.value.position


def test_a_summary_counts_gaps_and_epochs_that_go_back() -> None:
    later = batch_of([Made()], 30, leader_epoch=4, max_timestamp=9_000_000_000_000) + batch_of(
        [Made()], 31, leader_epoch=2
    )
    found = validate(source_of(LOG + later), ReadOptions(floor=10))
    end = len(LOG + later)
    assert found == LogSummary(5, 8, 10, 32, end, 9_000_000_000_000, gaps=2, epoch_drops=1, tail=None)
    assert validate(source_of(b""), ReadOptions(floor=7)) == LogSummary(end_offset=7)


def test_base_offsets_ascend_though_no_checksum_covers_them() -> None:
    assert bases_of(LOG) == [10, 12, 20]
    assert refused_at(FIRST + THIRD + SECOND) == 2 * len(FIRST)
    assert refused_at(FIRST + FIRST) == len(FIRST)
    assert refused_at(LOG, ReadOptions(floor=11)) == 0
    assert refused_at(LOG, ReadOptions(dense=True)) == EDGES[2]
    assert bases_of(FIRST + SECOND, ReadOptions(dense=True, floor=3)) == [10, 12]
    assert refused_at(batch_of([Made()], -1)) == 0
    assert refused_at(batch_of([Made(), Made()], (1 << 63) - 1)) == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"length": 48},
        {"length": -1},
        {"length": 0},
        {"count": -1},
        {"count": 3},
        {"last_offset_delta": -1, "count": 0},
        {"crc": 1},
        {"magic": 3},
        {"magic": 1, "length": 13},
        {"magic": -1},
    ],
    ids=str,
)
def test_a_header_that_is_wrong_is_damage(fields: dict[str, Any]) -> None:
    made = batch_of([Made(), Made(b"w" * 40)], 12, **fields)
    assert refused_at(FIRST + made + THIRD) == len(FIRST)


@pytest.mark.parametrize("magic", [0, 1])
def test_message_sets_are_named(magic: int) -> None:
    with pytest.raises(Unsupported, match=f"segment at byte {len(FIRST)}.*magic {magic}"):
        bases_of(FIRST + batch_of([Made()], 12, magic=magic))


@given(st.integers(0, len(LOG)))
def test_a_log_that_is_cut_anywhere_has_a_tail(cut: int) -> None:
    whole = sum(edge <= cut for edge in EDGES) - 1
    summary = LogSummary()
    assert len(bases_of(LOG[:cut], UNFINISHED._replace(summary=summary))) == whole
    left = cut - EDGES[whole]
    assert summary.tail == (Tail(EDGES[whole], left, not LOG[EDGES[whole] : cut].strip(b"\0")) if left else None)
    assert summary.end_position == EDGES[whole]
    if left:
        assert refused_at(LOG[:cut], ReadOptions()) == EDGES[whole]


@pytest.mark.parametrize("tail", [bytes(1), bytes(60), bytes(61), bytes(3 << 20), bytes(2 << 20) + b"x"], ids=len)
def test_preallocated_zeros_are_a_tail_that_is_called_so(tail: bytes) -> None:
    assert validate(source_of(LOG + tail), UNFINISHED).tail == Tail(len(LOG), len(tail), zeros=b"x" not in tail)
    assert refused_at(LOG + tail, ReadOptions()) == len(LOG)


@given(st.integers(0, 8 * len(SECOND) - 1))
def test_a_bit_that_flips_is_found_or_is_in_no_checksum(bit: int) -> None:
    damaged = bytearray(SECOND)
    damaged[bit // 8] ^= 1 << bit % 8
    try:
        found = list(iter_batches(source_of(FIRST + bytes(damaged))))
    except (Damaged, Unsupported) as error:
        assert str(len(FIRST)) in error.message
    else:
        assert bit // 8 < CRC_BEGINS
        assert found[1].body == SECOND[CRC_BEGINS:]
        assert found[1].base_offset != 12 or found[1].leader_epoch != 0


@given(st.binary(max_size=300), st.booleans())
def test_any_bytes_are_refused_or_a_tail(data: bytes, unfinished: bool) -> None:
    try:
        found = bases_of(FIRST + data, ReadOptions(unfinished=unfinished))
    except (Damaged, Unsupported):
        return
    assert found == [10]
    assert unfinished or not data


def test_a_batch_longer_than_the_limit_is_refused_unread() -> None:
    long = batch_of([Made(bytes(5000))], 12)
    assert refused_at(FIRST + long, ReadOptions(batch_bytes_max=len(long) - 13)) == len(FIRST)
    assert bases_of(FIRST + long, ReadOptions(batch_bytes_max=len(long) - 12)) == [10, 12]


def test_a_position_outside_of_the_object_is_refused() -> None:
    for position in (-1, len(LOG) + 1):
        with pytest.raises(InvalidArgument):
            validate(source_of(LOG), ReadOptions(position=position))
