"""Streams of raw segments without Spark: offsets through JSON, batches against plain bytes, replays that give the same rows."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import chunkstore
from chunkstore.backup.in_place import restore_in_place
from chunkstore.changes import Create
from chunkstore.config import LIMITS
from chunkstore.errors import (
    ChunkstoreError,
    Conflict,
    Damaged,
    InvalidArgument,
    RolledBack,
    SegmentNotFound,
    SegmentTruncated,
    Unsupported,
)
from chunkstore.spark import progress_pins
from chunkstore.spark.positions import StreamOffset
from chunkstore.spark.ranges import name_prefixes
from chunkstore.spark.runs import ROW_BYTES
from chunkstore.spark.sharing import Limit
from tests.support.data import pattern
from tests.support.spark_ground import MIB, Ground, filled

pytest.importorskip("pyarrow", reason="pyarrow is not installed: Spark's streams are not tested")

from chunkstore.spark.batches import Column, read_task
from tests.support.spark_streams import Stream


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path)


@pytest.fixture
def store(ground: Ground) -> Iterator[chunkstore.ChunkedSegmentStorage]:
    with ground.open() as store:
        yield store


Store = chunkstore.ChunkedSegmentStorage
MERGES = chunkstore.DefragPolicy(fanout=2)


def add(store: Store, name: str, data: bytes) -> None:
    """Add bytes in a chunk of their own."""
    filled(store, "source", 0, MIB)
    store.append("source", data)
    store.seal("source")
    store.concat(name, store.info(name).length, "source")


# Bytes


def test_a_stream_follows_its_segments(ground: Ground, store: Store) -> None:
    filled(store, "a", 1000, 300, seed=1)
    filled(store, "b", 10, 10, seed=2)
    stream = Stream(ground.url, segments="a,b", startingOffsets="earliest")
    assert [row[:2] for row in stream.step()] == [("a", 0), ("b", 0)]
    assert stream.step() == []
    store.append("b", b"more")
    assert stream.step() == [("b", 10, b"more")]
    stream.restart()
    store.append("a", b"behind a restart")
    stream.drain()
    assert stream.bytes_of("a") == pattern(0, 1000, 1) + b"behind a restart"
    assert stream.bytes_of("b") == pattern(0, 10, 2) + b"more"
    stream.replay()


def test_segments_that_are_left_out_for_a_while(ground: Ground, store: Store) -> None:
    """They go on where they were. They were forgotten, and read from byte 0 when they were chosen again."""
    for name in ("a", "z", "gone"):
        filled(store, name, 10, 10)
    store.seal("gone")
    stream = Stream(ground.url, segmentsPattern=".*", startingOffsets="earliest")
    stream.drain()
    store.append("z", b"unread")
    stream.restart(segmentsPattern="a")
    assert stream.step() == []
    store.append("a", b"more")
    store.delete("gone")
    assert stream.step() == [("a", 10, b"more")]
    assert stream.step() == []
    stream.restart(segmentsPattern=".*")
    assert stream.step() == [("z", 10, b"unread")]
    assert stream.step() == []


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


def test_rows_end_at_multiples_of_a_mib_whatever_chunks_do(ground: Ground, store: Store) -> None:
    store.create("a")
    for at in range(0, 2 * MIB, 700_000):
        add(store, "a", pattern(at, min(700_000, 2 * MIB + 5 - at)))
    stream = Stream(ground.url, segments="a", startingOffsets="3", minPartitions="5")
    first = stream.step(size_bytes=MIB)
    assert [row[1] for row in first] == [3, MIB]
    stream.drain()
    assert [row[1] for row in stream.rows[1]] == [MIB + 3, 2 * MIB]
    assert [row[1] for row in Stream(ground.url, segments="a", startingOffsets="3").step(rows=2)] == [3, MIB]
    assert stream.bytes_of("a", 3) == pattern(3, 2 * MIB + 2)
    assert store.defrag("a", policy=MERGES).chunks_after == 1
    stream.replay()


def test_columns_without_bytes_are_the_same_rows(ground: Ground, store: Store) -> None:
    filled(store, "a", 2 * MIB + 5, 700_000)
    stream = Stream(ground.url, segments="a", startingOffsets="3")
    rows = stream.step()
    [task] = stream.planner.tasks(json.loads(stream.log[0]), json.loads(stream.log[1]))
    [batch] = read_task(task, [Column("offset")])
    assert batch.column("offset").to_pylist() == [row[1] for row in rows]


# Limits


def test_limits_are_shared_out_and_nobody_starves(ground: Ground, store: Store) -> None:
    filled(store, "big", 5000, 1000)
    filled(store, "small", 100, 100)
    stream = Stream(ground.url, segments="big,small", startingOffsets="earliest")
    sizes = {row[0]: len(row[2]) for row in stream.step(size_bytes=1000)}
    assert sizes == {"small": 100, "big": 900}
    assert sum(len(row[2]) for row in stream.step(size_bytes=1)) == 1
    stream.drain(size_bytes=1000)
    assert stream.bytes_of("big") == pattern(0, 5000)


def test_lines_are_counted_and_never_torn(ground: Ground, store: Store) -> None:
    store.create("a")
    store.create("b")
    store.append("a", b"1\n22\n333\n4444\n5")
    store.append("b", b"x" * 50 + b"\n" + b"y\n" * 10)
    stream = Stream(ground.url, segments="a", framing="lines", startingOffsets="earliest")
    assert stream.step(rows=2) == [("a", 0, b"1"), ("a", 2, b"22")]
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
    assert stream.offset().segments["a"].done
    assert stream.step() == []
    stream.replay()
    both = Stream(ground.url, segments="a,b", framing="lines", startingOffsets="earliest")
    found = both.step(rows=6)
    assert [sum(row[0] == name for row in found) for name in "ab"] == [3, 3]
    found = both.step(size_bytes=2)
    assert {row[0] for row in found} == {"a", "b"}, "a line is given out whole, and one of each segment"


def test_a_line_that_is_too_long_is_named(ground: Ground, store: Store) -> None:
    store.create("a")
    store.append("a", b"fine\n" + b"x" * 40 + b"\nfine\n")
    options = {"segments": "a", "framing": "lines", "startingOffsets": "earliest"}
    for limit in ({}, {"rows": 1}, {"size_bytes": 10}):
        stream = Stream(ground.url, maxRecordBytes="39", **options)
        with pytest.raises(InvalidArgument, match=r"offset \d+ of segment 'a' is longer than 39") as caught:
            stream.drain(**limit)
        assert caught.value.argument == "maxRecordBytes"
        stream = Stream(ground.url, maxRecordBytes="40", **options)
        stream.drain(**limit)
        assert [row[2] for rows in stream.rows for row in rows] == [b"fine", b"x" * 40, b"fine"]
    store.append("a", b"y" * 41)
    with pytest.raises(InvalidArgument, match="segment 'a'"):
        stream.step()


def test_latest_of_lines_is_behind_the_last_finished_one(ground: Ground, store: Store) -> None:
    store.create("a")
    store.append("a", b"old\nbeg")
    stream = Stream(ground.url, segments="a", framing="lines")
    store.append("a", b"un\n")
    assert stream.step() == [("a", 4, b"begun")]


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
    assert (stream.offset().lost_segments, sorted(stream.offset().segments)) == (1, ["b"])
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


def test_a_new_segment_is_promised_from_its_first_byte(ground: Ground, store: Store) -> None:
    filled(store, "a-old", 30, 10)
    store.truncate("a-old", 10)
    options = {"segmentsPattern": "a-.*", "startingOffsets": "earliest"}
    stream = Stream(ground.url, **options)
    assert stream.step()[0][1] == 10, "a query begins at what is there"
    filled(store, "a-new", 100, 10)
    store.truncate("a-new", 90)
    filled(store, "a-empty", 20, 10)
    store.truncate("a-empty", 20)
    store.commit([Create("a-brought", start_offset=5)])
    with pytest.raises(SegmentTruncated) as caught:
        stream.step()
    assert caught.value.offset == 0
    stream.restart(failOnDataLoss="false")
    assert stream.step() == [("a-new", 90, pattern(90, 10))]
    assert stream.offset().lost_bytes == 90 + 20 + 5
    assert stream.step() == [], "it is counted once"
    store.append("a-empty", b"x")
    store.append("a-brought", b"y")
    stream.restart(failOnDataLoss="true")
    assert stream.step() == [("a-brought", 5, b"y"), ("a-empty", 20, b"x")]
    stream.replay()
    store.delete("a-new")
    filled(store, "a-new", 20, 10)
    store.truncate("a-new", 15)
    with pytest.raises((SegmentNotFound, SegmentTruncated)):
        stream.step()
    stream.restart(failOnDataLoss="false")
    assert stream.step() == [("a-new", 15, pattern(15, 5))], "another one of that name"
    assert (stream.offset().lost_bytes, stream.offset().lost_segments) == (115 + 15, 1)


def test_available_now_is_what_was_there(ground: Ground, store: Store) -> None:
    filled(store, "a1", 30, 10)
    stream = Stream(ground.url, segmentsPattern="a.", startingOffsets="earliest")
    stream.planner.freeze()
    store.append("a1", b"later")
    filled(store, "a2", 5, 5)
    stream.drain(size_bytes=7)
    assert stream.bytes_of("a1") == pattern(0, 30)
    assert {row[0] for rows in stream.rows for row in rows} == {"a1"}
    stream.restart()
    stream.drain()
    assert stream.bytes_of("a1") == pattern(0, 30) + b"later"
    assert stream.bytes_of("a2") == pattern(0, 5)


def test_the_report_is_where_segments_end(ground: Ground, store: Store) -> None:
    filled(store, "a", 30, 10)
    stream = Stream(ground.url, segments="a")
    store.append("a", b"lag")
    stream.step(size_bytes=1)
    assert stream.planner.report()["segments"]["a"]["at"] == 33


# Checkpoints that do not fit


def test_the_checkpoint_of_another_container_is_refused(ground: Ground, store: Store, tmp_path: Path) -> None:
    filled(store, "a", 30, 10)
    stream = Stream(ground.url, segments="a", startingOffsets="earliest")
    stream.step()
    other = Ground(tmp_path / "other")
    with other.open() as another:
        filled(another, "a", 30, 10)
    stream.restart(path=other.url)
    with pytest.raises(Conflict, match="container of the checkpoint"):
        stream.step()
    with pytest.raises(Conflict):
        stream.read(1)


def test_a_container_that_was_restored_to_before_is_refused(ground: Ground) -> None:
    with ground.open() as store:
        filled(store, "a", 10, 10)
        stream = Stream(ground.url, segments="a", startingOffsets="earliest")
        stream.step()
        lsn = stream.offset().lsn
        store.append("a", b"cut off")
        stream.step()
    restore_in_place(ground.url, lsn=lsn, settings=ground.settings)
    with ground.open() as store:
        stream.restart()
        with pytest.raises(RolledBack, match="was it restored") as caught:
            stream.step()
        assert caught.value.lsn_seen > lsn
        for _ in range(20):
            store.append("a", b"something else, and more of it")
        stream.restart()
        with pytest.raises(RolledBack):
            stream.step()
        stream.restart()
        with pytest.raises(RolledBack):
            stream.read(2)
        stream.log.pop()
        stream.rows.pop()
        assert stream.step()[0][1] == 10, "what was seen before the cut is still true"


def test_offsets_survive_takeovers(ground: Ground) -> None:
    stream = None
    for number in range(4):
        with ground.open() as store:
            if stream is None:
                store.create("a")
                stream = Stream(ground.url, segments="a", startingOffsets="earliest")
            store.append("a", b"%d" % number)
            assert stream.step() == [("a", number, b"%d" % number)]
    assert stream is not None
    stream.replay()


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"version": "1"},
        {"container": "zz"},
        {"epoch": -1},
        {"lsn": True},
        {"segments": []},
        {"segments": {"a": 5}},
        {"segments": {"a": {"id": 1, "at": -1}}},
        {"segments": {"a": {"id": 1, "at": 1 << 63}}},
        {"segments": {"a": {"id": 1, "at": 1, "from": 2}}},
        {"lost": {"bytes": 1}},
        {"consumer": "../x"},
    ],
)
def test_offsets_of_others_are_refused(change: Mapping[str, Any]) -> None:
    good = {"version": 1, "container": "0" * 32, "epoch": 1, "lsn": 2, "segments": {"a": {"id": 1, "at": 3}}}
    assert StreamOffset.from_json(good).to_json() == good
    for document in ({**good, **change}, None, [good], {}):
        with pytest.raises((Damaged, Unsupported)):
            StreamOffset.from_json(document)


def test_an_error_is_followed_by_another_replica(ground: Ground, store: Store) -> None:
    filled(store, "a", 30, 10)
    stream = Stream(ground.url, segments="a", startingOffsets="earliest")
    with pytest.raises(ChunkstoreError):
        stream.planner.latest({"version": 9}, Limit())
    stream.drain()
    assert stream.bytes_of("a") == pattern(0, 30)


def test_the_first_batch_that_runs_again_is_the_same(ground: Ground, store: Store) -> None:
    """Spark keeps its end alone, and asks again where the query begins; that may be another place by then."""
    filled(store, "a", 30, 10)
    stream = Stream(ground.url, segmentsPattern="[ab]")  # from what is latest
    store.append("a", b"new")
    filled(store, "b", 5, 5)
    wanted = [("a", 30, b"new"), ("b", 0, pattern(0, 5))]
    assert stream.step() == wanted
    store.append("a", b"behind it")
    stream.replay()
    assert stream.step() == [("a", 33, b"behind it")]
    old = Stream(ground.url, segments="a").planner  # before Spark 4.2 the end may be asked for first
    end = old.latest(None, Limit())
    assert end["segments"]["a"]["at"] == 42 and not old.tasks(old.initial(), end)
    old.close()
    truncated = Stream(ground.url, segments="a", startingOffsets="earliest")
    truncated.step()
    store.truncate("a", 20)
    truncated.restart()
    with pytest.raises(SegmentTruncated):
        truncated.read(1)


# Pins


def test_progress_is_pinned_and_moves(ground: Ground, store: Store) -> None:
    filled(store, "a", 30, 10)
    store.set_retention("a", chunkstore.RetentionPolicy(size_bytes_max=1))
    stream = Stream(ground.url, segments="a", startingOffsets="earliest", pinProgress="true")
    consumer = stream.offset().consumer

    def pinned() -> list[dict[str, int]]:
        pins = store.pins()
        assert all(pin.name.startswith(f"spark-{consumer}-") for pin in pins)
        return [dict(pin.offsets) for pin in pins]

    stream.step(size_bytes=10)
    assert pinned() == [{"a": 0}]
    stream.restart()
    stream.step(size_bytes=10)
    assert pinned() == [{"a": 10}], "commit tells what has been dealt with"
    store.apply_retention()
    assert store.info("a").start_offset == 10, "retention goes as far as the pin"
    stream.planner.close()
    assert pinned() == [{"a": 10}], "it outlives the stream"
    idle = Stream(ground.url, segments="a", pinProgress="true")
    idle.step()
    assert len(store.pins()) == 2
    idle.planner.close()
    assert pinned() == [{"a": 10}], "a stream that never began holds nothing"


def test_a_stream_that_was_killed_before_its_checkpoint_knew_it_keeps_nothing_for_ever(
    ground: Ground, store: Store
) -> None:
    """Its next run has another name, and nobody knows whose pin the first one is."""
    filled(store, "a", 30, 10)
    killed = Stream(ground.url, segments="a", startingOffsets="earliest", pinProgress="true")
    killed.planner.latest(json.loads(killed.log[-1]), Limit())
    [pin] = store.pins()
    assert pin.expires_at is not None and pin.offsets == {"a": 0}
    stream = Stream(ground.url, segments="a", startingOffsets="earliest", pinProgress="true")
    start = json.loads(stream.log[-1])
    stream.planner.tasks(start, stream.planner.latest(start, Limit()))
    [lasting] = (other for other in store.pins() if other != pin)
    assert lasting.expires_at is None and lasting.offsets == {"a": 0}
    assert lasting.name.startswith(f"spark-{stream.offset().consumer}-")
    for one in (killed, stream):
        one.planner.close()


@pytest.mark.parametrize("killed", [False, True])
def test_the_name_in_the_checkpoint_is_whose_pin_it_is(ground: Ground, store: Store, killed: bool) -> None:
    """Spark asks once more where a query begins when it plans the first batch, also behind a kill."""
    filled(store, "a", 30, 10)
    stream = Stream(ground.url, segments="a", startingOffsets="earliest", pinProgress="true")
    consumer = stream.offset().consumer
    end = stream.planner.latest(json.loads(stream.log[-1]), Limit(size_bytes=10))
    for _ in range(2):
        stream.planner.tasks(stream.planner.initial(), end)
        if killed:
            stream = Stream(ground.url, segments="a", startingOffsets="earliest", pinProgress="true")
    assert [dict(pin.offsets) for pin in store.pins()] == [{"a": 0}]
    stream.planner.tasks(stream.planner.initial(), end)
    stream.planner.commit(end)
    [pin] = store.pins()
    assert pin.name.startswith(f"spark-{consumer}-") and pin.offsets == {"a": 10} and pin.expires_at is None
    stream.planner.close()


def test_a_plan_of_nothing_moves_no_pin(ground: Ground, store: Store) -> None:
    """Spark asks for (end, end) where a query goes on, before it plans its last batch again."""
    filled(store, "a", 30, 10)
    killed = Stream(ground.url, segments="a", startingOffsets="earliest", pinProgress="true")
    end = killed.planner.latest(json.loads(killed.log[-1]), Limit(size_bytes=10))
    stream = Stream(ground.url, segments="a", startingOffsets="earliest", pinProgress="true")
    assert not stream.planner.tasks(end, end)
    assert [dict(pin.offsets) for pin in store.pins()] == [{"a": 0}]
    stream.planner.tasks(stream.planner.initial(), end)
    assert [(dict(pin.offsets), pin.expires_at) for pin in store.pins()] == [({"a": 0}, None)]
    for one in (killed, stream):
        one.planner.close()


def test_streams_that_pin_later_have_pins_of_their_own(ground: Ground, store: Store) -> None:
    """Their checkpoints know no name yet."""
    filled(store, "a", 30, 10)
    streams = [Stream(ground.url, segments="a", startingOffsets="earliest") for _ in range(2)]
    for stream in streams:
        stream.step(size_bytes=10)
        stream.restart(pinProgress="true")
        stream.step(size_bytes=10)
    assert all(pin.expires_at is None for pin in store.pins())
    assert [dict(pin.offsets) for pin in store.pins()] == [{"a": 10}, {"a": 10}]
    first, _ = streams
    first.step(size_bytes=10)
    first.restart()
    store.append("a", b"more")
    first.step()
    assert sorted(pin.offsets["a"] for pin in store.pins()) == [10, 30]
    assert {name.split("-")[1] for name in (pin.name for pin in store.pins())} == {
        stream.offset().consumer for stream in streams
    }
    for stream in streams:
        stream.planner.close()


def test_a_pin_is_not_moved_with_every_batch(ground: Ground, store: Store) -> None:
    """Each move is two requests, whose answers stay for a day."""
    filled(store, "a", 50, 10)
    stream = Stream(ground.url, segments="a", startingOffsets="earliest", pinProgress="true")

    def pinned() -> list[dict[str, int]]:
        return [dict(pin.offsets) for pin in store.pins()]

    for _ in range(4):
        stream.step(size_bytes=10)
    assert pinned() == [{"a": 0}]
    stream.planner.close()
    assert pinned() == [{"a": 30}], "the end takes it along"


def test_what_is_made_while_the_query_is_down_is_held(ground: Ground, store: Store) -> None:
    filled(store, "log-a", 30, 10)
    filled(store, "log-x!", 30, 10)
    store.set_retention("*", chunkstore.RetentionPolicy(size_bytes_max=1))
    stream = Stream(ground.url, segmentsPattern="log-[a-z]", startingOffsets="earliest", pinProgress="true")
    stream.step()
    assert [pin.prefixes for pin in store.pins()] == [("log-",)]
    stream.planner.close()
    for name in ("log-b", "log-c", "other"):
        filled(store, name, 100, 10)
    store.append("log-a", b"x" * 10)
    store.append("log-a", b"y" * 10)
    store.append("log-x!", b"z" * 10)
    store.apply_retention()
    starts = {info.name: info.start_offset for info in store.segments()}
    assert starts == {"log-a": 0, "log-b": 0, "log-c": 0, "log-x!": 30, "other": 90}, "one batch behind"
    stream.restart()
    stream.drain()
    filled(store, "log-d", 1, 1)
    stream.drain()
    stream.planner.close()
    assert [stream.bytes_of(f"log-{name}") for name in "bc"] == [pattern(0, 100)] * 2
    store.apply_retention()
    starts = {info.name: info.start_offset for info in store.segments()}
    assert starts == {"log-a": 40, "log-b": 90, "log-c": 90, "log-d": 0, "log-x!": 30, "other": 90}
    assert len(store.pins()) == 1


def test_a_pin_of_more_segments_than_it_can_name_holds_the_others_whole(
    ground: Ground, store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(progress_pins, "LIMITS", dataclasses.replace(LIMITS, pin_offsets_max=2))
    names = [f"s{number}" for number in range(4)]
    for name in names:
        filled(store, name, 30, 10)
    store.set_retention("*", chunkstore.RetentionPolicy(size_bytes_max=1))
    stream = Stream(ground.url, segmentsPattern="s.", startingOffsets="earliest", pinProgress="true")
    stream.step()
    for _ in range(50):
        store.append("s3", b"more")
        stream.step()
        stream.restart()  # moves the pin
        [pin] = store.pins()
        assert len(pin.offsets) == 2
        store.apply_retention()
        if all(store.info(name).start_offset for name in names):
            break
    else:
        pytest.fail("each has its turn")
    assert [stream.bytes_of(name)[:30] for name in names] == [pattern(0, 30)] * 4
    assert caplog.text == ""
    with pytest.raises(InvalidArgument, match="give a segmentsPattern"):
        Stream(ground.url, segments=",".join(names), startingOffsets="earliest", pinProgress="true").step()


def test_the_pin_of_before_that_holds_nothing_new_is_followed_by_one_that_does(ground: Ground, store: Store) -> None:
    filled(store, "a", 30, 10)
    stream = Stream(ground.url, segmentsPattern="a.*", startingOffsets="earliest", pinProgress="true")
    stream.step()
    stream.planner.close()
    [pin] = store.pins()
    store.unpin(pin.name)
    store.pin(pin.name, pin.note, offsets=pin.offsets)
    stream.restart()
    stream.step()
    assert [other.prefixes for other in store.pins() if other.name != pin.name] == [("a",)]
    stream.planner.close()


@pytest.mark.parametrize(
    ("pattern", "prefixes"),
    [
        ("log-.*", ("log-",)),
        (".*", ("",)),
        ("ab?c", ("a",)),
        ("ab{0}", ("a",)),
        ("ab+", ("ab",)),
        ("a/b:c_d", ("a/b:c_d",)),
        (r"a\.b", ("a",)),
        ("orders-(a|b)", ("orders-",)),
        ("orders-[|]x", ("orders-",)),
        ("orders|refunds-.", ("orders", "refunds-")),
        ("a|b[0-9]", ("",)),
        ("x(a(b|c)d)y", ("x",)),
        ("x[](]|y[)]", ("",)),
        (r"x\[a|b\]", ("",)),
        ("(?i)ab", ("",)),
    ],
)
def test_names_that_match_begin_so(pattern: str, prefixes: tuple[str, ...]) -> None:
    assert name_prefixes(pattern) == prefixes
    for name in (
        "log-1",
        "a",
        "ac",
        "abc",
        "abb",
        "a/b:c_d",
        "a.b",
        "orders-a",
        "orders-|x",
        "refunds-1",
        "b7",
        "xabdy",
        "y)",
        "AB",
    ):
        assert re.fullmatch(pattern, name) is None or name.startswith(prefixes)


# The model


@given(data=st.data())
@settings(max_examples=12, deadline=None)
def test_every_byte_and_line_comes_once(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    ground = Ground(tmp_path_factory.mktemp("model"))
    lines = data.draw(st.booleans(), "lines")
    given_options = {"framing": "lines", "maxRecordBytes": "200"} if lines else {}
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


def test_without_an_owner_the_pin_stays_and_the_stream_goes_on(ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_pins, "_MOVE_S", 0.2)
    with ground.open() as store:
        filled(store, "a", 30, 10)
        stream = Stream(ground.url, segments="a", startingOffsets="earliest", pinProgress="true")
        stream.step(size_bytes=10)
    assert [len(stream.step(size_bytes=10)) for _ in range(3)] == [1, 1, 0]
    assert stream.bytes_of("a") == pattern(0, 30)
    with ground.open() as store:
        assert [dict(pin.offsets) for pin in store.pins()] == [{"a": 0}]
        stream.restart()
        store.append("a", b"more")
        stream.step()
        assert [dict(pin.offsets) for pin in store.pins()] == [{"a": 30}]
        stream.planner.close()
