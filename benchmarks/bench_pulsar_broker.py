"""The messages of offloaded ledgers into Arrow, against a consumer of the broker that offloaded them.

``python -m benchmarks.bench_pulsar_broker [--quick]``. Needs the extra ``dev``, Maven, a JDK and Ceph's gateway. A genuine broker
offloads 500,000 messages of 100 B with keys, in LZ4 batches of 100; BookKeeper's copies are deleted. Rounds of all cases alternate, over
the same ledgers in the same gateway. Wall clock, and processor time of all processes.
"""

from __future__ import annotations

import argparse
import os
import random
from collections.abc import Callable
from typing import Any

import pulsar

from benchmarks.harness import Report, median, processor_s, scratch, time_s
from chunkstore.codec.pulsar.message_batches import message_batches
from chunkstore.codec.pulsar.messages import Transactions
from chunkstore.pulsar import PulsarBucket
from tests.pulsar.support_broker import Tier
from tests.support.servers.faultproxy import FaultProxy
from tests.support.servers.pulsar import PulsarBroker
from tests.support.servers.rgw import Rgw
from tests.support.servers.s3server import CREDENTIALS

__all__ = ["main"]

TOPIC = "bench"
BATCH = 100
RECEIVE, ARROW = "batch_receive from the broker, counted", "Arrow, all columns"
RECEIVE_VALUES, ARROW_VALUES = "batch_receive from the broker, key and value", "Arrow, key and payload"


def fill(tier: Tier, count: int) -> None:
    """Half of each payload is noise."""
    noise = random.Random(5).randbytes(5000)
    with tier.client() as client:
        producer = client.create_producer(
            TOPIC,
            compression_type=pulsar.CompressionType.LZ4,
            batching_enabled=True,
            batching_max_messages=BATCH,
            batching_max_publish_delay_ms=60_000,
            block_if_queue_full=True,
        )
        for number in range(count):
            at = number * 31 % 4900
            producer.send_async(noise[at : at + 50] + b"%050d" % number, None, partition_key=f"key-{number % 1000}")
        producer.flush()
        producer.close()
    tier.close_ledgers(TOPIC)
    assert tier.offload(TOPIC) == ""
    tier.wait_deleted(TOPIC)


def received(client: Any, count: int, *, values: bool) -> int:
    """How many messages a new consumer got, a thousand at a time; whether it asks for their keys and values."""
    consumer = client.subscribe(
        TOPIC,
        f"bench-{time_s()}",
        initial_position=pulsar.InitialPosition.Earliest,
        receiver_queue_size=10_000,
        batch_receive_policy=pulsar.ConsumerBatchReceivePolicy(1000, -1, 1000),
    )
    found = 0
    while found < count:
        messages = consumer.batch_receive()
        if values:
            messages = [(message.partition_key(), message.data()) for message in messages]
        found += len(messages)
    consumer.close()
    return found


def speeds(report: Report, tier: Tier, count: int, rounds: int) -> None:
    """Messages a second of each case, alternating."""

    def arrow(columns: list[str] | None = None) -> int:
        batches = message_batches(bucket.iter_entries(), known=Transactions(), columns=columns)
        return sum(batch.num_rows for batch in batches)

    with tier.client() as client, PulsarBucket(tier.url) as bucket:
        cases: dict[str, Callable[[], int]] = {
            RECEIVE: lambda: received(client, count, values=False),
            RECEIVE_VALUES: lambda: received(client, count, values=True),
            ARROW: arrow,
            ARROW_VALUES: lambda: arrow(["key", "payload"]),
        }
        spent: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
        # The first round warms everything up: the broker loads its offloader.
        for number in range(rounds + 1):
            for name, run in cases.items():
                began, processor = time_s(), processor_s()
                assert count <= run() <= count + 1
                if number:
                    spent[name].append((time_s() - began, processor_s() - processor))
    for place, unit in enumerate(("M messages/s", "M messages/CPU s")):
        figures = {name: [pair[place] for pair in pairs] for name, pairs in spent.items()}
        for name, times in figures.items():
            best = f"best {count / min(times) / 1e6:.2f}"
            report.add(f"offloaded: {name}, {unit}", count / median(times) / 1e6, unit, detail=best)
        for theirs, ours in ((RECEIVE, ARROW), (RECEIVE_VALUES, ARROW_VALUES)):
            ratio = median(figures[theirs]) / median(figures[ours])
            report.add(f"offloaded: {ours} against {theirs}, {unit}", ratio, "x", at_least=3.0)


def main() -> None:
    """Run all and save ``results/pulsar_broker.json``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a small share of the work, to see that it runs")
    options, _ = parser.parse_known_args()
    report = Report("pulsar_broker-quick" if options.quick else "pulsar_broker")
    count, rounds = (20_000, 2) if options.quick else (500_000, 5)
    os.environ.update(CREDENTIALS)
    gateway = Rgw()
    try:
        with scratch(None) as folder, FaultProxy(gateway.port) as proxy:
            bucket = gateway.make_bucket()
            broker = PulsarBroker(folder / "broker", gateway.url, bucket, managedLedgerMaxEntriesPerLedger=2000)
            broker.java_options = ()
            try:
                broker.start()
                tier = Tier(broker, proxy, gateway, bucket)
                fill(tier, count)
                speeds(report, tier, count, rounds)
            finally:
                broker.stop()
    finally:
        gateway.stop()
    report.save()


if __name__ == "__main__":
    main()
