"""Offload: finished days of bronze become ledgers in Pulsar's format, one for each day.

``python -m examples.flights.ledgers --root file:///srv/flights --first 20260301 --last 20260302`` offloads these days; again, it does
nothing.
"""

from __future__ import annotations

from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as F

from chunkstore.spark import jobs
from examples.flights.pipeline import BRONZE, CONTAINER, command, session

TOPIC = "departures"


def offload(spark: SparkSession, root: str, first: int, last: int) -> str:
    """The departures of these days, by airport and in the order of bronze; an entry is a line as it came. ``done``, or ``before``."""
    lines = spark.read.format("chunkstore").options(container=CONTAINER, segmentsPattern=f"{BRONZE}.*", framing="lines")
    parsed = F.from_json(F.col("value").cast("string"), "year INT, month INT, day INT, time_hour STRING")
    found = (
        lines.load(root).select("segment", "offset", "value", parsed.alias("row")).where("row.time_hour IS NOT NULL")
    )
    found = found.withColumn("ledger", F.expr("row.year * 10000L + row.month * 100 + row.day"))
    entry = F.row_number().over(Window.partitionBy("ledger").orderBy("segment", "offset")).cast("bigint") - 1
    entries = found.where(F.col("ledger").between(first, last)).select(
        "ledger", entry.alias("entry"), F.col("value").alias("payload")
    )
    entries = entries.sortWithinPartitions("ledger", "entry")
    part = jobs.offload(spark, entries, root, TOPIC, container=CONTAINER, job=f"departures {first} {last}").collect()[0]
    return str(part.state)


def counts(spark: SparkSession, root: str) -> dict[int, int]:
    """Entries by day, from metadata alone: no byte of data is read."""
    ledgers = spark.read.format("chunkstore").options(container=CONTAINER, metadata="ledgers", topic=TOPIC)
    return {row.ledger: row.entries for row in ledgers.option("columns", "ledger,entries").load(root).collect()}


def main(arguments: list[str] | None = None) -> None:
    parser = command(__doc__)
    parser.add_argument("--first", type=int, required=True, help="a day, such as 20260301")
    parser.add_argument("--last", type=int, required=True, help="another one, or the same")
    given = parser.parse_args(arguments)
    spark = session()
    print(offload(spark, given.root, given.first, given.last))
    for day, entries in sorted(counts(spark, given.root).items()):
        print(f"{day} {entries}")


if __name__ == "__main__":
    main()
