"""A genuine Pulsar broker over Ceph's gateway: ours reads what it offloaded, it reads what ours wrote, and what it leaves is known."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Call
from tests.pulsar.support_broker import TOPICS, Tier, changed, leftovers, produce, topic_of
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


def test_messages_are_those_of_a_consumer(offloaded: Tier, call: Call) -> None:
    consumed = offloaded.consumed()
    assert {topic: len(rows) for topic, rows in consumed.items()} == {
        "mixed": 180, "chunks": 16, "txn": 19, "python": 200
    }  # fmt: skip
    for topic, rows in consumed.items():
        name = topic_of(topic)
        found = call("pulsar", "read", offloaded.url, "--topic", name, "--messages", "--json").lines
        more = {"topic": f"persistent://public/default/{topic}", "encrypted": False, "damaged": False}
        check(found, [row | more for row in rows])


def test_a_consumer_gets_what_ours_wrote(offloaded: Tier, call: Call) -> None:
    before = offloaded.consumed()
    offloaded.broker.stop()
    ledgers = {topic: changed(offloaded, topic) for topic in TOPICS}
    rows = call("pulsar", "ls", offloaded.url, "--topic", topic_of("txn"), "--json").lines
    assert ledgers["txn"] == len(rows) > 0
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


def test_what_a_broker_leaves_in_the_bucket(tier: Tier, tmp_path: Path, call: Call) -> None:
    rows = tmp_path / "orphans"
    with leftovers(tier, tmp_path) as left:
        live = [argument for file in left.live for argument in ("--live", file)]
        listed = call("pulsar", "orphans", tier.url, *live, "--older-than", "0", "--json")
        assert sorted((row["kind"], row["object"]) for row in listed.lines) == sorted(left.expected)
        rows.write_bytes(listed.out)
        removal = ("pulsar", "rm", tier.url, "--from", rows, *live, "--json")
        before = objects_and_uploads(tier)
        assert call(*removal, code=2).error["error"] == "InvalidArgument"
        gone = (*removal, "--gone-topic", "persistent://public/default/gone")
        planned = call(*gone, "--dry-run").lines
        assert objects_and_uploads(tier) == before
        done = call(*gone).lines
        assert without_age(done) == without_age(planned) == without_age(listed.lines)
        assert before - objects_and_uploads(tier) == {(kind == "unfinished-upload", key) for kind, key in left.expected}
        assert call("pulsar", "verify", tier.url, *live, "--json").document == {"ok": True, "findings": []}
        assert call(*gone).lines == []


def objects_and_uploads(tier: Tier) -> set[tuple[bool, str]]:
    """(whether it is an unfinished upload, key)"""
    return {(False, key) for key in tier.object_keys()} | {(True, key) for key in tier.uploads()}


def without_age(rows: list[dict[str, Any]]) -> list[list[tuple[str, object]]]:
    """Rows in the order of their keys."""
    return sorted([(name, value) for name, value in row.items() if name != "age_s"] for row in rows)
