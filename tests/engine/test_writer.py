"""``StorageWriter``: futures in order, back-pressure, what an error does, and going on exactly once."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from typing import Any

import pytest

from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import (
    ChunkstoreError,
    Closed,
    DeadlineExceeded,
    InvalidArgument,
    NotOwner,
    SegmentSealed,
)
from chunkstore.storage import ChunkStorage
from tests.support.data import pattern, problems, refused
from tests.support.forwarding import Hooked
from tests.support.worlds import World


class Gate:
    """Lets the journal go on only while it is open. ``reached``: somebody has come to it since it was shut."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.open.set()
        self.reached = threading.Event()
        self.hooked: Hooked | None = None

    def wrap(self, storage: ChunkStorage) -> Hooked:
        self.hooked = Hooked(storage)
        self.hooked.before = self._before
        return self.hooked

    def _before(self, operation: str, names: tuple[str, ...]) -> None:
        if "/j/" in names[0] and operation in ("write", "create_if_absent"):
            self.reached.set()
            assert self.open.wait(60)

    def shut(self) -> None:
        self.open.clear()
        self.reached.clear()


def gated(world: World, **settings: Any) -> tuple[ChunkedSegmentStorage, Gate]:
    """Only what the test writes meets the gate: no heartbeat does."""
    gate = Gate()
    store = world.open(wrap=gate.wrap, **settings)
    world.still(store)
    store.create("a")
    return store, gate


def test_futures_tell_the_offsets_in_order(world: World) -> None:
    store = world.open(rolling=64)
    store.create("a")
    done: list[int] = []
    with store.writer("a", flush_bytes=100, flush_s=0.01) as writer:
        futures: list[tuple[int, int, Future[int]]] = []
        position = 0
        for number in range(120):
            size = number % 17
            future = writer.append(memoryview(pattern(position, size)))
            future.add_done_callback(lambda _, number=number: done.append(number))  # type: ignore[misc]
            futures.append((position, size, future))
            position += size
        writer.flush()
        # Durable by now; the writer's own thread may be about to say so.
        assert [future.result(60) for _, _, future in futures] == [offset for offset, _, _ in futures]
    assert [future.result(0) for _, _, future in futures] == [offset for offset, _, _ in futures]
    assert done == sorted(done) == list(range(120))
    assert store.read("a", 0, 9_999) == pattern(0, position)
    assert problems(store.check("deep")) == []


def test_a_batch_is_flushed_by_bytes_by_time_and_by_hand(world: World) -> None:
    store = world.open()
    store.create("a")
    with store.writer("a", flush_bytes=10, flush_s=3_600) as writer:
        first = writer.append(b"12345")
        time.sleep(0.1)
        assert not first.done()
        second = writer.append(b"67890")
        assert (first.result(60), second.result(60)) == (0, 5)
        third = writer.append(b"x")
        writer.flush()
        assert third.result(60) == 10
        fourth = writer.append(b"y" * 35)
        assert fourth.result(60) == 11
        last = writer.append(b"z")
    assert last.result(0) == 46
    with store.writer("a", flush_bytes=1 << 20, flush_s=0.02) as writer:
        assert writer.append(b"!").result(60) == 47
    with store.writer("a", flush_bytes=1 << 20, flush_s=3_600) as writer:
        writer.flush()
        waiting = writer.append(b"?")
        time.sleep(0.1)
        assert not waiting.done(), "a flush of nothing must not hurry what comes later"
    assert waiting.result(0) == 48
    assert store.info("a").length == 49


def test_back_pressure(world: World) -> None:
    store, gate = gated(world, op_deadline_s=600.0)
    gate.shut()
    writer = store.writer("a", flush_bytes=10, flush_s=0, buffer_bytes_max=30, window=1)
    futures = [writer.append(pattern(0, 10))]
    assert gate.reached.wait(60)
    # One batch is on its way; thirty more bytes may wait.
    futures += [writer.append(pattern(10 * number, 10)) for number in (1, 2, 3)]
    began = time.monotonic()
    with pytest.raises(DeadlineExceeded):
        writer.append(b"one too many", timeout_s=0.2)
    assert 0.2 <= time.monotonic() - began < 60
    blocked = threading.Thread(target=lambda: futures.append(writer.append(pattern(40, 10))))
    blocked.start()
    blocked.join(0.1)
    assert blocked.is_alive()
    gate.open.set()
    blocked.join(60)
    writer.close()
    assert [future.result(0) for future in futures] == [0, 10, 20, 30, 40]
    assert store.read("a", 0, 99) == pattern(0, 50)


