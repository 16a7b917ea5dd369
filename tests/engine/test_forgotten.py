"""What is taken by the garbage collector without ``close``: a warning that names it, and nothing of it is left."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import chunkstore
from chunkstore.assembly import describe_owner
from chunkstore.config import Tuning

WAIT_S = 60.0


def wait_until(is_so: Callable[[], bool]) -> None:
    end_s = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < end_s
        time.sleep(0.01)


def test_a_hundred_forgotten_stores_leave_nothing(tmp_path: Path) -> None:
    settings = chunkstore.Settings(cache_dir=str(tmp_path / "cache"), tuning=Tuning(lmdb_map_bytes=1 << 24))
    optimiser = chunkstore.OptimiserPolicy(sweep_s=3600.0, defrag=chunkstore.DefragPolicy())
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
    for number in range(100):
        name = f"c{number % 4}"
        with pytest.warns(ResourceWarning, match=f"unclosed <Store .*container='{name}'"):  # noqa: PT031
            store = chunkstore.open(tmp_path / "root", container=name, settings=settings, optimiser=optimiser)
            store.create(f"segment-{number}")
            del store
            gc.collect()
        wait_until(lambda: threading.active_count() <= threads)
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= files)
    lease = describe_owner(tmp_path / "root", "c3")["lease"]
    assert isinstance(lease, dict) and lease["released"]
