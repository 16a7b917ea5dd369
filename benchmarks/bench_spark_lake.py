"""A lake's frame against parquet alone: the same rows, 95 % of them in files, and the rest in the container behind; and writing its files.

``python -m benchmarks.bench_spark_lake [--dir DIR] [--quick]``; needs Java 17 or newer and the extra ``spark``. Every round runs every case
once, in random order; a figure is the median over the rounds of parquet's time to the case's in that round. ``parquet`` reads files that
``to_parquet`` made of all rows, with the options of a lake but for the pages' CRCs. Writing is held against Spark's own writer of parquet
over the same container (its files are not synced, a lake's are). A session's first job starts Python's workers and compiles: 10 to 25 s,
whatever it does, which no figure counts. The session is ``local[2]`` with 1 GiB for the JVM.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from itertools import count as numbers
from pathlib import Path
from typing import Any

import pyarrow as pa

import chunkstore
from benchmarks.harness import Report, median, time_s
from benchmarks.on_spark import measured
from chunkstore.config import KIB, MIB
from chunkstore.pulsar import OffloadWriter
from chunkstore.spark import lake
from chunkstore.spark.jobs import to_parquet

__all__ = ["main"]

TOPIC = "public/default/persistent/bench"
ENTRY_BYTES = 1 * KIB
LEDGERS = 20
"""The last one is not in the files."""
TARGET = 0.85


def append(store: chunkstore.ChunkedSegmentStorage, first: int, stop: int, count: int) -> None:
    """Ledgers of ``count`` entries."""
    pool = os.urandom(8 * MIB)
    at = [number * 7919 % (len(pool) - ENTRY_BYTES) for number in range(count)]
    payloads = pa.array([pool[begin : begin + ENTRY_BYTES] for begin in at], pa.binary())
    with OffloadWriter(store, TOPIC, segment_bytes_max=1024 * MIB, block_bytes=8 * MIB) as writer:
        for ledger in range(first, stop):
            writer.append_batch(ledger, 0, payloads)
            writer.complete()


def write_both(report: Report, spark: Any, path: Path, root: str, total: int, rounds: int) -> None:
    """The same rows, by a lake's tasks and by Spark's writer."""
    read = spark.read.format("chunkstore").option("topic", TOPIC)
    names = (f"lake{number}" for number in numbers())
    cases: dict[str, Callable[[], Any]] = {
        "lake": lambda: to_parquet(spark, root, name=next(names), path=f"file://{path}/written", topic=TOPIC),
        "Spark": lambda: read.load(root).write.parquet(f"file://{path}/written/theirs"),
    }
    times: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(rounds + 1):
        for name in random.Random(number).sample(list(cases), len(cases)):
            os.sync()  # what others left to be written
            began = time_s()
            cases[name]()
            if number:
                times[name].append(time_s() - began)
            shutil.rmtree(path / "written")
    ratios = [peer / own for own, peer in zip(times["lake"], times["Spark"], strict=True)]
    report.add(
        "Spark writes a lake's files, speed to its own writer's",
        median(ratios),
        "ratio",
        detail=f"{total / MIB / median(times['lake']):.0f} MiB/s, Spark's own {total / MIB / median(times['Spark']):.0f} MiB/s",
    )


def measure(report: Report, spark: Any, path: Path, total: int, rounds: int) -> None:
    """Build both, and run the cases; every one must see all the rows."""
    count = total // LEDGERS // ENTRY_BYTES
    root = f"file://{path}/root"
    options: dict[str, Any] = {"path": f"file://{path}/lakes", "topic": TOPIC}
    with chunkstore.open(root, settings=chunkstore.Settings(cache_dir=str(path / "cache"), lease_s=0)) as store:
        append(store, 0, LEDGERS - 1, count)
        to_parquet(spark, root, name="most", **options)
        append(store, LEDGERS - 1, LEDGERS, count)
        to_parquet(spark, root, name="all", **options)
        write_both(report, spark, path, root, total, max(2, rounds // 2))
    files = sorted(str(file) for file in (path / "lakes" / "all").rglob("*.parquet"))

    def asked(frame: Any) -> Any:
        return frame.selectExpr("count(entry)", "sum(length(payload))").first()

    cases: dict[str, Callable[[], Any]] = {
        "parquet": lambda: asked(spark.read.schema(schema).parquet(*files)),
        "95 % in files": lambda: asked(lake(spark, "most", root, files=options["path"])),
        "all in files": lambda: asked(lake(spark, "all", root, files=options["path"])),
        "container": lambda: asked(spark.read.format("chunkstore").option("topic", TOPIC).load(root)),
    }
    schema = lake(spark, "all", root, files=options["path"]).schema
    times: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(rounds + 1):
        for name in random.Random(number).sample(list(cases), len(cases)):
            began = time_s()
            found = tuple(cases[name]())
            if number:  # the first round warms the JVM up
                times[name].append(time_s() - began)
            assert found == (LEDGERS * count, LEDGERS * count * ENTRY_BYTES), f"{name}: {found}"
    for name in list(cases)[1:]:
        ratios = [peer / own for peer, own in zip(times["parquet"], times[name], strict=True)]
        own, peer = median(times[name]), median(times["parquet"])
        report.add(
            f"Spark reads a lake, {name}, speed to parquet's",
            median(ratios),
            "ratio",
            at_least=TARGET if name == "95 % in files" else None,
            detail=f"{total / own / 1e6:.0f} MB/s, parquet {total / peer / 1e6:.0f} MB/s",
        )


def main() -> None:
    """Run all and save ``results/spark-lake.json``."""
    measured(
        __doc__,
        "spark-lake",
        lambda report, spark, path, quick: measure(
            report, spark, path, (160 if quick else 640) * MIB, 3 if quick else 5
        ),
    )


if __name__ == "__main__":
    main()