def test_after_an_error_it_is_broken(world: World) -> None:
    store, gate = gated(world)
    writer = store.writer("a", flush_bytes=5, flush_s=0)
    assert writer.append(b"12345").result(60) == 0
    gate.shut()
    futures = [writer.append(b"67890")]
    assert gate.reached.wait(60)
    futures += [writer.append(b"%d" % number) for number in range(8)]
    failed: list[int] = []
    for number, future in enumerate(futures):
        future.add_done_callback(lambda _, number=number: failed.append(number))  # type: ignore[misc]
    closer = threading.Thread(target=lambda: store.seal("a"))
    closer.start()
    time.sleep(0.1)
    gate.open.set()
    closer.join(60)
    errors = [type(future.exception(60)) for future in futures]
    # What had been reserved before the seal is written; the rest fails, all of it, with the same error.
    written = errors.count(type(None))
    assert written >= 1
    assert errors == [type(None)] * written + [SegmentSealed] * (len(errors) - written)
    later = writer.append(b"later")
    assert isinstance(later.exception(60), SegmentSealed)
    assert failed == sorted(failed)
    refused(SegmentSealed, writer.flush, writer.close)
    writer.close()
    refused(Closed, lambda: writer.append(b"x"))


def events(count: int) -> list[bytes]:
    return [b"event-%03d;" % number for number in range(1, count + 1)]


@pytest.mark.parametrize("cut", ["at once", "in the middle", "at the end"])
def test_resuming_on_a_new_owner_is_exactly_once(world: World, cut: str) -> None:
    gate = Gate()
    first = world.open(wrap=gate.wrap, resolve_s=30)
    first.create("a")
    writer = first.writer("a", flush_bytes=40, flush_s=0.001, writer_id="w")
    all_events = events(60)
    sent = {"at once": 0, "in the middle": 30, "at the end": 60}[cut]
    for event in all_events[:sent]:
        writer.append(event)
    if cut == "at the end":
        writer.flush()
    second = world.open()
    for event in all_events[sent:]:
        writer.append(event)
    with pytest.raises(ChunkstoreError) as caught:
        writer.append(b"late").result(60)
        writer.flush()
    assert type(caught.value) is NotOwner
    with pytest.raises(ChunkstoreError):
        writer.close()
    resumed = writer.resume(second)
    done = resumed.event_number
    assert done == second.last_event_number("a", "w")
    assert second.read("a", 0, 9_999) == b"".join(all_events[:done])
    for event in all_events[done:]:
        resumed.append(event)
    resumed.close()
    assert second.read("a", 0, 9_999) == b"".join(all_events)
    assert second.last_event_number("a", "w") == 60
    again = resumed.resume(second)
    assert again.event_number == 60
    again.close()
    assert problems(second.check("deep")) == []


@pytest.mark.parametrize("resumes", [True, False])
def test_a_newer_writer_of_an_id_goes_on_alone(world: World, resumes: bool) -> None:
    """The one before it was not closed, and has batches on their way: what it has committed counts, and no more of it happens."""
    store, gate = gated(world)
    first = store.writer("a", writer_id="w", flush_bytes=40, flush_s=0.001)
    all_events = events(60)
    gate.shut()
    futures = [first.append(event) for event in all_events]
    assert gate.reached.wait(60)
    refused(DeadlineExceeded, lambda: first.flush(0.05))
    threading.Timer(0.3, gate.open.set).start()
    second = first.resume(store) if resumes else store.writer("a", writer_id="w", flush_bytes=4_000)
    done = second.event_number
    assert [future.exception(60) is None for future in futures] == [number < done for number in range(60)]
    assert {type(future.exception(0)) for future in futures[done:]} <= {Closed}
    assert type(first.append(b"late").exception(60)) is Closed
    refused(Closed, first.flush)
    again = [second.append(event) for event in all_events[done:]]
    second.close()
    content = b"".join(all_events)
    assert store.read("a", 0, 9_999) == content
    for future, event in zip((*futures[:done], *again), all_events, strict=True):
        assert content[future.result(0) :].startswith(event)
    assert store.last_event_number("a", "w") == 60


def test_a_writer_with_an_id_takes_up_where_the_last_one_ended(world: World) -> None:
    store = world.open()
    store.create("a")
    for part in range(4):
        with store.writer("a", writer_id=b"w", flush_bytes=7) as writer:
            assert writer.event_number == 5 * part
            for _ in range(5):
                writer.append(b"abc")
    assert store.read("a", 0, 99) == b"abc" * 20
    plain = store.writer("a")
    with pytest.raises(InvalidArgument):
        plain.resume(store)
    plain.close()
