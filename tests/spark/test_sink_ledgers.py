"""Ledgers as Spark writes them, without a JVM: the bytes of the offload writer, in one commit, behind what is stored."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

import pyarrow as pa

import chunkstore
from chunkstore.errors import Conflict, InvalidArgument
from chunkstore.pulsar import LedgerReader, OffloadWriter
from chunkstore.pulsar.contexts import Context, EntryRange, iter_contexts
from tests.support.spark_tasks import home, store, write_batch, write_micro_batch

__all__ = ["home", "store"]

Options = dict[str, str]
Row = tuple[int, int, bytes]
SCHEMA = pa.schema([("ledger", pa.int64()), ("entry", pa.int64()), ("payload", pa.binary())])


def options(home: Path, **more: str) -> Options:
    return {"path": f"file://{home}/root", **more}


def payload(ledger: int, entry: int) -> bytes:
    return b"%d/%d " % (ledger, entry) * (1 + entry % 300)


def entries(ledger: int, first: int, stop: int) -> list[Row]:
    return [(ledger, entry, payload(ledger, entry)) for entry in range(first, stop)]


def frame(rows: Sequence[Row], topic: Sequence[str] | None = None) -> pa.Table:
    table = pa.table([list(column) for column in zip(*rows, strict=True)], schema=SCHEMA)
    return table if topic is None else table.append_column("topic", pa.array(topic))


def stored(store: chunkstore.ChunkedSegmentStorage, topic: str, *ledgers: int) -> list[Row]:
    return [(*item,) for ledger in ledgers for item in LedgerReader(store).read(topic, ledger)]


def objects(store: chunkstore.ChunkedSegmentStorage, topic: str) -> list[tuple[Context, bytes, bytes]]:
    """A topic's contexts, without names and times, and the bytes of their data and indexes."""
    return [
        (
            context._replace(topic="", uuid=b"", version=0, assigned_ms=0, offloaded_ms=0),
            store.read(context.data, 0, 1 << 30),
            store.read(context.index_segment, 0, 1 << 30),
        )
        for context in iter_contexts(store, topic)
    ]


def test_the_bytes_are_those_of_the_offload_writer(store: chunkstore.ChunkedSegmentStorage, home: Path) -> None:
    rows = [*entries(3, 0, 3000), *entries(9, 100, 900), *entries(9, 900, 2500)]
    write_batch(options(home, topic="spark", chunkBytes="1500000") | {"as": "ledger"}, frame(rows))
    with OffloadWriter(store, "batches", segment_bytes_max=1_500_000) as writer:
        for ledger, first, stop in ((3, 0, 3000), (9, 100, 2500)):
            writer.append_batch(ledger, first, pa.array([payload(ledger, entry) for entry in range(first, stop)]))
    with OffloadWriter(store, "entries", segment_bytes_max=1_500_000) as writer:
        for row in rows:
            writer.append(*row)
    found = objects(store, "spark")
    assert len(found) == 3
    assert found == objects(store, "batches") == objects(store, "entries")
    assert [item.entries for context, _, _ in found for item in context.ranges] == [
        item.last_entry - item.first_entry + 1 for context, _, _ in found for item in context.ranges
    ]
    assert stored(store, "spark", 3, 9) == rows
    for context in iter_contexts(store, "spark"):
        assert store.info(context.data).sealed
        assert store.info(context.index_segment).sealed
        assert store.info(context.data).chunk_count == 1
    assert store.sessions() == []
    assert store.check("deep") == []


@pytest.mark.parametrize(
    ("tasks", "argument", "says"),
    [
        ([entries(1, 0, 5) + entries(1, 6, 8)], "entry", "entry 6 .* follows entry 4, 5 was expected"),
        ([entries(1, 3, 5) + entries(1, 4, 8)], "entry", "entry 4 .* follows entry 4, 5 was expected"),
        ([entries(1, 0, 5) + entries(2, 0, 1) + entries(1, 6, 8)], "entry", "entry 6 .* follows entry 4"),
        ([entries(1, 0, 5), entries(1, 4, 8)], "entry", "0 to 4 and 4 to 7 of ledger 1 .* overlap"),
        ([entries(1, 6, 8), entries(1, 0, 5)], "entry", "0 to 4 and 6 to 7 of ledger 1 .* leave a gap"),
        ([entries(1, 0, 5) + entries(2, 5, 9), entries(1, 5, 9) + entries(2, 0, 5)], "ledger", "crosswise"),
        ([[(1, -1, b"")]], "entry", "-1"),
        ([[(-1, 0, b"")]], "ledger", "-1"),
        ([[(1, (1 << 63) - 1, b""), (1, -(1 << 63), b"")]], "entry", "ascend"),
    ],
)
def test_what_does_not_follow_in_the_rows_is_refused(
    store: chunkstore.ChunkedSegmentStorage, home: Path, tasks: list[list[Row]], argument: str, says: str
) -> None:
    with pytest.raises(InvalidArgument, match=says) as caught:
        write_batch(options(home, topic="t"), *map(frame, tasks))
    assert caught.value.argument == argument
    assert list(store.segments()) == []
    assert iter_contexts(store, "t") == []


def test_what_is_stored_is_gone_on_with_and_nothing_else(store: chunkstore.ChunkedSegmentStorage, home: Path) -> None:
    chosen = options(home, topic="t")
    with OffloadWriter(store, "t") as writer:
        for row in entries(1, 0, 10):
            writer.append(*row)
    write_batch(chosen, frame(entries(1, 10, 20)), frame(entries(2, 0, 5)))
    for rows, expected, found in (
        (entries(1, 0, 20), 20, 0),
        (entries(1, 19, 25), 20, 19),
        (entries(2, 6, 9), 5, 6),
        ([*entries(3, 0, 9), *entries(2, 4, 9)], 5, 4),
    ):
        before = list(store.segments())
        with pytest.raises(Conflict, match="topic 't'") as caught:
            write_batch(chosen, frame(rows))
        assert (caught.value.expected, caught.value.found) == (expected, found)
        assert list(store.segments()) == before
        assert store.sessions() == []
    assert stored(store, "t", 1, 2) == [*entries(1, 0, 20), *entries(2, 0, 5)]
    with OffloadWriter(store, "t") as writer:
        assert (writer.last_entry(1), writer.last_entry(2)) == (19, 4)
        writer.append(1, 20, b"on")
        writer.flush()
        with pytest.raises(Conflict, match="OffloadWriter") as caught:
            write_batch(chosen, frame(entries(7, 0, 1)))
        assert (caught.value.expected, caught.value.found) == ("complete", "open")
    write_batch(chosen, frame(entries(7, 0, 1)))
    assert [context.ranges[0] for context in iter_contexts(store, "t")] == [
        EntryRange(1, 0, 9, 10),
        EntryRange(1, 10, 19, 10),
        EntryRange(2, 0, 4, 5),
        EntryRange(1, 20, 20, 1),
        EntryRange(7, 0, 0, 1),
    ]


def test_jobs_and_micro_batches_that_come_again_write_nothing(
    store: chunkstore.ChunkedSegmentStorage, home: Path
) -> None:
    chosen = options(home, topic="t", txnAppId="nightly", txnVersion="1")
    for _ in range(2):
        write_batch(chosen, frame(entries(1, 0, 9)))
    stream = options(home, topic="t", checkpointlocation="/c")
    for number in (0, 0, 1, 1):
        write_micro_batch(stream, number, frame(entries(1, 9 * number + 9, 9 * number + 18)))
    assert stored(store, "t", 1) == entries(1, 0, 27)
    assert len(iter_contexts(store, "t")) == 3
