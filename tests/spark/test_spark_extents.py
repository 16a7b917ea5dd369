"""Small appends, whose bytes lie in records of the journal, read by tasks: before they are spilled, after, and while they are."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from tests.support.settings import tuned

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

import chunkstore
from chunkstore.errors import ChunkNotFound
from chunkstore.spark.batches import Column, read_task
from chunkstore.spark.runs import ReadTask
from tests.spark.test_spark_streams import Query
from tests.support.spark_ground import Ground

pytestmark = pytest.mark.proof


def value_of(tasks: list[ReadTask]) -> bytes:
    travelled: list[ReadTask] = pickle.loads(pickle.dumps(tasks))
    columns = [Column("value")]
    return b"".join(
        row for task in travelled for batch in read_task(task, columns) for row in batch["value"].to_pylist()
    )


def kinds(store: chunkstore.ChunkedSegmentStorage, name: str) -> set[str]:
    return {chunk.kind for chunk in store.layout(name)}


def test_a_pin_keeps_what_tasks_read_that_were_planned_before_a_spill(tmp_path: Path) -> None:
    ground = Ground(tmp_path, inline_bytes_max=None)
    ground.settings = tuned(ground.settings, gc_grace_s=0, snapshots_kept=1)
    with ground.open() as store:
        store.create("a")
        for number in range(5):
            store.append("a", b"%d;" % number)
    with ground.open() as store:
        store.pin("plan")
        tasks = ground.plan("a")
        assert kinds(store, "a") == {"inline"} and value_of(tasks) == b"0;1;2;3;4;"
        store.spill()
        assert kinds(store, "a") == {"object"} and value_of(ground.plan("a")) == b"0;1;2;3;4;"
    for kept in (True, False):
        with ground.open() as store:
            store.snapshot()
            store.collect()
            assert store.read("a", 0, 99) == b"0;1;2;3;4;"
            if kept:
                assert value_of(tasks) == b"0;1;2;3;4;"
                store.unpin("plan")
    with ground.open() as store:
        store.snapshot()
        store.collect()
    with pytest.raises(ChunkNotFound):
        value_of(tasks)


def test_batches_tables_and_a_stream_over_a_spill(spark: Any, tmp_path: Path) -> None:
    ground = Ground(tmp_path, inline_bytes_max=None)
    query = Query(spark, ground, tmp_path / "checkpoint")
    expected: list[tuple[str, int, str]] = []
    with ground.open() as store:
        store.create("log-a")
        for turn in range(2):
            for number in range(4):
                offset = store.append("log-a", b"%d.%d\n" % (turn, number))
                expected.append(("log-a", offset, f"{turn}.{number}"))
            query.run()
            assert query.rows() == expected
            if not turn:
                store.spill()
        table = spark.read.format("chunkstore").options(metadata="chunks").load(ground.url)
        assert [row.kind for row in table.select("kind").collect()] == ["object"] + ["inline"] * 4
        frame = spark.read.format("chunkstore").options(segments="log-a").load(ground.url)
        rows = sorted((row.offset, bytes(row.value)) for row in frame.collect())
        assert b"".join(value for _, value in rows) == store.read("log-a", 0, 999)
