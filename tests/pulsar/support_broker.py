"""A genuine broker with its bucket: messages of both of Pulsar's clients, what a consumer gets, and misfortunes that leave objects."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c

from chunkstore.codec.pulsar.pip17 import LedgerEncoder, read_ledger_index
from chunkstore.config import MIB
from chunkstore.pulsar import MemorySource, PulsarBucket, PulsarObjects
from chunkstore.pulsar.bucket_objects import FORMAT_VERSION_KEY
from chunkstore_bindings.bucket.port import Bucket
from tests.support.pip76 import Sink
from tests.support.servers.base import wait_until
from tests.support.servers.faultproxy import FaultProxy, Request, Rule
from tests.support.servers.pulsar import DEADLINE_S, PulsarBroker
from tests.support.servers.s3server import S3Server

__all__ = ["TOPICS", "Leftovers", "Tier", "changed", "leftovers", "produce", "topic_of"]

JAVA_TOPICS = ("mixed", "chunks", "txn")
TOPICS = (*JAVA_TOPICS, "python")
CPP_COMPRESSIONS = ("NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY")


def topic_of(short: str) -> str:
    return f"public/default/persistent/{short}"


@dataclass
class Tier:
    """A broker, and the bucket that it reaches through ``proxy``."""

    broker: PulsarBroker
    proxy: FaultProxy
    server: S3Server
    bucket: str

    @property
    def url(self) -> str:
        return self.server.root(self.bucket)

    # The bucket, past the broker

    def object_keys(self) -> list[str]:
        pages = self.server.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket)
        return [item["Key"] for page in pages for item in page.get("Contents", [])]

    def uploads(self) -> set[str]:
        """The keys of unfinished uploads."""
        found = self.server.client.list_multipart_uploads(Bucket=self.bucket)
        assert not found["IsTruncated"]
        return {item["Key"] for item in found.get("Uploads", [])}

    def deny_deletes(self, *, denied: bool) -> None:
        """Whether the bucket refuses every deletion, as it does where the broker's user lacks the permissions."""
        client, resource = self.server.client, f"arn:aws:s3:::{self.bucket}/*"
        actions = ["s3:DeleteObject", "s3:AbortMultipartUpload"]
        statement = {"Effect": "Deny", "Principal": "*", "Action": actions, "Resource": resource}
        if denied:
            policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
            client.put_bucket_policy(Bucket=self.bucket, Policy=policy)
        else:
            client.delete_bucket_policy(Bucket=self.bucket)

    # Clients

    @contextlib.contextmanager
    def client(self) -> Iterator[Any]:
        """PyPI's client."""
        import pulsar

        with contextlib.closing(
            pulsar.Client(self.broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        ) as client:
            yield client

    def close_ledgers(self, *topics: str) -> None:
        """Close the last ledger of each topic; a message with the property END goes into a new one, which stays open."""
        with self.client() as client:
            for topic in topics:
                self.broker.topic("PUT", topic, "/unload")
                producer = client.create_producer(topic)
                producer.send(b"", properties={"END": "1"})
                producer.close()

    def wait_deleted(self, topic: str) -> None:
        """Until BookKeeper's copies of the offloaded ledgers are gone."""
        texts = [
            f"/{topic}] Deleted and invalidated offloaded ledger {ledger['ledgerId']} "
            for ledger in self.broker.ledgers(topic)[:-1]
        ]

        def is_logged() -> bool:
            log = self.broker.log.read_text(errors="replace")
            return all(text in log for text in texts)

        wait_until(is_logged, deadline_s=DEADLINE_S, what=f"the deletion of topic {topic} from BookKeeper", every_s=0.2)

    def offload(self, topic: str) -> str:
        """Offload all closed ledgers of a topic: the empty string, or why it failed."""
        self.broker.begin_offload(topic)
        return self.broker.finish_offload(topic)

    def consumed(self) -> dict[str, list[dict[str, Any]]]:
        """What a new consumer gets of ``TOPICS``."""
        rows = map(json.loads, self.broker.java("Messages", "consume", *TOPICS).splitlines())
        found: dict[str, list[dict[str, Any]]] = {topic: [] for topic in TOPICS}
        for row in rows:
            found[row.pop("topic")].append(row)
        return found


def produce(tier: Tier) -> None:
    """Messages in all ``TOPICS``, offloaded; what BookKeeper had of them is gone."""
    import pulsar

    tier.broker.java("Messages", "produce", *JAVA_TOPICS)
    with tier.client() as client:
        for name in CPP_COMPRESSIONS:
            for is_batching in (True, False):
                producer = client.create_producer(
                    "python",
                    producer_name=f"{'batches' if is_batching else 'singles'}-{name}",
                    compression_type=getattr(pulsar.CompressionType, name),
                    batching_enabled=is_batching,
                    batching_max_messages=7,
                )
                for number in range(20):
                    producer.send_async(
                        f"value {number} ".encode() * number,
                        None,
                        properties={"number": str(number)},
                        partition_key=f"key {number}" if number % 2 else None,
                        ordering_key="order" if number % 3 else None,
                        event_timestamp=number or None,
                    )
                producer.flush()
                producer.close()
    tier.close_ledgers(*TOPICS)
    for topic in TOPICS:
        assert tier.offload(topic) == ""
        tier.wait_deleted(topic)


def changed(tier: Tier, topic: str) -> int:
    """Replace the objects of a topic by ours, with another text in every uncompressed message: by those of ``PulsarObjects``, or those of
    ``mixed`` in blocks so small that no upload can be cut into them. Returns how many ledgers have such a message."""
    count = 0
    offloader = PulsarObjects(tier.url)
    with PulsarBucket(tier.url) as bucket:
        for row in list(bucket.ledgers(topic=topic_of(topic))):
            assert row.ledger is not None
            with bucket.open(row.ledger) as handle:
                payloads = [entry.payload for entry in handle.iter_entries()]
            texts = [_with_another_text(payload) for payload in payloads]
            if topic == "mixed":
                _put_small_blocks(bucket.bucket, f"{row.uuid}-ledger-{row.ledger}", texts)
            else:
                ours = MemorySource({row.ledger: texts}).open(row.ledger)
                offloader.offload(ours, row.uuid, {"ManagedLedgerName": topic_of(topic)}).result(DEADLINE_S)
            count += texts != payloads
    return count


def _put_small_blocks(bucket: Bucket, key: str, payloads: list[bytes]) -> None:
    """The ledger's metadata stay as the broker wrote them; no user metadata but the format's version."""
    sink = Sink()
    theirs = read_ledger_index(bucket.read(f"{key}-index", 0, MIB))
    encoder = LedgerEncoder(sink, theirs.metadata, block_bytes_max=1024)
    for entry, payload in enumerate(payloads):
        encoder.append(entry, payload)
    index = encoder.finish()
    assert len(sink.blocks) > len(theirs.blocks)
    for name, data in ((key, sink.data), (f"{key}-index", index)):
        bucket.put(name, data, {FORMAT_VERSION_KEY: "1"})


def _with_another_text(payload: bytes) -> bytes:
    assert payload[:2] == b"\x0e\x02"
    begin = 6 + int.from_bytes(payload[2:6], "big")
    assert payload[begin : begin + 2] == b"\x0e\x01"
    rest = payload[begin + 6 :]
    if b"-NONE" in rest:
        rest = rest.replace(b"value", b"VALUE")
    checksum: int = google_crc32c.value(rest)
    return payload[: begin + 2] + checksum.to_bytes(4, "big") + rest


@dataclass(frozen=True)
class Leftovers:
    """What a broker left: ``live`` are files of all its topics, ``expected`` (kind, key) of what no live attempt needs."""

    live: list[Path]
    expected: set[tuple[str, str]]


def _is_part(request: Request) -> bool:
    return request.method == "PUT" and "partNumber=" in request.target


def _is_index(request: Request) -> bool:
    return request.method == "PUT" and request.target.endswith("-index")


def _is_deletion(request: Request) -> bool:
    return request.method == "POST" and request.target.endswith("?delete")


def _wait_for(rule: Rule) -> None:
    assert rule.hit.wait(DEADLINE_S)


@contextlib.contextmanager
def leftovers(tier: Tier, folder: Path) -> Iterator[Leftovers]:
    """Let offloads fail, kill the broker in the middle of one, refuse its deletions; another offload is under way meanwhile."""
    broker, proxy = tier.broker, tier.proxy
    topics = ("failed", "no-index", "no-flag", "part", "gone", "under-way")
    for topic in topics:
        with tier.client() as client, contextlib.closing(client.create_producer(topic)) as producer:
            for number in range(5):
                producer.send(f"value {number}".encode())
    tier.close_ledgers(*topics)
    assert tier.offload("gone") == ""
    # It cleans up after itself, if it may.
    fail(tier, "failed", proxy.lose_request(_is_index))
    assert data_key(broker, "failed") not in tier.object_keys()
    tier.deny_deletes(denied=True)
    try:
        fail(tier, "no-index", proxy.lose_request(_is_index))
        fail(tier, "no-flag", proxy.lose_reply(_is_index))
        held = proxy.hold_reply(_is_part)
        broker.begin_offload("part")
        _wait_for(held)
        old = {topic: data_key(broker, topic) for topic in ("no-index", "no-flag", "part", "gone")}
        broker.kill()
        # In this order: what was held must not arrive.
        proxy.reset_connections()
        proxy.heal()
        broker.start()
        for topic in ("no-index", "no-flag", "part"):
            assert tier.offload(topic) == ""
        deletion = proxy.hold_reply(_is_deletion)
        broker.topic("DELETE", "gone", "?force=true")
        _wait_for(deletion)
        deletion.release()
    finally:
        tier.deny_deletes(denied=False)
    under_way = proxy.hold(_is_index)
    broker.begin_offload("under-way")
    _wait_for(under_way)
    expected = {
        ("data-without-index", old["no-index"]),
        *(("second-attempt", old["no-flag"] + end) for end in ("", "-index")),
        ("unfinished-upload", old["part"]),
        *(("unlisted-ledger", old["gone"] + end) for end in ("", "-index")),
    }
    try:
        yield Leftovers(save_live(broker, folder), expected)
    finally:
        under_way.release()
        broker.finish_offload("under-way")


def fail(tier: Tier, topic: str, lost: Rule) -> None:
    """An offload that does not survive what gets lost."""
    assert "ManagedLedgerException" in tier.offload(topic)
    assert lost.fired == 1


def data_key(broker: PulsarBroker, topic: str) -> str:
    """The key of the data object of a topic's first ledger, as the broker's present attempt has it."""
    first = broker.ledgers(topic)[0]
    return f"{first['offloadedContextUuid']}-ledger-{first['ledgerId']}"


def save_live(broker: PulsarBroker, folder: Path) -> list[Path]:
    """What ``topics info-internal`` and ``topics stats-internal`` say of every topic, as files."""
    files = []
    for topic in broker.admin("GET", "persistent/public/default"):
        name = topic.rpartition("/")[2]
        for call in ("internal-info", "internalStats"):
            files.append(folder / f"{name}.{call}.json")
            files[-1].write_text(json.dumps(broker.topic("GET", name, f"/{call}")))
    return files
