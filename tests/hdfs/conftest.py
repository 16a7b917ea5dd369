"""The engine's world over a real Hadoop (``world``), and a model of its servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chunkstore_bindings.hdfs import HdfsChunkStorage
from tests.hdfs.model import made
from tests.support.allowance import allow
from tests.support.fake_webhdfs import FakeWebHdfs
from tests.support.servers.hdfs import hdfs, hdfs_or_end
from tests.support.worlds import RemoteWorld, World

__all__ = ["fake", "hdfs", "storage", "world"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    allow(items, Path(__file__).parent, 900)


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
def world(tmp_path: Path) -> Iterator[World]:
    """A fresh world; closed at the end of the test."""
    made = RemoteWorld("hdfs", hdfs_or_end().root(), tmp_path)
    try:
        yield made
    finally:
        made.close()
