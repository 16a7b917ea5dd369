"""The length-only wrapper holds the contract in everything but contents."""

from __future__ import annotations

from pathlib import Path

import pytest

from chunkstore.errors import ChunkNotFound, InvalidArgument
from chunkstore.storage import ChunkStorage
from chunkstore.testing.storage_contract import ChunkStorageContract
from chunkstore_bindings.filesystem import FilesystemChunkStorage
from chunkstore_bindings.wrappers.length_only import LengthOnlyChunkStorage


class TestLengthOnly(ChunkStorageContract):
    prefix = "c/d/"

    def make_storage(self, folder: Path) -> ChunkStorage:
        self.folder = folder
        self.wrapper = LengthOnlyChunkStorage(FilesystemChunkStorage(folder))
        return self.wrapper

    def stored(self, data: bytes) -> bytes:
        return bytes(len(data))

    def raw_read(self, name: str) -> bytes:
        return bytes(self.wrapper._lengths[name])

    def raw_write(self, name: str, data: bytes) -> None:
        self.wrapper._lengths[name] = len(data)
        self.wrapper._names = None

    def test_nothing_is_stored_for_counted_chunks(self, storage: ChunkStorage) -> None:
        storage.create("c/d/00/x", bytes(1000))
        storage.create("c/FORMAT", b"kept")
        assert [path.name for path in self.folder.rglob("*") if path.is_file()] == ["FORMAT"]
        assert storage.read(storage.open_read("c/FORMAT"), 0, 9) == b"kept"

    def test_listing_mixes_both_kinds_page_by_page(self, storage: ChunkStorage) -> None:
        names = [f"c/{folder}/{number:02}" for folder in ("a", "d", "j") for number in range(7)]
        for name in reversed(names):
            storage.create(name, b"x")
        for limit in (1, 2, 5, 20, 21, 100):
            assert list(self.all_pages(storage, "c/", limit)) == names


def test_assumed_length(tmp_path: Path) -> None:
    storage = LengthOnlyChunkStorage(FilesystemChunkStorage(tmp_path), assume_length=1000)
    handle = storage.open_read("c/d/ab/never-made")
    assert storage.stat(handle.name).length == 1000
    assert storage.read(handle, 990, 100) == bytes(10)
    assert storage.list("c/d/").items == ()
    writer = storage.open_write(handle.name)
    assert storage.write(writer, 1000, b"more") == 4
    assert storage.stat(handle.name).length == 1004
    assert storage.create_if_absent("c/d/ab/made", b"12")
    assert storage.stat("c/d/ab/made").length == 2
    storage.delete(handle.name)
    with pytest.raises(ChunkNotFound):
        storage.read(handle, 0, 1)
    assert not storage.exists("c/FORMAT")
    storage.close()


@pytest.mark.parametrize("bad", [-1, 1.5, True, "7"])
def test_bad_assumed_length(tmp_path: Path, bad: object) -> None:
    with pytest.raises(InvalidArgument):
        LengthOnlyChunkStorage(FilesystemChunkStorage(tmp_path), assume_length=bad)  # type: ignore[arg-type]
