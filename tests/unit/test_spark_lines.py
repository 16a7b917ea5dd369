"""Lines and positions in batch reads, what Spark hands over and gets back, and functions over batches: without a JVM."""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chunkstore.errors import BadOffset, InvalidArgument, SegmentNotFound, SegmentTruncated
from tests.support.data import pattern
from tests.support.spark import missing
from tests.support.spark_ground import Ground, filled

if "Java" not in missing() and missing():
    pytest.skip(missing(), allow_module_level=True)

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.types import LongType, StructField, StructType

from chunkstore.spark import plan as planning
from chunkstore.spark.source import DefaultSource

Row = tuple[str, int, bytes]


@pytest.fixture(scope="module")
def lined(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ground, bytes]:
    """A sealed segment of lines of all lengths, in chunks of 1,000 bytes."""
    ground = Ground(tmp_path_factory.mktemp("lines"))
    lines = [pattern(number, number * 7 % 301).replace(b"\n", b" ") for number in range(300)]
    data = b"\n".join(lines) + b"\n"
    with ground.open() as store:
        filled(store, "a", 0, 1000)
        store.append("a", data)
    return ground, data


def read(ground: Ground, **options: str) -> list[Row]:
    """The rows of a batch read, as Spark goes about it."""
    source = DefaultSource({"path": ground.url, **options})
    reader = source.reader(source.schema())
    arrived = pickle.loads(cloudpickle.dumps(reader))  # type: ignore[no-untyped-call]
    rows: list[Row] = []
    for partition in reader.partitions():
        for batch in arrived.read(pickle.loads(pickle.dumps(partition))):
            assert batch.schema.equals(pa.schema({"segment": "string", "offset": "int64", "value": "binary"}))
            rows += [(row["segment"], row["offset"], row["value"]) for row in batch.to_pylist()]
    return rows


def lines_of(data: bytes, start: int = 0) -> list[Row]:
    rows = []
    for line in data[start:].split(b"\n") if data[start:] else []:
        rows.append(("a", start, line))
        start += len(line) + 1
    return rows[:-1] if rows and not rows[-1][2] else rows


@given(
    unit=st.sampled_from((1, 10, 64, 999, 5000)),
    parts=st.integers(1, 40),
    start=st.integers(0, 3000),
    length=st.integers(0, 50_000),
)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_line_comes_once_whatever_partitions_do(
    lined: tuple[Ground, bytes], unit: int, parts: int, start: int, length: int
) -> None:
    ground, data = lined
    stop = min(len(data), start + length)
    with pytest.MonkeyPatch.context() as patched:
        # Bytes that rows of partitions are cut at; a MiB would be one partition here.
        patched.setattr(planning, "ROW_BYTES", unit)
        patched.setattr("chunkstore.spark.options.LINE_BYTES_MAX", 300)
        rows = read(
            ground,
            segments="a",
            framing="lines",
            minPartitions=str(parts),
            startingOffsets=str(start),
            endingOffsets=str(stop),
        )
    assert rows == lines_of(data[:stop], start)


