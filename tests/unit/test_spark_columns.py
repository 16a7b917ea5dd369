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
from chunkstore.spark.columns import split_partition
from chunkstore.spark.options import parse_options
from tests.support.spark import missing
from tests.support.spark_ground import Ground

if "Java" not in missing() and missing():
    pytest.skip(missing(), allow_module_level=True)

from pyspark import cloudpickle

from chunkstore.spark.source import DefaultSource
from tests.support.spark_streams import Stream

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


def ms(hour: int) -> str:
    return str(BEGAN_MS + hour * HOUR_MS)


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


def test_names_of_partitions() -> None:
    assert split_partition("persistent://a/b/c-partition-12") == ("persistent://a/b/c", 12)
    assert split_partition("a-partition-1-partition-0") == ("a-partition-1", 0)
    for name in ("a", "a-partition-", "-partition-1", "a-partition-01", "a-partition-2147483648", "a-partition-x"):
        assert split_partition(name) == (name, None)


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


def test_a_batch_between_two_times(ground: Ground, clock: Clock) -> None:
    begins = write_hours(ground, clock, "a")

    def lines(**options: str) -> list[bytes]:
        return [value for (value,) in rows_of(ground, segments="a", framing="lines", columns="value", **options)]

    for hour in range(5):
        windows = lines(endingTimestamp=ms(hour)), lines(startingTimestamp=ms(hour))
        assert windows[0] + windows[1] == LINES, "windows share no line and lose none"
        assert windows[1] == [line for number, line in enumerate(LINES) if max(0, number - 1) // 3 >= hour]
    assert lines(startingTimestamp="2023-11-14T23:13:20.001+00:00", endingTimestamp=ms(3)) == LINES[7:10]
    assert lines(startingTimestamp=ms(2), endingTimestamp=ms(2)) == []
    assert lines(startingTimestamp=ms(2), endingOffsets="latest") == LINES[7:]
    pieces = rows_of(ground, segments="a", columns="offset", startingTimestamp=ms(1), endingTimestamp=ms(3))
    assert [offset for (offset,) in pieces] == begins[1:3]
    with ground.open() as store:
        store.truncate("a", begins[1] + 1)
    assert [offset for (offset,) in rows_of(ground, segments="a", columns="offset", startingTimestamp="0")] == [
        begins[1] + 1,
        *begins[2:],
    ]


def test_a_chunk_behind_a_younger_one_is_not_looked_for(ground: Ground, clock: Clock) -> None:
    """As Kafka has it: what comes first of what is young enough, whatever stands behind that."""
    with ground.open() as store:
        for name, hour in (("old", 1), ("young", 5)):
            clock[0] = hour
            store.create(name)
            store.append(name, name.encode())
            store.seal(name)
        store.create("a")
        store.concat("a", 0, "young")
        store.concat("a", 5, "old")
    assert rows_of(ground, segments="a", columns="value", startingTimestamp=ms(3)) == [(b"young",), (b"old",)]


def test_a_stream_begins_at_a_time(ground: Ground, clock: Clock) -> None:
    write_hours(ground, clock, "a")

    def begun(hour: int) -> Stream:
        return Stream(ground.url, segments="a", framing="lines", startingTimestamp=ms(hour))

    streams = [begun(hour) for hour in range(5)]
    with ground.open() as store:
        store.append("a", b"new\n")
        for hour, stream in enumerate(streams):
            stream.drain()
            read = [row[2] for rows in stream.rows for row in rows]
            assert read == [line for number, line in enumerate(LINES) if max(0, number - 1) // 3 >= hour] + [b"new"]
            stream.replay()
            stream.planner.close()


@pytest.mark.parametrize(
    ("options", "argument"),
    [
        ({"segments": "a", "startingOffsets": "5", "startingTimestamp": "5"}, "startingTimestamp"),
        ({"segments": "a", "endingOffsets": "5", "endingTimestamp": "5"}, "endingTimestamp"),
        ({"segments": "a", "startingTimestamp": "6", "endingTimestamp": "5"}, "endingTimestamp"),
        ({"segments": "a", "startingTimestamp": "noon"}, "startingTimestamp"),
        ({"segments": "a", "endingTimestamp": "2026-11-20T08:00:00"}, "endingTimestamp"),
        ({"topic": "t", "startingTimestamp": "5"}, "startingTimestamp"),
        ({"topicsPattern": "t", "endingTimestamp": "5"}, "endingTimestamp"),
        ({"metadata": "segments", "startingTimestamp": "5"}, "startingTimestamp"),
    ],
)
def test_what_contradicts_is_refused(options: dict[str, str], argument: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_options({"path": "file:///x", **options})
    assert caught.value.argument == argument


def test_a_stream_has_no_end() -> None:
    with pytest.raises(InvalidArgument, match="batch reads"):
        parse_options({"path": "file:///x", "segments": "a", "endingTimestamp": "5"}, stream=True)
