"""Yesterday against today: gold as it was, beside gold as it is.

``python -m examples.flights.compare --root file:///srv/flights --yesterday 2026-03-01T23:59:00+00:00``
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from examples.flights.pipeline import DELAYS, DELAYS_SCHEMA, command, newest, session


def by_carrier(spark: SparkSession, root: str, **options: str) -> DataFrame:
    hours = newest(spark, root, DELAYS, DELAYS_SCHEMA, "carrier", "hour", **options)
    return hours.groupBy("carrier").agg(F.sum("departures").alias("departures"), F.sum("minutes").alias("minutes"))


def compare(spark: SparkSession, root: str, yesterday: str, former: str = "") -> DataFrame:
    """``carrier``, and departures and minutes late then and now. ``yesterday``: ISO 8601 with a zone, or milliseconds since 1970."""
    then = by_carrier(spark, root, timestampAsOf=yesterday, foreignRoots=former).withColumnsRenamed(
        {"departures": "departures_then", "minutes": "minutes_then"}
    )
    return then.join(by_carrier(spark, root), "carrier", "full").orderBy("carrier")


def main(arguments: list[str] | None = None) -> None:
    parser = command(__doc__, "former")
    parser.add_argument("--yesterday", required=True, help="a moment: 2026-03-01T23:59:00+00:00")
    given = parser.parse_args(arguments)
    compare(session(), given.root, given.yesterday, given.former).show()


if __name__ == "__main__":
    main()
