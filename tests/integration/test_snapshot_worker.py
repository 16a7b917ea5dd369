"""Large states are snapshotted by a process of their own; the result counts like any other."""

from __future__ import annotations

import io
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

import chunkstore
from chunkstore import snapshot_worker
from chunkstore.metadata.lmdb import LmdbMetadataCache
from chunkstore.operations import snapshots
from chunkstore.registry import open_storage
from chunkstore.storage import ChunkStorage
from tests.support.hooked import wait_for


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
            length = store.info("a").length
            wait_for(lambda: store.info("a").length > length)
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


@pytest.mark.filterwarnings("ignore:cache_dir")
def test_a_worker_finds_the_cache_that_is_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where cache_dir is on no local disk the owner takes a temporary directory; the worker looked for it in cache_dir."""
    monkeypatch.setattr(snapshots, "_WORKER_ENTRIES_MIN", 0)
    defaults = LmdbMetadataCache.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "local", lambda path: False)
    settings = chunkstore.Settings(cache_dir=str(tmp_path / "cache"), lease_s=0)
    with chunkstore.open(f"file://{tmp_path}/root", settings=settings) as store:
        store.create("a")
        store.append("a", b"event")
        assert store.snapshot().rows > 0


def test_a_worker_has_all_the_owners_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits of what the storage is asked for hold in the worker, too."""
    monkeypatch.setattr(snapshots, "_WORKER_ENTRIES_MIN", 0)
    settings = chunkstore.Settings(
        cache_dir=str(tmp_path / "cache"),
        lease_s=0,
        open_files_max=17,
        retry_s_max=3.5,
        write_bytes_per_s_max=1e9,
        default_rolling=chunkstore.RollingPolicy(chunk_size_bytes_max=77),
    )
    seen: list[chunkstore.Settings | None] = []

    def opening(root: str, chosen: chunkstore.Settings) -> ChunkStorage:
        seen.append(chosen)
        return open_storage(root, chosen)

    def run(*arguments: object, input: str, **named: object) -> subprocess.CompletedProcess[str]:
        """The worker, in this process."""
        monkeypatch.setattr("sys.stdin", io.StringIO(input))
        monkeypatch.setattr("sys.stdout", output := io.StringIO())
        return subprocess.CompletedProcess([], snapshot_worker.main(), output.getvalue(), "")

    with chunkstore.open(f"file://{tmp_path}/root", settings=settings) as store:
        store.create("a")
        monkeypatch.setattr(snapshot_worker, "open_storage", opening)
        monkeypatch.setattr(subprocess, "run", run)
        assert store.snapshot().rows > 0
    assert seen == [settings]
