"""A lake through a real Spark session: files written by tasks, and one frame over them and the container behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chunkstore.errors import Conflict
from chunkstore.spark import lake
from chunkstore.spark.errors import original_error
from chunkstore.spark.jobs import to_parquet
from tests.support.spark import missing
from tests.support.spark_ground import Ground, flip

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
        frame = lake(spark, "history", ground.url)
        assert frame.columns == ["segment", "offset", "value"]
        assert [row.rows for row in to_parquet(spark, ground.url, **options).collect()] == [1]
        for found in (frame, lake(spark, "history", ground.url)):
            rows = found.selectExpr("segment", "offset", "decode(value, 'utf-8') AS text").collect()
            assert sorted(tuple(row) for row in rows) == sorted(expected)
        with pytest.raises(Conflict, match="what its rows are"):
            to_parquet(spark, ground.url, **(options | {"framing": "none"}))
        store.append("a", b"never written\n")
        store.truncate("a", store.info("a").length)
        with pytest.raises(Exception, match="SegmentTruncated") as caught:
            lake(spark, "history", ground.url).count()
        assert original_error(caught.value) is not None
    path = next(tmp_path.joinpath("day=3").rglob(written[0].name))
    flip(path, path.stat().st_size // 3)
    with pytest.raises(Exception, match="FAILED_READ_FILE"):
        frame.where("offset >= 0").selectExpr("sum(length(value))").collect()
