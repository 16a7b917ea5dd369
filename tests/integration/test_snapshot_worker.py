"""Large states are snapshotted by a process of their own; the result counts like any other."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

import chunkstore
from chunkstore.operations import snapshots


def test_a_worker_writes_the_snapshot_while_commits_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "_WORKER_ENTRIES_MIN", 1)
    settings = chunkstore.Settings(cache_dir=str(tmp_path / "cache"), lease_s=0)
    root = f"file://{tmp_path}/root"
    with chunkstore.open(root, settings=settings) as store:
        store.create("a")
        stop = threading.Event()

        def append() -> None:
            while not stop.is_set():
                store.append("a", b"event")

        busy = threading.Thread(target=append)
        busy.start()
        try:
            first = store.snapshot()
            second = store.snapshot()
        finally:
            stop.set()
            busy.join()
        assert second.lsn > first.lsn
        length = store.info("a").length
    shutil.rmtree(tmp_path / "cache")
    with chunkstore.open(root, settings=settings) as store:
        assert store.report.source == "snapshot"
        assert store.info("a").length == length
        assert store.check("deep") == []


def test_a_worker_that_cannot_work_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "_WORKER_ENTRIES_MIN", 0)
    settings = chunkstore.Settings(cache_dir=str(tmp_path / "cache"), lease_s=0)
    with chunkstore.open(f"file://{tmp_path}/root", settings=settings) as store:
        store.create("a")
        shutil.rmtree(tmp_path / "cache")
        with pytest.raises(chunkstore.StorageUnavailable, match="cache cannot be read"):
            store.snapshot()
        # The owner itself goes on: its cache is open.
        store.append("a", b"still here")
        assert store.read("a", 0, 100) == b"still here"
