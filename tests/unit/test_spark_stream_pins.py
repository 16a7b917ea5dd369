"""Pins of streams without Spark: what their progress holds, whose a pin is, and what becomes of it (docs/guide-spark.md)."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest

import chunkstore
from chunkstore.config import LIMITS
from chunkstore.errors import (
    InvalidArgument,
)
from chunkstore.spark import progress_pins
from chunkstore.spark.ranges import name_prefixes
from chunkstore.spark.sharing import Limit
from tests.support.data import pattern
from tests.support.spark_ground import Ground, filled

pytest.importorskip("pyarrow", reason="pyarrow is not installed: Spark's streams are not tested")

from tests.support.spark_streams import Stream

Store = chunkstore.ChunkedSegmentStorage


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
