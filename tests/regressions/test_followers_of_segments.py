"""Readers and writers of one segment have threads: what becomes of those when their maker forks, or forgets them."""

from __future__ import annotations

import gc
import threading

import pytest

from chunkstore.errors import Closed
from tests.support.data import refused
from tests.support.forked import in_forked_child
from tests.support.hooked import wait_for
from tests.support.worlds import World

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def test_a_reader_in_a_forked_child_is_closed(world: World) -> None:
    """It waited for ever for a thread that only its parent has."""
    store = world.open()
    store.create("s")
    store.append("s", b"x" * 400_000)
    reader = store.reader("s", piece_bytes=4096, prefetch_bytes=8192)
    first = next(reader)

    def child() -> str:
        reader.close()
        refused(Closed, lambda: next(reader))
        return "closed"

    with reader._pieces._condition:  # as its own thread may, at any moment
        assert in_forked_child(child) == "closed"
    assert len(first) + sum(map(len, reader)) == 400_000


def test_a_writer_in_a_forked_child_is_closed(world: World) -> None:
    store = world.open()
    store.create("s")
    writer = store.writer("s")

    def child() -> str:
        refused(Closed, lambda: writer.append(b"child"))
        refused(Closed, writer.flush)
        writer.close()
        return "closed"

    with writer._condition:
        assert in_forked_child(child) == "closed"
    assert writer.append(b"parent").result(60) == 0
    writer.close()
    assert store.read("s", 0, 99) == b"parent"


def test_a_reader_that_nobody_has_any_more_ends_its_thread(world: World) -> None:
    store = world.open()
    store.create("s")
    store.append("s", b"x" * 400_000)
    for _ in range(5):
        for _piece in store.reader("s", piece_bytes=4096, prefetch_bytes=8192):
            break
    gc.collect()
    wait_for(lambda: not any(thread.name == "chunkstore-reader" for thread in threading.enumerate()))
