"""Silver to gold: delays by carrier and hour; and the late chains of each aircraft, with ``transformWithState``.

A line takes the place of those of the same key before it (``pipeline.newest`` reads them so). So silver may be read again, from the
beginning, and no number changes.

``python -m examples.flights.gold --root file:///srv/flights`` reads what is new since its last run; with ``--running`` for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from examples.flights.pipeline import (
    CHAINS,
    CHAINS_SCHEMA,
    CONTAINER,
    DELAYS,
    SILVER,
    SILVER_SCHEMA,
    command,
    finish,
    records,
    session,
    start,
    triggered,
)

LATE_MINUTES = 15
DAYS_KEPT = 3
"""Of each aircraft, in the state: what comes later than that is told by itself."""


def rows_of_silver(spark: SparkSession, root: str, former: str) -> DataFrame:
    where = {"segmentsPattern": f"{SILVER}-.*", "startingOffsets": "earliest", "foreignRoots": former}
    rows = records(spark.readStream, root, SILVER_SCHEMA, **where)
    return rows.withColumn("scheduled", F.to_timestamp("scheduled"))


def delays(spark: SparkSession, root: str, work: Path, *, running: bool = False, former: str = "") -> Any:
    """The query of delays by carrier and hour of the timetable, started."""
    by_hour = (
        rows_of_silver(spark, root, former)
        .groupBy("carrier", F.hour("scheduled").alias("hour"))
        .agg(
            F.count("*").alias("departures"),
            F.count_if("cancelled").alias("cancelled"),
            F.coalesce(F.sum("dep_delay"), F.lit(0)).alias("minutes"),
            F.max("dep_delay").alias("worst"),
        )
    )

    def write(batch: DataFrame, number: int) -> None:
        """A sink takes no rows that change others (update mode); a batch write does, and is there once, by the micro-batch's number."""
        query = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        writer = batch.write.format("chunkstore").options(container=CONTAINER, segments=DELAYS, framing="lines")
        writer.options(txnAppId=f"delays {query}", txnVersion=str(number)).mode("append").save(root)

    return triggered(
        as_lines(by_hour).writeStream.outputMode("update").foreachBatch(write), work / "delays", running=running
    )


def chains(spark: SparkSession, root: str, work: Path, *, running: bool = False, former: str = "") -> Any:
    """The query of late chains, started."""
    legs = rows_of_silver(spark, root, former).groupBy("tailnum")
    found = legs.transformWithState(LateChains(), outputStructType=CHAINS_SCHEMA, outputMode="Append", timeMode="None")
    return start(as_lines(found), root, work / "chains", running=running, segments=CHAINS)


class LateChains(StatefulProcessor):
    """The longest chain of legs that an aircraft left late with on one day, one behind the other, told each time it changes.

    The legs of the last days are the state, in whatever order they come: what is told does not depend on how they were cut into
    micro-batches. (Timers, and state that expires by the clock, would keep ``availableNow`` running for ever.)
    """

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._legs = handle.getMapState("legs", "scheduled TIMESTAMP", "delay INT, origin STRING, dest STRING")
        self._told = handle.getMapState("told", "day STRING", "legs INT, minutes INT, airports STRING")

    def handleInputRows(self, key: Any, rows: Iterable[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        came = set()
        for row in rows:
            self._legs.updateValue((row.scheduled,), (row.dep_delay, row.origin, row.dest))
            came.add(str(row.scheduled.date()))
        days: dict[str, list[tuple[datetime, Any]]] = {}
        for (scheduled,), leg in self._legs.iterator():
            days.setdefault(str(scheduled.date()), []).append((scheduled, leg))
        for day in sorted(came):
            found = longest([tuple(leg) for _, leg in sorted(days[day])])
            if not self._told.containsKey((day,)) or self._told.getValue((day,)) != found:
                self._told.updateValue((day,), found)
                yield Row(tailnum=key[0], day=day, legs=found[0], minutes=found[1], airports=found[2])
        for day in sorted(days)[:-DAYS_KEPT]:
            self._told.removeKey((day,))
            for scheduled, _ in days[day]:
                self._legs.removeKey((scheduled,))

    def close(self) -> None:
        pass


def longest(legs: Iterable[tuple[int | None, str, str]]) -> tuple[int, int, str]:
    """Of a day's legs in order (delay, from, to): how many of the longest late chain, their minutes, the airports. One is no chain."""
    best: tuple[int, int, str] = (0, 0, "")
    count, minutes, airports = 0, 0, ""
    for delay, origin, dest in legs:
        if delay is None or delay <= LATE_MINUTES:
            count = 0
            continue
        count, minutes, airports = (
            (count + 1, minutes + delay, f"{airports} {dest}") if count else (1, delay, f"{origin} {dest}")
        )
        best = max(best, (count, minutes, airports), key=lambda chain: chain[0]) if count > 1 else best
    return best


def as_lines(rows: DataFrame) -> DataFrame:
    return rows.select(F.to_json(F.struct("*"), {"ignoreNullFields": "false"}).alias("value"))


def main(arguments: list[str] | None = None) -> None:
    given = command(__doc__, "former", "work", "running").parse_args(arguments)
    spark = session()
    chosen = {"running": given.running, "former": given.former}
    queries = [query(spark, given.root, given.work, **chosen) for query in (delays, chains)]
    try:
        for query in queries:
            finish(query, running=given.running)
    finally:
        for query in queries:
            query.stop()


if __name__ == "__main__":
    main()