@pytest.mark.parametrize("parts", ["1", "30"])
def test_a_longer_line_is_named(lined: tuple[Ground, bytes], parts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ground, data = lined
    monkeypatch.setattr(planning, "ROW_BYTES", 50)
    longest = max(len(row[2]) for row in lines_of(data))
    first = next(row[1] for row in lines_of(data) if len(row[2]) == longest)
    limit = longest - 1
    read(ground, segments="a", framing="lines", minPartitions=parts, maxRecordBytes=str(longest))
    with pytest.raises(InvalidArgument, match=f"offset {first} of segment 'a' is longer than {limit}") as caught:
        read(ground, segments="a", framing="lines", minPartitions=parts, maxRecordBytes=str(limit))
    assert caught.value.argument == "framing"


def test_patterns_and_positions_of_batches(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    with ground.open() as store:
        for number, name in enumerate(("b-1", "a-1", "a-22", "c")):
            filled(store, name, 100, 30, seed=number)
        store.truncate("c", 30)
        assert {row[0] for row in read(ground, segmentsPattern="[ab]-.")} == {"a-1", "b-1"}
        rows = read(ground, segmentsPattern="a.*", startingOffsets='{"a-1": 95}', endingOffsets='{"a-22": 5}')
        assert [(row[0], row[1], len(row[2])) for row in rows] == [("a-1", 95, 5), ("a-22", 0, 5)]
        assert read(ground, segments="c", startingOffsets="latest") == []
        for kind, options in (
            (SegmentTruncated, {"segments": "c", "startingOffsets": "29"}),
            (BadOffset, {"segments": "c", "endingOffsets": "101"}),
            (InvalidArgument, {"segments": "c", "startingOffsets": "60", "endingOffsets": "50"}),
            (SegmentNotFound, {"segmentsPattern": "a.*", "startingOffsets": '{"b-1": 5}'}),
            (SegmentNotFound, {"segments": "nix"}),
            (InvalidArgument, {"segmentsPattern": "nothing"}),
        ):
            with pytest.raises(kind):
                read(ground, **options)
        rows = read(ground, segments="c", startingOffsets="29", failOnDataLoss="false")
        assert rows[0][1] == 30


# What Spark calls


def stream_reader(ground: Ground, **options: str) -> Any:
    source = DefaultSource({"path": ground.url, "segments": "a", "startingOffsets": "earliest", **options})
    return source.streamReader(source.schema())


def test_limits_come_from_spark(tmp_path: Path) -> None:
    limits = pytest.importorskip(
        "pyspark.sql.streaming.datasource", reason="PySpark before 4.2 has no limits of a batch"
    )

    ground = Ground(tmp_path)
    with ground.open() as store:
        filled(store, "a", 100, 30)
        reader = stream_reader(ground, maxBytesPerTrigger="40", maxOffsetsPerTrigger="1")
        assert pickle.loads(cloudpickle.dumps(reader)) is not None  # type: ignore[no-untyped-call]
        assert reader.getDefaultReadLimit() == limits.ReadMaxBytes(40)
        assert stream_reader(ground).getDefaultReadLimit() == limits.ReadAllAvailable()
        assert stream_reader(ground, maxOffsetsPerTrigger="3").getDefaultReadLimit() == limits.ReadMaxRows(3)
        start = reader.initialOffset()
        for limit, at in (
            (limits.ReadMaxBytes(40), 40),
            (limits.ReadMaxBytes(7), 7),
            (limits.ReadMaxRows(1), 40),
            (limits.ReadAllAvailable(), 100),
        ):
            end = reader.latestOffset(start, limit)
            assert end["segments"]["a"]["at"] == at
            assert json.loads(json.dumps(end)) == end
        [partition] = reader.partitions(start, end)
        assert sum(batch.num_rows for batch in reader.read(partition)) == 1
        assert reader.reportLatestOffset()["segments"]["a"]["at"] == 100
        reader.stop()
        reader.stop()


# Functions over batches


def mapped(ground: Ground, function: Callable[[Any], Any]) -> list[dict[str, Any]]:
    """What ``map_batches`` makes, without a session."""
    text = base64.b64encode(cloudpickle.dumps(function)).decode()  # type: ignore[no-untyped-call]
    source = DefaultSource({"path": ground.url, "segments": "a", "columns": "value", "mapFunction": text})
    reader = source.reader(StructType([StructField("n", LongType(), False)]))
    return [row for partition in reader.partitions() for batch in reader.read(partition) for row in batch.to_pylist()]


def lengths(batches: Any) -> Any:
    for batch in batches:
        yield pa.record_batch({"n": pa.array([sum(map(len, batch.column("value").to_pylist()))], pa.int64())})


def test_what_a_function_makes_is_checked(tmp_path: Path) -> None:
    ground = Ground(tmp_path)
    with ground.open() as store:
        filled(store, "a", 100, 30)
        assert mapped(ground, lengths) == [{"n": 100}]

        def wrong(made: object) -> Callable[[Any], Any]:
            return lambda batches: made

        bad: dict[str, object] = {
            "columns m; the schema has n": [pa.record_batch({"m": [1]})],
            "int32, in the schema int64": [pa.record_batch({"n": pa.array([1], pa.int32())})],
            "nulls": [pa.record_batch({"n": pa.array([None], pa.int64())})],
            "returned int, not a pyarrow": [1],
            "returned RecordBatch, not an iterator": pa.record_batch({"n": [1]}),
            "returned NoneType": None,
        }
        for text, made in bad.items():
            with pytest.raises(InvalidArgument, match=text) as caught:
                mapped(ground, wrong(made))
            assert caught.value.argument == "function"
        with pytest.raises(ZeroDivisionError):
            mapped(ground, lambda batches: [1 // 0])
    source = DefaultSource({"path": ground.url, "segments": "a", "mapFunction": "?"})
    with pytest.raises(InvalidArgument, match="mapFunction"):
        source.reader(StructType([StructField("n", LongType())]))
