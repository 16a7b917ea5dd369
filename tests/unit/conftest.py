"""Where the tests of Spark's readers and streams keep their containers; a module whose ground is another one makes its own.

And a storage in memory for wrappers.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from chunkstore_bindings.memory import MemoryChunkStorage, forget_memory
from tests.support.spark_ground import ground, store

__all__ = ["binding", "ground", "store"]


@pytest.fixture
def binding() -> Iterator[MemoryChunkStorage]:
    """What is wrapped."""
    url = f"memory://{uuid.uuid4()}"
    yield MemoryChunkStorage(url)
    forget_memory(url)
