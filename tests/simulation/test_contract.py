"""In fine weather the simulated storages hold the contract that every binding holds; calls of all threads interleave."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chunkstore.storage import ChunkStorage
from chunkstore.testing.storage_contract import ChunkStorageContract
from tests.simulator import World
from tests.simulator.world import StorageKind

pytestmark = pytest.mark.proof


class Simulated(ChunkStorageContract):
    simulated = True
    kind: StorageKind = "s3"
    bindings = False

    @pytest.fixture(autouse=True)
    def in_a_world(self) -> Iterator[None]:
        with World(7, self.kind, preempt_every=20, bindings=self.bindings) as self.world:
            self.process = self.world.process("p")
            yield

    def make_storage(self, folder: Path) -> ChunkStorage:
        return self.process.storage

    def raw_read(self, name: str) -> bytes:
        found = self.world.backend.content(name)
        assert found is not None
        return found

    def raw_write(self, name: str, data: bytes) -> None:
        self.world.backend.overwrite(name, data)

    @pytest.fixture
    def storage(self, in_a_world: None, tmp_path: Path) -> Iterator[ChunkStorage]:
        # The container that the world was made with is not the suite's.
        for name in list(self.world.backend.names()):
            self.world.backend.remove(name)
        storage = self.make_storage(tmp_path)
        yield storage
        storage.close()


class TestS3(Simulated):
    deletes_silently = True


class TestPosix(Simulated):
    kind: StorageKind = "posix"


class TestBoundPosix(Simulated):
    """The file system binding over a simulated kernel."""

    kind: StorageKind = "posix"
    bindings = True


class TestBoundS3(Simulated):
    """The S3 binding, and the SDK, over a simulated server."""

    deletes_silently = True
    bindings = True


class TestBoundHdfs(Simulated):
    """The HDFS binding over a simulated cluster."""

    kind: StorageKind = "hdfs"
    bindings = True
