"""Bronze to silver: lines become typed rows; what is no departure is put aside.

``python -m examples.flights.silver --root file:///srv/flights`` reads what is new since its last run; with ``--running`` for ever. It may
be killed at any moment: started again, it goes on where it was, and no line is in silver twice.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from examples.flights.pipeline import (
    BRONZE,
    REJECTED,
    SILVER,
    SILVER_SEGMENTS,
    command,
    finish,
    records,
    session,
    start,
)

SCHEMA = (
    "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, sched_arr_time INT, arr_delay INT, "
    "carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, air_time INT, distance INT, hour INT, minute INT, "
    "time_hour STRING, _corrupt_record STRING"
)


def departures(spark: SparkSession, root: str, starting: str, former: str) -> DataFrame:
    """Bronze, a row for each line; one that is no departure is in ``_corrupt_record``."""
    where = {"segmentsPattern": f"{BRONZE}.*", "startingOffsets": starting, "foreignRoots": former}
    return records(spark.readStream, root, SCHEMA, **where)


def typed(rows: DataFrame) -> DataFrame:
    """Where each row goes (``segment``), and what it is there (``value``)."""
    scheduled = F.make_timestamp("year", "month", "day", "hour", "minute", F.lit(0))
    cancelled = F.col("dep_time").isNull()
    columns = ("carrier", "flight", "tailnum", "origin", "dest", "dep_delay", "arr_delay", "distance")
    departure = F.to_json(F.struct(scheduled.alias("scheduled"), *columns, cancelled.alias("cancelled")))
    aside = F.col("_corrupt_record")
    segment = F.concat(F.lit(f"{SILVER}-"), F.crc32("tailnum") % SILVER_SEGMENTS)
    return rows.select(
        F.when(aside.isNull(), segment).otherwise(REJECTED).alias("segment"),
        F.coalesce(aside, departure).alias("value"),
    )


def silver(
    spark: SparkSession, root: str, work: Path, *, running: bool = False, starting: str = "earliest", former: str = ""
) -> Any:
    """The query, started. The container knows it by the name of ``work``: where its checkpoint was lost, it is refused, not repeated."""
    rows = typed(departures(spark, root, starting, former))
    return start(rows, root, work / "silver", running=running, txnAppId=f"silver {work.name}")


def main(arguments: list[str] | None = None) -> None:
    parser = command(__doc__, "former", "work", "running")
    parser.add_argument(
        "--starting", default="earliest", help="where to begin, if nothing was read yet: what 'move' has said, as JSON"
    )
    given = parser.parse_args(arguments)
    chosen = {"running": given.running, "starting": given.starting, "former": given.former}
    query = silver(session(), given.root, given.work, **chosen)
    finish(query, running=given.running)


if __name__ == "__main__":
    main()
