"""Kafka's columns of raw segments and ledgers, and reads that begin and end at times of chunks: without a JVM."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import chunkstore
from chunkstore import runtime
from chunkstore.config import KIB
from chunkstore.errors import InvalidArgument
from chunkstore.pulsar import OffloadWriter
from chunkstore.spark.options import parse_options
from tests.support.spark import missing
from tests.support.spark_ground import Ground

if "Java" not in missing() and missing():
    pytest.skip(missing(), allow_module_level=True)

from pyspark import cloudpickle

from chunkstore.spark.source import DefaultSource

BEGAN_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
Clock = list[int]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """What the time is, in hours since the beginning; the owner's labels come from it."""
    hours = [0]
    monkeypatch.setattr(runtime, "now_ms", lambda: BEGAN_MS + hours[0] * HOUR_MS)
    return hours


@pytest.fixture
def ground(tmp_path: Path, clock: Clock) -> Ground:
    return Ground(tmp_path)


def rows_of(ground: Ground, **options: str) -> list[tuple[Any, ...]]:
    source = DefaultSource({"path": ground.url, **options})
    reader = source.reader(source.schema())
    arrived = pickle.loads(cloudpickle.dumps(reader))  # type: ignore[no-untyped-call]
    found: list[tuple[Any, ...]] = []
    for partition in reader.partitions():
        for batch in arrived.read(pickle.loads(pickle.dumps(partition))):
            found += [tuple(row.values()) for row in batch.to_pylist()]
    return found


def at(hour: int) -> datetime:
    return datetime.fromtimestamp((BEGAN_MS + hour * HOUR_MS) / 1000, UTC)


LINES = [b"%d at %d" % (number, number // 3) for number in range(12)]
"""Three of them an hour; each hour's chunk ends in the middle of a line."""


def write_hours(ground: Ground, clock: Clock, name: str) -> list[int]:
    """A chunk for each of four hours; returns where they begin."""
    data = b"\n".join(LINES) + b"\n"
    borders = [0, data.index(b"3 at") + 2, data.index(b"6 at") + 2, data.index(b"9 at") + 2, len(data)]
    with ground.open() as store:
        store.create(name, rolling=chunkstore.RollingPolicy(chunk_size_bytes_max=MAX))
        for hour in range(4):
            clock[0] = hour
            piece = data[borders[hour] : borders[hour + 1]]
            store.create("part")
            store.append("part", piece)
            store.seal("part")
            store.concat(name, borders[hour], "part")
    return borders[:-1]


MAX = 64 * KIB


def test_kafkas_columns_of_segments(ground: Ground, clock: Clock) -> None:
    begins = write_hours(ground, clock, "orders-partition-3")
    with ground.open() as store:
        store.create("plain")
        store.append("plain", b"x")
    columns = "topic,partition,offset,timestamp,value"
    rows = rows_of(ground, segments="orders-partition-3,plain", columns=columns)
    data = b"\n".join(LINES) + b"\n"
    pieces = [data[low:high] for low, high in zip(begins, [*begins[1:], len(data)], strict=True)]
    assert rows == [
        *(
            ("orders", 3, begin, at(hour), piece)
            for hour, (begin, piece) in enumerate(zip(begins, pieces, strict=True))
        ),
        ("plain", None, 0, at(3), b"x"),
    ]
    unread = rows_of(ground, segments="orders-partition-3", columns="timestamp,topic,segment")
    assert unread == [(at(hour), "orders", "orders-partition-3") for hour in range(4)]
    lines = rows_of(ground, segments="orders-partition-3", framing="lines", columns="value,timestamp")
    assert lines == [(line, at(max(0, number - 1) // 3)) for number, line in enumerate(LINES)], "the first byte's chunk"


def test_kafkas_columns_of_ledgers(ground: Ground, clock: Clock) -> None:
    topic = "t/n/persistent/orders-partition-2"
    with ground.open() as store:
        writer = OffloadWriter(store, topic, block_bytes=4 * KIB, segment_bytes_max=8 * KIB)
        for entry in range(30):
            clock[0] = entry // 10
            writer.append(7, entry, b"%d" % entry * 500)
        writer.close()
    rows = rows_of(ground, topic=topic, columns="topic,partition,offset,value,timestamp,entry")
    assert [row[:4] for row in rows] == [(topic, 2, entry, b"%d" % entry * 500) for entry in range(30)]
    assert all(row[2] == row[5] for row in rows)
    times = [row[4] for row in rows]
    assert times == sorted(times)
    assert set(times) <= {at(hour) for hour in range(3)}
    assert len(set(times)) > 1


@pytest.mark.parametrize("chosen", [{"topic": "t"}, {"segments": "a"}])
@pytest.mark.parametrize("name", ["key", "headers", "timestampType"])
def test_what_kafka_has_and_there_is_not_is_refused_with_the_reason(chosen: dict[str, str], name: str) -> None:
    with pytest.raises(InvalidArgument, match=f"have no column '{name}': .*; the columns are ") as caught:
        parse_options({"path": "file:///x", **chosen, "columns": name})
    assert caught.value.argument == "columns"
