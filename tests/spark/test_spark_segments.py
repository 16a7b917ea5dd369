"""Raw segments through a real Spark session."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import chunkstore
from chunkstore.config import Tuning
from chunkstore.errors import (
    ChunkNotFound,
    ChunkstoreError,
    Damaged,
    Unsupported,
)
from chunkstore.spark.errors import original_error
from tests.support.data import pattern

MIB = chunkstore.MIB


class Container:
    """A container on disk, and reads of it through Spark."""

    def __init__(self, spark: Any, path: Path) -> None:
        self.spark = spark
        self.path = path
        self.url = f"file://{path}/root"
        self.settings = chunkstore.Settings(
            cache_dir=str(path / "cache"), lease_s=0, tuning=Tuning(io_workers=2, lmdb_map_bytes=1 << 28)
        )

    def open(self) -> chunkstore.ChunkedSegmentStorage:
        return chunkstore.open(self.url, container="shop", settings=self.settings)

    def frame(self, **options: object) -> Any:
        return self.spark.read.format("chunkstore").options(container="shop", **options).load(self.url)


@pytest.fixture
def container(spark: Any, tmp_path: Path) -> Container:
    return Container(spark, tmp_path)


def fill(store: chunkstore.ChunkedSegmentStorage, name: str, length: int, chunk_bytes: int, seed: int = 0) -> None:
    store.create(name, rolling=chunkstore.RollingPolicy(chunk_size_bytes_max=chunk_bytes))
    store.append(name, pattern(0, length, seed))


def contents(frame: Any, segment: str) -> tuple[int, bytes]:
    """Where a segment begins and its bytes, put together from its rows; there must be no hole."""
    rows = sorted((row.offset, bytes(row.value)) for row in frame.collect() if row.segment == segment)
    position = rows[0][0]
    for offset, value in rows:
        assert offset == position
        position += len(value)
    return rows[0][0], b"".join(value for _, value in rows)


def failure(kind: type[ChunkstoreError], action: Callable[[], object]) -> ChunkstoreError:
    """The chunkstore error behind what Spark raises; its type's name stands in the text, too."""
    with pytest.raises(Exception, match=kind.__name__) as caught:
        action()
    error = original_error(caught.value)
    assert type(error) is kind
    return error


def test_several_segments_truncated_concatenated_and_growing(container: Container) -> None:
    with container.open() as store:
        fill(store, "whole", 5 * MIB + 11, 2 * MIB, seed=1)
        fill(store, "cut", 3 * MIB, MIB, seed=2)
        store.truncate("cut", MIB + 99)
        fill(store, "joined", 1000, 300, seed=3)
        fill(store, "source", 700, 300, seed=4)
        store.seal("source")
        store.concat("joined", 1000, "source")
        store.create("growing")
        for number in range(10):
            store.append("growing", b"%d;" % number)
        frame = container.frame(segments="whole,cut,joined,growing")
        assert frame.dtypes == [("segment", "string"), ("offset", "bigint"), ("value", "binary")]
        assert contents(frame, "whole") == (0, pattern(0, 5 * MIB + 11, 1))
        assert contents(frame, "cut") == (MIB + 99, pattern(MIB + 99, 2 * MIB - 99, 2))
        assert contents(frame, "joined") == (0, pattern(0, 1000, 3) + pattern(0, 700, 4))
        assert contents(frame, "growing") == (0, b"0;1;2;3;4;5;6;7;8;9;")


@pytest.mark.proof
def test_sql_over_a_temporary_view(container: Container) -> None:
    with container.open() as store:
        fill(store, "a,b", 2500, 1000)
    options = f"path '{container.url}', container 'shop', segments '[\"a,b\"]'"
    container.spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW bytes USING chunkstore OPTIONS ({options})")
    rows = container.spark.sql("SELECT offset, length(value) AS n FROM bytes WHERE offset >= 1000 ORDER BY 1").collect()
    assert [tuple(row) for row in rows] == [(1000, 1000), (2000, 500)]
    table = f"CREATE TABLE remembered USING chunkstore OPTIONS ({options})"
    failure(Unsupported, lambda: container.spark.sql(table))


def test_damage_reaches_the_driver_with_type_and_fields(container: Container) -> None:
    with container.open() as store:
        fill(store, "a", 3 * MIB, MIB)
        chunks = [chunk.name for chunk in store.layout("a")]
    frame = container.frame(segments="a", minPartitions=3)
    path = container.path / "root" / chunks[1]
    data = bytearray(path.read_bytes())
    data[12345] ^= 16
    path.write_bytes(data)
    with pytest.raises(Exception, match="CRC32C") as caught:
        frame.collect()
    error = original_error(caught.value)
    assert type(error) is Damaged
    assert (error.object, error.position) == (chunks[1], 0)
    assert '"segment": "a"' in str(caught.value)
    path.unlink()
    assert failure(ChunkNotFound, container.frame(segments="a").collect).to_fields() == {"chunk": chunks[1]}
