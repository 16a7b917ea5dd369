"""Writer ids and event numbers: a retry writes nothing and learns where the bytes are."""

from __future__ import annotations

import threading

import pytest

from chunkstore.errors import InvalidArgument, SegmentSealed
from chunkstore.storage import ChunkStorage
from tests.support.data import refused, run_threads
from tests.support.forwarding import Hooked
from tests.support.worlds import World


def test_a_retry_writes_nothing_and_gets_the_recorded_offset(world: World) -> None:
    store = world.open()
    store.create("a")
    store.append("a", b"--")
    assert store.append("a", b"one", writer_id=b"w", event_number=1) == 2
    for _ in range(3):
        assert store.append("a", b"one", writer_id=b"w", event_number=1) == 2
    assert store.append("a", b"five", writer_id="w", event_number=5) == 5
    for lower in (5, 4, 1):
        assert store.append("a", b"anything", writer_id=b"w", event_number=lower) == 5
    assert store.append("a", b"other", writer_id=b"w2", event_number=1) == 9
    assert store.read("a", 0, 99) == b"--onefiveother"
    assert store.last_event_number("a", b"w") == 5
    assert store.last_event_number("a", "w2") == 1
    assert store.last_event_number("a", b"stranger") == 0


def test_across_owners_and_machines(world: World) -> None:
    with world.open() as store:
        store.create("a")
        assert store.append("a", b"one", writer_id=b"w", event_number=1) == 0
    crashed = world.open()
    assert crashed.append("a", b"one", writer_id=b"w", event_number=1) == 0
    assert crashed.append("a", b"two", writer_id=b"w", event_number=2) == 3
    world.crash(crashed)
    world.forget_cache()
    store = world.open()
    assert store.append("a", b"two", writer_id=b"w", event_number=2) == 3
    assert store.append("a", b"three", writer_id=b"w", event_number=3) == 6
    assert store.read("a", 0, 99) == b"onetwothree"


def test_a_retry_is_answered_also_when_the_segment_is_sealed_or_the_offset_expected(world: World) -> None:
    store = world.open()
    store.create("a")
    assert store.append("a", b"x", writer_id=b"w", event_number=7, expected_offset=0) == 0
    assert store.append("a", b"x", writer_id=b"w", event_number=7, expected_offset=0) == 0
    store.seal("a")
    assert store.append("a", b"x", writer_id=b"w", event_number=7, expected_offset=0) == 0
    refused(SegmentSealed, lambda: store.append("a", b"x", writer_id=b"w", event_number=8))


def test_delete_and_create_again_starts_anew(world: World) -> None:
    store = world.open(gc_grace_s=0)
    store.create("a")
    store.append("a", b"first", writer_id=b"w", event_number=9)
    store.delete("a")
    store.create("a")
    assert store.last_event_number("a", b"w") == 0
    assert store.append("a", b"again", writer_id=b"w", event_number=1) == 0
    store.collect()
    assert store.last_event_number("a", b"w") == 1
    assert store.read("a", 0, 99) == b"again"


@pytest.mark.parametrize("chunks", [0, 1])
@pytest.mark.parametrize("ending", ["delete", "concat"])
def test_rows_of_ended_segments_are_collected(world: World, chunks: int, ending: str) -> None:
    store = world.open(gc_grace_s=0)
    store.create("target")
    store.create("a")
    writers = [b"w", b"\xff" * 64, b"\0", b"\xff" * 9]
    for writer in writers:
        store.append("a", b"data", writer_id=writer, event_number=3)
    if not chunks:
        if ending == "concat":
            store.seal("a")
            store.concat("target", 0, "a")
            store.create("b")
        else:
            store.truncate("a", 16)
            store.delete("a")
    elif ending == "delete":
        store.delete("a")
    else:
        store.seal("a")
        store.concat("target", 0, "a")
    store.collect()
    with store._container.current.store.view() as view:
        assert [key for key, _ in view.scan(b"T", b"U")] == []
    assert store.check("deep") == []


