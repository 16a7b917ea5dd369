"""A genuine Pulsar broker over Ceph's gateway: ours reads what it offloaded, it reads what ours wrote, and what it leaves is known."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.pulsar.support_broker import TOPICS, Tier, changed, leftovers, produce
from tests.support.servers.base import ServerMissing, missing
from tests.support.servers.faultproxy import FaultProxy
from tests.support.servers.pulsar import PulsarBroker
from tests.support.servers.rgw import Rgw

pytestmark = [pytest.mark.proof, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def tier(rgw: Rgw, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tier]:
    if find_spec("pulsar") is None:
        missing("pulsar", "pulsar-client is not installed (extra dev)")
    with FaultProxy(rgw.port) as proxy:
        bucket = rgw.make_bucket()
        try:
            broker = PulsarBroker(tmp_path_factory.mktemp("pulsar"), proxy.url, bucket)
            broker.start()
        except ServerMissing as why:
            missing("pulsar", why)
        try:
            yield Tier(broker, proxy, rgw, bucket)
        finally:
            broker.stop()


@pytest.fixture(scope="module")
def offloaded(tier: Tier) -> Tier:
    """All messages are in the bucket alone."""
    produce(tier)
    return tier


def check(found: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """Row by row, so that the first difference is what is shown."""
    for row, want in zip(found, expected, strict=False):
        assert row == want
    assert len(found) == len(expected)


def test_messages_are_those_of_a_consumer(offloaded: Tier) -> None:
    consumed = offloaded.consumed()
    assert {topic: len(rows) for topic, rows in consumed.items()} == {
        "mixed": 180, "chunks": 16, "txn": 19, "python": 200
    }  # fmt: skip
    for topic, rows in consumed.items():
        check(offloaded.messages_of(topic), rows)


def test_a_consumer_gets_what_ours_wrote(offloaded: Tier) -> None:
    before = offloaded.consumed()
    offloaded.broker.stop()
    ledgers = {topic: changed(offloaded, topic) for topic in TOPICS}
    assert ledgers["txn"] == len(offloaded.pairs("txn"))
    assert min(ledgers["mixed"], ledgers["python"]) > 0
    offloaded.broker.start()
    after = offloaded.consumed()
    for topic in TOPICS:
        check(after[topic], [with_another_text(row) for row in before[topic]])


def with_another_text(row: dict[str, Any]) -> dict[str, Any]:
    """What a consumer should get of a message in objects that were replaced."""
    if not row["producer"].endswith("-NONE") or row["payload_b64"] is None:
        return row
    value = base64.b64decode(row["payload_b64"]).replace(b"value", b"VALUE")
    return row | {"payload_b64": base64.b64encode(value).decode()}


def test_what_a_broker_leaves_in_the_bucket(tier: Tier, tmp_path: Path) -> None:
    with leftovers(tier, tmp_path) as left:
        objects = {key for kind, key in left.expected if kind != "unfinished-upload"}
        assert {key for key in tier.object_keys() if key[:36] not in left.live_uuids} == objects
        assert tier.uploads() == {key for kind, key in left.expected if kind == "unfinished-upload"}
