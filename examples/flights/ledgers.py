"""Offload: finished days of bronze become ledgers in Pulsar's format, a topic for each airport and a ledger for each day.

``python -m examples.flights.ledgers --root file:///srv/flights --first 20260301 --last 20260302`` offloads these days; again, it does
nothing.
"""

from __future__ import annotations

from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as F

from examples.flights.pipeline import BRONZE, CONTAINER, command, session

TOPIC = "departures/"


def offload(spark: SparkSession, root: str, first: int, last: int) -> None:
    """The departures of these days, in the order of bronze; an entry is a line as it came."""
    reader = spark.read.format("chunkstore").options(
        container=CONTAINER, segmentsPattern=f"{BRONZE}.*", framing="lines"
    )
    lines = reader.load(root)
    part = F.from_json(F.col("value").cast("string"), "year INT, month INT, day INT, origin STRING, time_hour STRING")
    found = lines.select("offset", "value", part.alias("row")).where("row.time_hour IS NOT NULL")
    found = found.select(
        F.concat(F.lit(TOPIC), "row.origin").alias("topic"),
        F.expr("row.year * 10000L + row.month * 100 + row.day").alias("ledger"),
        "offset",
        F.col("value").alias("payload"),
    ).where(F.col("ledger").between(first, last))
    entry = F.row_number().over(Window.partitionBy("topic", "ledger").orderBy("offset")).cast("bigint") - 1
    entries = found.select("topic", "ledger", entry.alias("entry"), "payload").sortWithinPartitions(
        "topic", "ledger", "entry"
    )
    writer = entries.write.format("chunkstore").options(container=CONTAINER, txnAppId="offload", txnVersion=str(last))
    writer.option("as", "ledger").mode("append").save(root)


def counts(spark: SparkSession, root: str) -> dict[tuple[str, int], int]:
    """Entries by airport and day, from metadata alone: no byte of data is read."""
    reader = spark.read.format("chunkstore").options(
        container=CONTAINER, metadata="ledgers", topicsPattern=f"{TOPIC}.*"
    )
    rows = reader.option("columns", "topic,ledger,entries").load(root).collect()
    return {(row.topic.removeprefix(TOPIC), row.ledger): row.entries for row in rows}


def main(arguments: list[str] | None = None) -> None:
    parser = command(__doc__)
    parser.add_argument("--first", type=int, required=True, help="a day, such as 20260301")
    parser.add_argument("--last", type=int, required=True, help="another one, or the same")
    given = parser.parse_args(arguments)
    spark = session()
    offload(spark, given.root, given.first, given.last)
    for (airport, day), entries in sorted(counts(spark, given.root).items()):
        print(f"{airport} {day} {entries}")


if __name__ == "__main__":
    main()
