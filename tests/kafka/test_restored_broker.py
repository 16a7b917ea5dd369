"""A genuine broker serves what was tiered and put back. Needs Java and Maven."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import chunkstore
from chunkstore.kafka.container import ContainerSource
from chunkstore.kafka.tier import restore, tier
from tests.kafka.support_logdir import LOG_DIR
from tests.kafka.support_metadata import fresh_root
from tests.kafka.support_tier import expected_rows
from tests.support.servers.base import ServerMissing, ServerProcess, cache_folder, exclusive, free_ports
from tests.support.servers.hdfs_jars import java_command

pytestmark = [pytest.mark.proof, pytest.mark.filterwarnings("ignore:read_text is deprecated:DeprecationWarning")]

TOPICS = {"codecs": 1, "compacted": 1, "open-transaction": 1, "transactions": 2}
_ARTIFACTS = (("org.apache.kafka", "kafka_2.13", "3.9.1"), ("org.slf4j", "slf4j-simple", "1.7.36"))
_DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"
_POM = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>chunkstore.tests</groupId><artifactId>kafka-broker</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>{"".join(_DEPENDENCY.format(*each) for each in _ARTIFACTS)}</dependencies>
</project>
"""
_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
log.dirs=data
log.index.size.max.bytes=65536
offsets.topic.replication.factor=1
"""


def jars() -> Path:
    """The folder of the broker's jars; filled if this is the first time. Raises ``ServerMissing``."""
    folder = cache_folder("kafka-broker-3.9.1")
    with exclusive(folder / "lock"):
        if not (folder / "complete").exists():
            maven = shutil.which("mvn")
            if maven is None:
                raise ServerMissing("no mvn here: apt-get install maven")
            (folder / "pom.xml").write_text(_POM)
            goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory=lib"]
            got = subprocess.run(
                [maven, "-q", "-B", "-ntp", *goal], cwd=folder, capture_output=True, text=True, check=False
            )
            if got.returncode:
                raise ServerMissing(f"mvn failed; Maven Central must be reachable: {got.stdout[-500:]}")
            (folder / "complete").touch()
    return folder / "lib"


@contextmanager
def running(command: list[str], folder: Path, name: str) -> Iterator[None]:
    log = folder / f"{name}.log"
    server = ServerProcess([*command, "kafka.Kafka", "server.properties"], log=log, cwd=folder)
    try:
        server.wait_ready(lambda: "Kafka Server started" in log.read_text(), deadline_s=120, what="the broker")
        yield
    finally:
        server.stop(60)


def test_a_broker_serves_what_was_put_back(tmp_path: Path) -> None:
    from kafka import KafkaConsumer, TopicPartition  # warns when it is imported
    from kafka.admin import KafkaAdminClient, NewTopic

    try:
        command = [java_command(), "-Xmx512m", "-XX:TieredStopAtLevel=1", "-cp", f"{jars()}/*"]
    except ServerMissing as missing:
        pytest.skip(str(missing))
    port, controller = free_ports(2)
    server, address = tmp_path / "server.properties", f"127.0.0.1:{port}"
    server.write_text(_PROPERTIES.format(port=port, controller=controller))
    layout = ["kafka.tools.StorageTool", "format", "--standalone", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", server.name]
    subprocess.run([*command, *layout], cwd=tmp_path, check=True, capture_output=True, timeout=120)
    with running(command, tmp_path, "new"):
        admin = KafkaAdminClient(bootstrap_servers=address)
        forever = {"retention.ms": "-1"}
        admin.create_topics([NewTopic(name, count, 1, topic_configs=forever) for name, count in TOPICS.items()])
        admin.close()
    ends: dict[tuple[str, int], int] = {}
    with chunkstore.open(fresh_root()) as store:
        tier(str(LOG_DIR), store)
        for topic in TOPICS:
            restore(store, str(tmp_path / "data"), topic, keep_partition_metadata=True)
            for each in ContainerSource(store, "here").listing(topic).segments:
                ends[topic, each.partition] = max(ends.get((topic, each.partition), 0), each.end_offset)
    with running(command, tmp_path, "restored"):
        consumer = KafkaConsumer(bootstrap_servers=address, enable_auto_commit=False, max_partition_fetch_bytes=4 << 20)
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
    assert len(ends) == sum(TOPICS.values())
