"""Typed values through a real session, line by line against Spark's own reader of JSON."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import chunkstore
from chunkstore.errors import InvalidArgument, Unsupported
from chunkstore.spark import map_batches
from chunkstore.spark.errors import original_error

pytestmark = pytest.mark.proof

LINE = '{{"a":{},"z":9}}'.format
NUMBERS = """1 -0 127 128 1.0 -0.0 1.5 1e3 1E400 1e-400 0.1 16777217 3.4028236e38 2147483648 9223372036854775807 9223372036854775808
    12345678901234567890123456789 01 +1 .5 NaN Infinity -Infinity +INF -INF"""
OTHERS = r"""true false null nul [] [1,null] [1,"x"] [1.5] [[1]] {} {"x":1} {"x":"q","y":"u"} {"x":1,"x":2} {"q":[{}]}
    [{"x":1},{"x":"q"},null] [{"x":1},3] "1" "" "x" "NaN" "Infinity" "+INF" "-INF" "INF" "true" "\u00e9\n" "\u0000" "\x" """
VALUES = (*NUMBERS.split(), *OTHERS.split(), '{"x": 1,  "y":"[ 2]"}', "[1 ,2]", "1 ")
WHOLE = [
    *(LINE(value) for value in VALUES),
    *(
        '{"a":1,"a":2}',
        '{"a":"x","a":2}',
        '{"a":2,"a":"x"}',
        '{"a":1,"a":null}',
        '{"z":3}',
        '{"A":1}',
        "{}",
        ' {"a":1}\t',
    ),
    *(
        "1",
        '"x"',
        "[1]",
        "null",
        "",
        "  ",
        "{",
        '{"a":1',
        '{"z":1,"a":',
        '{"a":1,}',
        "{a:1}",
        "nothing",
        '{"b":"a\tb"}',
        '\ufeff{"z":1}',
    ),
    *('{"b":{"a":[1,{"a":2}]},"z":5}', '{"b":1e999,"z":6}', '{"b":"\\ud800","z":7}', '{"z":8}, {"a":1'[:7]),
]
TYPES = (
    *(
        "LONG",
        "INT",
        "SHORT",
        "BYTE",
        "DOUBLE",
        "FLOAT",
        "STRING",
        "BOOLEAN",
        "ARRAY<LONG>",
        "STRUCT<x: LONG, y: STRING>",
    ),
    *("ARRAY<STRUCT<x: LONG>>", "STRUCT<x: ARRAY<LONG>>"),
)
OTHERWISE: dict[tuple[str, str], tuple[Any, ...]] = {
    ("BYTE", LINE("128")): (None, 9, LINE("128")),  # Spark: -128
    ("DOUBLE", LINE("-0")): ("-0.0", 9, None),  # Spark: 0.0
    ("FLOAT", LINE("-0")): ("-0.0", 9, None),
}
"""By type and line, what is decided otherwise than in Spark."""


class Lines:
    def __init__(self, spark: Any, path: Path, lines: list[bytes]) -> None:
        self.spark = spark
        self.url = f"file://{path}/root"
        self.file = path / "lines.json"
        self.file.write_bytes(b"\n".join(lines) + b"\n")
        cache = chunkstore.Settings(cache_dir=str(path / "cache"), lease_s=0, io_workers=2, lmdb_map_bytes=1 << 28)
        with chunkstore.open(self.url, settings=cache) as store:
            store.create("a", rolling=chunkstore.RollingPolicy(chunk_size_bytes_max=1000))
            store.append("a", self.file.read_bytes())

    def frame(self, schema: str, **options: str) -> Any:
        reader = self.spark.read.format("chunkstore").options(
            segments="a", framing="lines", valueFormat="json", **options
        )
        return reader.schema(schema).load(self.url)


@pytest.fixture(scope="module")
def lines(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Lines:
    return Lines(spark, tmp_path_factory.mktemp("json"), [line.encode() for line in WHOLE])


def plain(row: Any) -> Any:
    """What compares as equal where it is."""
    if isinstance(row, float):
        return "NaN" if math.isnan(row) else repr(row)
    return tuple(map(plain, row)) if isinstance(row, (tuple, list)) else row


@pytest.mark.parametrize("kind", TYPES)
def test_rows_are_those_of_sparks_own_reader(lines: Lines, kind: str) -> None:
    schema = f"a {kind}, z LONG, _corrupt_record STRING"
    theirs = [plain(row) for row in lines.spark.read.schema(schema).json(str(lines.file)).collect()]
    texts = [line for line in WHOLE if line.strip()]
    assert len(theirs) == len(texts)
    ours = [plain(row) for row in lines.frame(schema).collect()]
    expected = [OTHERWISE.get((kind, text), row) for text, row in zip(texts, theirs, strict=True)]
    assert list(zip(texts, ours, strict=True)) == list(zip(texts, expected, strict=True))


STRICTER = [
    ("Inf", b'{"a":Inf}', (math.inf, None)),
    ("something behind", b'{"a":1} x', (None, '{"a":1} x')),
    ("two objects", b'{"a":1}{"a":2}', (None, '{"a":1}{"a":2}')),
    ("an array of objects", b'[{"a":1},{"a":2}]', (None, '[{"a":1},{"a":2}]')),
    ("single quotes", b"{'a':1}", (None, "{'a':1}")),
    ("a BOM", b'\xef\xbb\xbf{"a":1}', (1.0, None)),
    ("no UTF-8", b'{"b":"\xff","a":1}', (None, '{"b":"\ufffd","a":1}')),
]
"""What the guide says is decided otherwise, or is worth saying."""


def test_what_is_decided_otherwise(spark: Any, tmp_path: Path) -> None:
    frame = Lines(spark, tmp_path, [line for _, line, _ in STRICTER]).frame("a DOUBLE, _corrupt_record STRING")
    assert [tuple(row) for row in frame.collect()] == [row for _, _, row in STRICTER]


def test_failfast_and_native_columns(spark: Any, tmp_path: Path) -> None:
    lines = Lines(spark, tmp_path, [b'{"a":1,"c":"x"}', b"", b'{"a":2}', b"oops"])
    found = lines.frame("offset LONG, a LONG, c STRING, timestamp TIMESTAMP", endingOffsets="25").collect()
    assert [row[:3] for row in found] == [(0, 1, "x"), (17, 2, None)]
    assert found[0].timestamp == found[1].timestamp is not None
    with pytest.raises(Exception, match="offset 25 does not fit the schema: it is no JSON object") as caught:
        lines.frame("a LONG", mode="FAILFAST").collect()
    assert isinstance(original_error(caught.value), InvalidArgument)
    for kind in ("DECIMAL(5,2)", "INTERVAL DAY", "VARIANT"):
        with pytest.raises(Exception, match="take it as STRING") as caught:
            lines.frame(f"a {kind}").collect()
        assert isinstance(original_error(caught.value), Unsupported)


def test_functions_get_typed_batches(spark: Any, tmp_path: Path) -> None:
    lines = Lines(spark, tmp_path, [b'{"a":%d,"c":"x"}' % number for number in range(100)])

    def total(batches: Any) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        for batch in batches:
            assert batch.schema.names == ["a", "offset"]
            yield pa.record_batch({"total": [pc.sum(batch["a"]).as_py()]})

    options = {"path": lines.url, "segments": "a", "framing": "lines", "valueFormat": "json"}
    frame = map_batches(spark, total, "total LONG", valueSchema="a LONG, c STRING", columns="a,offset", **options)
    assert [tuple(row) for row in frame.groupBy().sum().collect()] == [(sum(range(100)),)]
