"""What ``compose`` assumes of files, broken on purpose: copies of the kernel, room, sources that change, the tree, descriptors."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chunkstore.errors import (
    ChunkExists,
    ChunkNotFound,
    ChunkstoreError,
    InvalidArgument,
    StorageFull,
    StorageUnavailable,
)
from chunkstore.storage import ChunkRange, Composed
from chunkstore_bindings.filesystem import FilesystemChunkStorage
from chunkstore_bindings.filesystem.folders import TEMPORARY_FOLDER
from tests.faults.disks import small_disk

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


def test_copies_that_stop_early(storage: FilesystemChunkStorage, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal, or a limit of the file system's: fewer bytes, then none although there are more, then a refusal."""

    def change(real: Copy) -> Copy:
        def call(source: int, target: int, count: int, source_offset: int, target_offset: int) -> int:
            if source_offset > 5_000:
                return 0
            return real(source, target, min(count, 977), source_offset, target_offset)

        return call

    copying(monkeypatch, change)
    made = storage.compose("c/new", RANGES)
    assert 0 < made.carried_bytes < made.length == len(WHOLE)
    assert (root / "c/new").read_bytes() == WHOLE
    real_pread, real_pwrite = os.pread, os.pwrite
    copying(monkeypatch, refusing(errno.EXDEV))
    monkeypatch.setattr(os, "pread", lambda fd, count, offset: real_pread(fd, min(count, 701), offset))
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: real_pwrite(fd, memoryview(data)[:333], offset))
    assert storage.compose("c/newer", RANGES).length == len(WHOLE)
    assert (root / "c/newer").read_bytes() == WHOLE


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


def test_a_full_disk(tmp_path: Path) -> None:
    with small_disk("tmpfs", tmp_path / "small", 1 << 20) as disk:
        storage = FilesystemChunkStorage(disk.path)
        storage.create("c/a", bytes(600_000))
        with pytest.raises(StorageFull):
            storage.compose("c/new", [ChunkRange("c/a", 0, 600_000)])
        assert left_behind(disk.path) == ["a"]
        assert storage.compose("c/new", [ChunkRange("c/a", 0, 200_000)]).length == 200_000
        storage.close()


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


def at_the_second_copy(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]) -> None:
    copies = []

    def change(real: Copy) -> Copy:
        def call(source: int, target: int, count: int, source_offset: int, target_offset: int) -> int:
            copies.append(source_offset)
            if len(copies) == 2:
                happens()
            return real(source, target, count, source_offset, target_offset)

        return call

    copying(monkeypatch, change)


def test_sources_that_go_meanwhile(
    storage: FilesystemChunkStorage, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is being copied stays to whom has it open; one that is gone before its turn is missed."""
    at_the_second_copy(monkeypatch, (root / "c/b").unlink)
    assert storage.compose("c/new", RANGES[:2]).length == 10_001
    assert (root / "c/new").read_bytes() == WHOLE[:10_001]
    at_the_second_copy(monkeypatch, (root / "c/a").unlink)
    (root / "c/b").write_bytes(B)
    with pytest.raises(ChunkNotFound) as caught:
        storage.compose("c/newer", RANGES)
    assert caught.value.chunk == "c/a"
    assert left_behind(root) == ["b", "new"]


def test_sources_that_are_cut_meanwhile(
    storage: FilesystemChunkStorage, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_the_second_copy(monkeypatch, lambda: os.truncate(root / "c/b", 4_999))
    with pytest.raises(InvalidArgument, match="'c/b' ends before byte 5000"):
        storage.compose("c/new", RANGES[:2])
    assert left_behind(root) == ["a", "b"]


def test_another_process_takes_the_name_meanwhile(
    storage: FilesystemChunkStorage, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_the_second_copy(monkeypatch, lambda: (root / "c/new").write_bytes(b"theirs"))
    with pytest.raises(ChunkExists):
        storage.compose("c/new", RANGES)
    assert (root / "c/new").read_bytes() == b"theirs"
    assert left_behind(root) == ["a", "b", "new"]


def test_it_stays_in_the_tree_that_was_opened(
    storage: FilesystemChunkStorage, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The container's folder is moved while bytes are copied, and another one appears at its place."""
    there = root / "elsewhere"

    def move() -> None:
        (root / "c").rename(there)
        (root / "c").mkdir()
        (root / "c/a").write_bytes(b"x" * len(A))

    at_the_second_copy(monkeypatch, move)
    assert storage.compose("c/new", RANGES).length == len(WHOLE)
    assert (there / "new").read_bytes() == WHOLE
    assert sorted(path.name for path in (root / "c").iterdir()) == ["a"]
