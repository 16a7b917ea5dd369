"""Schemas of ``valueFormat=json``: what a read declares, prunes and refuses, and a stream's rows beside a batch's."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest

from chunkstore.errors import InvalidArgument, Unsupported
from tests.support.spark import missing
from tests.support.spark_ground import Ground, filled

if "Java" not in missing() and missing():
    pytest.skip(missing(), allow_module_level=True)

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    CharType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from chunkstore.spark.json_rows import CORRUPT
from chunkstore.spark.source import DefaultSource

LINES = [b'{"carrier":"UA","delay":7,"offset":"here"}', b"", b"oops", b'{"carrier":"DL","delay":-3}']


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    ground = Ground(tmp_path_factory.mktemp("json"))
    with ground.open() as store:
        filled(store, "a", 0, 50)
        store.append("a", b"\n".join(LINES) + b"\n")
        store.seal("a")
    return ground


def rows_of(ground: Ground, schema: StructType | None = None, **options: str) -> list[tuple[Any, ...]]:
    """The rows of a batch read, as Spark goes about it."""
    given = {"path": ground.url, "segments": "a", "framing": "lines", "valueFormat": "json", **options}
    source = DefaultSource(given)
    reader = source.reader(schema if schema is not None else source.schema())
    arrived = pickle.loads(cloudpickle.dumps(reader))  # type: ignore[no-untyped-call]
    found: list[tuple[Any, ...]] = []
    for partition in reader.partitions():
        for batch in arrived.read(pickle.loads(pickle.dumps(partition))):
            found += [tuple(row.values()) for row in batch.to_pylist()]
    return found


def schema_of(**fields: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in fields.items()])


AT = [sum(len(line) + 1 for line in LINES[:number]) for number in range(len(LINES))]


def test_native_columns_beside_those_of_records(ground: Ground) -> None:
    mine = schema_of(delay=IntegerType(), offset=LongType(), segment=StringType(), **{CORRUPT: StringType()})
    assert rows_of(ground, mine) == [(7, 0, "a", None), (None, AT[2], "a", "oops"), (-3, AT[3], "a", None)]
    theirs = schema_of(offset=StringType(), value=BinaryType(), carrier=StringType())
    assert rows_of(ground, theirs) == [("here", LINES[0], "UA"), (None, LINES[2], None), (None, LINES[3], "DL")]


def test_declared_fields_and_columns(ground: Ground) -> None:
    declared = schema_of(carrier=StringType(), delay=LongType(), offset=StringType()).json()
    assert rows_of(ground, valueSchema=declared) == [("UA", 7, "here"), (None, None, None), ("DL", -3, None)]
    assert rows_of(ground, valueSchema=declared, columns="delay,segment") == [(7, "a"), (None, "a"), (-3, "a")]
    assert rows_of(ground, valueSchema=declared, columns="offset") == [("here",), (None,), (None,)]
    assert rows_of(ground, schema_of(delay=LongType()), valueSchema=declared) == [(7,), (None,), (-3,)]
    with pytest.raises(InvalidArgument, match="no column 'dely' here"):
        rows_of(ground, valueSchema=declared, columns="dely")
    with pytest.raises(InvalidArgument, match="type string"):
        rows_of(ground, schema_of(delay=StringType()), valueSchema=declared)


def test_a_stream_parses_as_a_batch_does(ground: Ground) -> None:
    given = {
        "path": ground.url,
        "segments": "a",
        "framing": "lines",
        "valueFormat": "json",
        "startingOffsets": "earliest",
    }
    schema = schema_of(delay=LongType(), offset=LongType())
    reader = DefaultSource(given).streamReader(schema)
    begin = reader.initialOffset()
    end = reader.latestOffset(begin, None)  # type: ignore[arg-type]
    found = [
        tuple(row.values())
        for part in reader.partitions(begin, end)
        for batch in _batches(reader.read(part))
        for row in batch.to_pylist()
    ]
    reader.stop()
    assert found == rows_of(ground, schema)


def _batches(found: Iterator[Any]) -> Iterator[pa.RecordBatch]:
    yield from found


NUMBER = DecimalType(10, 2)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (NUMBER, r"x is decimal\(10,2\).* STRING, and then cast"),
        (TimestampType(), "x is timestamp, .* to_timestamp"),
        (DateType(), "x is date, .* to_date"),
        (MapType(StringType(), LongType()), r"x is map<string,bigint>, .* from_json"),
        (DayTimeIntervalType(), "x is interval"),
        (CharType(3), r"x is char\(3\)"),
        (BinaryType(), "x is binary"),
        (ArrayType(DateType()), r"x\[\] is date"),
        (schema_of(y=ArrayType(schema_of(z=NUMBER))), r"x\.y\[\]\.z is decimal"),
    ],
)
def test_types_that_would_not_be_exact_are_refused(ground: Ground, kind: DataType, said: str) -> None:
    with pytest.raises(Unsupported, match=said):
        rows_of(ground, schema_of(x=kind))


@pytest.mark.parametrize(
    ("schema", "options", "said"),
    [
        (schema_of(offset=LongType()), {}, "a column that the records have"),
        (schema_of(x=LongType(), **{CORRUPT: LongType()}), {}, "_corrupt_record is a STRING"),
        (StructType([StructField("x", LongType(), False)]), {}, "x may be null.* NOT NULL"),
        (schema_of(x=ArrayType(LongType(), False)), {}, r"x\[\] may be null"),
        (schema_of(x=LongType()), {"columns": "y"}, "the schema for x"),
        (None, {}, "needs a schema"),
        (None, {"valueSchema": "x LONG"}, "the JSON of a StructType"),
        (schema_of(x=LongType()), {"framing": "none"}, "needs framing=lines"),
        (schema_of(x=LongType()), {"mode": "dropmalformed"}, "permissive or failfast"),
        (schema_of(x=LongType()), {"valueFormat": "avro"}, "binary or json"),
    ],
)
def test_what_contradicts_is_refused(
    ground: Ground, schema: StructType | None, options: dict[str, str], said: str
) -> None:
    with pytest.raises(InvalidArgument, match=said):
        rows_of(ground, schema, **options)
