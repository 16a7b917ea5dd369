"""A container of its own for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import chunkstore
from tests.kafka.support_metadata import fresh_root


@pytest.fixture
def root() -> str:
    return fresh_root()


@pytest.fixture
def store(root: str) -> Iterator[chunkstore.ChunkedSegmentStorage]:
    with chunkstore.open(root) as made:
        yield made
