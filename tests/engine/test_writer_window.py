"""Several batches of a ``StorageWriter`` on their way at once: what is acknowledged is a prefix, whatever fails, and in whatever order.

Where chunks grow one batch is on its way at a time; all that is said of order and errors holds there as well.
"""

from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import Future
from typing import Any

import pytest

from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import (
    ChunkstoreError,
    Closed,
    NotOwner,
    StorageUnavailable,
)
from chunkstore.operations.append import AppendWindow, Underway
from chunkstore.storage import ChunkStorage
from tests.support.data import pattern, problems, refused
from tests.support.forwarding import Hooked
from tests.support.worlds import World

BATCH = 10


class Uploads:
    """Holds every write of chunk bytes until it is let go, by the number of its batch; ``fail``: numbers of those that fail."""

    def __init__(self, appends: bool) -> None:
        self._appends = appends
        self._changed = threading.Condition()
        self.begun = 0
        self._free: set[int] = set()
        self._all_free = False
        self.fail: set[int] = set()

    def wrap(self, storage: ChunkStorage) -> Hooked:
        hooked = Hooked(storage)
        hooked.before = self._before
        return hooked

    def _before(self, operation: str, names: tuple[str, ...]) -> None:
        if "/d/" not in names[0] or operation not in ("create", "write"):
            return
        with self._changed:
            # Chunks are counted as they are planned; their writes come in any order.
            number = self.begun if self._appends else int(names[0].split("-")[2], 16) - 1
            self.begun += 1
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._all_free or number in self._free, 60)
        if number in self.fail:
            raise StorageUnavailable(f"upload {number} fails")

    def let_go(self, *numbers: int) -> None:
        with self._changed:
            self._free.update(numbers)
            self._changed.notify_all()

    def let_all_go(self) -> None:
        with self._changed:
            self._all_free = True
            self._changed.notify_all()

    def wait_for(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.begun >= count, 60)


def held(world: World, **settings: Any) -> tuple[ChunkedSegmentStorage, Uploads]:
    uploads = Uploads(world.appends)
    store = world.open(wrap=uploads.wrap, **settings)
    store.create("a")
    return store, uploads


def pieces(count: int) -> list[bytes]:
    return [pattern(BATCH * number, BATCH) for number in range(count)]


def outcomes(futures: list[Future[int]]) -> list[int | type]:
    return [type(error) if (error := future.exception(60)) else future.result(0) for future in futures]


def test_later_batches_are_written_first_and_acknowledged_behind_the_earlier_ones(world: World) -> None:
    store, uploads = held(world)
    done: list[int] = []
    with store.writer("a", flush_bytes=BATCH, flush_s=0, window=3) as writer:
        futures = [writer.append(piece) for piece in pieces(5)]
        for number, future in enumerate(futures):
            future.add_done_callback(lambda _, number=number: done.append(number))  # type: ignore[misc]
        if not world.appends:
            uploads.wait_for(3)
            uploads.let_go(2, 1)
            assert not futures[1].done() and not futures[2].done()
            assert store.info("a").length == 0
        # Three were on their way, and the fourth waited for one of them to be acknowledged.
        assert uploads.begun <= (1 if world.appends else 3)
        uploads.let_all_go()
    assert outcomes(futures) == [0, 10, 20, 30, 40]
    assert done == [0, 1, 2, 3, 4]
    assert store.read("a", 0, 99) == pattern(0, 50)
    assert problems(store.check("deep")) == []


@pytest.mark.parametrize("failing", [0, 1, 3])
def test_nothing_is_acknowledged_behind_one_that_fails_and_resuming_is_exactly_once(world: World, failing: int) -> None:
    store, uploads = held(world)
    uploads.fail = {failing}
    writer = store.writer("a", flush_bytes=BATCH, flush_s=0, window=4, writer_id="w")
    futures = [writer.append(piece) for piece in pieces(4)]
    if not world.appends:
        uploads.wait_for(4)
        # The ones behind are there already, and nobody's.
        uploads.let_go(*range(failing + 1, 4))
    uploads.let_all_go()
    assert outcomes(futures) == [0, 10, 20, 30][:failing] + [StorageUnavailable] * (4 - failing)
    refused(StorageUnavailable, writer.flush, writer.close)
    assert isinstance(writer_error(store, writer), Closed)
    assert store.read("a", 0, 99) == pattern(0, BATCH * failing)
    again = writer.resume(store)
    assert again.event_number == failing
    for piece in pieces(4)[failing:]:
        again.append(piece)
    again.close()
    assert store.read("a", 0, 99) == pattern(0, 40)
    assert store.last_event_number("a", "w") == 4
    assert problems(store.check("deep")) == []


def writer_error(store: ChunkedSegmentStorage, writer: object) -> ChunkstoreError | None:
    """What a broken writer's window says to whatever comes."""
    try:
        writer._appends.begin(b"late", None, expected_offset=None, writer_id=None, event_number=0)  # type: ignore[attr-defined]
    except ChunkstoreError as error:
        return error
    return None


def test_a_take_over_in_the_middle_acknowledges_a_prefix(world: World) -> None:
    first, uploads = held(world, resolve_s=30.0)
    writer = first.writer("a", flush_bytes=BATCH, flush_s=0, window=4, writer_id="w")
    futures = [writer.append(piece) for piece in pieces(4)]
    uploads.wait_for(1 if world.appends else 4)
    uploads.let_go(0)
    assert futures[0].result(60) == 0
    if not world.appends:
        uploads.let_go(2, 3)
    second = world.open()
    uploads.let_all_go()
    assert outcomes(futures) == [0, NotOwner, NotOwner, NotOwner]
    refused(NotOwner, writer.close)
    assert second.read("a", 0, 99) == pattern(0, BATCH)
    with writer.resume(second) as resumed:
        assert resumed.event_number == 1
        for piece in pieces(4)[1:]:
            resumed.append(piece)
    assert second.read("a", 0, 99) == pattern(0, 40)
    assert problems(second.check("deep")) == []


def test_what_is_under_way_keeps_nothing_that_came_before(world: World) -> None:
    """A writer that is never idle would else keep the bytes of all its appends."""
    store = world.open()
    window = AppendWindow(store._container, "a", store.create("a").segment_id)

    def begin(before: Underway | None) -> Underway:
        begun = window.begin(pattern(0, BATCH), before, expected_offset=None, writer_id=None, event_number=0)
        assert begun is not None
        window.write(begun)
        return begun

    newest = begin(None)
    first = weakref.ref(newest)
    newest = begin(newest)
    gc.collect()
    assert first() is None
    assert window.wait(newest) == BATCH
