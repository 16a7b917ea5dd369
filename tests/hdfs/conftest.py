"""The engine's world over a real Hadoop (``world``), and a model of its servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from chunkstore_bindings.hdfs import HdfsChunkStorage
from chunkstore_bindings.hdfs import storage as hdfs_binding
from tests.hdfs.model import EndingBackoff, made
from tests.support.allowance import allow
from tests.support.fake_webhdfs import FakeWebHdfs
from tests.support.servers.hdfs import hdfs, hdfs_or_end
from tests.support.worlds import RemoteWorld, World

__all__ = ["ends_soon", "fake", "hdfs", "storage", "world"]


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
def ends_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Operations that wait for something end ``SHORT_S`` after they have met it, however long that took."""
    monkeypatch.setattr(hdfs_binding, "backoff_until", EndingBackoff)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A fresh world; closed at the end of the test."""
    made = RemoteWorld("hdfs", hdfs_or_end().root(), tmp_path)
    try:
        yield made
    finally:
        made.close()
