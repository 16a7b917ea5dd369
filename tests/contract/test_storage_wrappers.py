"""Wrappers hold the contract of what they wrap: all in a stack over memory and files, and where replies are lost."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from chunkstore.errors import StorageUnavailable
from chunkstore.storage import ChunkStorage
from chunkstore_bindings.filesystem import FilesystemChunkStorage
from chunkstore_bindings.memory import MemoryChunkStorage
from chunkstore_bindings.wrappers.metered import MeteredChunkStorage
from chunkstore_bindings.wrappers.retrying import RetryingChunkStorage, RetryPolicy
from chunkstore_bindings.wrappers.throttled import ThrottledChunkStorage, ThrottleLimits
from chunkstore_bindings.wrappers.wrapping import layers
from tests.contract import test_storage_filesystem, test_storage_memory
from tests.support.forwarding import Forwarding

T = TypeVar("T")


class Flaky(Forwarding):
    """Every ``every``-th call fails: ``lost`` says whether only the reply is lost, or nothing happened at all.

    ``spared`` operations never fail; those in ``never_lost`` fail before they happen, if at all."""

    def __init__(
        self,
        inner: ChunkStorage,
        *,
        every: int = 3,
        lost: bool = False,
        spared: tuple[str, ...] = (),
        never_lost: tuple[str, ...] = (),
    ) -> None:
        super().__init__(inner)
        self.failed: Counter[str] = Counter()
        self._every = every
        self._lost = lost
        self._spared = spared
        self._never_lost = never_lost
        self._lock = threading.Lock()
        self._calls = 0

    def around(self, operation: str, names: Sequence[str], size_bytes: int, call: Callable[[], T]) -> T:
        if operation in self._spared:
            return call()
        with self._lock:
            self._calls += 1
            fails = self._calls % self._every == 0
            if fails:
                self.failed[operation] += 1
        if fails and not (self._lost and operation not in self._never_lost):
            raise StorageUnavailable(f"injected before {operation}")
        answer = call()
        if fails:
            raise StorageUnavailable(f"injected: the reply to {operation} was lost")
        return answer


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
