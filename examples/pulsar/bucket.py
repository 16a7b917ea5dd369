"""A bucket that a Pulsar broker filled, without that broker: what is in it, whether it is sound, and its messages in Spark.

``python examples/pulsar/bucket.py URL [--no-spark]``: any ``s3://``, ``file://`` or ``hdfs://`` bucket of Pulsar's offloaders.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path

from chunkstore.pulsar import PulsarBucket


def show(url: str) -> None:
    """Topics with their ledgers and entries, and the findings of a check."""
    with PulsarBucket(url) as bucket:
        ledgers: Counter[str] = Counter()
        entries: Counter[str] = Counter()
        for row in bucket.ledgers(details=True):
            ledgers[row.topic or "?"] += 1
            entries[row.topic or "?"] += row.entries or 0
        print(f"{'topic':40} {'ledgers':>8} {'entries':>8}")
        for topic in sorted(ledgers):
            print(f"{topic:40} {ledgers[topic]:8} {entries[topic]:8}")
        findings = list(bucket.verify())
        print(f"check: {len(findings)} findings in {sum(ledgers.values())} ledgers")
        for finding in findings:
            print(f"  {finding.kind} in {finding.object}: {finding.message}")


def count(url: str) -> None:
    """Messages by topic, counted by Spark: what consumers would get, without those of aborted transactions."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    messages = spark.read.format("pulsar-offload").option("messages", "true").load(url)
    messages.groupBy("topic").count().orderBy("topic").show(40, truncate=False)
    spark.stop()


if __name__ == "__main__":
    [bucket_url, *options] = sys.argv[1:]
    if "://" not in bucket_url:
        bucket_url = Path(bucket_url).absolute().as_uri()
    show(bucket_url)
    if "--no-spark" not in options:
        count(bucket_url)
