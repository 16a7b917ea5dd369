"""Offloaded ledgers through a real Spark session."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import chunkstore
from chunkstore.config import KIB, MIB, Tuning
from chunkstore.errors import Damaged
from chunkstore.pulsar import OffloadWriter, plan
from chunkstore.spark.errors import original_error
from tests.support.spark import missing

if missing():
    pytest.skip(missing(), allow_module_level=True)

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
        rolling = chunkstore.RollingPolicy(chunk_size_bytes_max=100_000)
        settings = chunkstore.Settings(
            cache_dir=str(path / "cache"), lease_s=0, default_rolling=rolling, tuning=Tuning(lmdb_map_bytes=1 << 28)
        )
        with chunkstore.open(self.url, settings=settings) as store:
            with OffloadWriter(store, TOPIC, block_bytes=64 * KIB, segment_bytes_max=400_000) as writer:
                for _, ledger, entry, payload in self.rows:
                    writer.append(ledger, entry, payload)
            assert writer.segments_completed > 1
            self.segment = plan(store, TOPIC)[0].segment
            self.chunks = [chunk.name for chunk in store.layout(self.segment)]

    def frame(self, **options: object) -> Any:
        return self.spark.read.format("chunkstore").options(topic=TOPIC, **options).load(self.url)


@pytest.fixture
def topic(spark: Any, tmp_path: Path) -> Topic:
    return Topic(spark, tmp_path)


def test_rows_are_the_entries(topic: Topic) -> None:
    frame = topic.frame(minPartitions=3)
    assert frame.dtypes == [("topic", "string"), ("ledger", "bigint"), ("entry", "bigint"), ("payload", "binary")]
    assert frame.rdd.getNumPartitions() == 3
    rows = [(row.topic, row.ledger, row.entry, bytes(row.payload)) for row in frame.collect()]
    assert sorted(rows) == topic.rows


def test_a_missing_ledger_and_damage_reach_the_driver(topic: Topic) -> None:
    with pytest.raises(Exception, match="LedgerNotFound") as caught:
        topic.frame(ledgers="9").collect()
    assert f'"fields": {json.dumps({"topic": TOPIC, "ledger": 9})}' in str(caught.value)
    path = topic.path / "root" / topic.chunks[0]
    data = bytearray(path.read_bytes())
    assert len(data) < MIB
    data[5000] ^= 1
    path.write_bytes(data)
    with pytest.raises(Exception, match="Damaged") as caught:
        topic.frame(ledgers="7").collect()
    damage = original_error(caught.value)
    assert isinstance(damage, Damaged)
    assert '"topic": "' + TOPIC in str(caught.value) or f'"segment": "{topic.segment}"' in str(caught.value)
