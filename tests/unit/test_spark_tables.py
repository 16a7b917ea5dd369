"""Metadata as tables, without Spark: what the rows say, how they are cut, and that nothing is read for them."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import chunkstore
from chunkstore.assembly import journal_records
from chunkstore.errors import Conflict, InvalidArgument, SegmentNotFound
from chunkstore.spark.columns import TABLES
from chunkstore.spark.options import OPTIONS, parse_options

pytest.importorskip("pyarrow", reason="pyarrow is not installed: Spark's batches are not tested")

from chunkstore.spark import tables
from chunkstore.spark.tables import plan_table, table_batches
from tests.support.spark_ground import Ground, filled


class Tables(Ground):
    def tasks(self, table: str, columns: Sequence[str] = (), **given: str) -> list[Any]:
        options = parse_options({"path": self.url, "metadata": table, **given})
        with chunkstore.open_replica(
            self.url, settings=self.settings, at_lsn=options.as_of_lsn, at_time=options.as_of_ms
        ) as replica:
            return plan_table(replica, replace(options, columns=tuple(columns) or options.columns))

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


def test_a_table_shows_one_point_of_history(ground: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    with ground.open() as store, ground.replica() as replica:

        def refreshed(*_: object) -> Iterator[Sequence[object]]:
            store.create("a")
            replica.refresh()
            yield from replica.segments()

        monkeypatch.setitem(tables._ROWS, "segments", refreshed)
        options = parse_options({"path": ground.url, "metadata": "segments"})
        with pytest.raises(Conflict, match="planned from"):
            plan_table(replica, options)
