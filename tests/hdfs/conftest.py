"""The engine's world over a real Hadoop (``world``), and a model of its servers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from chunkstore.config import Settings
from chunkstore.registry import open_storage
from chunkstore.storage import ChunkStorage
from chunkstore_bindings.hdfs import HdfsChunkStorage
from chunkstore_bindings.hdfs import storage as hdfs_binding
from tests.hdfs.model import EndingPauses, made
from tests.support.fake_webhdfs import FakeWebHdfs
from tests.support.servers.hdfs import HdfsCluster, hdfs, hdfs_or_end
from tests.support.worlds import World

__all__ = ["HdfsWorld", "ends_soon", "fake", "hdfs", "storage", "world"]

_numbers = itertools.count(1)


class HdfsWorld(World):
    """One folder of HDFS, several processes and machines; storages as production makes them."""

    def __init__(self, cluster: HdfsCluster, tmp_path: Path) -> None:
        super().__init__("hdfs", "slot", tmp_path)
        self.url = cluster.root(f"world-{next(_numbers)}")

    @property
    def appends(self) -> bool:
        return False

    def raw_storage(self) -> ChunkStorage:
        storage = open_storage(self.url, Settings(op_deadline_s=self.defaults["op_deadline_s"]))
        self._storages.append(storage)
        return storage


@pytest.fixture
def fake() -> Iterator[FakeWebHdfs]:
    """A fresh one for each test."""
    with FakeWebHdfs() as fake:
        yield fake


@pytest.fixture
def storage(fake: FakeWebHdfs) -> Iterator[HdfsChunkStorage]:
    """One over the model."""
    storage = made(fake)
    yield storage
    storage.close()


@pytest.fixture
def ends_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations that wait for something end ``SHORT_S`` after they have met it, however long that took."""
    monkeypatch.setattr(hdfs_binding, "pauses", EndingPauses)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[HdfsWorld]:
    """A fresh world; closed at the end of the test."""
    made = HdfsWorld(hdfs_or_end(), tmp_path)
    try:
        yield made
    finally:
        made.close()
