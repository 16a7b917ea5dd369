"""A lake through a real Spark session: files written by tasks, and one frame over them and the container behind."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from chunkstore.errors import Conflict
from chunkstore.spark import lake
from chunkstore.spark.errors import original_error
from chunkstore.spark.jobs import to_parquet
from tests.cli.conftest import Call, call
from tests.support.spark import missing
from tests.support.spark_ground import Ground, flip

pytestmark = pytest.mark.proof

__all__ = ["call"]

if missing():
    pytest.skip(missing(), allow_module_level=True)


def test_files_and_what_is_behind_them_are_one_frame(spark: Any, tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    options: dict[str, Any] = {"name": "history", "path": f"file://{tmp_path}/day%3D3/lakes", "segments": "a,b"}
    options |= {"framing": "lines", "minPartitions": 2}
    expected: list[tuple[str, int, str]] = []
    with ground.open() as store:
        for name in ("a", "b"):
            store.create(name)
            expected += [(name, store.append(name, b"%d\n" % number), str(number)) for number in range(150)]
        rows = to_parquet(spark, ground.url, dry_run=True, **options).collect()
        assert sorted(tuple(row) for row in rows) == [(name, store.info(name).length, None) for name in ("a", "b")]
        written = to_parquet(spark, ground.url, **options).collect()
        assert len(written) == 2
        assert sum(row.rows for row in written) == 300
        expected.append(("a", store.append("a", b"behind\n"), "behind"))
        store.truncate("a", expected[-1][1])
        frame = lake(spark, "history", ground.url, foreign_roots=[options["path"]])
        assert frame.columns == ["segment", "offset", "value"]
        assert [row.rows for row in to_parquet(spark, ground.url, **options).collect()] == [1]
        for found in (frame, lake(spark, "history", ground.url, foreign_roots=[options["path"]])):
            rows = found.selectExpr("segment", "offset", "decode(value, 'utf-8') AS text").collect()
            assert sorted(tuple(row) for row in rows) == sorted(expected)
        with pytest.raises(Conflict, match="what its rows are"):
            to_parquet(spark, ground.url, **(options | {"framing": "none"}))
        store.append("a", b"never written\n")
        store.truncate("a", store.info("a").length)
        with pytest.raises(Exception, match="SegmentTruncated") as caught:
            lake(spark, "history", ground.url, foreign_roots=[options["path"]]).count()
        assert original_error(caught.value) is not None
    path = next(tmp_path.joinpath("day=3").rglob(written[0].name))
    flip(path, path.stat().st_size // 3)
    with pytest.raises(Exception, match="FAILED_READ_FILE"):
        frame.where("offset >= 0").selectExpr("sum(length(value))").collect()


def test_typed_values_are_typed_columns(
    spark: Any, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow.parquet as pq
    from pyspark.sql.types import LongType, StringType, StructType

    monkeypatch.setattr("chunkstore.spark.jobs.running.session_on", lambda _master: nullcontext(spark))
    ground, url = Ground(tmp_path), f"file://{tmp_path}/lakes"
    options: dict[str, Any] = {"segments": "a", "framing": "lines", "valueFormat": "json"}
    command = ["spark", "to-parquet", ground.url, "--lake", "typed", "--path", url, "--json"]
    command += [f"--option={key}={value}" for key, value in options.items()]
    command += ["--schema", "n LONG, `t.x` STRING, _corrupt_record STRING"]
    with ground.open() as store:
        store.create("a")
        store.append("a", b'{"n":1,"t.x":"x","z":[]}\n{"n":"x","t.x":"y"}\n')
        planned = call(*command, "--dry-run").lines
        assert planned == [{"name": "a", "size_bytes": store.info("a").length, "rows": None}]
        [written] = call(*command).lines
        assert written["rows"] == 2
        path = next(tmp_path.joinpath("lakes").rglob(written["name"]))
        assert pq.read_schema(path).to_string().splitlines() == ["n: int64", "t.x: string", "_corrupt_record: string"]
        store.append("a", b'{"n":2}\n')
        behind = lake(spark, "typed", ground.url, files=url)
        schema = StructType().add("n", LongType()).add("t.x", StringType()).add("_corrupt_record", StringType())
        assert to_parquet(spark, ground.url, name="typed", path=url, schema=schema, **options).count() == 1
        for frame in (behind, lake(spark, "typed", ground.url, files=url)):
            assert frame.schema == schema
            rows = sorted(map(tuple, frame.collect()), key=str)
            assert rows == [(1, "x", None), (2, None, None), (None, "y", '{"n":"x","t.x":"y"}')]
