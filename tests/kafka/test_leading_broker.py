"""The log of a genuine broker is tiered while it runs, and read once the broker has deleted it. Needs Java and Maven."""

from __future__ import annotations

from pathlib import Path

import pytest

import chunkstore
from chunkstore.codec.kafka.names import parse_uuid
from chunkstore.kafka import RemoteLogManager, RemoteLogMetadataManager, RemoteStorageManager
from chunkstore.kafka.model import TopicIdPartition
from chunkstore.kafka.sources import LogDirectory
from tests.kafka.support_clients import genuine_broker
from tests.kafka.support_metadata import fresh_root
from tests.support.servers.base import wait_until
from tests.support.servers.kafka import KafkaBroker

pytestmark = [pytest.mark.proof, pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning")]


def produce(broker: KafkaBroker, start: int, stop: int) -> None:
    from kafka import KafkaProducer  # warns when it is imported

    producer = KafkaProducer(bootstrap_servers=broker.address, linger_ms=0)
    for each in range(start, stop):
        producer.send("orders", b"%d " % each + bytes(2000))
    producer.flush(60)
    producer.close()


def test_what_a_running_broker_has_deleted_is_read_from_its_tier(tmp_path: Path) -> None:
    from kafka.admin import KafkaAdminClient, NewTopic

    broker = genuine_broker(tmp_path)
    broker.start()
    try:
        admin = KafkaAdminClient(bootstrap_servers=broker.address)
        kept = {"retention.ms": "-1", "segment.bytes": "65536"}
        admin.create_topics([NewTopic("orders", 1, 1, topic_configs=kept)])
        admin.close()
        produce(broker, 0, 200)
        broker.stop()
        broker.start()  # with new leader epochs
        produce(broker, 200, 400)
        source = LogDirectory(str(broker.data))
        partition = TopicIdPartition(
            parse_uuid(source.listing("orders").segments[0].topic_id, object="orders"), "orders", 0
        )
        with chunkstore.open(fresh_root()) as store:
            metadata, storage = RemoteLogMetadataManager(store), RemoteStorageManager(store)
            with RemoteLogManager(str(broker.data), metadata, storage) as manager:
                manager.on_leadership_change({partition: 0})

                def copied() -> bool:
                    manager.copy(partition)
                    return manager.deletable_end(partition) == source.listing("orders").segments[-1].start_offset

                wait_until(copied, deadline_s=60, what="all copied")
                options = [
                    "--alter",
                    "--entity-type",
                    "topics",
                    "--entity-name",
                    "orders",
                    "--add-config",
                    "retention.bytes=1",
                ]
                broker.java("kafka.admin.ConfigCommand", "--bootstrap-server", broker.address, *options)
                wait_until(
                    lambda: source.listing("orders").segments[0].start_offset > 350, deadline_s=60, what="deletions"
                )
                assert manager.expire(partition) == 0
                at, values, remote = 0, [], 0
                while (found := manager.read(partition, at, 20_000, "read_committed")).next_offset > at:
                    values += [(record.value or b"").split()[0] for record in found.records]
                    remote, at = remote + found.remote, found.next_offset
        source.close()
    finally:
        broker.stop()
    assert remote > 10
    assert values[:350] == [b"%d" % each for each in range(350)]
    assert values == [b"%d" % each for each in range(len(values))]
