"""A bucket that a genuine Pulsar broker filled, read by Spark without a broker; and streaming ledgers next to ledger-based ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from chunkstore.codec.pulsar.encoding import EncodedBlock
from chunkstore.codec.pulsar.pip76 import SegmentEncoder
from chunkstore.pulsar import PulsarBucket
from tests.support.pulsar_broker import FOLDER, entries_of_topic, seen_by_consumer
from tests.support.spark import missing

if missing():
    pytest.skip(missing(), allow_module_level=True)

INDEXED = f"file://{FOLDER}/indexed/objects"
TOPIC = "persistent://public/fx/txn"


def frame(spark: Any, url: str = INDEXED, **options: object) -> Any:
    return spark.read.format("pulsar-offload").options(**options).load(url)


def rows_of(found: Any) -> list[tuple[Any, ...]]:
    return sorted((row.ledger, row.entry, bytes(row.payload)) for row in found.collect())


def test_entries_of_a_topic_come_in_runs_of_blocks(spark: Any) -> None:
    found = frame(spark, topic="public/fx/persistent/txn", maxBytesPerPartition=1)
    assert found.dtypes == [("topic", "string"), ("ledger", "bigint"), ("entry", "bigint"), ("payload", "binary")]
    assert rows_of(found) == [tuple(entry) for entry in entries_of_topic("indexed/txn")]
    assert {row.topic for row in found.select("topic").distinct().collect()} == {TOPIC}
    with PulsarBucket(INDEXED) as bucket:
        ledgers = [row.ledger for row in bucket.ledgers(topic=TOPIC)]
    assert found.rdd.getNumPartitions() == len(ledgers) > 1
    assert frame(spark, topic=TOPIC).rdd.getNumPartitions() == 1
    one = frame(spark, topic=TOPIC, ledgers=ledgers[0], columns="entry,ledger")
    assert one.columns == ["entry", "ledger"]
    assert {row.ledger for row in one.collect()} == {ledgers[0]}


@pytest.mark.parametrize("topic", ["txn", "chunks-lz4"])
def test_messages_are_what_a_consumer_saw(spark: Any, topic: str) -> None:
    found = frame(spark, topic=f"persistent://public/fx/{topic}", messages="true").drop("payload")
    rows = found.collect()
    seen = {
        (row["ledger"], row["entry"], row["batch_index"]): (row["producer"], row["sequence_id"], row["key"])
        for row in seen_by_consumer(f"indexed/{topic}")
    }
    assert len(rows) == len(seen)
    assert {(row.ledger, row.entry, row.batch_index): (row.producer, row.sequence_id, row.key) for row in rows} == seen


def test_both_formats_of_a_topic_give_each_entry_once(spark: Any, tmp_path: Path) -> None:
    """PIP-76's own test plan: ledger-based and streaming ledgers of one topic, one of them in both."""
    entries = entries_of_topic("indexed/chunks")
    objects = FOLDER / "indexed" / "objects"
    ledgers = sorted({entry.ledger for entry in entries})
    with PulsarBucket(INDEXED) as bucket:
        uuids = {row.ledger: row.uuid for row in bucket.ledgers(topic="persistent://public/fx/chunks")}
    for ledger in ledgers[:-1]:  # the last one is only streamed, the one before it is in both formats
        for name in (f"{uuids[ledger]}-ledger-{ledger}", f"{uuids[ledger]}-ledger-{ledger}-index"):
            (tmp_path / name).write_bytes((objects / name).read_bytes())
    blocks: list[bytes] = []

    def sink(block: EncodedBlock) -> None:
        blocks.append(b"".join(block.buffers))

    encoder = SegmentEncoder(sink, block_bytes_max=4096)
    for ledger in ledgers[-2:]:
        encoder.begin_ledger(ledger)
        for entry in entries:
            if entry.ledger == ledger:
                encoder.append(entry.entry, entry.payload)
    index = encoder.finish()
    uuid = "01234567-89ab-4cde-8f01-23456789abcd"
    (tmp_path / uuid).write_bytes(b"".join(blocks))
    (tmp_path / f"{uuid}-index").write_bytes(index)
    found = frame(spark, f"file://{tmp_path}", ledgers=",".join(map(str, ledgers)), maxBytesPerPartition=8192)
    assert rows_of(found) == [tuple(entry) for entry in entries]
    assert found.rdd.getNumPartitions() > len(ledgers)
