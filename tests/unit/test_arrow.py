"""Segments and ledgers as Arrow batches: every record once with its offset, bounded batches, and errors that name their place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import chunkstore
from chunkstore.errors import BadOffset, Damaged, InvalidArgument, SegmentNotFound
from chunkstore.pulsar import LedgerNotFound, OffloadWriter
from chunkstore.records.framing import Framing, framed

pa = pytest.importorskip("pyarrow", reason="not tested: Arrow batches (pyarrow is not installed)")

from chunkstore.arrow import LEDGER_SCHEMA, SCHEMA, TEXT_SCHEMA, ledger_batches, to_batches  # noqa: E402

VALUES = [b"%d" % number * (number % 97) for number in range(3000)] + [b"x" * 9000, b"", b"last"]


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[chunkstore.Store]:
    with chunkstore.open(f"memory://arrow-{request.node.name}") as opened:
        opened.create("s")
        yield opened


@pytest.mark.parametrize("framing", ["lines", "length-prefixed"])
def test_every_record_is_a_row_of_a_bounded_batch(store: chunkstore.Store, framing: Framing) -> None:
    offsets = [store.append("s", framed(value, framing)) for value in VALUES]
    with chunkstore.open_replica(store.url) as replica:
        for source in (store, replica):
            reader = to_batches(source, "s", framing, batch_bytes=4096, batch_rows=50)
            assert reader.schema == SCHEMA
            batches = list(reader)
            rows = [(row["offset"], row["value"]) for batch in batches for row in batch.to_pylist()]
            assert rows == list(zip(offsets, VALUES, strict=True))
            sizes = [(batch.num_rows, sum(map(len, batch["value"].to_pylist()))) for batch in batches]
            assert all(rows <= 50 and (size <= 4096 or rows == 1) for rows, size in sizes)
            assert max(rows for rows, _ in sizes) == 50
            assert max(size for _, size in sizes) == 9000
    whole = to_batches(store, "s", framing, start=offsets[5], stop=offsets[9]).read_all()
    assert whole["offset"].to_pylist() == offsets[5:9]


def test_pieces_are_all_bytes_with_their_offsets(store: chunkstore.Store) -> None:
    data = bytes(range(256)) * 100
    store.append("s", data)
    store.truncate("s", 300)
    rows = to_batches(store, "s", "none", batch_bytes=5000).read_all()
    assert b"".join(rows["value"].to_pylist()) == data[300:]
    assert rows["offset"].to_pylist() == [300, 5300, 10300, 15300, 20300, 25300]


def test_the_call_fixes_the_end(store: chunkstore.Store) -> None:
    store.append("s", b"a\nb")
    reader = to_batches(store, "s", text=True)
    store.append("s", b"c\n")
    assert reader.schema == TEXT_SCHEMA
    assert reader.read_all().to_pylist() == [{"offset": 0, "value": "a"}, {"offset": 2, "value": "b"}]
    assert to_batches(store, "s", stop=0).read_all().num_rows == 0


@pytest.mark.parametrize(
    ("data", "framing", "position"),
    [
        (b"ab\n" + b"c" * 11 + b"\n", "lines", 3),
        ("grün\n".encode() * 2 + b"gr\xfcn\n", "lines", 12),
        (b"\0\0\0\1x" + b"\xff\xff\xff\xff", "length-prefixed", 5),
        (b"\0\0\0\1x" + b"\0\0\0\3x", "length-prefixed", 5),
    ],
)
def test_hostile_records_are_errors_with_their_place(
    store: chunkstore.Store, data: bytes, framing: Framing, position: int
) -> None:
    store.append("s", data)
    with pytest.raises(Damaged, match=rf"UTF-8|cut off|more than 10 bytes begins at {position}") as found:
        list(to_batches(store, "s", framing, text=True, record_bytes_max=10))
    assert (found.value.object, found.value.position) == ("segment s", position)


def test_arguments_are_checked_at_the_call(store: chunkstore.Store) -> None:
    store.append("s", b"line\n")
    wrongs: dict[str, Any] = {"framing": "csv", "batch_bytes": 4095, "batch_rows": 0, "text": "yes", "stop": -1}
    for argument, value in (wrongs | {"record_bytes_max": 2 << 30}).items():
        with pytest.raises(InvalidArgument, match=argument):
            to_batches(store, "s", **{argument: value})
    with pytest.raises(SegmentNotFound):
        to_batches(store, "absent")
    with pytest.raises(BadOffset):
        to_batches(store, "s", start=6)


def test_a_ledger_is_its_entries(store: chunkstore.Store) -> None:
    with OffloadWriter(store, "orders", block_bytes=4096) as writer:
        for entry in range(0, 2000, 2):
            writer.append(7, entry, b"order %d" % entry)
    found = ledger_batches(store, "orders", 7).read_all()
    assert found.schema == LEDGER_SCHEMA
    assert found.to_pylist() == [{"entry": entry, "value": b"order %d" % entry} for entry in range(0, 2000, 2)]
    assert ledger_batches(store, "orders", 7, start=9, stop=14).read_all()["entry"].to_pylist() == [10, 12]
    assert ledger_batches(store, "orders", 7, start=9, stop=9).read_all().num_rows == 0
    with pytest.raises(LedgerNotFound):
        ledger_batches(store, "orders", 8)
    with pytest.raises(InvalidArgument, match="stop"):
        ledger_batches(store, "orders", 7, stop=-1)


def test_an_engine_gets_an_error_and_not_a_short_answer(store: chunkstore.Store) -> None:
    polars = pytest.importorskip("polars", reason="not tested: batches in Polars")
    duckdb = pytest.importorskip("duckdb", reason="not tested: batches in DuckDB")
    store.append("s", b"ab\n" * 400_000)
    store.append("s", b"c" * 11 + b"\n")
    for read in (polars.from_arrow, lambda reader: duckdb.sql("SELECT count(*) FROM reader").fetchall()):
        with pytest.raises(Exception, match="more than 10 bytes begins at 1200000"):
            read(to_batches(store, "s", record_bytes_max=10))
