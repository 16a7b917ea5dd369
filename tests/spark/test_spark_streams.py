"""Streams of raw segments, and functions inside the reading tasks, through a real Spark session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import chunkstore
from chunkstore.errors import InvalidArgument
from chunkstore.spark import map_batches
from chunkstore.spark.errors import original_error
from chunkstore.spark.stream import HAS_LIMITS
from tests.support.spark import missing
from tests.support.spark_ground import Ground, ground, store

__all__ = ["ground", "store"]

if missing():
    pytest.skip(missing(), allow_module_level=True)


class Query:
    """A stream of lines into a list, on one checkpoint."""

    def __init__(self, spark: Any, ground: Ground, path: Path) -> None:
        self.spark, self.ground, self.path = spark, ground, path
        self.batches: dict[int, list[tuple[str, int, str]]] = {}
        self.available_now = True
        """Otherwise Spark asks twice where a new query begins."""

    def run(self, **options: str) -> Any:
        """All that is there; the query's last progress."""
        frame = self.spark.readStream.format("chunkstore").options(
            segmentsPattern="log-.*", framing="lines", startingOffsets="earliest", **options
        )

        def keep(batch: Any, number: int) -> None:
            rows = batch.collect()
            self.batches[number] = sorted((row.segment, row.offset, bytes(row.value).decode()) for row in rows)

        writer = frame.load(self.ground.url).writeStream.option("checkpointLocation", str(self.path))
        trigger = {"availableNow": True} if self.available_now else {"processingTime": "0 seconds"}
        query = writer.trigger(**trigger).foreachBatch(keep).start()
        if not self.available_now:
            query.processAllAvailable()
            query.stop()
        assert query.awaitTermination(600), "the query has not ended"
        return query.lastProgress

    def rows(self) -> list[tuple[str, int, str]]:
        return sorted(row for rows in self.batches.values() for row in rows)


def test_a_query_goes_on_where_it_was(
    spark: Any, ground: Ground, store: chunkstore.ChunkedSegmentStorage, tmp_path: Path
) -> None:
    expected: list[tuple[str, int, str]] = []

    def add(name: str, count: int) -> None:
        for number in range(count):
            offset = store.append(name, b"%d\n" % number)
            expected.append((name, offset, str(number)))

    store.create("log-a")
    add("log-a", 20)
    query = Query(spark, ground, tmp_path / "checkpoint")
    new = {"maxBytesPerTrigger": "18", "maxOffsetsPerTrigger": "8"}
    if HAS_LIMITS:
        query.available_now = False
        query.run(**new)
        query.available_now = True
        assert [len(rows) for rows in query.batches.values()] == [8, 6, 6], "the tighter one counts"
    else:
        for name, value in new.items():
            with pytest.raises(Exception, match=f"option '{name}' needs Spark 4.2 or newer"):
                query.run(**{name: value})
        query.run()
    assert query.rows() == sorted(expected)
    store.append("log-a", b"unfin")
    store.create("log-b")
    add("log-b", 5)
    store.defrag(policy=chunkstore.DefragPolicy(fanout=2))
    progress = query.run(**({"maxOffsetsPerTrigger": "4"} if HAS_LIMITS else {}))
    if HAS_LIMITS:
        assert [len(query.batches[number]) for number in sorted(query.batches)] == [8, 6, 6, 4, 1]
    assert query.rows() == sorted(expected)
    [source] = progress.sources
    assert "log-b" in source.endOffset
    last = max(query.batches)
    (tmp_path / "checkpoint" / "commits" / f"{last}").unlink()
    (tmp_path / "checkpoint" / "commits" / f".{last}.crc").unlink()
    before = query.batches.pop(last)
    store.append("log-a", b"ished\n")
    expected.append(("log-a", store.info("log-a").length - 11, "unfinished"))
    query.run()
    assert query.batches[last] == before, "a batch that is run again is the same"
    if not HAS_LIMITS:  # then Spark runs that one alone
        query.run()
    assert query.rows() == sorted(expected)


def test_a_function_runs_where_the_bytes_are(
    spark: Any, ground: Ground, store: chunkstore.ChunkedSegmentStorage
) -> None:
    import pyarrow as pa

    store.create("a")
    store.append("a", b"".join(b"%d\n" % number for number in range(1000)))
    base = 7

    def sums(batches: Any) -> Any:
        total = count = 0
        for batch in batches:
            assert batch.schema.names == ["value"]
            for value in batch.column("value").to_pylist():
                total, count = total + int(value) + base, count + 1
        yield pa.record_batch(
            {"count": [count], "total": [total]}, schema=pa.schema({"count": "int64", "total": "int64"})
        )

    options: dict[str, object] = {"path": ground.url, "segments": "a", "framing": "lines", "columns": "value"}
    frame = map_batches(spark, sums, "total LONG, count LONG", minPartitions=2, **options)
    assert frame.columns == ["total", "count"]
    [row] = frame.groupBy().sum("total", "count").collect()
    assert tuple(row) == (sum(range(1000)) + 7 * 1000, 1000)

    with pytest.raises(
        Exception, match="column 'total' of the function's batch is int64, in the schema string"
    ) as caught:
        map_batches(spark, sums, "total STRING, count LONG", **options).collect()
    assert isinstance(original_error(caught.value), InvalidArgument)