def test_concurrent_retries_of_one_event_write_once(world: World) -> None:
    store = world.open()
    store.create("a")
    offsets: list[int] = []
    for number in range(1, 6):
        found: list[int] = []
        run_threads(
            8,
            lambda _: found.append(store.append("a", b"0123456789", writer_id=b"w", event_number=number)),  # noqa: B023
        )
        assert set(found) == {10 * (number - 1)}
        offsets.extend(found)
    assert store.read("a", 0, 99) == b"0123456789" * 5
    assert store.check("deep") == []


def test_many_writers_in_many_threads(world: World) -> None:
    store = world.open(rolling=50)
    store.create("a")
    where: dict[tuple[int, int], int] = {}

    def work(thread: int) -> None:
        writer = f"w{thread % 4}"
        for event in range(1, 13):
            offset = store.append("a", b"%02d:%02d;" % (thread % 4, event), writer_id=writer, event_number=event)
            where.setdefault((thread % 4, event), offset)

    run_threads(8, work)
    content = store.read("a", 0, 9999)
    pieces = [content[offset : offset + 6] for offset in range(0, len(content), 6)]
    assert len(pieces) == len(set(pieces))
    for writer in range(4):
        mine = [piece for piece in pieces if piece.startswith(b"%02d:" % writer)]
        assert mine == sorted(mine) and mine[-1] == b"%02d:12;" % writer
    assert store.check("deep") == []


def test_an_event_waits_for_an_undecided_one_and_sees_what_came_between(world: World) -> None:
    """The state is looked at again after waiting: other appends may have moved the segment on meanwhile."""
    hooked: list[Hooked] = []

    def wrap(storage: ChunkStorage) -> Hooked:
        hooked.append(Hooked(storage))
        return hooked[0]

    store = world.open(wrap=wrap)
    store.create("a")
    store.append("a", b"|")
    held, going = threading.Event(), threading.Event()

    def hold(operation: str, names: tuple[str, ...]) -> None:
        journal = "/j/" in names[0]
        if journal and operation in ("write", "create_if_absent") and not held.is_set():
            held.set()
            assert going.wait(20)

    hooked[0].before = hold
    results: dict[str, int] = {}

    def call(key: str, data: bytes, event: int | None) -> threading.Thread:
        def body() -> None:
            if event is None:
                results[key] = store.append("a", data)
            else:
                results[key] = store.append("a", data, writer_id=b"w", event_number=event)

        thread = threading.Thread(target=body)
        thread.start()
        return thread

    threads = [call("one", b"11", 1)]
    assert held.wait(20)
    threads.append(call("two", b"2222", 2))
    threads.append(call("retry", b"11", 1))
    threads.append(call("plain", b"333", None))
    threads[-1].join(0.2)
    going.set()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    content = store.read("a", 0, 99)
    assert len(content) == 10
    # A repetition gets the last recorded offset of its writer.
    assert results["one"] == 1 and results["retry"] in (results["one"], results["two"])
    for key, data in (("one", b"11"), ("two", b"2222"), ("plain", b"333")):
        assert content[results[key] : results[key] + len(data)] == data
    assert store.check("deep") == []


def test_arguments(world: World) -> None:
    store = world.open()
    store.create("a")
    wrong: list[tuple[object, object]] = [
        (b"w", None),
        (None, 1),
        (b"", 1),
        (b"w" * 65, 1),
        ("ü" * 33, 1),
        (5, 1),
        (bytearray(b"w"), 1),
        (b"w", 0),
        (b"w", -1),
        (b"w", 1.0),
        (b"w", True),
        (b"w", 1 << 63),
    ]
    for writer, number in wrong:
        refused(
            InvalidArgument,
            lambda: store.append("a", b"x", writer_id=writer, event_number=number),  # type: ignore[arg-type]  # noqa: B023
        )
    assert store.append("a", b"x", writer_id="ü" * 32, event_number=(1 << 63) - 1) == 0
    assert store.last_event_number("a", "ü" * 32) == (1 << 63) - 1
