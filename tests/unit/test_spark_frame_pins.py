"""``pinS``: what a plan names stays while a frame reads it. Planned and read without a JVM."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: reading from Spark is not tested")

import chunkstore
from chunkstore.errors import ChunkNotFound, Conflict, InvalidArgument, OutcomeUnknown
from chunkstore.spark import frame_pins
from chunkstore.spark.options import parse_options
from chunkstore.spark.source import DefaultSource
from tests.support.data import pattern

KIB = chunkstore.KIB


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return f"file://{tmp_path}/root"


@pytest.fixture
def store(root: str, tmp_path: Path) -> Iterator[chunkstore.ChunkedSegmentStorage]:
    settings = chunkstore.Settings(cache_dir=str(tmp_path / "owner"), gc_grace_s=0, lmdb_map_bytes=1 << 28)
    with chunkstore.open(root, settings=settings) as opened:
        opened.create("a", rolling=chunkstore.RollingPolicy(chunk_size_bytes_max=10 * KIB))
        opened.append("a", pattern(0, 100 * KIB))
        yield opened


def planned(root: str, **options: str) -> tuple[Any, Any]:
    source = DefaultSource({"path": root, "segments": "a", **options})
    reader = source.reader(source.schema())
    return reader, reader.partitions()


def contents(reader: Any, partitions: Any) -> bytes:
    return b"".join(
        value.as_py()
        for partition in partitions
        for batch in reader.read(partition)
        for value in batch.column(batch.schema.names.index("value"))
    )


def truncated(store: chunkstore.ChunkedSegmentStorage) -> None:
    store.truncate("a", 90 * KIB)


def deleted(store: chunkstore.ChunkedSegmentStorage) -> None:
    store.delete("a")


@pytest.mark.parametrize("remove", [truncated, deleted])
def test_what_is_planned_outlives_a_collection(
    store: chunkstore.ChunkedSegmentStorage, root: str, remove: Callable[[chunkstore.ChunkedSegmentStorage], None]
) -> None:
    bare, kept = planned(root), planned(root, pinS="3600")
    remove(store)
    assert store.collect().pinned > 0
    assert contents(*kept) == pattern(0, 100 * KIB)
    [pin] = store.pins()
    assert pin.name.startswith("spark-frame-")
    assert "a" in pin.note
    assert pin.expires_at is not None
    assert pin.expires_at - pin.created_at == 3_600_000
    store.unpin(pin.name)
    store.collect()
    for plan in (bare, kept):
        with pytest.raises(ChunkNotFound):
            contents(*plan)


def test_every_plan_has_a_pin_of_its_own_and_they_are_bounded(
    store: chunkstore.ChunkedSegmentStorage, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned(root, pinS="60")
    planned(root, pinS="60")
    assert len(store.pins()) == 2
    monkeypatch.setattr(frame_pins, "_FRAMES_MAX", 2)
    with pytest.raises(Conflict, match="pinS"):
        planned(root, pinS="60")


def test_without_an_owner_nothing_is_planned(
    store: chunkstore.ChunkedSegmentStorage, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.close()
    monkeypatch.setattr(frame_pins, "_WAIT_S", 0.05)
    with pytest.raises(OutcomeUnknown) as caught:
        planned(root, pinS="60")
    assert "chunkstore serve" in str(caught.value.__notes__)
    assert len(contents(*planned(root))) == 100 * KIB


@pytest.mark.parametrize(
    "options",
    [
        {"segments": "a", "pinS": "60", "lsnAsOf": "7"},
        {"segments": "a", "pinS": "60", "timestampAsOf": "7"},
        {"metadata": "chunks", "pinS": "60"},
        {"segments": "a", "pinS": "0"},
        {"segments": "a", "pinS": "2592001"},
    ],
)
def test_what_cannot_be_pinned_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument, match="pinS"):
        parse_options({"path": "file:///x", **options})


def test_batches_only() -> None:
    with pytest.raises(InvalidArgument, match="batch reads"):
        parse_options({"path": "file:///x", "segments": "a", "pinS": "60"}, stream=True)
