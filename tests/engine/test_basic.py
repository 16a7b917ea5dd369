"""The verbs, one by one."""

from __future__ import annotations

import pickle

import pytest

import chunkstore
from chunkstore.config import RollingPolicy
from chunkstore.errors import (
    BadOffset,
    InvalidArgument,
    SegmentExists,
    SegmentNotFound,
    SegmentNotSealed,
    SegmentSealed,
)
from tests.support.data import refused
from tests.support.worlds import EVERY_WORLD, World

pytestmark = EVERY_WORLD


def test_create_tells_what_it_made(world: World) -> None:
    store = world.open()
    handle = store.create(
        "a", rolling=RollingPolicy(chunk_size_bytes_max=7), attributes={"n": 1, "s": "x", "b": b"\xff"}
    )
    info = store.info("a")
    assert handle == (info.name, info.id, True) and info.name == "a"
    assert (info.start_offset, info.length, info.sealed, info.chunk_count) == (0, 0, False, 0)
    assert info.owner_epoch == store.epoch
    assert info.attributes == {"n": 1, "s": "x", "b": b"\xff"}
    assert info.created_at == info.modified_at > 1_600_000_000_000
    assert list(store.layout("a")) == []
    with pytest.raises(SegmentExists) as caught:
        store.create("a")
    assert caught.value.segment == "a"


def test_create_gives_an_existing_segment_on_demand(world: World) -> None:
    store = world.open()
    first = store.create("a", attributes={"kind": 1})
    store.append(first, b"bytes")
    store.seal(first)
    assert store.create("a", exist_ok=True) == first
    info = store.info("a")
    assert (info.length, info.sealed, info.attributes) == (5, True, {"kind": 1})
    with pytest.raises(SegmentExists):
        store.create("a")


def test_exists_open_read_and_open_write(world: World) -> None:
    store = world.open()
    assert not store.exists("a")
    for verb in (store.open_read, store.open_write, store.info, store.layout):
        with pytest.raises(SegmentNotFound):
            verb("a")
    made = store.create("a")
    assert store.exists("a")
    assert store.open_write("a") == made
    reading = store.open_read("a")
    assert reading == made._replace(writable=False)
    before = store.info("a")
    store.open_write("a")
    store.open_read("a")
    assert store.info("a") == before
    store.seal("a")
    assert store.open_write("a") == store.open_write(reading) == made
    assert store.open_read(made) == reading
    assert store.exists(made) and store.exists(reading)
    store.delete("a")
    store.create("a")
    assert store.exists("a") and not store.exists(made)


def test_a_reading_handle_changes_nothing(world: World) -> None:
    store = world.open()
    store.create("b")
    store.seal("b")
    store.create("a")
    store.append("a", b"12345")
    handle = store.open_read("a")
    for call in (
        lambda: store.write(handle, 5, b"x"),
        lambda: store.append(handle, b"x"),
        lambda: store.append_many(handle, [b"x"]),
        lambda: store.seal(handle),
        lambda: store.unseal(handle),
        lambda: store.truncate(handle, 1),
        lambda: store.concat(handle, 5, "b"),
        lambda: store.delete(handle),
        lambda: store.update_attributes(handle, {"a": 1}),
    ):
        with pytest.raises(InvalidArgument):
            call()
    assert store.read(handle, 0, 9) == b"12345" and store.info(handle).length == 5
    assert store.exists("b")


def test_handles_bind_the_id(world: World) -> None:
    store = world.open()
    old = store.create("a")
    store.write(old, 0, b"first")
    store.delete(old)
    new = store.create("a")
    assert new.segment_id != old.segment_id
    store.write(new, 0, b"second")
    store.create("other")
    store.seal("other")
    for call in (
        lambda: store.read(old, 0, 1),
        lambda: store.read_into(old, 0, bytearray(1)),
        lambda: store.info(old),
        lambda: list(store.layout(old)),
        lambda: store.write(old, 6, b"x"),
        lambda: store.append(old, b"x"),
        lambda: store.append_many(old, [b"x"]),
        lambda: store.seal(old),
        lambda: store.unseal(old),
        lambda: store.truncate(old, 1),
        lambda: store.update_attributes(old, {"a": 1}),
        lambda: store.concat(old, 6, "other"),
        lambda: store.offset_at(old, 0),
        lambda: store.wait(old, 0, 0),
        lambda: store.reader(old),
        lambda: store.last_event_number(old, b"w"),
        lambda: store.delete(old),
    ):
        with pytest.raises(SegmentNotFound):
            call()
    store.seal("a")
    store.create("b")
    with pytest.raises(SegmentNotFound):
        store.concat("b", 0, old)
    assert store.read("a", 0, 9) == store.read(new, 0, 9) == b"second"
    assert pickle.loads(pickle.dumps(new)) == new


def test_handles_survive_a_take_over(world: World) -> None:
    first = world.open()
    handle = first.create("a")
    first.write(handle, 0, b"one")
    second = world.open()
    assert second.write(handle, 3, b"two") == 6
    assert second.read(handle, 0, 6) == b"onetwo"


def test_zero_bytes_are_a_successful_no_op(world: World) -> None:
    store = world.open()
    store.create("a")
    store.append("a", b"xyz")
    before = store.info("a")
    assert store.write("a", 3, b"") == 3
    assert store.append("a", b"") == 3
    assert store.append_many("a", []) == 3
    assert store.append_many("a", [b"", b""]) == 3
    assert store.append("a", b"", expected_offset=3) == 3
    with pytest.raises(BadOffset):
        store.write("a", 2, b"")
    assert store.read("a", 0, 0) == b"" and store.read("a", 3, 0) == b"" and store.read("a", 3, 5) == b""
    assert store.read_into("a", 1, bytearray()) == 0
    store.truncate("a", 3)
    assert store.write("a", 3, b"") == 3
    assert store.read("a", 3, 10) == b""
    assert store.info("a")._replace(start_offset=0, chunk_count=1, modified_at=0) == before._replace(modified_at=0)
    store.seal("a")
    with pytest.raises(SegmentSealed):
        store.append("a", b"")


