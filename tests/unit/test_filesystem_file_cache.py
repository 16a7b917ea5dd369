"""The cache of open files: bounded, never closes what is in use, never leaves unsynced bytes to a closed descriptor."""

from __future__ import annotations

import errno
import random
import threading
from pathlib import Path

import pytest

from chunkstore.errors import ChunkNotFound, StorageUnavailable
from chunkstore_bindings.filesystem import FilesystemChunkStorage, posix
from chunkstore_bindings.filesystem.file_cache import OpenFile


def test_reads_race_with_deletes_and_evictions(tmp_path: Path) -> None:
    """A descriptor number that is closed and used again must never give the bytes of another chunk."""
    storage = FilesystemChunkStorage(tmp_path, open_files_max=8)
    stop = threading.Event()
    failures: list[BaseException] = []

    def churn() -> None:
        number = 0
        while not stop.is_set():
            name = f"churn/{number % 50}"
            number += 1
            try:
                storage.create_if_absent(name, name.encode() * 20_000)
                storage.delete(name)
            except ChunkNotFound:
                pass
            except BaseException as error:  # noqa: BLE001
                failures.append(error)
                return

    def read(seed: int) -> None:
        own = random.Random(seed)
        try:
            for _ in range(3000):
                name = f"fixed/{own.randrange(20)}"
                data = storage.read(storage.open_read(name), 0, 200)
                assert data == (name.encode() * 200)[:200]
                moving = f"churn/{own.randrange(50)}"
                try:
                    data = storage.read(storage.open_read(moving), 0, 100)
                    assert data == (moving.encode() * 100)[:100]
                except ChunkNotFound:
                    pass
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    for number in range(20):
        name = f"fixed/{number}"
        storage.create(name, name.encode() * 10_000)
    churner = threading.Thread(target=churn)
    readers = [threading.Thread(target=read, args=(seed,)) for seed in range(3)]
    churner.start()
    for thread in readers:
        thread.start()
    for thread in readers:
        thread.join()
    stop.set()
    churner.join()
    assert failures == []
    storage.close()


def test_eviction_of_dirty_files_reports_its_error_to_the_next_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = FilesystemChunkStorage(tmp_path, open_files_max=8)
    handle = storage.create("victim", b"x")
    victim = {storage._open["victim"].fd}
    real = posix.sync_data

    def sync(fd: int) -> None:
        if fd in victim:
            victim.clear()
            raise OSError(errno.EIO, "lost pages")
        real(fd)

    monkeypatch.setattr(posix, "sync_data", sync)
    for number in range(40):
        storage.create(f"c/{number}", b"x")
    assert "victim" not in storage._open
    monkeypatch.undo()
    with pytest.raises(StorageUnavailable, match="in doubt"):
        storage.sync(["victim"])
    with pytest.raises(StorageUnavailable, match="in doubt"):
        storage.write(handle, 1, b"y")
    storage.sync([f"c/{number}" for number in range(40)])
    storage.close()


@pytest.mark.parametrize("replaced", [True, False])
def test_a_file_that_changes_hands_while_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaced: bool
) -> None:
    """The delete (or put) of another thread comes between open and add: nothing stale may stay in the cache."""
    storage = FilesystemChunkStorage(tmp_path)
    path = tmp_path / "x"
    path.write_bytes(b"old" * 50_000)
    real = storage._cache.add
    turns = iter([True])

    def add(name: str, file: OpenFile) -> OpenFile:
        if next(turns, False):
            path.unlink()
            if replaced:
                path.write_bytes(b"new" * 50_000)
        return real(name, file)

    monkeypatch.setattr(storage._cache, "add", add)
    handle = storage.open_read("x")
    if replaced:
        assert storage.read(handle, 0, 3) == b"new"
    for _ in range(2):
        if replaced:
            assert storage.read(handle, 0, 6) == b"newnew"
        else:
            with pytest.raises(ChunkNotFound):
                storage.read(handle, 0, 3)
    storage.close()
