"""Metadata as tables, without Spark: what the rows say, how they are cut, and that nothing is read for them."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import chunkstore
from chunkstore.assembly import journal_records
from chunkstore.config import KIB
from chunkstore.errors import InvalidArgument, SegmentNotFound
from chunkstore.records import GarbageRecord, LayoutChunk, SegmentInfo
from chunkstore.spark.columns import TABLES
from chunkstore.spark.options import OPTIONS, parse_options
from tests.support.settings import tuned

pytest.importorskip("pyarrow", reason="pyarrow is not installed: Spark's batches are not tested")

from chunkstore.pulsar import LedgerNotFound, LedgerReader, LedgerSummary, OffloadWriter
from chunkstore.pulsar.planning import TopicPlanner
from chunkstore.spark import tables
from chunkstore.spark.tables import plan_table, table_batches
from tests.support.spark_ground import Ground, filled

TOPIC = "public/default/persistent/orders"


class Tables(Ground):
    def tasks(self, table: str, columns: Sequence[str] = (), **given: str) -> list[Any]:
        options = parse_options({"path": self.url, "metadata": table, **given})
        with chunkstore.open_replica(
            self.url, settings=self.settings, at_lsn=options.as_of_lsn, at_time=options.as_of_ms
        ) as replica:
            return plan_table(replica, options, columns or options.columns)

    def rows(self, table: str, columns: Sequence[str] = (), **given: str) -> list[dict[str, Any]]:
        wanted = [(name, True) for name in columns or TABLES[table].columns]
        found: list[dict[str, Any]] = []
        for task in self.tasks(table, columns, **given):
            for batch in table_batches(pickle.loads(pickle.dumps(task)), wanted):
                batch.validate(full=True)
                found += batch.to_pylist()
        return found


@pytest.fixture
def ground(tmp_path: Path) -> Tables:
    return Tables(tmp_path)


def ms(row: dict[str, datetime], column: str) -> int:
    return round(row[column].timestamp() * 1000)


def test_columns_are_the_fields_of_the_records() -> None:
    def named(fields: Sequence[str]) -> list[str]:
        return ["time" if name == "time_ms" else name[:-3] + "_at" if name.endswith("_ms") else name for name in fields]

    from chunkstore_journal.inspect import RecordInfo

    expected: dict[str, Sequence[str]] = {
        "segments": SegmentInfo._fields,
        "chunks": ("segment", *LayoutChunk._fields),
        "ledgers": LedgerSummary._fields,
        "garbage": GarbageRecord._fields[:-1],
        "journal": RecordInfo._fields,
    }
    assert {name: list(table.columns) for name, table in TABLES.items()} == {
        name: named(fields) for name, fields in expected.items()
    }


def test_rows_are_what_the_replica_says(ground: Tables) -> None:
    with ground.open() as store:
        filled(store, "b", 1000, 100)
        filled(store, "a/\N{GREEK SMALL LETTER ALPHA}", 250, 100)
        store.update_attributes("b", {"n": 7, "text": "x", "raw": b"\xff"})
        filled(store, "gone", 250, 100)
        store.delete("gone")
        store.seal("b")
        lsn = store._container.current.store.head().position.lsn
        with ground.replica() as replica:
            infos, garbage = list(replica.segments()), replica.garbage()
            layouts = [(info.name, *chunk) for info in infos for chunk in replica.layout(info.name)]
    segments = ground.rows("segments")
    assert [row["name"] for row in segments] == ["a/\N{GREEK SMALL LETTER ALPHA}", "b"]
    assert dict(segments[1]["attributes"]) == {"n": "7", "text": "x", "raw": "ff"}
    assert (segments[1]["sealed"], ms(segments[1], "modified_at")) == (True, infos[1].modified_at)
    assert [row["name"] for row in ground.rows("segments", segmentsPattern="a/.")] == [infos[0].name]
    assert [tuple(row.values()) for row in ground.rows("chunks", segments=f"b,{infos[0].name}")] == layouts
    assert [row["offset"] for row in ground.rows("chunks", ["offset"], segments="b")] == list(range(0, 1000, 100))
    with pytest.raises(SegmentNotFound):
        ground.rows("chunks", segments="b,gone")
    (removed,) = ground.rows("garbage")
    assert (removed["count"], removed["size_bytes"]) == garbage and ground.file(removed["first"]).exists()
    # The past
    records = ground.rows("journal")
    stored = list(journal_records(ground.url))
    assert [row["lsn"] for row in records] == [record["lsn"] for record in stored]
    assert records[-1]["hash"] == stored[-1]["hash"].hex()  # type: ignore[attr-defined]
    assert records[-1]["digest"] == f"{stored[-1]['digest']:064x}"
    assert ms(records[-1], "time") == stored[-1]["time_ms"]
    assert [row["lsn"] for row in ground.rows("journal", lsnAsOf=str(lsn))][-1] == lsn < records[-1]["lsn"]


def test_what_lies_in_the_journal_and_what_spilling_left(ground: Tables) -> None:
    """A spill leaves garbage without chunks; so does a segment that never had any."""
    ground.settings = tuned(ground.settings, inline_bytes_max=None, spill_s=3600)
    with ground.open() as store:
        for name in ("a", "b", "empty"):
            store.create(name)
        for _ in range(2):
            store.append("a", b"small")
            store.spill()
        store.append("b", b"0123456789")
        store.append("a", b"last")
        store.truncate("b", 10)
        store.append("empty", b"", writer_id=b"w", event_number=1)
        store.delete("empty")
    kinds = [(row["segment"], row["kind"]) for row in ground.rows("chunks")]
    assert kinds == [("a", "object"), ("a", "inline")]
    rows = ground.rows("garbage")
    without = [row for row in rows if row["first"] is None]
    assert len(without) >= 2 and all((row["last"], row["count"]) == (None, 0) for row in without)
    assert [row["size_bytes"] for row in rows if row["first"]] == [10]
    for table in TABLES:
        ground.rows(table)


def test_ledgers_are_counted_without_reading(ground: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    with ground.open() as store:
        for topic in (TOPIC, "other"):
            with OffloadWriter(store, topic, block_bytes=4 * KIB, segment_bytes_max=20_000) as writer:
                for ledger, entries in ((3, range(300)), (5, range(0, 400, 2))):
                    for entry in entries:
                        writer.append(ledger, entry, b"x" * 90)
                writer.complete()
        with ground.replica() as replica:
            known = LedgerReader(replica).ledgers(TOPIC)
        writer = OffloadWriter(store, "open")
        writer.append(1, 4, b"y")
        writer.flush()
    assert [(item.ledger, item.entries) for item in known] == [(3, 300), (5, 200)]
    assert [tuple(row.values()) for row in ground.rows("ledgers", topic=TOPIC)] == known
    (growing,) = ground.rows("ledgers", topic="open")
    assert (growing["complete"], growing["entries"], growing["last_entry"]) == (False, None, 4)
    with pytest.raises(LedgerNotFound):
        ground.rows("ledgers", topic=TOPIC, ledgers="3,4")

    def read(*_: object) -> bytes:
        raise AssertionError("an index or data is read")

    monkeypatch.setattr("chunkstore.reading.read", read)
    counts = ground.rows(
        "ledgers", ["topic", "ledger", "first_entry", "last_entry", "entries"], topicsPattern=".*o.*r.*"
    )
    assert [tuple(row.values()) for row in counts] == [
        (topic, *rest) for topic in ("other", TOPIC) for rest in ((3, 0, 299, 300), (5, 0, 398, 200))
    ]
    assert [row["ledger"] for row in ground.rows("ledgers", ["ledger"], topic=TOPIC, ledgers="5")] == [5]
    with ground.replica() as replica, pytest.raises(AssertionError):
        TopicPlanner(replica, TOPIC).plan()


@pytest.mark.parametrize(("rows", "text"), [(10, 1 << 20), (1 << 20, 500)])
def test_tasks_are_ranges_of_keys(ground: Tables, monkeypatch: pytest.MonkeyPatch, rows: int, text: int) -> None:
    monkeypatch.setattr(tables, "BATCH_ROWS", 4)
    monkeypatch.setattr(tables, "TASK_ROWS", rows)
    monkeypatch.setattr(tables, "TASK_BYTES", text)
    with ground.open() as store:
        for name in ("a", "b", "c"):
            filled(store, name, 1500, 100)
    tasks = ground.tasks("chunks")
    wanted = [(name, True) for name in TABLES["chunks"].columns]
    parts = [[row for batch in table_batches(task, wanted) for row in batch.to_pylist()] for task in tasks]
    assert len(parts) > 3 and all(len(part) <= 20 for part in parts)
    keys = [(row["segment"], row["offset"]) for part in parts for row in part]
    assert keys == [(name, offset) for name in "abc" for offset in range(0, 1500, 100)]
    if rows == 10:
        assert [len(part) for part in parts] == [10, 10, 10, 10, 5]
    assert ground.tasks("ledgers") == []


@pytest.mark.parametrize("table", TABLES)
def test_options_that_say_nothing_are_refused(table: str) -> None:
    values = {"ledgers": "1", "startingOffsets": "latest", "framing": "lines", "minPartitions": "2", "lsnAsOf": "1"}
    values |= {"timestampAsOf": "1", "segments": "a", "segmentsPattern": "a", "topic": "t", "topicsPattern": "t"}
    always = {"path": "file:///x", "container": "c", "metadata": table.upper()}
    assert parse_options(always).columns == tuple(TABLES[table].columns)
    assert parse_options(always).metadata == table
    for option in set(OPTIONS) - set(always) - {"columns", "mapFunction"}:
        given = {**always, option: values.get(option, "1"), **({"topic": "t"} if option == "ledgers" else {})}
        if option in TABLES[table].options:
            assert parse_options(given).metadata == table
        else:
            with pytest.raises(InvalidArgument, match="does not apply to metadata="):
                parse_options(given)


@pytest.mark.parametrize(
    ("given", "argument"),
    [
        ({"metadata": "segment"}, "metadata"),
        ({"metadata": "pins"}, "metadata"),
        ({"metadata": ""}, "metadata"),
        ({"metadata": "segments", "columns": "value"}, "columns"),
        ({"metadata": "segments", "segments": "a", "segmentsPattern": "a"}, "segmentsPattern"),
        ({"metadata": "ledgers", "topicsPattern": "t", "ledgers": "1"}, "ledgers"),
        ({"metadata": "ledgers", "topic": ""}, "topic"),
        ({"metadata": "journal", "lsnAsOf": "1", "timestampAsOf": "1"}, "lsnAsOf"),
    ],
)
def test_contradictions(given: dict[str, str], argument: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_options({"path": "file:///x", **given})
    assert caught.value.to_fields() == {"argument": argument}
    with pytest.raises(InvalidArgument):
        parse_options({"path": "file:///x", **given}, stream=True)
