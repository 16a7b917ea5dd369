"""Genuine brokers tier into a container, through the plug-in and ``chunkstore kafka serve``. Needs Java and Maven."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from chunkstore.config import MIB
from tests.kafka import support_plugin as support
from tests.kafka.support_plugin import BYTES, Load, Rig, Row, consumed, is_tiered, produce, rig, run, until
from tests.support.servers.kafka import NEW, OLD, KafkaBroker
from tests.support.servers.s3server import S3Server

pytestmark = [
    pytest.mark.proof,
    pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # sockets that kafka-python lost
]

CODECS = (None, "gzip", "snappy", "lz4", "zstd")
Chunks = Callable[[], list[str]]


@pytest.fixture(scope="module", params=[(OLD, "files"), (NEW, "files"), (NEW, "rgw")], ids="-".join)
def tiered(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Rig, Chunks]]:
    """A rig on files or in a bucket, and what lists the objects with bytes of segments."""
    version, place = request.param
    folder = tmp_path_factory.mktemp("rig")
    if place == "files":
        root = folder / "root"
        with rig(folder, root.as_uri(), version) as made:
            yield made, lambda: [str(path) for path in root.glob("*/d/*/*")]
    else:
        server: S3Server = request.getfixturevalue("rgw")
        bucket = server.make_bucket()

        def listed() -> list[str]:
            pages = server.client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
            return [each["Key"] for page in pages for each in page.get("Contents", []) if "/d/" in each["Key"]]

        with rig(folder, server.root(bucket), version) as made:
            yield made, listed


def test_what_was_written_is_read_from_the_tier(tiered: tuple[Rig, Chunks]) -> None:
    made, _ = tiered
    made.add_topic("codecs")
    rows: list[Row] = []
    for codec in CODECS:
        rows += produce(made, "codecs", 200, first=len(rows), compression_type=codec)
    until(lambda: is_tiered(made.brokers[0], "codecs"), "local segments deleted")
    assert consumed(made, "codecs") == rows


def test_aborted_transactions_are_read_as_they_were(tiered: tuple[Rig, Chunks]) -> None:
    from kafka import KafkaProducer

    made, _ = tiered
    made.add_topic("transactions")
    producer = KafkaProducer(bootstrap_servers=made.addresses, transactional_id="t", batch_size=8192)
    producer.init_transactions()
    committed: list[tuple[bytes, ...]] = []
    everything: list[tuple[bytes, ...]] = []
    for number, commits in enumerate((True, False, True, False, False, True)):
        producer.begin_transaction()
        records = [(b"%d-%d" % (number, each), os.urandom(1000)) for each in range(60)]
        for key, value in records:
            producer.send("transactions", value, key)
        producer.flush()
        producer.commit_transaction() if commits else producer.abort_transaction()
        everything += records
        committed += records if commits else []
    producer.close()
    until(lambda: is_tiered(made.brokers[0], "transactions"), "local segments deleted")
    assert [row[1:] for row in consumed(made, "transactions")] == everything
    assert [row[1:] for row in consumed(made, "transactions", isolation_level="read_committed")] == committed


def test_expired_and_deleted_topics_leave_no_bytes(tiered: tuple[Rig, Chunks]) -> None:
    from kafka import KafkaConsumer

    made, chunks = tiered
    made.add_topic("expiring", segment_bytes=MIB, retention_bytes=3 * MIB)
    rows = produce(made, "expiring", 8000)
    place = support.partition_of("expiring")
    consumer = KafkaConsumer(bootstrap_servers=made.addresses)
    until(lambda: bool(consumer.beginning_offsets([place])[place] > 0), "a log start that has moved")
    consumer.close()
    kept = consumed(made, "expiring")
    assert kept and kept == rows[-len(kept) :]
    run("kafka", "verify", made.root)
    assert chunks()
    made.admin.delete_topics([name for name in made.admin.list_topics() if not name.startswith("__")])
    until(lambda: not run("kafka", "ls", made.root, "--json"), "no segment")
    made.serving.stop()
    run("check", made.root, "--deep")
    run("gc", made.root, "--grace-s", "0")
    assert chunks() == []
    made.serving.start()


@pytest.mark.timeout(1200)
def test_30_kills_lose_and_double_nothing(tmp_path: Path) -> None:
    with rig(tmp_path, (tmp_path / "root").as_uri(), NEW) as made:
        broker, serving = made.brokers[0], made.serving
        made.add_topic("killed")
        turns: list[list[support.Serving | KafkaBroker]] = [[serving], [serving], [broker], [serving, broker]]
        with Load(made, "killed") as load:
            for victims in 6 * turns:
                load.wait_for(BYTES // 1000)
                for each in victims:
                    each.kill()
                for each in victims:
                    each.start()
            load.wait_for(3 * BYTES // 1000)
        until(lambda: is_tiered(broker, "killed"), "local segments deleted")
        load.check(consumed(made, "killed"))
        made.check_container()


def test_leadership_moves_in_the_middle_of_a_copy(tmp_path: Path) -> None:
    with rig(tmp_path, (tmp_path / "root").as_uri(), NEW) as made:
        made.add_broker()
        made.add_topic("moved", replicas=(2, 1))
        with Load(made, "moved") as load:
            for leader, follower in ((2, 1), (1, 2), (2, 1)):
                load.wait_for(3 * BYTES // 1000)
                with made.serving.paused():
                    _wait_for_copy(made.brokers[leader - 1].log)
                    _move(made, "moved", [follower, leader])
            load.wait_for(3 * BYTES // 1000)
        until(lambda: all(is_tiered(each, "moved") for each in made.brokers), "local segments deleted")
        load.check(consumed(made, "moved"))
        made.check_container()


def _wait_for_copy(log: Path) -> None:
    """Wait until a broker copies a segment."""
    until(lambda: (text := log.read_text(errors="replace")).rfind("] Copying ") > text.rfind("] Copied "), "a copy")


def _move(made: Rig, topic: str, replicas: list[int]) -> None:
    """Make the first of ``replicas`` the leader."""
    place = support.partition_of(topic)
    made.admin.alter_partition_reassignments({place: replicas})

    def moved() -> bool:
        made.admin.elect_leaders(0, {topic: [0]}, raise_errors=False)  # preferred
        [found] = made.admin.describe_topics([topic])
        return bool(found["partitions"][0]["leader_id"] == replicas[0])

    until(moved, f"leader {replicas[0]}")


def test_brokers_go_on_with_the_successor_of_a_deposed_server(tmp_path: Path) -> None:
    with rig(tmp_path, (tmp_path / "root").as_uri(), NEW) as made:
        made.add_topic("deposed")
        successor = support.Serving(made.root, tmp_path / "t.sock")
        try:
            with Load(made, "deposed") as load:
                load.wait_for(3 * BYTES // 1000)
                successor.start()
                until(lambda: made.serving.exit_code() is not None, "the end of the deposed server")
                (tmp_path / "new").symlink_to(successor.socket)
                (tmp_path / "new").replace(made.link)
                load.wait_for(3 * BYTES // 1000)
            assert made.serving.exit_code() == 1
            until(lambda: is_tiered(made.brokers[0], "deposed"), "local segments deleted")
            load.check(consumed(made, "deposed"))
        finally:
            successor.stop()
        made.check_container()
