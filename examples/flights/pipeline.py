"""What the steps of the pipeline share: names, the options of a command, the session, and how gold is read."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

CONTAINER = "flights"
BRONZE = "bronze/"
"""``bronze/JFK``: departures as they came, a line of JSON each, in the order in which they left."""
SILVER = "silver"
"""``silver-0`` and so on: typed, an aircraft's always in the same segment."""
REJECTED = "rejected"
DELAYS = "gold/delays"
CHAINS = "gold/chains"
SILVER_SEGMENTS = 2
SILVER_SCHEMA = (
    "scheduled STRING, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, "
    "dep_delay INT, arr_delay INT, distance INT, cancelled BOOLEAN"
)
DELAYS_SCHEMA = "carrier STRING, hour INT, departures LONG, cancelled LONG, minutes LONG, worst INT"
CHAINS_SCHEMA = "tailnum STRING, day STRING, legs INT, minutes INT, airports STRING"


def command(description: str | None, *options: str) -> argparse.ArgumentParser:
    """The options that every step has, and those of these names."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", required=True, help="where the container is: file:///..., s3://..., hdfs://...")
    if "former" in options:
        parser.add_argument("--former", default="", help="the root it was moved from, as long as chunks are there")
    if "work" in options:
        parser.add_argument("--work", type=Path, default=Path("flights-work"), help="a folder for Spark's checkpoints")
    if "running" in options:
        parser.add_argument("--running", action="store_true", help="go on until it is stopped; else: what is there now")
    return parser


def session() -> SparkSession:
    """The session that there is, or one on this machine. On a cluster ``spark-submit`` has made it."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else workers run whatever python3 is on PATH
    builder = SparkSession.builder.appName("flights").config("spark.sql.session.timeZone", "UTC")
    if not os.environ.get("SPARK_HOME") and SparkSession.getActiveSession() is None:
        builder = builder.master("local[2]").config("spark.sql.shuffle.partitions", "2")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    # transformWithState keeps its state in RocksDB, which comes with Spark.
    provider = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", provider)
    return spark


def finish(query: Any, *, running: bool) -> None:
    """Wait for the query: until it has read what is there, or for ever."""
    try:
        query.awaitTermination()
    except KeyboardInterrupt:
        if not running:
            raise
        query.stop()


def start(frame: DataFrame, root: str, checkpoint: Path, *, running: bool, **options: str) -> Any:
    """A query that appends lines to the container: each micro-batch once, committed by whoever owns the container now."""
    writer = frame.writeStream.format("chunkstore").options(path=root, container=CONTAINER, framing="lines", **options)
    return triggered(writer, checkpoint, running=running)


def triggered(writer: Any, checkpoint: Path, *, running: bool) -> Any:
    """The query, started."""
    writer = writer.option("checkpointLocation", checkpoint.absolute().as_uri())
    return (writer.trigger(processingTime="1 second") if running else writer.trigger(availableNow=True)).start()


def records(reader: Any, root: str, schema: str, **options: Any) -> DataFrame:
    """Lines of segments as typed rows, with their offsets. ``reader``: ``spark.read`` or ``spark.readStream``."""
    lines = reader.format("chunkstore").options(container=CONTAINER, framing="lines", **options).load(root)
    parsed: DataFrame = lines.select("offset", F.from_json(F.col("value").cast("string"), schema).alias("row"))
    return parsed.select("offset", "row.*")


def newest(spark: SparkSession, root: str, segment: str, schema: str, *keys: str, **options: Any) -> DataFrame:
    """The last line of each key: a line of gold takes the place of those before it."""
    rows = records(spark.read, root, schema, segments=segment, **options)
    last = rows.groupBy(*keys).agg(F.max_by(F.struct("*"), "offset").alias("row"))
    return last.select("row.*").drop("offset")