def test_append_many_is_one_append(world: World) -> None:
    store = world.open(rolling=4)
    store.create("a")
    assert store.append_many("a", [b"1", bytearray(b"234"), memoryview(b"5678")]) == 0
    assert store.append_many("a", (b"9",), expected_offset=8) == 8
    with pytest.raises(BadOffset):
        store.append_many("a", (b"9",), expected_offset=8)
    assert store.read("a", 0, 99) == b"123456789"


def test_buffers_of_every_kind(world: World) -> None:
    import array
    import ctypes

    store = world.open()
    store.create("a")
    numbers = array.array("I", [1, 2, 3])
    expected = b""
    for data in (
        b"bytes",
        bytearray(b"bytearray"),
        memoryview(b"view"),
        memoryview(b"0123456789")[2:5],
        memoryview(numbers),
        memoryview((ctypes.c_int32 * 3)(4, 5, 6)),
        memoryview(array.array("I")),
    ):
        offset = store.append("a", data)
        assert offset == len(expected)
        expected += bytes(data)
    assert store.read("a", 0, 1000) == expected
    for wrong in ("text", 5, None, [1], memoryview(b"012345")[::2], numbers):
        with pytest.raises(InvalidArgument) as caught:
            store.append("a", wrong)  # type: ignore[arg-type]
        assert caught.value.argument == "data"
    assert store.info("a").length == len(expected)


def test_what_is_written_is_not_shared_with_the_caller(world: World) -> None:
    store = world.open()
    store.create("a")
    buffer = bytearray(b"abc")
    store.append("a", buffer)
    buffer[:] = b"xyz"
    assert store.read("a", 0, 3) == b"abc"


def test_seal_and_unseal(world: World) -> None:
    store = world.open()
    store.create("a")
    with pytest.raises(SegmentNotSealed) as caught:
        store.unseal("a")
    assert caught.value.message == "segment 'a' is not sealed: there is nothing to undo"
    store.create("b")
    with pytest.raises(SegmentNotSealed, match="seal it first"):
        store.concat("a", 0, "b")
    store.append("a", b"12")
    store.seal("a")
    store.seal("a")
    assert store.info("a").sealed
    refused(
        SegmentSealed,
        lambda: store.append("a", b"x"),
        lambda: store.write("a", 2, b"x"),
        lambda: store.write("a", 0, b"x"),
    )
    store.unseal("a")
    assert not store.info("a").sealed
    assert store.append("a", b"34") == 2
    assert store.read("a", 0, 9) == b"1234"
    # What was sealed never changes again: the bytes behind it are in a chunk of their own.
    assert [chunk.length for chunk in store.layout("a")] == [2, 2]
    store.seal("a")
    store.delete("a")
    assert not store.exists("a")


def test_attributes(world: World) -> None:
    store = world.open()
    store.create("a", attributes={"x": 1})
    store.update_attributes("a", {"y": "two", "z": b"3"}, expected={"x": 1, "y": None})
    assert store.info("a").attributes == {"x": 1, "y": "two", "z": b"3"}
    store.update_attributes("a", {"x": None, "absent": None})
    assert store.info("a").attributes == {"y": "two", "z": b"3"}
    for expected in ({"x": 1}, {"y": None}, {"y": "three"}, {"y": b"two"}, {"z": "3"}):
        with pytest.raises(chunkstore.Conflict) as caught:
            store.update_attributes("a", {"x": 5}, expected=expected)
        assert caught.value.expected == next(iter(expected.values()))
    assert store.info("a").attributes == {"y": "two", "z": b"3"}
    store.update_attributes("a", {"i": -(1 << 63), "j": (1 << 63) - 1, "long": "x" * 4096, "e": "", "ü": "ß"})
    world.forget_cache()
    store = world.open()
    assert store.info("a").attributes == {
        "y": "two", "z": b"3", "i": -(1 << 63), "j": (1 << 63) - 1, "long": "x" * 4096, "e": "", "ü": "ß",
    }  # fmt: skip


@pytest.mark.parametrize(
    "attributes",
    [
        {"": 1},
        {"k" * 256: 1},
        {"a": 1.5},
        {"a": True},
        {"a": 1 << 63},
        {"a": [1]},
        {"a": "x" * 4097},
        {"a": "ü" * 4096},
        {"a": "\ud800"},
        {"\ud800": 1},
        {1: 1},
        {f"k{number}": number for number in range(129)},
        [("a", 1)],
        "text",
    ],
    ids=lambda value: repr(value)[:24],
)
def test_bad_attributes_are_refused_and_harm_nobody(world: World, attributes: object) -> None:
    store = world.open()
    store.create("a", attributes={"kept": 1})
    with pytest.raises(InvalidArgument):
        store.update_attributes("a", attributes)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument):
        store.create("b", attributes=attributes)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument):
        store.commit([chunkstore.changes.Create("b", attributes=attributes)])  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument):
        store.commit([chunkstore.changes.UpdateAttributes("a", attributes)])  # type: ignore[arg-type]
    assert store.info("a").attributes == {"kept": 1} and not store.exists("b")
    epoch = store.epoch
    store.append("a", b"goes on")
    assert store.epoch == epoch
