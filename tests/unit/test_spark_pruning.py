"""Filters that Spark hands to a reader: they change what is planned, never what is found. Without a JVM."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="pyspark is not installed: reading from Spark is not tested")

from pyspark.sql import datasource as ds
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

import chunkstore
from chunkstore.config import KIB, MIB
from chunkstore.errors import Unsupported
from chunkstore.pulsar import OffloadWriter
from chunkstore.spark import source as source_module
from chunkstore.spark.filters import Condition, Wanted, take_filters
from chunkstore.spark.runs import LedgerRun
from chunkstore.spark.source import DefaultSource, FilteringReader
from tests.support.data import pattern

TOPICS = ("a/b/c", "a/b/d")
KINDS = {"STRING": StringType(), "INT": IntegerType(), "LONG": LongType()}
Row = tuple[Any, ...]


def _compare(call: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool | None]:
    return lambda cell, value: None if value is None else call(cell, value)


def _is_in(cell: Any, values: Sequence[Any]) -> bool | None:
    return True if cell in values else None if None in values else False


MEANING: dict[type, Callable[[Any, Any], bool | None]] = {
    ds.EqualTo: _compare(lambda cell, value: cell == value),
    ds.EqualNullSafe: lambda cell, value: cell == value,
    ds.GreaterThan: _compare(lambda cell, value: cell > value),
    ds.GreaterThanOrEqual: _compare(lambda cell, value: cell >= value),
    ds.LessThan: _compare(lambda cell, value: cell < value),
    ds.LessThanOrEqual: _compare(lambda cell, value: cell <= value),
    ds.In: _is_in,
    ds.StringStartsWith: _compare(lambda cell, value: str(cell).startswith(value)),
    ds.StringEndsWith: _compare(lambda cell, value: str(cell).endswith(value)),
    ds.StringContains: _compare(lambda cell, value: value in str(cell)),
    ds.IsNull: lambda cell, value: cell is None,
    ds.IsNotNull: lambda cell, value: cell is not None,
}
"""Spark's three-valued logic, written down a second time."""


def is_true(item: Any, row: dict[str, Any]) -> bool:
    plain: Any = item.child if isinstance(item, ds.Not) else item
    found = MEANING[type(plain)](row[plain.attribute[0]], getattr(plain, "value", None))
    return found is not None and found != isinstance(item, ds.Not)


