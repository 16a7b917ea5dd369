"""Metadata as tables of a real Spark session: Spark's types of every table, SQL over them, a schema of one's own, functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chunkstore.errors import InvalidArgument
from chunkstore.spark import map_batches
from chunkstore.spark.columns import TABLES
from chunkstore.spark.errors import original_error
from tests.support.spark_ground import Ground, filled

pytestmark = pytest.mark.proof


def test_metadata_are_tables(spark: Any, tmp_path: Path) -> None:
    import pyarrow as pa

    ground = Ground(tmp_path)
    with ground.open() as store:
        filled(store, "a", 3_000, 1)
        filled(store, "b", 12, 4)
        store.update_attributes("b", {"of": "Tuesday"})

    def frame(table: str, **given: object) -> Any:
        return spark.read.format("chunkstore").options(metadata=table, **given).load(ground.url)

    counts = {"segments": 2, "chunks": 3_003}
    for table, (columns, _) in TABLES.items():
        found = frame(table)
        assert found.dtypes == [
            (name, kind.lower().replace("long", "bigint").replace(" ", "")) for name, kind in columns.items()
        ]
        if table in counts:
            assert len(found.collect()) == counts[table]
    assert frame("ledgers").isEmpty()
    sums = frame("chunks").groupBy("segment").sum("length").orderBy("segment").collect()
    assert [tuple(row) for row in sums] == [("a", 3_000), ("b", 12)]
    fresh = frame("segments").where(
        "modified_at > current_timestamp() - INTERVAL 1 HOUR AND attributes['of'] = 'Tuesday'"
    )
    assert [row.name for row in fresh.collect()] == ["b"]
    records = frame("journal").selectExpr("max(lsn) AS last").first().last
    assert frame("journal", lsnAsOf=records - 1).selectExpr("max(lsn) AS last").first().last == records - 1

    def counted(batches: Any) -> Any:
        yield pa.record_batch({"rows": [sum(batch.num_rows for batch in batches)]})

    rows = map_batches(spark, counted, "rows LONG", path=ground.url, metadata="chunks", columns="offset")
    assert [row.rows for row in rows.collect()] == [3_003]
    with pytest.raises(Exception, match="does not apply to") as caught:
        frame("journal", segments="a").count()
    assert isinstance(original_error(caught.value), InvalidArgument)
