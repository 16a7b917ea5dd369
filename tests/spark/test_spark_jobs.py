"""Jobs through a real Spark session, and a driver that is killed in the middle of one; what needs no JVM is in test_jobs_offload."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import chunkstore
from chunkstore.pulsar import LedgerReader
from chunkstore.spark import jobs
from tests.cli.conftest import call
from tests.support.hooked import wait_for
from tests.support.paths import SOURCES
from tests.support.spark_tasks import home, store

pytestmark = pytest.mark.proof

__all__ = ["call", "home", "store"]

DRIVER = """
import sys, time
from pathlib import Path
from tests.support.spark import start_session
from chunkstore.spark import jobs
from chunkstore.spark import job_runner as running

home = Path(sys.argv[1])
spark = start_session(home / "driver")
plain = running.OnSpark.__call__

def held(self, call, tasks, sizes):
    path, last = str(home / "held"), len(tasks) - 1
    numbered = list(enumerate(tasks))

    def one(item, attempt):
        number, task = item
        if number == last:
            Path(path).touch()
            time.sleep(600)
        return call(task, attempt)

    return plain(self, one, numbered, sizes)

running.OnSpark.__call__ = held
root = (home / "root").as_uri()
jobs.offload(spark, str(home / "in"), root, "t", part_bytes=300)
"""


def test_frames_of_a_job(spark: Any, store: chunkstore.ChunkedSegmentStorage, home: Path) -> None:
    root = f"file://{home}/root"
    frame = spark.range(1000).selectExpr("cast(999 - id AS string) AS value", "999 - id AS at")
    told: list[int] = []
    for state in ("done", "before"):
        [row] = jobs.offload(spark, frame, root, "t", order_by="at", job="table", progress=told.append).collect()
        assert row.state == state
    assert not any(told), "no one knows the bytes of a frame"
    reader = LedgerReader(store)
    ledgers = [item.ledger for item in reader.ledgers("t")]
    assert [int(entry.payload) for ledger in ledgers for entry in reader.read("t", ledger)] == list(range(1000))
    entries = spark.range(10).selectExpr("7L AS ledger", "id AS entry", "cast('x' AS binary) AS payload").coalesce(1)
    for dry_run in (True, False):
        [row] = jobs.offload(spark, entries, root, "other", dry_run=dry_run).collect()
        assert row.entries == 10
    with pytest.raises(chunkstore.Conflict):
        jobs.offload(spark, entries, root, "other")
    with pytest.raises(chunkstore.InvalidArgument, match="cast"):
        jobs.offload(spark, spark.range(3).selectExpr("id AS value"), root, "t")
    with pytest.raises(chunkstore.InvalidArgument, match="columns"):
        jobs.offload(spark, frame, root, "t")
    with pytest.raises(chunkstore.Conflict, match="table"):
        jobs.offload(spark, frame, root, "t", order_by="at", job="table", ledger=5)
    assert list(store.sessions()) == []


def test_a_driver_killed_in_the_middle_of_a_job(
    spark: Any, store: chunkstore.ChunkedSegmentStorage, home: Path
) -> None:
    (home / "in").mkdir()
    lines = [[b"%d of file %d" % (row, number) for row in range(10 * number + 1)] for number in range(8)]
    for number, rows in enumerate(lines):
        (home / "in" / str(number)).write_bytes(b"\n".join(rows))
    environment = {**os.environ, "PYTHONPATH": SOURCES, "XDG_CACHE_HOME": str(home / "cache")}
    with (
        open(home / "log", "wb") as log,
        subprocess.Popen(
            [sys.executable, "-c", DRIVER, str(home)], env=environment, stderr=log, stdout=log, start_new_session=True
        ) as driver,
    ):
        try:
            wait_for(lambda: driver.poll() is not None or (home / "held").exists(), 300)
            assert driver.poll() is None, (home / "log").read_text()[-3000:]
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
    found = jobs.offload(spark, str(home / "in"), f"file://{home}/root", "t", part_bytes=300).collect()
    assert {row.state for row in found} <= {"before", "done"}
    assert found[-1].state == "done"
    reader = LedgerReader(store)
    assert {
        item.ledger: [entry.payload for entry in reader.read("t", item.ledger)] for item in reader.ledgers("t")
    } == (dict(enumerate(lines)))
    assert list(store.sessions()) == []
