"""Ledgers for Spark without Spark: planned blocks become rows of entries."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import chunkstore
from chunkstore.config import KIB, MIB, Settings, Tuning
from chunkstore.errors import Damaged
from chunkstore.spark.options import ReadOptions
from chunkstore.spark.plan import plan_read
from chunkstore.spark.runs import LedgerRun, ReadTask

pytest.importorskip("pyarrow", reason="pyarrow is not installed: Spark's batches are not tested")

from chunkstore.pulsar import OffloadWriter
from chunkstore.spark.batches import read_task

TOPIC = "tenant/ns/persistent/orders"
COLUMNS = ("topic", "ledger", "entry", "payload")
Row = tuple[str, int, int, bytes]


def entries_of(ledger: int, count: int, *, start: int = 0, size: int = 900, gap: int = 0) -> list[tuple[int, bytes]]:
    """Entries of varied lengths, some empty; after every ``gap`` entries one id is left out."""
    chance = random.Random(f"{ledger}-{start}")
    found: list[tuple[int, bytes]] = []
    entry = start
    for number in range(count):
        found.append((entry, chance.randbytes(0 if number % 97 == 5 else chance.randrange(size))))
        entry += 2 if gap and number % gap == gap - 1 else 1
    return found


class Ground:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"file://{path}/root"
        self.settings = Settings(
            cache_dir=str(path / "cache"),
            lease_s=0,
            inline_bytes_max=0,
            tuning=Tuning(io_workers=2, lmdb_map_bytes=1 << 28),
        )
        self.entries: dict[int, list[tuple[int, bytes]]] = {}

    def write(self, ledgers: dict[int, list[tuple[int, bytes]]], *, chunk_bytes: int) -> str:
        """One offload segment; returns the name of its data."""
        rolling = chunkstore.RollingPolicy(chunk_size_bytes_max=chunk_bytes)
        with chunkstore.open(self.url, settings=self.settings) as store:
            with OffloadWriter(store, TOPIC, block_bytes=64 * KIB, rolling=rolling) as writer:
                for ledger, entries in ledgers.items():
                    for entry, payload in entries:
                        writer.append(ledger, entry, payload)
            assert writer.completed is not None
        for ledger, entries in ledgers.items():
            self.entries.setdefault(ledger, []).extend(entries)
        return writer.completed.data

    def plan(self, *ledgers: int, min_partitions: int = 1) -> list[ReadTask]:
        options = ReadOptions(self.url, "default", (), TOPIC, ledgers or None, COLUMNS, min_partitions)
        with chunkstore.open_replica(self.url, settings=self.settings) as replica:
            return plan_read(replica, options)

    def expected(self, *ledgers: int) -> list[Row]:
        return [(TOPIC, ledger, *entry) for ledger in ledgers for entry in self.entries[ledger]]

    def chunk_of(self, segment: str, offset: int) -> tuple[Path, int]:
        with chunkstore.open_replica(self.url, settings=self.settings) as replica:
            chunk = [chunk for chunk in replica.layout(segment) if chunk.offset <= offset][-1]
        return self.path / "root" / chunk.name, offset - chunk.offset


def read(tasks: Sequence[ReadTask], columns: Sequence[str] = COLUMNS) -> list[Any]:
    rows: list[Any] = []
    for task in tasks:
        for batch in read_task(task, [(name, True) for name in columns]):
            batch.validate(full=True)
            assert batch.nbytes < 3 * MIB
            assert batch.schema.names == list(columns)
            rows += zip(*(column.to_pylist() for column in batch.columns), strict=True)
    return rows


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground(tmp_path)


@pytest.mark.parametrize("chunk_bytes", [10_007, 100_000, 64 * MIB])
@pytest.mark.parametrize("min_partitions", [1, 4, 37])
def test_every_entry_once_and_in_order(ground: Ground, chunk_bytes: int, min_partitions: int) -> None:
    ground.write({3: entries_of(3, 700), 4: entries_of(4, 300, gap=7)}, chunk_bytes=chunk_bytes)
    ground.write({4: entries_of(4, 300, start=1000), 9: [(0, b"")]}, chunk_bytes=chunk_bytes)
    tasks = ground.plan(min_partitions=min_partitions)
    assert len(tasks) == min_partitions, "blocks are cut where there are fewer"
    assert read(tasks) == ground.expected(3, 4, 9)
    assert all(piece.borders is not None for task in tasks for run in task.runs for piece in run.pieces)


@pytest.mark.parametrize("min_partitions", [1, 3])
def test_a_flipped_payload_bit_is_found_by_the_chunk(ground: Ground, min_partitions: int) -> None:
    segment = ground.write({5: entries_of(5, 500, size=2000)}, chunk_bytes=100_000)
    tasks = ground.plan(min_partitions=min_partitions)
    path, at = ground.chunk_of(segment, 128 + 12 + 1)
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)
    with pytest.raises(Damaged, match="CRC32C") as caught:
        read(tasks)
    assert caught.value.object.endswith(path.name)
    assert f'"segment": "{segment}"' in caught.value.__notes__[-1]


def test_a_broken_block_is_named_by_segment_and_position(ground: Ground) -> None:
    segment = ground.write({4: entries_of(4, 100), 5: entries_of(5, 100)}, chunk_bytes=64 * MIB)
    [task] = ground.plan(5)
    [run] = task.runs
    assert isinstance(run, LedgerRun)
    path, at = ground.chunk_of(segment, run.pieces[0].offset)
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)
    with pytest.raises(Damaged, match="CRC32C"):
        read([task])
    # As if it had been written so.
    unverified = run._replace(pieces=tuple(piece._replace(borders=None) for piece in run.pieces))
    with pytest.raises(Damaged, match="magic") as caught:
        read([task._replace(runs=(unverified,))])
    assert (caught.value.object, caught.value.position) == (f"segment {segment}", run.blocks[0].start)
    assert run.blocks[0].start > 0
    assert '"ledger": 5' in caught.value.__notes__[-1]
