"""Writer ids and event numbers: a retry writes nothing and learns where the bytes are."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from chunkstore.errors import Conflict, SegmentSealed, StorageUnavailable
from tests.support.data import refused, run_threads
from tests.support.forwarding import Hooked, nothing
from tests.support.hooked import hold_first, in_thread, is_commit, is_data, open_hooked
from tests.support.worlds import World


def test_a_retry_writes_nothing_and_gets_the_recorded_offset(world: World) -> None:
    store = world.open()
    store.create("a")
    store.append("a", b"--")
    assert store.append("a", b"one", writer_id=b"w", event_number=1) == 2
    for _ in range(3):
        assert store.append("a", b"one", writer_id=b"w", event_number=1) == 2
    assert store.append("a", b"five", writer_id="w", event_number=5) == 5
    for lower in (4, 1):
        assert store.append("a", b"anything", writer_id=b"w", event_number=lower) == 5
    assert store.append("a", b"other", writer_id=b"w2", event_number=1) == 9
    assert store.read("a", 0, 99) == b"--onefiveother"
    assert store.last_event_number("a", b"w") == 5
    assert store.last_event_number("a", "w2") == 1
    assert store.last_event_number("a", b"stranger") == 0


@pytest.mark.parametrize("data", [b"fivE", b"fives"])
def test_a_known_number_with_other_bytes_is_a_conflict(world: World, data: bytes) -> None:
    with world.open() as store:
        store.create("a")
        store.append("a", b"five", writer_id=b"w", event_number=5)
        refused(Conflict, lambda: store.append("a", data, writer_id=b"w", event_number=5))
    store = world.open()
    with pytest.raises(Conflict, match=r"event 5 .*last_event_number"):
        store.append("a", data, writer_id=b"w", event_number=5)
    assert store.append("a", b"five", writer_id=b"w", event_number=5) == 0
    with store.writer("a", writer_id=b"w") as batch:
        batch.append(b"one,")
        batch.append(b"two")
    assert store.append("a", b"two", writer_id=b"w", event_number=7) < 11, "the last one of a batch"
    assert store.read("a", 0, 99) == b"fiveone,two"


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


def test_an_event_waits_for_an_undecided_one_and_sees_what_came_between(world: World) -> None:
    """The state is looked at again after waiting: other appends may have moved the segment on meanwhile."""
    store, storage = open_hooked(world, Hooked, keeper=True)
    store.create("a")
    store.append("a", b"|")
    held, going = hold_first(storage, is_commit)

    def event(data: bytes, number: int) -> tuple[threading.Thread, list[Any]]:
        return in_thread(lambda: store.append("a", data, writer_id=b"w", event_number=number))

    calls = [event(b"11", 1)]
    assert held.wait(60)
    calls += [event(b"2222", 2), event(b"11", 1), in_thread(lambda: store.append("a", b"333"))]
    calls[-1][0].join(0.2)
    going.set()
    for thread, _ in calls:
        thread.join(60)
        assert not thread.is_alive()
    one, two, retry, plain = (found[0] for _, found in calls)
    content = store.read("a", 0, 99)
    assert len(content) == 10
    # A repetition gets the last recorded offset of its writer.
    assert one == 1 and retry in (one, two)
    for offset, data in ((one, b"11"), (two, b"2222"), (plain, b"333")):
        assert content[offset : offset + len(data)] == data
    assert store.check("deep") == []


def test_a_retry_goes_on_after_the_write_of_its_chunk_failed(world: World) -> None:
    """The failed operation never entered the queue, so nothing decides it, and a retry must not wait for that."""
    store, storage = open_hooked(world, Hooked)
    store.create("a")
    store.append("a", b"|")

    def fail_once(operation: str, names: tuple[str, ...]) -> None:
        if names and is_data(operation, names[0]):
            storage.before = nothing
            raise StorageUnavailable("injected before the write", object=names[0])

    storage.before = fail_once
    refused(StorageUnavailable, lambda: store.append("a", b"one", writer_id=b"w", event_number=1))
    assert store.append("a", b"one", writer_id=b"w", event_number=1) == 1
    assert store.append("a", b"one", writer_id=b"w", event_number=1) == 1
    assert store.read("a", 0, 99) == b"|one"
