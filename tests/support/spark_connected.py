"""Run as a script, by the Python of a Connect client: what an application does through Spark Connect, told as one line of JSON.

    python spark_connected.py REMOTE ROOT CHECKPOINT

``REMOTE``: ``local[2]`` starts a server beside this process, ``sc://HOST:PORT`` asks one that runs. ``CHECKPOINT``: of a stream; empty: it
only reads. Nothing of the tests is imported: the client has the installed package and what Connect needs.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import subprocess
import sys
from typing import Any, Final

ROWS: Final = 1000
WHOLE: Final = {"rows": True, "rows counted": True, "copy": True, "copy counted": True}
"""What ``round_trip`` tells where every row is there once."""


def _read(spark: Any, root: str) -> dict[str, object]:
    from pyspark.errors import PySparkException

    from chunkstore.spark.errors import original_error

    frame = spark.read.format("chunkstore").options(segments="orders", minPartitions="3").load(root)
    rows = sorted((row.offset, bytes(row.value)) for row in frame.collect())
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW orders USING chunkstore OPTIONS (path '{root}', segments 'orders')")
    told: dict[str, object] = {
        "client": type(spark).__module__,
        "sha256": hashlib.sha256(b"".join(value for _, value in rows)).hexdigest(),
        "columns": frame.columns,
        "counted": spark.sql("SELECT sum(length(value)) AS n FROM orders").first().n,
    }
    for name, options in {
        "missing": {"segments": "nix"},
        "unknown": {"segments": "orders", "colums": "value"},
        "damaged": {"segments": "damaged"},
    }.items():
        try:
            spark.read.format("chunkstore").options(**options).load(root).collect()
        except PySparkException as caught:
            error = original_error(caught)
            told[name] = None if error is None else [type(error).__name__, error.to_fields()]
    told["foreach"] = _refused(spark, root)
    return told


def _jobs(spark: Any, root: str) -> object:
    """What an offload has done."""
    from chunkstore.spark import jobs

    frame = spark.range(0, 10, 1, 1).selectExpr("cast(id AS string) AS value")
    return [[row.state, row.entries] for row in jobs.offload(spark, frame, root, "connected").collect()]


def _refused(spark: Any, root: str) -> object:
    """What is said of the one thing that needs the driver's own process."""
    from pyspark.errors import PySparkException

    import chunkstore
    from chunkstore.spark import foreach_batch
    from chunkstore.spark.errors import original_error

    stream = spark.readStream.format("chunkstore").options(segments="orders").load(root).select("value")
    with chunkstore.open(root, container="mine") as store:
        try:
            stream.writeStream.foreachBatch(foreach_batch(store, segments="copy"))
        except (PySparkException, pickle.PickleError) as caught:
            error = original_error(caught)
            return None if error is None else [type(error).__name__, error.to_fields()]
    return "nothing"


def round_trip(spark: Any, root: str, checkpoint: str) -> dict[str, object]:
    """Write, write again, stream what was written into another segment, twice, and count it where it lies; what is there in the end.

    The batch write claims the container; the stream asks a server."""
    from chunkstore.spark import map_batches

    rows = spark.range(0, ROWS, 1, 4).selectExpr("concat('row ', id) AS value")
    for _ in range(2):
        job = {"segments": "rows", "txnAppId": "round", "txnVersion": "1"}
        rows.write.format("chunkstore").mode("append").options(framing="lines", **job).save(root)
    lines = {"framing": "lines", "startingOffsets": "earliest", "segments": "rows"}
    server = subprocess.Popen([sys.executable, "-m", "chunkstore", "serve", root])
    for _ in range(2):
        stream = spark.readStream.format("chunkstore").options(**lines).load(root).select("value").writeStream
        stream = stream.format("chunkstore").options(
            framing="lines", path=root, segments="copy", checkpointLocation=checkpoint
        )
        assert stream.trigger(availableNow=True).start().awaitTermination(200)
    server.terminate()
    server.wait()

    def count(batches: Any) -> Any:
        import pyarrow as pa

        yield pa.record_batch({"n": pa.array([sum(batch.num_rows for batch in batches)], pa.int64())})

    told: dict[str, object] = {}
    for name in ("rows", "copy"):
        read = {"segments": name, "framing": "lines", "minPartitions": 3}
        frame = spark.read.format("chunkstore").options(**read).load(root)
        told[name] = sorted(int(row.value.split()[1]) for row in frame.collect()) == list(range(ROWS))
        counted = map_batches(spark, count, "n LONG", path=root, **read)
        told[f"{name} counted"] = sum(row.n for row in counted.collect()) == ROWS
    return told


def main() -> None:
    from pyspark.sql import SparkSession

    remote, root, checkpoint = sys.argv[1:]
    builder = SparkSession.builder.remote(remote)
    if remote.startswith("local"):
        for key, value in {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "1g",
            "spark.ui.enabled": "false",
        }.items():
            builder = builder.config(key, value)
    spark = builder.getOrCreate()
    try:
        told = _read(spark, root)
        if checkpoint:
            told["jobs"] = _jobs(spark, root)
            told["round"] = round_trip(spark, root, checkpoint)
        print(json.dumps(told), flush=True)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
