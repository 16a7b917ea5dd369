"""Small appends, whose bytes lie in records of the journal, read by tasks: before they are spilled, after, and while they are."""

from __future__ import annotations

import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

import chunkstore
from chunkstore.errors import ChunkNotFound
from chunkstore.spark.batches import Column, read_task
from chunkstore.spark.jobs.copy import copy_on
from chunkstore.spark.jobs.scrub import scrub_on
from chunkstore.spark.runs import ReadTask
from tests.spark.test_spark_streams import Query
from tests.support.spark_ground import Ground
from tests.support.spark_jobs import Here
from tests.support.spark_tasks import home, store

pytestmark = pytest.mark.proof

__all__ = ["home", "store"]


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
    ground.settings = replace(ground.settings, gc_grace_s=0, snapshots_kept=1)
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


def test_jobs_read_and_copy_them(store: chunkstore.ChunkedSegmentStorage, home: Path) -> None:
    store.create("a")
    for number in range(3):
        store.append("a", b"%d" % number * 5_000)
    assert kinds(store, "a") == {"inline"}
    root = f"file://{home}/root"
    found = scrub_on(Here(), root, width=2)
    assert [item.state for item in found.chunks] == ["ok"] * 3
    report = copy_on(Here(), root, f"file://{home}/copy", width=2)
    assert report.size_bytes == 15_000
    settings = chunkstore.Settings(cache_dir=str(home / "other"), lmdb_map_bytes=1 << 28)
    with chunkstore.open(f"file://{home}/copy", settings=settings) as copy:
        assert copy.read("a", 0, 15_000) == store.read("a", 0, 15_000) and kinds(copy, "a") == {"object"}
    [log] = (home / "root").rglob("log.a")
    data = log.read_bytes()
    with open(log, "r+b") as file:
        file.seek(data.rindex(b"1" * 5_000) + 4_000)
        file.write(b"X")
        os.fsync(file.fileno())
    assert [item.state for item in scrub_on(Here(), root, width=2).chunks] == ["ok", "damaged", "ok"]


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
