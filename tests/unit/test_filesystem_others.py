"""A root of files that others write to: links and odd names, and other processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from chunkstore.errors import (
    ChunkExists,
    ChunkNotFound,
    InvalidArgument,
    Unsupported,
)
from chunkstore.storage import ChunkHandle
from chunkstore_bindings.filesystem import FilesystemChunkStorage
from tests.support.files import makers, temporaries


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def storage(root: Path) -> Iterator[FilesystemChunkStorage]:
    storage = FilesystemChunkStorage(root, medium="ext4")
    yield storage
    storage.close()


def operations(storage: FilesystemChunkStorage, name: str) -> list[Callable[[], object]]:
    """Every operation on an existing chunk but exists, bound to ``name``."""
    handle = ChunkHandle(name, writable=True)
    return [
        partial(storage.stat, name),
        partial(storage.open_read, name),
        partial(storage.open_write, name),
        partial(storage.read, handle, 0, 9),
        partial(storage.read_into, handle, 0, bytearray(9)),
        partial(storage.write, handle, 0, b"x"),
        partial(storage.sync, [name]),
        partial(storage.harden, name),
        partial(storage.truncate, handle, 0),
        partial(storage.set_read_only, handle, read_only=True),
    ]


# Symbolic links and odd files


def test_links_are_never_followed(storage: FilesystemChunkStorage, root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    storage.create("in/file", b"inside")
    (root / "orders").symlink_to(outside)
    (root / "alias").symlink_to(root / "in")
    (root / "leaf").symlink_to(outside / "secret")
    for name in ("orders/secret", "orders/new", "orders/deep/new", "alias/file", "leaf"):
        for call in operations(storage, name):
            with pytest.raises(Unsupported, match="symbolic link"):
                call()
        if name != "leaf":
            for make in makers(storage):
                with pytest.raises(Unsupported, match="symbolic link"):
                    make(name, b"x")
            for ask in (storage.delete, storage.exists):
                with pytest.raises(Unsupported):
                    ask(name)
    with pytest.raises(ChunkExists):
        storage.create("leaf", b"x")
    assert storage.create_if_absent("leaf", b"x") is False
    assert [item.name for item in storage.list().items] == ["in/file"]
    with pytest.raises(Unsupported):
        storage.list("orders/")
    assert [path.name for path in outside.iterdir()] == ["secret"]
    assert (outside / "secret").read_bytes() == b"secret"


def test_forged_handles_cannot_leave_the_root(storage: FilesystemChunkStorage, tmp_path: Path) -> None:
    storage.create("a", b"x")
    (tmp_path / "outside").write_bytes(b"secret")
    handle = ChunkHandle("../outside", writable=True)
    for call in (
        lambda: storage.read(handle, 0, 9),
        lambda: storage.read_into(handle, 0, bytearray(9)),
        lambda: storage.write(handle, 6, b"x"),
        lambda: storage.truncate(handle, 0),
        lambda: storage.set_read_only(handle, read_only=True),
        lambda: storage.sync(["../outside"]),
        lambda: storage.sync(["a", "../outside"]),
    ):
        with pytest.raises(InvalidArgument):
            call()
    assert (tmp_path / "outside").read_bytes() == b"secret"


@pytest.mark.timeout(120)
def test_pipes_and_folders_are_no_chunks(storage: FilesystemChunkStorage, root: Path) -> None:
    storage.create("folder/x", b"x")
    os.mkfifo(root / "pipe")
    for name in ("folder", "pipe"):
        assert not storage.exists(name)
        for call in operations(storage, name):
            with pytest.raises(ChunkNotFound):
                call()
    with pytest.raises(ChunkNotFound):
        storage.delete("folder")
    for make in makers(storage):
        with pytest.raises(InvalidArgument, match="is a folder here"):
            make("folder", b"x")
        with pytest.raises(InvalidArgument, match="is a chunk here"):
            make("folder/x/y", b"x")
    assert [item.name for item in storage.list().items] == ["folder/x"]
    assert temporaries(root) == []


# Other processes (two storages on one root)


@pytest.mark.parametrize("size", [100, 3 << 20])
def test_a_file_that_lost_its_name_is_not_taken_for_the_other_one(
    storage: FilesystemChunkStorage, root: Path, size: int
) -> None:
    """As where a backup is put in a root's place: short reads of what is long may stay with what is open until the name is opened."""

    def replace(letter: bytes) -> None:
        (root / "log").unlink()
        (root / "log").write_bytes(letter * size)

    other = FilesystemChunkStorage(root)
    handle = ChunkHandle("log", writable=False)
    other.create("log", b"a" * size)
    other.close()
    assert storage.read(handle, size - 8, 8) == b"a" * 8
    replace(b"b")
    assert storage.read(handle, size - 8, 9) == b"b" * 8, "where it ends it is looked at"
    replace(b"c")
    storage.open_read("log")
    assert storage.read(handle, 0, 8) == b"c" * 8
    replace(b"d")
    assert storage.read(handle, 0, size + 1) == b"d" * size


def test_a_chunk_that_another_process_deleted_is_not_written(storage: FilesystemChunkStorage, root: Path) -> None:
    handle = storage.create("a", b"x")
    (root / "a").unlink()
    with pytest.raises(ChunkNotFound):
        storage.write(handle, 1, b"y")
    again = storage.create("a", b"anew")
    assert storage.write(again, 4, b"!") == 1
    assert (root / "a").read_bytes() == b"anew!"
