"""Records that are JSON objects, parsed by blocks, against an oracle that takes each by itself with ``json.loads``."""

from __future__ import annotations

import json
import math
import pickle
import struct
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkstore.errors import InvalidArgument
from tests.support.spark import missing

if "Java" not in missing() and missing():
    pytest.skip(missing(), allow_module_level=True)

import pyarrow as pa
from pyspark import cloudpickle

from chunkstore.spark import json_rows
from chunkstore.spark.batches import Lines
from chunkstore.spark.json_lines import parse_record
from chunkstore.spark.json_rows import CORRUPT, JsonColumn, JsonRows

KIND = pa.struct(
    {
        "i": pa.int64(),
        "b": pa.int8(),
        "d": pa.float64(),
        "f": pa.float32(),
        "s": pa.string(),
        "t": pa.bool_(),
        "l": pa.list_(pa.int32()),
        "o": pa.struct({"i": pa.int64(), "s": pa.string(), "l": pa.list_(pa.struct({"i": pa.int16()}))}),
    }
)
FLAT = pa.struct([field for field in KIND if not pa.types.is_nested(field.type) and field.type != pa.float32()])
"""What ``json_flat`` takes."""
UNFIT, ANY = object(), object()
"""Does not fit; and text that the oracle cannot know."""


class Number(str):
    """As it was written."""

    __slots__ = ()


def parser(kind: pa.StructType = KIND, *, entries: bool = False, fail_fast: bool = False) -> JsonRows:
    columns = [
        JsonColumn(pa.field("offset", pa.int64()), True),
        *map(JsonColumn, kind),
        JsonColumn(pa.field(CORRUPT, pa.string())),
    ]
    place = ("topic", "ledger", "offset") if entries else ("segment", "offset")
    return JsonRows(columns, value="value", place=place, fail_fast=fail_fast)


def parsed(records: Sequence[bytes], *, entries: bool = False, **how: Any) -> list[dict[str, Any]]:
    """The rows of one batch; ``offset`` is the number of the record."""
    parse: JsonRows = pickle.loads(cloudpickle.dumps(parser(entries=entries, **how)))  # type: ignore[no-untyped-call]
    if entries:
        raw = {"topic": ["a"] * len(records), "ledger": [1] * len(records), "offset": list(range(len(records)))}
        batch = pa.record_batch({**raw, "value": pa.array(records, pa.binary())})
        made = list(parse.batches(iter([batch])))
    else:
        made = [parse.of_lines(Lines("a", 100, b"\n".join(records), None))]
        numbers = dict(
            zip(accumulate((len(record) + 1 for record in records), initial=100), range(len(records)), strict=False)
        )
    found = []
    for rows in made:
        rows.validate(full=True)
        found += [row if entries else {**row, "offset": numbers[row["offset"]]} for row in rows.to_pylist()]
    return found


# The oracle


def fitted(value: Any, kind: pa.DataType) -> Any:
    """A field's value and whether all of it fits."""
    if value is None:
        return None, True
    if pa.types.is_string(kind):
        return (ANY, True) if isinstance(value, list) else _text(value)
    if pa.types.is_boolean(kind):
        return (value, True) if isinstance(value, bool) else (UNFIT, False)
    if pa.types.is_integer(kind):
        whole = isinstance(value, Number) and value.lstrip("-").isdigit()
        most = 2 ** (kind.bit_width - 1)
        return (int(value), True) if whole and -most <= int(value) < most else (UNFIT, False)
    if pa.types.is_floating(kind):
        if not isinstance(value, Number) and value not in ("NaN", "Infinity", "-Infinity"):
            return UNFIT, False
        number = float(value)
        if kind.bit_width == 32 and math.isfinite(number):
            number = math.copysign(math.inf, number) if abs(number) > 3.4028235677973366e38 else number
            number = struct.unpack("f", struct.pack("f", number))[0] if math.isfinite(number) else number
        return number, True
    if pa.types.is_list(kind):
        if not isinstance(value, list) or isinstance(value, Pairs):
            return UNFIT, False
        items = [fitted(item, kind.value_type) for item in value]
        if any(item is UNFIT for item, _ in items):
            return UNFIT, False
        return [item for item, _ in items], all(fits for _, fits in items)
    return taken(value, kind) if isinstance(value, Pairs) else (UNFIT, False)


class Pairs(list[tuple[str, Any]]):
    """An object."""


