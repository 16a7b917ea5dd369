"""Small appends, whose bytes lie in records of the journal, read by tasks: before they are spilled, after, and while they are."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from tests.support.settings import tuned

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

import chunkstore
from chunkstore.errors import ChunkNotFound
from chunkstore.spark.batches import read_task
from chunkstore.spark.runs import ReadTask
from tests.support.spark_ground import Ground

pytestmark = pytest.mark.proof


def value_of(tasks: list[ReadTask]) -> bytes:
    travelled: list[ReadTask] = pickle.loads(pickle.dumps(tasks))
    columns = [("value", True)]
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
