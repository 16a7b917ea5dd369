"""Records: what consumers get, one by one and in Arrow, whatever producers, transactions, compression and damage make of them."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkstore.codec.kafka.batches import EVERYTHING, ReadOptions, iter_batches
from chunkstore.codec.kafka.indexes import AbortedTransaction
from chunkstore.codec.kafka.record_batches import RECORD_SCHEMA, record_batches
from chunkstore.codec.kafka.records import (
    Record,
    Transactions,
    iter_records,
    scan_transactions,
)
from chunkstore.errors import Damaged, InvalidArgument
from tests.kafka.support_batches import TIME, Made, batch_of, compressed, control_of, record_of, source_of, varint
from tests.kafka.support_batches import arrow_of as arrow_rows

EVERY_CODEC = ("none", "gzip", "snappy", "snappy-raw", "lz4", "zstd", "zstd-unsized")
MADE = st.builds(
    Made,
    st.none() | st.binary(max_size=200),
    st.none() | st.binary(max_size=70),
    st.lists(st.tuples(st.binary(max_size=70), st.none() | st.binary(max_size=70)), max_size=3),
    st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-200, 200),
    st.none(),
)


def rows_of(data: bytes, options: ReadOptions = EVERYTHING, **more: Any) -> list[Record]:
    """The records of a log, one by one."""
    return list(iter_records(source_of(data), "t", 1, options=options, **more))


def arrow_of(data: bytes, options: ReadOptions = EVERYTHING, **more: Any) -> list[Record]:
    """The same out of Arrow batches."""
    return arrow_rows(source_of(data), options=options, **more)


def outcome_of(read: Any, data: bytes) -> Any:
    """The rows, or the damage."""
    try:
        return read(data)
    except Damaged as error:
        return error.message


@given(st.lists(st.lists(MADE, max_size=4), max_size=4), st.sampled_from(EVERY_CODEC), st.booleans())
def test_what_is_written_is_read(batches: list[list[Made]], codec: str, appended: bool) -> None:
    data, expected = b"", []
    for number, several in enumerate(batches):
        fields = {"leader_epoch": number, "producer_id": number - 1, "transactional": number == 1}
        data += batch_of(several, 10 * number, codec, appended=appended, max_timestamp=5, **fields)
        for place, made in enumerate(several):
            time = (TIME + made.time_delta + (1 << 63)) % (1 << 64) - (1 << 63)
            names = tuple((name.decode(errors="replace"), value) for name, value in made.headers)
            times = (5, "append") if appended else (time, "create")
            ours = (made.key, made.value, names, number, number - 1, number == 1)
            expected.append(Record("t", 1, 10 * number + place, *times, *ours))  # type: ignore[arg-type]
    assert rows_of(data) == expected
    assert arrow_of(data) == expected


def test_columns() -> None:
    data = batch_of([Made(b"v", b"k")] * 3, 5) + batch_of([Made(None, headers=[(b"h", b"x")] * 70)], 8)
    whole = pa.Table.from_batches(record_batches(source_of(data), "t", 0)).to_pydict()
    assert whole["value"] == [b"v", b"v", b"v", None]
    for names in (["value"], ["offset", "topic"], ["headers", "key"], list(RECORD_SCHEMA.names)):
        found = pa.Table.from_batches(record_batches(source_of(data), "t", 0, columns=names))
        assert found.schema == pa.schema([RECORD_SCHEMA.field(name) for name in names])
        assert found.to_pydict() == {name: whole[name] for name in names}
    for wrong in ([], ["value", "value"], ["nothing"]):
        with pytest.raises(InvalidArgument):
            record_batches(source_of(data), "t", 0, columns=wrong)


# --- transactions ---------------------------------------------------------------------------------------------------


def plain(base: int, producer_id: int = -1, **fields: Any) -> bytes:
    """A batch of two records; transactional where a producer is given."""
    return batch_of(
        [Made(b"%d" % base), Made()], base, producer_id=producer_id, transactional=producer_id >= 0, **fields
    )


LOG = (
    plain(0, 1) + plain(2, 2) + plain(4) + control_of(6, 1, 0) + plain(7, 1) + control_of(9, 2, 1)
    + control_of(10, 1, 1) + plain(11, 3) + plain(13) + plain(15, 1)
)  # fmt: skip


def test_a_scan_finds_aborted_and_open_transactions() -> None:
    found = scan_transactions(iter_batches(source_of(LOG)))
    assert found == Transactions((AbortedTransaction(1, 0, 6),), 11, {3: 11, 1: 15})
    assert found.last_stable_offset == 11
    committed = [row.offset for row in rows_of(LOG, isolation="read_committed", transactions=found)]
    assert committed == [2, 3, 4, 5, 7, 8]
    assert arrow_of(LOG, isolation="read_committed", transactions=found) == [
        row for row in rows_of(LOG) if row.offset in committed
    ]
    everything = [row.offset for row in rows_of(LOG, transactions=found)]
    assert everything == [0, 1, 2, 3, 4, 5, 7, 8, 11, 12, 13, 14, 15, 16]


# --- damage ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", EVERY_CODEC[1:])
def test_more_than_the_limit_is_refused_before_it_is_in_memory(codec: str) -> None:
    bomb = batch_of([Made(bytes(40 << 20))], 0, codec)
    options = ReadOptions(records_bytes_max=1 << 20, batch_bytes_max=64 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(Damaged, match="1048576"):
            rows_of(bomb, options)
        assert tracemalloc.get_traced_memory()[1] < 10 * len(bomb) + (4 << 20)
    finally:
        tracemalloc.stop()
    assert len(rows_of(bomb)) == 1


@pytest.mark.parametrize("codec", EVERY_CODEC[1:])
def test_a_stream_that_is_cut_or_goes_on_is_damage(codec: str) -> None:
    several = [Made(b"some text that repeats " * 9), Made(b"another")]
    whole = compressed(codec, b"".join(record_of(made, at) for at, made in enumerate(several)))
    good = batch_of(several, 0, codec)
    assert len(rows_of(good)) == 2
    for cut in range(len(whole)):
        found = outcome_of(rows_of, batch_of(several, 0, codec, stored=whole[:cut]))
        assert isinstance(found, str) or (found == rows_of(good) and len(whole) - cut <= 8), f"cut at {cut}"
    for more in (b"\1", b"junk" * 9):
        assert isinstance(outcome_of(rows_of, batch_of(several, 0, codec, stored=whole + more)), str)


RECORDS = b"".join(
    record_of(made, at) for at, made in enumerate([Made(b"v", b"k", [(b"h", b"x"), (b"i", None)]), Made(b"w" * 80)])
)


@given(st.integers(0, len(RECORDS) - 1), st.binary(min_size=0, max_size=3), st.integers(0, 3), st.integers(0, 3))
def test_records_that_lie_under_a_right_checksum(at: int, put: bytes, cut: int, count: int) -> None:
    data = batch_of([Made()], 5)
    lying = batch_of([Made()] * 2, 6, stored=RECORDS[:at] + put + RECORDS[at + cut :], count=count, last_offset_delta=2)
    rows = outcome_of(rows_of, data + lying)
    assert outcome_of(arrow_of, data + lying) == rows
    if isinstance(rows, str):
        assert f"segment at byte {len(data)}: batch at offset 6" in rows
        some = iter_records(source_of(data + lying), "t", 1)
        assert next(some).offset == 5
        assert next(record_batches(source_of(data + lying), "t", 1)).num_rows >= 1


@pytest.mark.parametrize(
    "record",
    [
        varint(1 << 30) + b"\0\0\0\1\1\0",
        varint(-1),
        b"\x80" * 6 + b"\1",
        varint(6) + b"\0\0\0" + varint(-2) + b"\1\0",
        varint(6) + b"\0\0\2\1\1\0",  # an offset delta after the batch's last one
        varint(6) + b"\0\0\1\1\1\0",  # a negative one
        varint(10) + b"\0\0\0\1\1" + varint(1 << 30)[:5],
        varint(8) + b"\0\0\0\1\1\2\1\1",  # a header whose name is null
        varint(7) + b"\0\0\0\1\1\0x",  # a byte too many
        varint(15) + b"\0" + b"\xff" * 10 + b"\0\1\1\0",
    ],
    ids=range(10),
)  # fmt: skip
def test_a_record_that_lies(record: bytes) -> None:
    data = batch_of([record], 0)
    assert "batch at offset 0: " in outcome_of(rows_of, data)
    assert outcome_of(arrow_of, data) == outcome_of(rows_of, data)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"stored": b"\x80" * (1 << 20)}, "a number of more than 5 bytes"),
        ({"stored": compressed("gzip", b"") * 100_000, "codec": "gzip"}, "more than 64 gzip members"),
        ({"count": 1 << 30, "last_offset_delta": (1 << 31) - 1}, "1073741824 records in"),
    ],
    ids=["a number", "members", "a count without records"],
)
def test_what_has_no_end_takes_no_memory(fields: dict[str, Any], message: str) -> None:
    data = batch_of([Made()], 0, **fields)
    assert message in outcome_of(rows_of, data)
    assert outcome_of(arrow_of, data) == outcome_of(rows_of, data)