def _text(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower(), True
    text = str(value)
    return (text, True) if text.isascii() or max(text) < "\ud800" or max(text) > "\udfff" else (ANY, True)


def taken(pairs: Pairs, kind: pa.StructType) -> tuple[dict[str, Any], bool]:
    row = dict.fromkeys(field.name for field in kind)
    all_fit = True
    for name, value in pairs:
        if name in row:
            found, fits = fitted(value, kind.field(name).type)
            all_fit = all_fit and fits
            if found is not UNFIT:
                row[name] = found
    return row, all_fit


def oracle(record: bytes, kind: pa.StructType) -> tuple[dict[str, Any], bool] | None:
    """The row and whether the record fits; None for a blank one."""
    nothing: dict[str, Any] = dict.fromkeys(field.name for field in kind)
    try:
        text = record.decode("utf-8-sig")
        if not text.strip(" \t\r\n"):
            return None
        found = json.loads(text, parse_int=Number, parse_float=Number, parse_constant=Number, object_pairs_hook=Pairs)
    except ValueError:
        return nothing, False
    return taken(found, kind) if isinstance(found, Pairs) else (nothing, False)


def same(ours: Any, theirs: Any) -> bool:
    if theirs is ANY:
        return isinstance(ours, str) or ours is None
    if isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(same(ours[name], theirs[name]) for name in theirs)
    if isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    if isinstance(theirs, float):
        return type(ours) is float and repr(ours) == repr(theirs)  # the sign of zero counts
    return type(ours) is type(theirs) and ours == theirs


# What records hold

NUMBERS = (
    st.sampled_from(
        (
            *("0", "-0", "1", "127", "128", "-128", "-129", "2147483648", "9223372036854775807", "9223372036854775808"),
            *("-9223372036854775808", "1.0", "-0.0", "1e3", "1E+2", "0.1", "1e400", "-1e400", "1e-400", "16777217"),
            *(
                "3.4028236e38",
                "12345678901234567890123456789",
                "NaN",
                "Infinity",
                "-Infinity",
                "5e-324",
                "0.30000000000000004",
            ),
        )
    ).map(Number)
    | st.integers().map(Number)
    | st.floats(allow_nan=False, allow_infinity=False).map(lambda number: Number(repr(number)))
)
SCALARS = (
    st.none() | st.booleans() | NUMBERS | st.text(max_size=8) | st.sampled_from(("NaN", "null", "}\n{", "}{", "1"))
)
NAMES = st.sampled_from((*(field.name for field in KIND), "x", "I", ""))
TREES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.lists(st.tuples(NAMES, inner), max_size=4).map(Pairs),
    max_leaves=8,
)
FITTING = st.fixed_dictionaries(
    {},
    optional={
        "i": st.integers(-(2**63), 2**63 - 1).map(Number),
        "d": st.floats(allow_nan=False, allow_infinity=False).map(lambda number: Number(repr(number))),
        "s": st.text(max_size=8),
        "t": st.booleans(),
        "l": st.lists(st.none() | st.integers(-(2**31), 2**31 - 1).map(Number), max_size=3),
        "x": SCALARS.filter(lambda value: not isinstance(value, Number)) | st.integers().map(str).map(Number),
    },
).map(lambda fields: Pairs(fields.items()))
SPACE = st.sampled_from(("", "", "", " ", "\t", "\r", "\n"))


def written(tree: Any, ascii_only: bool = False) -> str:
    if isinstance(tree, Number):
        return str(tree)
    if isinstance(tree, Pairs):
        fields = (f"{json.dumps(name, ensure_ascii=ascii_only)}:{written(item, ascii_only)}" for name, item in tree)
        return "{" + ",".join(fields) + "}"
    if isinstance(tree, list):
        return "[" + ", ".join(written(item, ascii_only) for item in tree) + "]"
    return json.dumps(tree, ensure_ascii=ascii_only)


@st.composite
def broken(draw: st.DrawFn) -> bytes:
    """A record with something put in, or cut out."""
    data = written(draw(st.lists(st.tuples(NAMES, TREES), max_size=4).map(Pairs)), draw(st.booleans())).encode()
    low = draw(st.integers(0, len(data)))
    put = draw(
        st.sampled_from(
            (
                b"",
                b"}",
                b"{",
                b"}{",
                b"null",
                b"\n",
                b"}\n{",
                b"\xff",
                b"\x00",
                b'"',
                b",",
                b"\xef\xbb\xbf",
                b" x",
                b"1",
                b"\\",
            )
        )
    )
    return data[:low] + put + data[low + draw(st.integers(0, 3)) :]


RECORDS = st.lists(
    st.one_of(
        FITTING.map(written).map(str.encode),
        st.tuples(SPACE, st.lists(st.tuples(NAMES, TREES), max_size=4).map(Pairs).map(written), SPACE)
        .map("".join)
        .map(str.encode),
        broken(),
        st.binary(max_size=12),
        st.sampled_from(
            (
                b"",
                b"  ",
                b"null",
                b"[]",
                b"{}",
                b"{}{}",
                b"{}null{}",
                b'\xef\xbb\xbf{"i":1}',
                b'{"i":',
                b"1}",
                b'{"s":"',
                b'"}',
            )
        ),
    ),
    min_size=1,
    max_size=50,
)


@given(records=RECORDS, entries=st.booleans(), alone=st.sampled_from((1, 4, 16)), kind=st.sampled_from((KIND, FLAT)))
@settings(max_examples=100, deadline=None)
def test_each_record_is_what_it_is_by_itself(
    records: list[bytes], entries: bool, alone: int, kind: pa.StructType
) -> None:
    if not entries:
        records = [record.replace(b"\n", b" ") for record in records]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(json_rows, "_ONE_BY_ONE", alone)
        rows = iter(parsed(records, entries=entries, kind=kind))
    for number, record in enumerate(records):
        expected = oracle(record, kind)
        if expected is None and not entries:
            continue
        fields, fits = expected or (dict.fromkeys(field.name for field in kind), False)
        row = next(rows)
        assert row.pop("offset") == number
        assert row.pop(CORRUPT) == (None if fits else record.decode(errors="replace")), record
        assert same(row, fields), record
    assert next(rows, None) is None


