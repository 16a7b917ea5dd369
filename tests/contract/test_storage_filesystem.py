"""The filesystem storage holds the contract: with room for file handles, with eight, and as on a network file system."""

from __future__ import annotations

from pathlib import Path

from chunkstore.storage import ChunkStorage
from chunkstore.testing.storage_contract import ChunkStorageContract
from chunkstore_bindings.filesystem import FilesystemChunkStorage


class TestFilesystem(ChunkStorageContract):
    def make_storage(self, folder: Path) -> ChunkStorage:
        self.folder = folder
        return FilesystemChunkStorage(folder)

    def raw_read(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()

    def raw_write(self, name: str, data: bytes) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def test_capabilities(self, storage: ChunkStorage) -> None:
        offered = storage.capabilities
        assert offered.append
        assert offered.create_if_absent
        assert offered.concat
        assert offered.truncate
        assert offered.set_read_only


class TestFilesystemWithEightFiles(TestFilesystem):
    def make_storage(self, folder: Path) -> ChunkStorage:
        self.folder = folder
        return FilesystemChunkStorage(folder, open_files_max=8)


class TestNetworkFilesystem(TestFilesystem):
    def make_storage(self, folder: Path) -> ChunkStorage:
        self.folder = folder
        return FilesystemChunkStorage(folder, medium="nfs4")

    def test_network_capabilities(self, storage: ChunkStorage) -> None:
        assert not storage.capabilities.append_journal
        assert not storage.capabilities.fence_by_stat
        assert storage.capabilities.medium == "nfs4"
