"""Mode kafka-exact next to Kafka's own RemoteLogMetadataCache: 20,000 random commands, the same answers. Needs Java and Maven."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import chunkstore
from chunkstore.kafka import RemoteLogMetadataManager, RemoteLogMetadataReader
from chunkstore.kafka.model import RemoteResourceNotFoundException, TopicIdPartition
from tests.kafka.support_metadata import Leader, fresh_root, listed, number_of
from tests.kafka.support_models import EPOCHS, OFFSETS, Command, apply, random_command, segment_of
from tests.support.servers.base import ServerMissing, missing
from tests.support.servers.hdfs_jars import java_command
from tests.support.servers.kafka import OLD, jars
from tests.support.servers.maven import compiled

pytestmark = pytest.mark.proof

VERSION = OLD
COMMANDS, A_CACHE, AN_ASK = 20_000, 100, 5
MAIN = "org.apache.kafka.server.log.remote.metadata.storage.CacheOracle"
REFUSALS = {"unknown": "RemoteResourceNotFoundException", "argument": "IllegalArgumentException"}
SOURCE = Path(__file__).with_name("CacheOracle.java")


def asked(reader: RemoteLogMetadataReader, partition: TopicIdPartition) -> Iterator[tuple[str, str]]:
    """All questions to the cache, each with the manager's answer."""

    def text(numbers: list[int]) -> str:
        return "".join(f" {number}" for number in numbers)

    yield "all", text(listed(reader, None, partition))
    for epoch in EPOCHS:
        yield f"highest {epoch}", f" {reader.highest_offset_for_epoch(partition, epoch)}"
        try:
            yield f"list {epoch}", text(listed(reader, epoch, partition))
        except RemoteResourceNotFoundException:
            yield f"list {epoch}", "RemoteResourceNotFoundException"
        for offset in OFFSETS:
            found = reader.remote_log_segment_metadata(partition, epoch, offset)
            yield f"find {epoch} {offset}", f" {number_of(found)}"


def done(leader: Leader, command: Command) -> tuple[str, str]:
    """A command for the cache, and what comes of it at the manager."""
    item = segment_of(command, leader.partition)
    line = f"move {command.number} {command.word}"
    if command.word == "add":
        epochs = "".join(f" {epoch} {offset}" for epoch, offset in item.segment_leader_epochs.items())
        line = f"add {command.number} {item.start_offset} {item.end_offset}{epochs}"
    return line, REFUSALS.get(apply(leader, command), "ok")


def test_the_same_answers(tmp_path: Path) -> None:
    try:
        java, kafka = java_command(), f"{jars(VERSION) / 'lib'}/*"
        classes = f"{kafka}:{compiled([SOURCE], kafka, tmp_path)}"
    except ServerMissing as error:
        missing("kafka", error)
    chance = random.Random(405)
    pairs: list[tuple[str, str]] = []
    with chunkstore.open(fresh_root()) as store:
        manager = RemoteLogMetadataManager(store, "kafka-exact")
        for number in range(COMMANDS):
            if number % A_CACHE == 0:
                pairs.append(("new", "ok"))
                leader = Leader(manager, TopicIdPartition(bytes(16), "oracle", number))
            pairs.append(done(leader, random_command(chance)))
            if number % AN_ASK == 0:
                pairs += asked(manager, leader.partition)
    lines = "".join(f"{line}\n" for line, _ in pairs)
    answer = subprocess.run(
        [java, "-cp", classes, MAIN], input=lines, capture_output=True, text=True, check=True, timeout=600
    )
    found = answer.stdout.split("\n")[:-1]
    assert len(found) == len(pairs)
    wrong = next((place for place, pair in enumerate(pairs) if pair[1] != found[place]), None)
    if wrong is not None:
        before = [line for line, _ in pairs[:wrong] if line[:3] in ("new", "add", "mov")][-A_CACHE:]
        pytest.fail(f"{pairs[wrong]}, Kafka: {found[wrong]!r}, after {before}")
    assert {"RemoteResourceNotFoundException", "IllegalArgumentException", " None"} <= set(found)