@given(records=st.lists(FITTING.map(written).map(str.encode), min_size=1, max_size=30))
@settings(max_examples=20, deadline=None)
def test_records_that_fit_never_need_to_be_looked_at_one_by_one(records: list[bytes]) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(json_rows, "parse_record", None)
        assert len(parsed(records)) == len(records)
        patched.setattr("pyarrow.json.read_json", None)
        assert len(parsed(records, kind=FLAT)) == len(records)


def test_objects_across_records_and_several_in_one_shift_nothing() -> None:
    good = b'{"i": %d}'
    records = [
        good % 0,
        b'{"i": 1}{"i": 2}',
        b'{"i":',
        b"3}",
        good % 4,
        b'{"s": "}',
        b'{"}',
        good % 7,
        b"null",
        good % 9,
    ]
    for entries in (False, True):
        rows = parsed(records, entries=entries)
        assert [row["i"] for row in rows] == [0, None, None, None, 4, None, None, 7, None, 9]
        assert [row[CORRUPT] for row in rows] == [
            None if row["i"] is not None else record.decode() for row, record in zip(rows, records, strict=True)
        ]
    assert [row["i"] for row in parsed([b'{"i":\n 5}', b'{"i": 6}\n{"i": 7}', b"{", b"}"], entries=True)] == [
        5,
        None,
        None,
        None,
    ]


def test_depth_and_length_are_no_matter() -> None:
    deep = b'{"x":' + b"[" * 200_000 + b"]" * 200_000 + b',"i":1}'
    late = deep[:-1] + b"]"
    rows = parsed([deep, b'{"i":2,"i":2}', late, b"[" * 100_000])
    assert [row["i"] for row in rows] == [1, 2, None, None]


@pytest.mark.parametrize(
    ("value", "name", "expected"),
    [
        ('"\\ud800"', "s", None),
        ('["\\ud800"]', "s", '["\\ud800"]'),
        ('"\\ud83d\\ude00"', "s", "\U0001f600"),
        ("Inf", "d", math.inf),
        ("-Inf", "f", -math.inf),
        ("+INF", "d", math.inf),
        ("Infinit", "d", None),
        ("128", "b", None),
    ],
)
def test_values_that_are_decided_here(value: str, name: str, expected: Any) -> None:
    record = f'{{"{name}":{value}}}'
    [row] = parsed([record.encode()])
    assert row[name] == expected
    assert (row[CORRUPT] is None) == (expected is not None)


@pytest.mark.parametrize("kind", [KIND, FLAT], ids=["nested", "flat"])
@pytest.mark.parametrize("more", ["", " ", ',"i":0'])
def test_the_sign_of_zero(kind: pa.StructType, more: str) -> None:
    rows = parsed([f'{{"d":{value}{more}}}'.encode() for value in ("-0", "0", "-0.0", "-0e1", "1")], kind=kind)
    assert [str(row["d"]) for row in rows] == ["-0.0", "0.0", "-0.0", "-0.0", "1.0"]


def test_one_bad_record_among_many_costs_a_few_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[bytes] = []

    def counting(data: bytes, kind: pa.StructType) -> tuple[dict[str, Any], str]:
        looked.append(data)
        return parse_record(data, kind)

    monkeypatch.setattr(json_rows, "parse_record", counting)
    parse = parser()
    count = 3000
    records = [b'{"i": %d}' % number if number != 1234 else b'{"i": "x"}' for number in range(count)]
    made = parse.of_lines(Lines("a", 0, b"\n".join(records), None))
    assert made["i"].to_pylist() == [number if number != 1234 else None for number in range(count)]
    assert len(looked) <= 16


def test_what_blocks_give_goes_on_together() -> None:
    parse = parser()
    made = [parse.of_lines(Lines("a", 0, data, None)) for data in (b'{"i":1}', b"", b'{"i":2}\n{"i":3}', b" ")]
    [batch] = parse.batches(iter(made))
    assert batch["i"].to_pylist() == [1, 2, 3]
    assert list(parse.batches(iter([made[1]]))) == []


def test_fail_fast_names_the_record() -> None:
    with pytest.raises(
        InvalidArgument, match=r"segment 'a', offset 109 does not fit the schema: field 'i' is no int64: 1\.5"
    ) as caught:
        parsed([b'{"i": 1}', b'{"i": 1.5}', b"x"], fail_fast=True)
    assert caught.value.argument == "mode"
    with pytest.raises(InvalidArgument, match=r"topic 'a', ledger 1, offset 0 .* it is no JSON object"):
        parsed([b"[]"], entries=True, fail_fast=True)
    assert [row["i"] for row in parsed([b"", b'{"i": 1}'], fail_fast=True)] == [1]
