"""``StorageReader``: buffers in order, read-ahead, following the tail, errors where they belong."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from chunkstore.engine.reader import StorageReader
from chunkstore.errors import BadOffset, Closed, Damaged, NotOwner, SegmentNotFound, SegmentTruncated
from tests.support.data import pattern, refused
from tests.support.hooked import wait_for
from tests.support.worlds import World

PIECE = 4_096


@pytest.mark.parametrize("prefetch", [0, 1, PIECE, 5 * PIECE], ids=str)
def test_all_of_it(world: World, prefetch: int) -> None:
    store = world.open(rolling=5_000)
    store.create("a")
    total = 30_000
    store.append("a", pattern(0, total))
    with store.reader("a", prefetch_bytes=prefetch, piece_bytes=PIECE) as reader:
        pieces = [*reader]
        assert reader.position == total
        assert [*reader] == []
    assert b"".join(pieces) == pattern(0, total)
    assert all(len(piece) == PIECE for piece in pieces[:-1])
    for start, stop in (
        (0, 0),
        (0, 1),
        (7, 7),
        (100, 12_345),
        (29_999, None),
        (total, None),
        (9, total + 99),
        (50, 20),
    ):
        with store.reader("a", start=start, stop=stop, prefetch_bytes=prefetch, piece_bytes=PIECE) as reader:
            end = total if stop is None else max(start, min(stop, total))
            assert b"".join(reader) == pattern(start, end - start)
    store.truncate("a", 12_000)
    assert b"".join(store.reader("a", prefetch_bytes=prefetch, piece_bytes=PIECE)) == pattern(12_000, 18_000)
    refused(SegmentTruncated, lambda: store.reader("a", start=11_999, prefetch_bytes=prefetch))
    refused(BadOffset, lambda: store.reader("a", start=total + 1, prefetch_bytes=prefetch))


def test_an_empty_segment(world: World) -> None:
    store = world.open()
    store.create("a")
    assert [*store.reader("a")] == []
    assert [*store.reader("a", prefetch_bytes=0)] == []


@pytest.mark.parametrize("prefetch", [0, 3 * PIECE], ids=str)
def test_following_until_sealed(world: World, prefetch: int) -> None:
    store = world.open(rolling=10_000)
    store.create("a")
    got = bytearray()

    def consume() -> None:
        with store.reader("a", follow=True, prefetch_bytes=prefetch, piece_bytes=PIECE) as reader:
            for piece in reader:
                got.extend(piece)

    thread = threading.Thread(target=consume)
    thread.start()
    for number in range(30):
        store.append("a", pattern(700 * number, 700))
        if number % 10 == 0:
            time.sleep(0.02)
    wait_for(lambda: len(got) >= 21_000)
    assert bytes(got) == pattern(0, 21_000) and thread.is_alive()
    store.seal("a")
    thread.join(60)
    assert not thread.is_alive() and bytes(got) == pattern(0, 21_000)


def background(reader: StorageReader) -> tuple[threading.Thread, list[object]]:
    """Read in a thread; what it found so far, once it waits for the second item."""
    results: list[object] = []
    asked: list[int] = []
    next_item = reader._next_item

    def asking() -> Any:
        asked.append(1)
        return next_item()

    reader._next_item = asking  # type: ignore[method-assign]

    def body() -> None:
        try:
            results.extend(reader)
            results.append("end")
        except Exception as error:  # noqa: BLE001  (it is what the test looks at)
            if isinstance(error, SegmentNotFound):
                assert error.segment == "a" and "read up to offset 4," in error.message
            results.append(type(error))

    thread = threading.Thread(target=body)
    thread.start()
    wait_for(lambda: len(asked) == 2)
    time.sleep(0.05)
    return thread, results


@pytest.mark.parametrize("prefetch", [0, 3 * PIECE], ids=str)
@pytest.mark.parametrize("event", ["close", "delete", "store closed", "take-over", "truncate"])
def test_what_ends_a_blocked_follower(world: World, prefetch: int, event: str) -> None:
    store = world.open()
    store.create("a")
    store.append("a", b"data")
    reader = store.reader("a", follow=True, prefetch_bytes=prefetch)
    thread, results = background(reader)
    assert thread.is_alive() and results == [b"data"]
    if event == "close":
        reader.close()
    elif event == "delete":
        store.delete("a")
    elif event == "store closed":
        store.close()
    elif event == "take-over":
        world.open()
    else:
        store.truncate("a", 4)
        store.append("a", b"more")
        wait_for(lambda: len(results) >= 2)
        store.seal("a")
    thread.join(60)
    assert not thread.is_alive()
    ends = {
        "close": [b"data", "end"],
        "delete": [b"data", SegmentNotFound],
        "store closed": [b"data", Closed],
        "take-over": [b"data", NotOwner],
        "truncate": [b"data", b"more", "end"],
    }
    assert results == ends[event]
    reader.close()


@pytest.mark.parametrize("prefetch", [0, 8 * PIECE], ids=str)
def test_errors_come_behind_the_buffers_before_them(world: World, prefetch: int) -> None:
    store = world.open(rolling=PIECE)
    store.create("a")
    store.append("a", pattern(0, 5 * PIECE))
    name = [*store.layout("a")][3].name
    damaged = bytearray(world.content(name))
    damaged[7] ^= 1
    world.overwrite(name, bytes(damaged))
    reader = store.reader("a", prefetch_bytes=prefetch, piece_bytes=PIECE)
    assert [next(reader) for _ in range(3)] == [pattern(PIECE * number, PIECE) for number in range(3)]
    assert reader.position == 3 * PIECE
    with pytest.raises(Damaged) as caught:
        next(reader)
    assert caught.value.object == name and reader.position == 3 * PIECE
    assert [*reader] == []
    reader.close()
    refused(Closed, lambda: next(reader))
    # Behind the damage everything is fine.
    assert b"".join(store.reader("a", start=4 * PIECE, prefetch_bytes=prefetch)) == pattern(4 * PIECE, PIECE)


def test_truncated_while_reading(world: World) -> None:
    store = world.open(rolling=PIECE)
    store.create("a")
    store.append("a", pattern(0, 5 * PIECE))
    reader = store.reader("a", prefetch_bytes=0, piece_bytes=PIECE)
    next(reader)
    store.truncate("a", 3 * PIECE)
    with pytest.raises(SegmentTruncated) as caught:
        next(reader)
    assert caught.value.start_offset == 3 * PIECE


def test_a_reader_stays_with_its_segment(world: World) -> None:
    store = world.open()
    store.create("a")
    store.append("a", pattern(0, 3 * PIECE))
    reader = store.reader("a", prefetch_bytes=0, piece_bytes=PIECE)
    next(reader)
    store.delete("a")
    store.create("a")
    store.append("a", pattern(0, 3 * PIECE, 5))
    refused(SegmentNotFound, lambda: next(reader))


def test_reading_through_a_handle_and_a_replica(world: World) -> None:
    store = world.open()
    handle = store.create("a")
    store.append("a", pattern(0, 10_000))
    assert b"".join(store.reader(handle)) == pattern(0, 10_000)
    assert b"".join(world.replica().reader("a", piece_bytes=PIECE)) == pattern(0, 10_000)
