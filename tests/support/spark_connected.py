"""Run as a script, by the Python of a Connect client: what an application does through Spark Connect, told as one line of JSON.

    python spark_connected.py REMOTE ROOT

``REMOTE``: ``local[2]`` starts a server beside this process, ``sc://HOST:PORT`` asks one that runs. Nothing of the tests is imported: the
client has the installed package and what Connect needs.
"""

from __future__ import annotations

import hashlib
import json
import sys
from typing import Any


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
    return told


def main() -> None:
    from pyspark.sql import SparkSession

    remote, root = sys.argv[1:]
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
        print(json.dumps(_read(spark, root)), flush=True)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
