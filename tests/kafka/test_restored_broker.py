"""A genuine broker serves what was tiered and put back. Needs Java and Maven."""

from __future__ import annotations

from pathlib import Path

import pytest

import chunkstore
from chunkstore.kafka.container import ContainerSource
from chunkstore.kafka.tier import restore, tier
from tests.kafka.support_logdir import LOG_DIR
from tests.kafka.support_metadata import fresh_root
from tests.kafka.support_tier import expected_rows
from tests.support.servers.base import ServerMissing, missing
from tests.support.servers.kafka import OLD, KafkaBroker

pytestmark = [pytest.mark.proof, pytest.mark.filterwarnings("ignore:read_text is deprecated:DeprecationWarning")]

TOPICS = {"codecs": 1, "compacted": 1, "open-transaction": 1, "transactions": 2}


def test_a_broker_serves_what_was_put_back(tmp_path: Path) -> None:
    from kafka import KafkaConsumer, TopicPartition  # warns when it is imported
    from kafka.admin import KafkaAdminClient, NewTopic

    try:
        broker = KafkaBroker(tmp_path, OLD)
    except ServerMissing as error:
        missing("kafka", error)
    broker.start()
    try:
        admin = KafkaAdminClient(bootstrap_servers=broker.address)
        forever = {"retention.ms": "-1"}
        admin.create_topics([NewTopic(name, count, 1, topic_configs=forever) for name, count in TOPICS.items()])
        admin.close()
    finally:
        broker.stop()
    ends: dict[tuple[str, int], int] = {}
    with chunkstore.open(fresh_root()) as store:
        tier(str(LOG_DIR), store)
        for topic in TOPICS:
            restore(store, str(broker.data), topic, keep_partition_metadata=True)
            for each in ContainerSource(store, "here").listing(topic).segments:
                ends[topic, each.partition] = max(ends.get((topic, each.partition), 0), each.end_offset)
    broker.start()
    try:
        consumer = KafkaConsumer(
            bootstrap_servers=broker.address, enable_auto_commit=False, max_partition_fetch_bytes=4 << 20
        )
        for (topic, number), end in ends.items():
            expected = [
                (row["offset"], row["timestamp"])
                for row in expected_rows("logdir-3.9.records.jsonl")[topic, number]
                if row["offset"] <= end
            ]
            place = TopicPartition(topic, number)
            consumer.assign([place])
            consumer.seek_to_beginning(place)
            assert consumer.end_offsets([place]) == {place: end + 1}
            found: list[tuple[int, int]] = []
            while len(found) < len(expected):
                polled = consumer.poll(timeout_ms=60_000)
                assert polled, f"{place}: {len(found)} of {len(expected)} records came within 60 s"
                found += [(each.offset, each.timestamp) for each in polled[place]]
            assert found == expected
        consumer.close()
    finally:
        broker.stop()
    assert len(ends) == sum(TOPICS.values())
