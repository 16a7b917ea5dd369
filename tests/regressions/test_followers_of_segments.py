"""Readers and writers of one segment have threads: what becomes of those when their maker forgets them."""

from __future__ import annotations

import gc
import threading

from tests.support.hooked import wait_for
from tests.support.worlds import World


def test_a_reader_that_nobody_has_any_more_ends_its_thread(world: World) -> None:
    store = world.open()
    store.create("s")
    store.append("s", b"x" * 400_000)
    for _ in range(5):
        for _piece in store.reader("s", piece_bytes=4096, prefetch_bytes=8192):
            break
    gc.collect()
    wait_for(lambda: not any(thread.name == "chunkstore-reader" for thread in threading.enumerate()))