def filters_on(column: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    texts = (ds.StringStartsWith, ds.StringEndsWith, ds.StringContains)
    compared = [kind for kind in MEANING if kind not in (ds.In, ds.IsNull, ds.IsNotNull, *texts)]
    nullable = st.one_of(values, st.none())
    is_text = column in ("segment", "topic")
    plain = st.one_of(
        st.builds(lambda kind, value: kind((column,), value), st.sampled_from(compared), nullable),
        st.builds(lambda found: ds.In((column,), tuple(found)), st.lists(nullable, max_size=5)),
        st.builds(lambda kind: kind((column,)), st.sampled_from([ds.IsNull, ds.IsNotNull])),
        *(
            [st.builds(lambda kind, value: kind((column,), value[:3]), st.sampled_from(texts), values)]
            if is_text
            else []
        ),
    )
    return st.builds(lambda item, negated: ds.Not(item) if negated else item, plain, st.booleans())


class Planned(NamedTuple):
    rows: list[Row]
    size: int
    left: list[Any]


def planned(options: dict[str, str], filters: Sequence[Any] | None) -> Planned:
    """What a session finds, which applies the filters that are left."""
    source = DefaultSource({**options, "pushdown": "false" if filters is None else "true"})
    reader = source.reader(source.schema())
    left = list(reader.pushFilters(list(filters))) if filters is not None else []
    names = source.schema().fieldNames()
    rows: list[Row] = []
    size = 0
    for partition in reader.partitions():
        task: Any = pickle.loads(pickle.dumps(partition)).task
        for run in task.runs:
            cut = getattr(run, "cut", None)
            size += sum(item.stop - item.start for item in run.pieces) if cut is None else cut.stop - cut.start
        for batch in reader.read(partition):
            rows += zip(*(column.to_pylist() for column in batch.columns), strict=True)
    return Planned(
        [row for row in rows if all(is_true(item, dict(zip(names, row, strict=True))) for item in left)], size, left
    )


@cache
def unfiltered(options: tuple[tuple[str, str], ...]) -> Planned:
    return planned(dict(options), None)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    path = tmp_path_factory.mktemp("pruning")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(path / "cache"))
        url = f"file://{path}/root"
        with chunkstore.open(url, settings=chunkstore.Settings(lease_s=0, lmdb_map_bytes=1 << 28)) as store:
            store.create("raw", rolling=chunkstore.RollingPolicy(chunk_size_bytes_max=5 * MIB // 2))
            store.append("raw", pattern(0, 6 * MIB, 1))
            store.truncate("raw", 3 * MIB // 4)
            for name, chunk_bytes in (("lines", 700), ("short", 64 * KIB), ("Lines", 64)):
                store.create(name, rolling=chunkstore.RollingPolicy(chunk_size_bytes_max=chunk_bytes))
                store.append(name, b"".join(b"%d\n" % number * (number % 3) for number in range(200)))
            store.truncate("lines", 100)  # in the middle of a line
            for topic in TOPICS:
                writer = OffloadWriter(store, topic, block_bytes=4 * KIB)
                for ledger in (3, 5):
                    for entry in range(60):
                        if ledger == 5 or entry % 17:  # ledger 3 has holes
                            writer.append(ledger, entry, bytes(entry * 37 % 900))
                    if ledger == 3:
                        writer.complete()
                writer.complete()
                writer.append(5, 60, b"still open")
                writer.flush()
                writer.append(5, 70, b"behind a hole")
                writer.close()
        with chunkstore.open_replica(url) as replica:
            patch.setattr(source_module, "planning_replica", lambda options: nullcontext(replica))
            yield url


def check(options: dict[str, str], filters: Sequence[Any], columns: Sequence[str]) -> Planned:
    everything = unfiltered(tuple(options.items()))
    pushed = planned(options, filters)
    wanted = [
        row for row in everything.rows if all(is_true(item, dict(zip(columns, row, strict=True))) for item in filters)
    ]
    assert pushed.rows == wanted
    assert pushed.size <= everything.size
    return pushed


OFTEN = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
NAMES = st.sampled_from(["lines", "Lines", "short", "raw", "no such", "", *TOPICS])
OFFSETS = st.one_of(
    st.integers(0, 900), st.sampled_from([-(1 << 63), (1 << 63) - 1, MIB, 2 * MIB + MIB // 2, 3 * MIB, 6 * MIB])
)


@pytest.mark.parametrize("framing", ["none", "lines"])
@OFTEN
@given(st.lists(st.one_of(filters_on("segment", NAMES), filters_on("offset", OFFSETS)), max_size=4), st.integers(1, 5))
def test_any_filters_on_raw_segments_find_the_same(root: str, framing: str, filters: list[Any], parts: int) -> None:
    segments = "lines,Lines,short" + (",raw" if framing == "none" else "")
    options = {"path": root, "segments": segments, "framing": framing, "minPartitions": str(parts)}
    options["columns"] = "offset,segment"
    pushed = check(options, filters, ("offset", "segment"))
    if framing == "none":
        assert pushed.left == []


@pytest.mark.parametrize("columns", [("topic", "ledger", "entry", "payload"), ("entry", "topic", "ledger")])
@OFTEN
@given(
    st.lists(
        st.one_of(
            filters_on("topic", NAMES),
            filters_on("ledger", st.integers(2, 6)),
            filters_on("entry", st.one_of(st.integers(-1, 71), st.sampled_from([-(1 << 63), (1 << 63) - 1]))),
        ),
        max_size=4,
    ),
    st.integers(1, 5),
)
def test_any_filters_on_ledgers_find_the_same(
    root: str, columns: tuple[str, ...], filters: list[Any], parts: int
) -> None:
    options = {"path": root, "topicsPattern": ".*", "columns": ",".join(columns), "minPartitions": str(parts)}
    pushed = check(options, filters, columns)
    assert all("entry" in str(item) for item in pushed.left)


def test_values_come_with_the_rows_that_are_planned(root: str) -> None:
    options = {"path": root, "segments": "raw"}
    filters = [ds.GreaterThan(("offset",), MIB), ds.Not(ds.EqualTo(("offset",), 2 * MIB))]
    pushed = check(options, filters, ("segment", "offset", "value"))
    assert pushed.left == []
    assert [row[1] for row in pushed.rows] == [5 * MIB // 2, 7 * MIB // 2, 9 * MIB // 2, 5 * MIB, 6 * MIB - MIB // 2][
        : len(pushed.rows)
    ]
    assert all(row[2] == pattern(0, 6 * MIB, 1)[row[1] : row[1] + len(row[2])] for row in pushed.rows)


@given(st.lists(filters_on("x", st.integers(-5, 5)), max_size=4))
@OFTEN
def test_intervals_are_the_numbers_of_which_it_is_true(filters: list[Any]) -> None:
    wanted, left = take_filters(filters, {"x": int})
    assert left == []
    intervals = wanted.intervals("x")
    for number in (-(1 << 63), *range(-7, 8), (1 << 63) - 1):
        inside = any(low <= number <= high for low, high in intervals)
        assert inside == wanted.has("x", number) == all(is_true(item, {"x": number}) for item in filters)


@pytest.mark.parametrize(
    "odd",
    [
        ds.EqualTo(("x",), True),
        ds.EqualTo(("x",), 1.0),
        ds.GreaterThan(("x",), "1"),
        ds.In(("x",), (1, "2")),
        ds.EqualTo(("X",), 1),
        ds.EqualTo(("x", "y"), 1),
        ds.EqualTo(("y",), 1),
        ds.StringStartsWith(("x",), "1"),
        ds.Not(ds.Not(ds.EqualTo(("x",), 1))),
        "a filter of another kind",
    ],
    ids=str,
)
def test_what_is_not_understood_is_left_as_it_is(odd: Any) -> None:
    known = ds.EqualTo(("x",), 1)
    wanted, left = take_filters([odd, known], {"x": int})
    assert len(left) == 1
    assert left[0] is odd
    assert wanted == Wanted((Condition("x", "EqualTo", 1, False),))


def test_a_filter_with_holes_prunes_and_is_left() -> None:
    holes = ds.In(("x",), (3, 5, 9))
    wanted, left = take_filters([holes, ds.GreaterThan(("x",), 3), ds.Not(ds.EqualTo(("x",), 20))], {"x": int}, ("x",))
    assert left == [holes]
    assert wanted.hull("x") == (5, 9)
    nothing, left = take_filters([holes, ds.LessThan(("x",), 3)], {"x": int}, ("x",))
    assert (left, nothing.intervals("x")) == ([], ())


def runs_of(options: dict[str, str], *filters: Any) -> list[LedgerRun]:
    source = DefaultSource({**options, "pushdown": "true"})
    reader = source.reader(source.schema())
    assert isinstance(reader, FilteringReader)
    list(reader.pushFilters(list(filters)))
    partitions: list[Any] = list(reader.partitions())
    return [run for partition in partitions for run in partition.task.runs]


def test_blocks_without_wanted_entries_are_not_read(root: str) -> None:
    options = {"path": root, "topic": TOPICS[0], "columns": "payload"}
    [run] = runs_of(options, ds.EqualTo(("ledger",), 5), ds.EqualTo(("entry",), 7))
    assert len(run.blocks) == 1
    assert (run.first_entry, run.last_entry) == (7, 7)
    assert runs_of(options, ds.EqualTo(("ledger",), 4)) == []


def test_ids_of_dense_ledgers_need_no_bytes(root: str) -> None:
    options = {"path": root, "topic": TOPICS[0], "columns": "entry,ledger"}
    runs = runs_of(options)
    assert [(run.ledger, bool(run.blocks)) for run in runs] == [(3, True), (5, False), (5, True)]
    assert [run.pieces for run in runs if not run.blocks] == [()]
    source = DefaultSource({**options, "ledgers": "5", "minPartitions": "4"})
    assert len(source.reader(source.schema()).partitions()) >= 4


def test_one_load_is_planned_with_one_set_of_filters(root: str) -> None:
    source = DefaultSource({"path": root, "topic": TOPICS[0], "pushdown": "true"})
    seven, eight = ds.EqualTo(("ledger",), 7), ds.EqualTo(("ledger",), 8)

    def push(*filters: Any) -> None:
        reader: Any = pickle.loads(pickle.dumps(source)).reader(source.schema())
        assert list(reader.pushFilters(list(filters))) == []

    push(seven)
    push(seven)
    with pytest.raises(Unsupported, match="load again"):  # Spark would read both by the second
        push(eight)


def test_fields_of_records_hide_columns_and_prune_nothing(tmp_path_factory: pytest.TempPathFactory) -> None:
    root = f"file://{tmp_path_factory.mktemp('fields')}/root"
    settings = chunkstore.Settings(cache_dir=str(tmp_path_factory.mktemp("cache")), lease_s=0)
    with chunkstore.open(root, settings=settings) as store:
        for name in "ab":
            store.create(name)
            store.append(name, b'{"offset": 7, "segment": 1}\n')
    given = {"path": root, "segmentsPattern": "[ab]", "framing": "lines", "valueFormat": "json", "pushdown": "true"}
    for fields, native in (
        ("segment STRING, offset INT", "segment"),
        ("segment INT, offset LONG", "offset"),
    ):
        schema = StructType(
            [StructField(*pair) for pair in ((text.split()[0], KINDS[text.split()[1]]) for text in fields.split(", "))]
        )
        reader = DefaultSource(given).reader(schema)
        assert isinstance(reader, FilteringReader)
        filters: list[Any] = [ds.EqualTo(("segment",), "a"), ds.EqualTo(("offset",), 0)]
        left = [item.attribute[0] for item in reader.pushFilters(filters)]  # type: ignore[attr-defined]
        assert native not in left
        assert len(left) == 1
