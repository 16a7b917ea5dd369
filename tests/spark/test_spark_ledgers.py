"""Offloaded ledgers through a real Spark session, found by a planner of the tests' own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import chunkstore
from chunkstore.config import KIB, MIB
from chunkstore.errors import Damaged, InvalidArgument
from chunkstore.spark.errors import original_error
from tests.support.spark import missing

if missing():
    pytest.skip(missing(), allow_module_level=True)

from tests.support.ledgers import write_segment
from tests.support.planned_source import PlannedSource

TOPIC = "public/default/persistent/orders"


class Topic:
    def __init__(self, spark: Any, path: Path) -> None:
        self.spark = spark
        self.path = path
        self.url = f"file://{path}/root"
        self.rows = [
            (TOPIC, ledger, entry, b"%d-%d;" % (ledger, entry) * (entry % 50))
            for ledger, first, last in ((7, 0, 2000), (8, 0, 500), (8, 500, 900), (11, 3, 4))
            for entry in range(first, last)
        ]
        settings = chunkstore.Settings(cache_dir=str(path / "cache"), lease_s=0, lmdb_map_bytes=1 << 28)
        with chunkstore.open(self.url, settings=settings) as store:
            for number, part in enumerate((self.rows[:2500], self.rows[2500:])):
                store.create(f"data-{number}", rolling=chunkstore.RollingPolicy(chunk_size_bytes_max=100_000))
                ledgers: dict[int, list[tuple[int, bytes]]] = {}
                for _, ledger, entry, payload in part:
                    ledgers.setdefault(ledger, []).append((entry, payload))
                write_segment(store, TOPIC, f"data-{number}", ledgers, block_bytes=64 * KIB)
            self.chunks = [chunk.name for chunk in store.layout("data-0")]

    def frame(self, **options: object) -> Any:
        return self.spark.read.format(PlannedSource.name()).options(topic=TOPIC, **options).load(self.url)


@pytest.fixture
def topic(spark: Any, tmp_path: Path) -> Topic:
    spark.dataSource.register(PlannedSource)
    return Topic(spark, tmp_path)


def test_rows_are_the_entries(topic: Topic) -> None:
    frame = topic.frame(minPartitions=3)
    assert frame.dtypes == [("topic", "string"), ("ledger", "bigint"), ("entry", "bigint"), ("payload", "binary")]
    assert frame.rdd.getNumPartitions() == 3
    rows = [(row.topic, row.ledger, row.entry, bytes(row.payload)) for row in frame.collect()]
    assert sorted(rows) == topic.rows


def test_chosen_ledgers_and_columns(topic: Topic) -> None:
    found = topic.frame(ledgers="8,11", columns="entry,ledger").collect()
    assert sorted((row.ledger, row.entry) for row in found) == [
        (ledger, entry) for _, ledger, entry, _ in topic.rows if ledger in (8, 11)
    ]
    sums = topic.frame().groupBy("ledger").agg({"entry": "count"}).orderBy("ledger").collect()
    assert [tuple(row) for row in sums] == [(7, 2000), (8, 900), (11, 1)]


def test_a_missing_ledger_and_damage_reach_the_driver(topic: Topic) -> None:
    with pytest.raises(Exception, match="InvalidArgument") as caught:
        topic.frame(ledgers="9").collect()
    missing_ledger = original_error(caught.value)
    assert isinstance(missing_ledger, InvalidArgument)
    assert missing_ledger.argument == "ledgers"
    path = topic.path / "root" / topic.chunks[0]
    data = bytearray(path.read_bytes())
    assert len(data) < MIB
    data[5000] ^= 1
    path.write_bytes(data)
    with pytest.raises(Exception, match="Damaged") as caught:
        topic.frame(ledgers="7").collect()
    damage = original_error(caught.value)
    assert isinstance(damage, Damaged)
    assert '"topic": "' + TOPIC in str(caught.value) or '"segment": "data-0"' in str(caught.value)
