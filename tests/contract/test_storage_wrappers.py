"""Wrappers hold the contract of what they wrap: all in a stack over memory and files, and where replies are lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from chunkstore.storage import ChunkStorage
from chunkstore_bindings.filesystem import FilesystemChunkStorage
from chunkstore_bindings.memory import MemoryChunkStorage
from chunkstore_bindings.wrappers.metered import MeteredChunkStorage
from chunkstore_bindings.wrappers.retrying import RetryingChunkStorage, RetryPolicy
from chunkstore_bindings.wrappers.throttled import ThrottledChunkStorage, ThrottleLimits
from chunkstore_bindings.wrappers.wrapping import layers
from tests.contract import test_storage_filesystem, test_storage_memory
from tests.support.flaky import Flaky

pytestmark = pytest.mark.proof

QUICK = RetryPolicy(tries_max=50, budget_s=600.0, pause_s_first=0.001, pause_s_max=0.001)
WIDE = ThrottleLimits(1e12, 1e12, 1e9, 1e9)


def retrying(storage: ChunkStorage) -> ChunkStorage:
    return RetryingChunkStorage(storage, QUICK)


def throttled(storage: ChunkStorage) -> ChunkStorage:
    return ThrottledChunkStorage(storage, WIDE)


def metered(storage: ChunkStorage) -> ChunkStorage:
    return MeteredChunkStorage(storage)


def stacked(storage: ChunkStorage) -> ChunkStorage:
    return metered(retrying(throttled(metered(storage))))


class OverMemory(test_storage_memory.TestMemory):
    append = True

    @staticmethod
    def wrap(storage: ChunkStorage) -> ChunkStorage:
        return storage

    def make_storage(self, folder: Path) -> ChunkStorage:
        return self.wrap(super().make_storage(folder))

    def test_capabilities_are_kept(self, storage: ChunkStorage) -> None:
        assert storage.capabilities == self.inner.capabilities
        assert storage.url == self.inner.url
        assert list(layers(storage))[-1] is self.inner


class OverFilesystem(test_storage_filesystem.TestFilesystem):
    @staticmethod
    def wrap(storage: ChunkStorage) -> ChunkStorage:
        return storage

    def make_storage(self, folder: Path) -> ChunkStorage:
        return self.wrap(super().make_storage(folder))


class TestStackedMemoryWithoutAppend(OverMemory):
    append = False
    wrap = staticmethod(stacked)


class TestStackedFilesystem(OverFilesystem):
    wrap = staticmethod(stacked)


class TestRepliesLost(OverMemory):
    """The whole contract holds although the reply to every third call is lost once."""

    deletes_silently = True  # "not there" may be the work of an attempt whose reply was lost

    def make_storage(self, folder: Path) -> ChunkStorage:
        self.inner = MemoryChunkStorage(f"memory://{folder}", append=self.append)
        # What is sent once may have happened or not.
        return retrying(Flaky(self.inner, every=3, lost=True, spared=("compose", "concat", "write", "truncate")))

    def test_capabilities_are_kept(self, storage: ChunkStorage) -> None:
        assert storage.capabilities == self.inner.capabilities


def test_layers_are_found(tmp_path: Path) -> None:
    binding = FilesystemChunkStorage(tmp_path)
    kinds = [type(layer) for layer in layers(stacked(binding))]
    assert kinds == [
        MeteredChunkStorage,
        RetryingChunkStorage,
        ThrottledChunkStorage,
        MeteredChunkStorage,
        FilesystemChunkStorage,
    ]
    binding.close()
