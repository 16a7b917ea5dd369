"""The HDFS storage holds the contract: against a real name node and data node, and against the model of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chunkstore.config import Settings
from chunkstore.registry import open_storage
from chunkstore.storage import ChunkStorage
from chunkstore.testing.storage_contract import ChunkStorageContract
from tests.support.fake_webhdfs import FakeWebHdfs
from tests.support.servers.hdfs import hdfs_or_end


class TestHdfs(ChunkStorageContract):
    def make_storage(self, folder: Path) -> ChunkStorage:
        self.cluster = hdfs_or_end()
        self.root = self.cluster.root()
        return open_storage(self.root, Settings(op_deadline_s=60))

    def path(self, name: str) -> str:
        return f"/{self.root.rpartition('/')[2]}/{name}".replace(":", "\uf03a")

    def raw_read(self, name: str) -> bytes:
        return self.cluster.read(self.path(name))

    def raw_write(self, name: str, data: bytes) -> None:
        self.cluster.create(self.path(name), data)

    def test_capabilities(self, storage: ChunkStorage) -> None:
        offered = storage.capabilities
        # All would open a closed file again.
        assert not (offered.append or offered.truncate or offered.append_journal)
        assert offered.create_if_absent
        assert offered.concat
        assert offered.set_read_only
        assert offered.medium == "hdfs"


class TestFakeHdfs(TestHdfs):
    """The model that other tests use holds the contract, too; here with pages of three entries."""

    @pytest.fixture(autouse=True)
    def closed(self) -> Iterator[None]:
        yield
        self.fake.close()

    def make_storage(self, folder: Path) -> ChunkStorage:
        self.fake = FakeWebHdfs(page=3)
        self.root = self.fake.root("/root-1")
        return open_storage(self.root, Settings(op_deadline_s=60))

    def raw_read(self, name: str) -> bytes:
        with self.fake.lock:
            return self.fake.files[self.path(name)].data

    def raw_write(self, name: str, data: bytes) -> None:
        path = self.path(name)
        with self.fake.lock:
            self.fake.make_folders(path.rpartition("/")[0])
            file = self.fake.new_file(path)
            file.data, file.open = data, False
