"""Spark writing into a container, against ``df.write.parquet`` uncompressed of the same rows in the same run.

``python -m benchmarks.bench_spark_write [--dir DIR] [--quick]``; needs Java 17 or newer and the extra ``spark``. The rows lie in the JVM's
memory, partitioned and sorted, before anything is measured. Every round writes by every way once, in random order; a figure is the median
over the rounds of parquet's time to ours in that round. Ours syncs each chunk; so parquet's files are synced, too, one after the other,
within their time. Name a directory in memory (``--dir /dev/shm``) to compare the work alone.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import chunkstore
from benchmarks.harness import Report, median, time_s
from benchmarks.on_spark import measured
from chunkstore.config import KIB, MIB
from chunkstore.spark import foreach_batch

__all__ = ["main"]

TARGETS = {100: 0.9, 1 * KIB: 0.95, 10 * KIB: 0.75}
BATCHES = 12


def measure(report: Report, spark: Any, path: Path, total: int, rounds: int) -> None:
    """Batch writes of rows of three lengths."""
    root = f"file://{path}/root"
    with chunkstore.open(root, settings=chunkstore.Settings(cache_dir=str(path / "cache"), gc_grace_s=0)) as store:
        for length, target in TARGETS.items():
            rows = spark.range(total // length).selectExpr(
                "concat('part-', id % 4) AS segment",
                "id AS at",
                f"repeat(substr(sha2(cast(id AS string), 256), 1, 50), {length // 50}) AS value",
            )
            frame = (
                rows.repartition(4, "segment").sortWithinPartitions("segment", "at").select("segment", "value").cache()
            )
            count = frame.count()
            ways = _ways(frame, root, path)
            taken: dict[str, list[float]] = {name: [] for name in ways}
            for number in range(rounds + 1):
                for name in random.Random(number).sample(list(ways), len(ways)):
                    began_s = time_s()
                    ways[name]()
                    if number:  # the first round warms the JVM up
                        taken[name].append(time_s() - began_s)
                for info in list(store.segments()):
                    store.delete(info.name)
                store.collect()
                shutil.rmtree(path / "parquet")
            frame.unpersist()
            for name in ("segments", "lines"):
                ratio = median([theirs / ours for theirs, ours in zip(taken["parquet"], taken[name], strict=True)])
                rate = count * length / median(taken[name]) / 1e6
                detail = f"{rate:.0f} MB/s, parquet {count * length / median(taken['parquet']) / 1e6:.0f} MB/s"
                report.add(
                    f"Spark writes {name}, {length} B rows, speed to parquet's",
                    ratio,
                    "ratio",
                    at_least=target,
                    detail=detail,
                )
        _micro_batches(report, spark, path, root, store)


def _ways(frame: Any, root: str, path: Path) -> dict[str, Callable[[], None]]:
    def own(framing: str) -> None:
        frame.write.format("chunkstore").option("framing", framing).mode("append").save(root)

    def parquet() -> None:
        frame.write.mode("overwrite").option("compression", "none").parquet(str(path / "parquet"))
        for file in (path / "parquet").glob("*.parquet"):
            with file.open("rb") as opened:
                os.fsync(opened.fileno())

    return {"parquet": parquet, "segments": partial(own, "none"), "lines": partial(own, "lines")}


def _micro_batches(report: Report, spark: Any, path: Path, root: str, store: chunkstore.ChunkedSegmentStorage) -> None:
    """What a small micro-batch takes through a live owner that is asked, and at the owner itself."""
    (path / "in").mkdir()
    for number in range(BATCHES):
        (path / "in" / f"{number}.txt").write_text("row\n" * 100)
    source = spark.readStream.format("text").option("maxFilesPerTrigger", "1").load(str(path / "in"))
    medians: dict[str, float] = {}
    for name in ("asked", "at the owner"):
        stream = source.writeStream.option("checkpointLocation", str(path / f"checkpoint {name}"))
        if name == "asked":
            stream = stream.format("chunkstore").options(segments=name, framing="lines", path=root)
        else:
            stream = stream.foreachBatch(foreach_batch(store, segments=name, framing="lines"))
        query = stream.trigger(availableNow=True).start()
        query.awaitTermination()
        taken = [
            progress["durationMs"]["addBatch"] / 1000 for progress in query.recentProgress if progress["numInputRows"]
        ]
        medians[name] = median(taken[1:])
        assert store.info(name).length == BATCHES * 400
    more = medians["asked"] - medians["at the owner"]
    detail = f"{medians['asked']:.2f} s, at the owner {medians['at the owner']:.2f} s"
    report.add("a micro-batch through a live owner, more than at it", more, "s", at_most=0.5, detail=detail)


def main() -> None:
    """Run all and save ``results/spark_write.json``."""
    measured(
        __doc__,
        "spark_write",
        lambda report, spark, path, quick: measure(
            report, spark, path, (64 if quick else 256) * MIB, 3 if quick else 7
        ),
    )


if __name__ == "__main__":
    main()
