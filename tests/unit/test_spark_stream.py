"""Streams of raw segments without Spark: offsets through JSON, batches against plain bytes, replays that give the same rows."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import chunkstore
from chunkstore.errors import (
    InvalidArgument,
    SegmentNotFound,
    SegmentTruncated,
)
from chunkstore.spark.runs import ROW_BYTES
from tests.support.data import pattern
from tests.support.spark_ground import MIB, Ground, filled

pytest.importorskip("pyarrow", reason="pyarrow is not installed: Spark's streams are not tested")

from tests.support.spark_streams import Stream

Store = chunkstore.ChunkedSegmentStorage
MERGES = chunkstore.DefragPolicy(fanout=2)


def add(store: Store, name: str, data: bytes) -> None:
    """Add bytes in a chunk of their own."""
    filled(store, "source", 0, MIB)
    store.append("source", data)
    store.seal("source")
    store.concat(name, store.info(name).length, "source")


# Bytes


def test_where_a_stream_begins(ground: Ground, store: Store) -> None:
    filled(store, "a", 100, 30)
    filled(store, "b", 50, 30)
    assert Stream(ground.url, segments="a").step() == [], "latest is the default"
    assert [row[1] for row in Stream(ground.url, segments="a,b", startingOffsets='{"a": 60, "b": -2}').step()] == [
        60,
        0,
    ]
    latest = Stream(ground.url, segments="a,b", startingOffsets='{"a": -1, "b": 50}')
    store.append("a", b"x")
    assert latest.step() == [("a", 100, b"x")]
    assert Stream(ground.url, segments="a", startingOffsets="7").step()[0][1] == 7
    store.truncate("b", 20)
    for kind, text in ((chunkstore.BadOffset, "51"), (SegmentTruncated, "19")):
        with pytest.raises(kind, match="b") as caught:
            Stream(ground.url, segments="b", startingOffsets=text)
        assert "startingOffsets" in "".join(caught.value.__notes__)
    with pytest.raises(SegmentNotFound):
        Stream(ground.url, segments="a,nix")


# Limits


def test_rows_are_counted_and_the_tighter_limit_counts(ground: Ground, store: Store) -> None:
    filled(store, "a", 5 * MIB, MIB + 7)
    filled(store, "b", 10 * MIB, MIB + 7, seed=1)
    stream = Stream(ground.url, segmentsPattern=".", startingOffsets="earliest", maxOffsetsPerTrigger="4")
    found = stream.step()
    assert [row[:2] for row in sorted(found)] == [("a", 0), ("a", MIB), ("b", 0), ("b", MIB)]
    stream.restart(maxBytesPerTrigger=str(3 * MIB))
    assert sum(len(row[2]) for row in stream.step()) == 3 * MIB, "fewer bytes than four rows have"
    stream.restart(maxBytesPerTrigger=str(30 * MIB))
    assert len(stream.step()) == 4
    stream.drain()
    assert stream.bytes_of("b") == pattern(0, 10 * MIB, 1)
    stream.replay()


def test_lines_are_counted(ground: Ground, store: Store) -> None:
    store.create("a")
    store.create("b")
    store.append("a", b"1\n22\n333\n4444\n5")
    store.append("b", b"x" * 50 + b"\n" + b"y\n" * 10)
    stream = Stream(ground.url, segments="a", framing="lines", startingOffsets="earliest")
    assert stream.step(rows=2) == [("a", 0, b"1"), ("a", 2, b"22")]
    assert stream.step(rows=9) == [("a", 5, b"333"), ("a", 9, b"4444")]
    assert stream.step(rows=1) == []
    store.seal("a")
    assert stream.step(rows=1) == [("a", 14, b"5")], "the last line of a sealed segment has no newline"
    both = Stream(ground.url, segments="a,b", framing="lines", startingOffsets="earliest")
    found = both.step(rows=6)
    assert [sum(row[0] == name for row in found) for name in "ab"] == [3, 3]
    both.restart(maxOffsetsPerTrigger="4", maxBytesPerTrigger="10")
    found = both.step()
    assert found[0] == ("a", 9, b"4444") and 2 <= len(found) <= 4
    both.drain()
    assert sum(map(len, both.rows)) == 5 + 11
    both.replay()


@pytest.mark.parametrize("limit", [{}, {"rows": 1}, {"rows": 7}, {"size_bytes": 10}])
def test_a_line_that_is_too_long_is_named(ground: Ground, store: Store, limit: dict[str, int]) -> None:
    store.create("a")
    store.append("a", b"fine\n" + b"x" * 40 + b"\nfine\n")
    options = {"segments": "a", "framing": "lines", "startingOffsets": "earliest", "maxRecordBytes": "39"}
    stream = Stream(ground.url, **options)
    with pytest.raises(InvalidArgument, match=r"offset \d+ of segment 'a' is longer than 39") as caught:
        stream.drain(**limit)
    assert caught.value.argument == "framing"


def test_lines_are_never_torn(ground: Ground, store: Store) -> None:
    store.create("a")
    store.create("b")
    store.append("a", b"1\n22\n333\n4444\n5")
    store.append("b", b"x" * 50 + b"\n" + b"y\n" * 10)
    stream = Stream(ground.url, segments="a", framing="lines", startingOffsets="earliest")
    assert stream.step(size_bytes=5) == [("a", 0, b"1"), ("a", 2, b"22")]
    assert stream.step(size_bytes=9) == [("a", 5, b"333"), ("a", 9, b"4444")]
    assert stream.step() == [], "an unfinished line of an open segment is no row"
    store.append("a", b"5555\n\n6")
    assert stream.step() == [("a", 14, b"55555"), ("a", 20, b"")]
    assert stream.step() == []
    store.append("a", b"\n7")
    assert stream.step() == [("a", 21, b"6")], (
        "what was looked at before has no newline; what is new may begin with one"
    )
    store.seal("a")
    assert stream.step() == [("a", 23, b"7")], "sealed: nothing follows"
    assert stream.offset().reached["a"].done
    assert stream.step() == []
    stream.replay()
    both = Stream(ground.url, segments="a,b", framing="lines", startingOffsets="earliest")
    assert {row[0] for row in both.step(size_bytes=10)} == {"a", "b"}
    found = both.step(size_bytes=2)
    assert {row[0] for row in found} == {"a", "b"}, "a line is given out whole, and one of each segment"


@pytest.mark.parametrize(("framing", "count"), [("lines", 7), ("none", 3)])
def test_a_batch_has_the_partitions_that_were_asked_for(ground: Ground, store: Store, framing: str, count: int) -> None:
    store.create("a")
    store.append("a", b"".join(b"%d\n" % number * 1000 for number in range(1000, 1500)))
    stream = Stream(ground.url, segments="a", framing=framing, startingOffsets="earliest", minPartitions="7")
    stream.step()
    start, end = stream.planner.initialOffset(), stream.planner.latestOffset(None)
    assert len(stream.planner.partitions(start, end)) == count, "what is no line ends at multiples of a MiB"
    assert stream.bytes_of("a") if framing == "none" else len(stream.rows[0]) == 500_000
    stream.replay()


# Segments that come and go


def test_segments_by_pattern_are_found_while_running(ground: Ground, store: Store) -> None:
    filled(store, "orders-1", 10, 10, seed=1)
    filled(store, "other", 10, 10, seed=2)
    stream = Stream(ground.url, segmentsPattern="orders-[0-9]+")
    assert stream.step() == [], "what is there is old"
    filled(store, "orders-2", 10, 10, seed=3)
    filled(store, "orders-x", 10, 10, seed=4)
    assert stream.step() == [("orders-2", 0, pattern(0, 10, 3))], "what comes is new from its first byte"
    store.seal("orders-2")
    stream.drain()
    store.delete("orders-2")
    filled(store, "orders-2", 5, 5, seed=5)
    stream.step()
    assert stream.rows[-1] == [("orders-2", 0, pattern(0, 5, 5))], "another segment of the same name"
    assert stream.offset().lost_segments == 0


def test_a_segment_that_goes_unread_is_a_loss(ground: Ground, store: Store) -> None:
    filled(store, "a", 10, 10)
    filled(store, "b", 10, 10)
    stream = Stream(ground.url, segmentsPattern=".", startingOffsets="earliest")
    stream.drain()
    store.append("a", b"unread")
    store.delete("a")
    with pytest.raises(SegmentNotFound):
        stream.step()
    stream.restart(failOnDataLoss="false")
    stream.step()
    assert (stream.offset().lost_segments, sorted(stream.offset().reached)) == (1, ["b"])
    assert stream.step() == []


def test_truncated_data_is_an_error_or_a_counted_gap(ground: Ground, store: Store) -> None:
    filled(store, "a", 100, 10)
    stream = Stream(ground.url, segments="a", startingOffsets="earliest")
    stream.step(size_bytes=20)
    store.truncate("a", 55)
    with pytest.raises(SegmentTruncated) as caught:
        stream.step()
    assert (caught.value.start_offset, caught.value.offset) == (55, 20)
    with pytest.raises(SegmentTruncated):
        stream.read(1)
    stream.restart(failOnDataLoss="false")
    assert stream.step(size_bytes=10) == [("a", 55, pattern(55, 10))]
    assert stream.offset().lost_bytes == 35
    assert stream.step() == [("a", 65, pattern(65, 35))]
    assert stream.offset().lost_bytes == 35
    stream.restart()
    assert [stream.read(number) for number in (1, 2, 3)] == [[], stream.rows[1], stream.rows[2]]


def test_available_now_is_what_was_there(ground: Ground, store: Store) -> None:
    filled(store, "a1", 30, 10)
    stream = Stream(ground.url, segmentsPattern="a.", startingOffsets="earliest")
    stream.planner.prepareForTriggerAvailableNow()
    store.append("a1", b"later")
    filled(store, "a2", 5, 5)
    stream.drain(size_bytes=7)
    assert stream.bytes_of("a1") == pattern(0, 30)
    assert {row[0] for rows in stream.rows for row in rows} == {"a1"}
    stream.restart()
    stream.drain()
    assert stream.bytes_of("a1") == pattern(0, 30) + b"later"
    assert stream.bytes_of("a2") == pattern(0, 5)


# The model


@given(data=st.data())
@settings(max_examples=12, deadline=None)
def test_every_byte_and_line_comes_once(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    ground = Ground(tmp_path_factory.mktemp("model"))
    lines = data.draw(st.booleans(), "lines")
    given_options = {"framing": "lines"} if lines else {}
    model: dict[str, bytearray] = {}
    with ground.open() as store:
        stream = Stream(
            ground.url, segmentsPattern="s[0-9]", startingOffsets="earliest", minPartitions="3", **given_options
        )
        for _ in range(data.draw(st.integers(5, 25), "steps")):
            name = f"s{data.draw(st.integers(0, 2))}"
            match data.draw(
                st.sampled_from(("append", "append", "batch", "batch", "seal", "concat", "defrag", "replay"))
            ):
                case "append":
                    if name not in model:
                        rolling = chunkstore.RollingPolicy(
                            chunk_size_bytes_max=data.draw(st.sampled_from((20, 60, 1000)))
                        )
                        store.create(name, rolling=rolling)
                        model[name] = bytearray()
                    elif store.info(name).sealed:
                        store.unseal(name)
                    part = data.draw(st.lists(st.sampled_from((b"\n", b"ab", b"xyz"))).map(b"".join))
                    store.append(name, part)
                    model[name] += part
                case "batch":
                    limits = st.fixed_dictionaries(
                        {}, optional={"rows": st.integers(1, 9), "size_bytes": st.integers(1, 90)}
                    )
                    stream.step(**data.draw(limits))
                case "seal":
                    if name in model and not lines:
                        store.seal(name)
                case "concat":
                    if name in model and not store.info(name).sealed:
                        add(store, name, b"from\nelsewhere\n")
                        model[name] += b"from\nelsewhere\n"
                case "defrag":
                    store.defrag(policy=MERGES)
                case _:
                    stream.replay()
        for name in model:
            if not store.info(name).sealed:
                store.seal(name)
        stream.drain()
        stream.replay()
    for name, expected in model.items():
        rows = [(offset, value) for rows in stream.rows for segment, offset, value in rows if segment == name]
        if not lines:
            assert stream.bytes_of(name) == expected
            continue
        at, wanted = 0, []
        for line in bytes(expected).splitlines(keepends=True):
            wanted.append((at, line.removesuffix(b"\n")))
            at += len(line)
        assert rows == wanted
    assert all(len(row[2]) <= ROW_BYTES for rows in stream.rows for row in rows)
