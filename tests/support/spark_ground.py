"""A store that Spark's executors read, without Spark."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest

import chunkstore
from chunkstore.config import Settings, Tuning
from chunkstore.engine.replica import Replica
from chunkstore.records.blocks import Borders
from chunkstore.records.segments import LayoutChunk
from chunkstore.spark.options import ReadOptions
from chunkstore.spark.plan import plan_read
from chunkstore.spark.runs import ReadTask
from tests.support.data import pattern

__all__ = ["MIB", "Ground", "filled", "flip", "ground", "store", "whole"]

MIB = chunkstore.MIB


class Ground:
    """A store on disk, and reads of it as the executors would do them."""

    def __init__(self, path: Path, *, inline_bytes_max: int | None = 0) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self.url = f"file://{path}/root"
        self.path = path
        self.settings = Settings(
            cache_dir=str(path / "cache"),
            lease_s=0,
            inline_bytes_max=inline_bytes_max,
            tuning=Tuning(io_workers=2, lmdb_map_bytes=1 << 28),
        )

    def open(self) -> chunkstore.ChunkedSegmentStorage:
        return chunkstore.open(self.url, settings=self.settings)

    def replica(self) -> Replica:
        return chunkstore.open_replica(self.url, settings=self.settings)

    def options(self, *segments: str, topic: str | None = None, min_partitions: int = 1) -> ReadOptions:
        return ReadOptions(self.url, "default", segments, topic, None, ("segment", "offset", "value"), min_partitions)

    def plan(self, *segments: str, min_partitions: int = 1) -> list[ReadTask]:
        with self.replica() as replica:
            return plan_read(replica, self.options(*segments, min_partitions=min_partitions))

    def file(self, chunk: str) -> Path:
        return self.path / "root" / chunk


def filled(store: chunkstore.ChunkedSegmentStorage, name: str, length: int, chunk_bytes: int, seed: int = 0) -> None:
    store.create(name, rolling=chunkstore.RollingPolicy(chunk_size_bytes_max=chunk_bytes))
    store.append(name, pattern(0, length, seed))


def whole(chunk: LayoutChunk) -> Borders:
    """A chunk of one block."""
    assert chunk.crc32c is not None
    return Borders(array("Q", (0, chunk.length)), array("I", (0, chunk.crc32c)))


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path)


@pytest.fixture
def store(ground: Ground) -> Iterator[chunkstore.ChunkedSegmentStorage]:
    """Its owner."""
    with ground.open() as store:
        yield store
