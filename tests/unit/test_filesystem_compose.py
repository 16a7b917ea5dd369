"""What ``compose`` assumes of files, broken on purpose: copies of the kernel, room, sources that change, the tree, descriptors."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chunkstore.errors import (
    ChunkExists,
    ChunkstoreError,
    StorageFull,
    StorageUnavailable,
)
from chunkstore.storage import ChunkRange, Composed
from chunkstore_bindings.filesystem import FilesystemChunkStorage
from chunkstore_bindings.filesystem.folders import TEMPORARY_FOLDER

A, B = bytes(range(256)) * 40, b"other" * 1000
RANGES = [
    ChunkRange("c/a", 1, 10_000),
    ChunkRange("c/b", 4_999, 1),
    ChunkRange("c/a", 7, 100),
    ChunkRange("c/b", 0, 5_000),
]
WHOLE = A[1:10_001] + B[4_999:] + A[7:107] + B
Copy = Callable[[int, int, int, int, int], int]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def storage(root: Path) -> Iterator[FilesystemChunkStorage]:
    storage = FilesystemChunkStorage(root, medium="ext4")
    storage.create("c/a", A)
    storage.create("c/b", B)
    yield storage
    storage.close()


def left_behind(root: Path) -> list[str]:
    return sorted(path.name for folder in (root / TEMPORARY_FOLDER, root / "c") for path in folder.iterdir())


def copying(monkeypatch: pytest.MonkeyPatch, change: Callable[[Copy], Copy]) -> None:
    """Let the kernel copy as ``change`` makes it."""
    monkeypatch.setattr(os, "copy_file_range", change(os.copy_file_range))


def refusing(number: int) -> Callable[[Copy], Copy]:
    def change(real: Copy) -> Copy:
        def call(source: int, target: int, count: int, source_offset: int, target_offset: int) -> int:
            raise OSError(number, os.strerror(number))

        return call

    return change


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM])
def test_where_the_kernel_does_not_copy_bytes_are_carried(
    storage: FilesystemChunkStorage, root: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    copying(monkeypatch, refusing(number))
    assert storage.compose("c/new", RANGES) == Composed(len(WHOLE), len(WHOLE))
    assert (root / "c/new").read_bytes() == WHOLE


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENOSPC, StorageFull), (errno.EDQUOT, StorageFull), (errno.EIO, StorageUnavailable)]
)
@pytest.mark.parametrize("call", ["copy_file_range", "fsync", "link"])
def test_what_fails_leaves_nothing(
    storage: FilesystemChunkStorage,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    kind: type[ChunkstoreError],
    call: str,
) -> None:
    storage.compose("c/first", RANGES)  # all folders are there, and durable

    def failing(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as broken:
        broken.setattr(os, call, failing)
        with pytest.raises(kind):
            storage.compose("c/new", RANGES)
    assert left_behind(root) == ["a", "b", "first"]
    assert storage.compose("c/new", RANGES).length == len(WHOLE)


def test_a_folder_that_cannot_be_synced_leaves_it_open(
    storage: FilesystemChunkStorage, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.compose("c/first", RANGES)
    real = os.fsync

    def fsync(fd: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            raise OSError(errno.EIO, "no")
        real(fd)

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", fsync)
        with pytest.raises(StorageUnavailable, match="durable is unknown"):
            storage.compose("c/new", RANGES)
    # It may be there, and then whole: a repetition meets its own first attempt.
    assert (root / "c/new").read_bytes() == WHOLE
    with pytest.raises(ChunkExists):
        storage.compose("c/new", RANGES)
