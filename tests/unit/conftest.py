"""Where the tests of Spark's readers and streams keep their containers; a module whose ground is another one makes its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import chunkstore
from tests.support.spark_ground import Ground


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path)


@pytest.fixture
def store(ground: Ground) -> Iterator[chunkstore.ChunkedSegmentStorage]:
    """Its owner."""
    with ground.open() as store:
        yield store
