"""What tests of genuine brokers do as clients: create topics, write, and read all that consumers get."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self, TypeAlias

from tests.support.servers.base import ServerMissing, missing
from tests.support.servers.kafka import OLD, KafkaBroker

__all__ = ["Clients", "Rows", "genuine_broker"]

_TOPICS: Final = {"events": 2, "orders": 1}
_GROUP: Final = "readers"
_WAIT_MS: Final = 60_000
_PLACES: Final = [(topic, number) for topic, count in _TOPICS.items() for number in range(count)]

Rows: TypeAlias = dict[tuple[str, int], list[tuple[Any, ...]]]


def genuine_broker(folder: Path, version: str = OLD) -> KafkaBroker:
    """A broker that checkpoints its high watermarks often; or the end of the test."""
    try:
        return KafkaBroker(folder, version, replica_high_watermark_checkpoint_interval_ms=200)
    except ServerMissing as error:
        missing("kafka", error)


class Clients:
    """Of one broker: ``events`` has plain records, ``orders`` transactions, of which each second one is aborted."""

    def __init__(self, broker: KafkaBroker) -> None:
        self._address, self._old = broker.address, broker.version == OLD
        self._written = 0
        self._producers: list[Any] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        for producer in self._producers:
            producer.close(timeout=10)  # an open transaction stays open

    def create_topics(self) -> None:
        from kafka.admin import KafkaAdminClient, NewTopic

        size = "segment.bytes" if self._old else "internal.segment.bytes"  # 4.4 refuses small ones by the first name
        configs = {size: "40960", "retention.ms": "-1"}
        admin = KafkaAdminClient(bootstrap_servers=self._address)
        admin.create_topics([NewTopic(topic, count, 1, topic_configs=configs) for topic, count in _TOPICS.items()])
        admin.close()

    def open_producers(self) -> None:
        """One for ``events`` and one for transactions, which ends what its predecessor left open."""
        from kafka import KafkaProducer

        common: dict[str, Any] = {"bootstrap_servers": self._address, "batch_size": 4096}
        self._producers.append(KafkaProducer(**common))
        self._producers.append(KafkaProducer(transactional_id="till", transaction_timeout_ms=900_000, **common))
        self._producers[1].init_transactions()

    def write(self, *, end: bool = True) -> None:
        """Some records of each topic, acknowledged; without ``end`` their transaction stays open."""
        plain, orders = self._producers
        self._written += 1
        orders.begin_transaction()
        for number in range(40):
            value = b"%d %d " % (self._written, number) * 30
            plain.send(
                "events", value, key=b"%d" % number, headers=[("round", b"%d" % self._written)], partition=number % 2
            )
            orders.send("orders", value, partition=0)
        plain.flush(60)
        orders.flush(60)
        if end and self._written % 2:
            orders.commit_transaction()
        elif end:
            orders.abort_transaction()

    @contextmanager
    def writing(self) -> Iterator[Callable[[], None]]:
        """A thread writes without rest; the call that is yielded waits for its next round. Fails after five minutes."""
        written, enough, ends = threading.Semaphore(0), threading.Event(), time.monotonic() + 300

        def write() -> None:
            while not enough.is_set():
                self.write()
                written.release()

        def wait() -> None:
            assert written.acquire(timeout=60)
            assert time.monotonic() < ends

        writer = threading.Thread(target=write)
        writer.start()
        try:
            yield wait
        finally:
            enough.set()
            writer.join(60)

    def read(self, isolation: str = "read_uncommitted") -> Rows:
        """All records of each partition, from offset 0 to where consumers get them."""
        from kafka import KafkaConsumer, TopicPartition

        consumer = KafkaConsumer(bootstrap_servers=self._address, enable_auto_commit=False, isolation_level=isolation)
        places = [TopicPartition(*place) for place in _PLACES]
        consumer.assign(places)
        consumer.seek_to_beginning()
        rows: Rows = {place: [] for place in _PLACES}
        ends = consumer.end_offsets(places)
        deadline = time.monotonic() + _WAIT_MS / 1000
        while any(consumer.position(place) < ends[place] for place in places):
            assert time.monotonic() < deadline, ({place: consumer.position(place) for place in places}, ends)
            # Short: past markers and aborted records it goes on without a record to return.
            for place, records in consumer.poll(timeout_ms=200).items():
                deadline = time.monotonic() + _WAIT_MS / 1000
                rows[place] += [(each.offset, each.timestamp, each.key, each.value, each.headers) for each in records]
        consumer.close()
        return rows

    def commit(self, offset: int) -> None:
        """Commit an offset of each partition for the group."""
        from kafka.structs import OffsetAndMetadata

        consumer, places = self._of_group()
        consumer.commit({place: OffsetAndMetadata(offset + place.partition, "", -1) for place in places})
        consumer.close()

    def committed(self) -> list[int | None]:
        """What the group has committed."""
        consumer, places = self._of_group()
        found = [consumer.committed(place, timeout_ms=_WAIT_MS) for place in places]
        consumer.close()
        return found

    def _of_group(self) -> tuple[Any, list[Any]]:
        from kafka import KafkaConsumer, TopicPartition

        places = [TopicPartition(*place) for place in _PLACES]
        consumer = KafkaConsumer(bootstrap_servers=self._address, group_id=_GROUP, enable_auto_commit=False)
        consumer.assign(places)
        return consumer, places
