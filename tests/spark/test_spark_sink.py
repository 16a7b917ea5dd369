"""Batches and streams into a container through a real Spark session; what needs no JVM is in test_sink."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import chunkstore
from chunkstore.config import Tuning
from chunkstore.errors import Conflict, InvalidArgument, StorageUnavailable, Unsupported
from chunkstore.spark import foreach_batch
from chunkstore.spark.errors import original_error


class Ground:
    """A container, files that a stream reads, and its checkpoint."""

    def __init__(self, spark: Any, path: Path) -> None:
        self.spark = spark
        self.path = path
        self.root = f"file://{path}/root"
        self.brought: list[str] = []
        (path / "in").mkdir()

    def open(self) -> chunkstore.ChunkedSegmentStorage:
        settings = chunkstore.Settings(
            cache_dir=str(self.path / "cache"), gc_grace_s=0, tuning=Tuning(lmdb_map_bytes=1 << 28)
        )
        return chunkstore.open(self.root, settings=settings)

    def bring(self, count: int) -> None:
        for _ in range(count):
            number = len(self.brought)
            (self.path / "in" / f"{number}.txt").write_text(f"row {number}\n")
            self.brought.append(f"row {number}")

    def stream(self, store: chunkstore.ChunkedSegmentStorage | None = None, **options: str) -> None:
        """Run a query until it has written all that was brought; through ``store``, where the driver owns it."""
        source = self.spark.readStream.format("text").option("maxFilesPerTrigger", "1").load(str(self.path / "in"))
        chosen = {"segments": "s", "framing": "lines", **options}
        stream = source.writeStream.option("checkpointLocation", str(self.path / "checkpoint"))
        if store is None:
            stream = stream.format("chunkstore").options(**chosen).option("path", self.root)
        else:
            stream = stream.foreachBatch(foreach_batch(store, **chosen))
        query = stream.trigger(availableNow=True).start()
        query.awaitTermination()

    def forget(self, kind: str, *numbers: int) -> None:
        """As if the driver had been killed before it wrote this of these micro-batches."""
        for number in numbers:
            for name in (f"{number}", f".{number}.crc"):
                (self.path / "checkpoint" / kind / name).unlink()

    def written(self) -> list[str]:
        with chunkstore.open_replica(self.root) as replica:
            return replica.read("s", 0, 1 << 20).decode().split("\n")[:-1]


@pytest.fixture
def ground(spark: Any, tmp_path: Path) -> Ground:
    return Ground(spark, tmp_path)


def test_a_batch_and_its_mistakes(ground: Ground) -> None:
    frame = ground.spark.range(5000).selectExpr("concat('part-', id % 2) AS segment", "concat('row ', id) AS value")
    with ground.open() as store:

        def write(rows: Any, mode: str = "append", **options: str) -> None:
            rows.write.format("chunkstore").options(framing="lines", **options).mode(mode).save(ground.root)

        for _ in range(2):
            write(frame, txnAppId="test", txnVersion="1")
        for part in (0, 1):
            lines = store.read(f"part-{part}", 0, 1 << 20).decode().splitlines()
            assert lines == [f"row {number}" for number in range(part, 5000, 2)]
        two_lines = frame.selectExpr("segment", "concat(value, '\n') AS value")
        no_text = frame.selectExpr("CAST(X'61FF' AS STRING) AS segment", "value")
        for rows, mode, options, kind in (
            (frame, "append", {"frmaing": "none"}, InvalidArgument),
            (frame, "overwrite", {}, Unsupported),
            (two_lines, "append", {}, InvalidArgument),
            (no_text, "append", {}, InvalidArgument),
        ):
            with pytest.raises(Exception, match=kind.__name__) as caught:
                write(rows, mode, **options)
            assert isinstance(original_error(caught.value), kind)
        assert store.sessions() == []
        assert store.epoch == 1


def test_a_finished_stream_leaves_no_session_and_a_repetition_writes_nothing(ground: Ground) -> None:
    with ground.open() as store:
        for _ in range(2):
            ground.bring(2)
            ground.stream(txnAppId="mine")
            assert store.sessions() == []
        ground.forget("commits", 3)
        ground.stream(txnAppId="mine")
        assert store.sessions() == []
        assert store.epoch == 1
    assert sorted(ground.written()) == ground.brought


@pytest.mark.proof
def test_a_stream_whose_driver_and_owner_end_between(ground: Ground) -> None:
    with ground.open():
        ground.bring(2)
        ground.stream()
    ground.forget("commits", 1)
    ground.bring(1)
    with pytest.raises(Exception, match="chunkstore serve") as failed:
        ground.stream()  # nobody owns it
    assert isinstance(original_error(failed.value), StorageUnavailable)
    with ground.open():
        ground.stream()
    assert sorted(ground.written()) == ground.brought
    for kind in ("commits", "offsets"):
        ground.forget(kind, 1, 2)
    with ground.open(), pytest.raises(Exception, match="Conflict") as caught:
        ground.stream()
    refused = original_error(caught.value)
    assert isinstance(refused, Conflict)
    assert (refused.expected, refused.found) == (3, 1)
    assert sorted(ground.written()) == ground.brought
