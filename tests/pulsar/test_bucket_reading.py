"""A bucket without a broker: what a genuine broker offloaded, listed and read, and which attempt of a ledger counts."""

from __future__ import annotations

import hashlib
import json
import threading
from base64 import b64decode
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from chunkstore.codec.pulsar.message_batches import MESSAGE_SCHEMA
from chunkstore.errors import Conflict, InvalidArgument, Unsupported
from chunkstore.pulsar.bucket import PulsarBucket
from chunkstore.pulsar.live import read_live
from chunkstore.pulsar.orphans import find_orphans
from tests.cli.conftest import Call
from tests.pulsar.support_bucket import (
    TOPIC,
    A,
    B,
    FakeBucket,
    broker_bucket,
    full,
    key_of,
    live_files,
    put_v1,
    url_of,
)  # fmt: skip
from tests.support.pulsar_broker import FOLDER, TOPICS, entries_of_topic, seen_by_consumer


@pytest.mark.parametrize("folder", ["indexed", "plain"])
def test_ls_has_every_ledger_that_the_broker_offloaded(call: Call, folder: str) -> None:
    expected = set()
    for topic in TOPICS:
        if topic.startswith(folder):
            for row in json.loads(Path(live_files([topic])[0]).read_text(encoding="utf-8"))["ledgers"]:
                if row["isOffloaded"]:
                    size = (FOLDER / folder / "objects" / key_of(topic, row["ledgerId"])).stat().st_size
                    uuid = row["offloadedContextUuid"]
                    expected.add((full(topic), row["ledgerId"], uuid, "v1", row["entries"], size))
    details = [tuple(line.values()) for line in call("pulsar", "ls", url_of(folder), "--details", "--json").lines]
    assert set(details) == expected
    assert details == sorted(details)
    brief = [tuple(line.values()) for line in call("pulsar", "ls", url_of(folder), "--json").lines]
    assert set(brief) == {(None, *row[1:4], None, row[5]) for row in expected}
    topic = details[0][0]
    stored = topic.replace("persistent://public/fx", "public/fx/persistent")
    own = call("pulsar", "ls", url_of(folder), "--topic", stored, "--json")
    assert [tuple(line.values()) for line in own.lines] == [row for row in details if row[0] == topic]


def same_as_seen(lines: list[dict[str, Any]], topic: str) -> None:
    seen = seen_by_consumer(topic)
    sealed = {(row["ledger"], row["entry"]) for row in seen if row["encryption_keys"]}
    plain = [line for line in lines if (line["ledger"], line["entry"]) not in sealed]
    expected = [row for row in seen if not row["encryption_keys"]]
    assert len(plain) == len(expected)
    assert {(line["ledger"], line["entry"]) for line in lines if line["encrypted"]} == sealed
    for line, want in zip(plain, expected, strict=True):
        value = None if line["payload_b64"] is None else b64decode(line["payload_b64"])
        sha = None if value is None else hashlib.sha256(value).hexdigest()
        assert sha == want["payload_sha256"]
        columns = {name: text for name, text in want.items() if not name.startswith("payload_")}
        assert {name: line[name] for name in columns} == columns
        assert line["first_chunk"] == want.get("first_chunk")
        extra = {"topic", "first_chunk", "payload_b64", "encrypted", "damaged"}
        assert line.keys() == columns.keys() | extra
        assert not line["damaged"]


@pytest.mark.parametrize("folder", ["indexed", "plain"])
def test_every_topic_reads_as_a_consumer_saw_it(call: Call, folder: str) -> None:
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in call("pulsar", "read", url_of(folder), "--messages", "--json").lines:
        found[line["topic"]].append(line)
    topics = [topic for topic in TOPICS if topic.startswith(folder)]
    assert found.keys() == {full(topic) for topic in topics}
    for topic in topics:
        same_as_seen(found[full(topic)], topic)


def test_a_topics_messages_and_what_is_left_out(call: Call) -> None:
    of_txn = ("pulsar", "read", url_of("indexed"), "--topic", full("indexed/txn"), "--messages", "--json")
    result = call(*of_txn)
    same_as_seen(result.lines, "indexed/txn")
    assert result.err == b"chunkstore: 11 messages of aborted transactions are left out\n"
    lines = call(*of_txn, "--transactions", "all").lines
    assert [line["txn_state"] for line in lines].count("aborted") == 11
    err = call("pulsar", "read", url_of("indexed"), "--topic", full("indexed/chunks"), "--messages").err
    assert err == b"chunkstore: 1 chunked messages are left out: not all of their chunks are in the bucket\n"


def test_entries_of_a_ledger_and_how_they_are_written(call: Call) -> None:
    entries = [entry for entry in entries_of_topic("indexed/txn") if entry.ledger == 39]
    lines = call("pulsar", "read", url_of("indexed"), "--ledger", "39", "--first", "2", "--last", "5", "--json").lines
    assert [(line["ledger"], line["entry"], line["length"], b64decode(line["payload_b64"])) for line in lines] == [
        (39, entry.entry, len(entry.payload), entry.payload) for entry in entries[2:6]
    ]
    out = call("pulsar", "read", url_of("indexed"), "--ledger", "39", "--entries", "length-prefixed").out
    assert out == b"".join(len(entry.payload).to_bytes(4, "big") + entry.payload for entry in entries)
    call("pulsar", "read", url_of("indexed"), "--first", "2", code=2)
    error = call("pulsar", "read", url_of("indexed"), "--ledger", "7777", "--json", code=1).error
    assert (error["error"], error["fields"]) == ("LedgerNotFound", {"topic": None, "ledger": 7777})


def test_arrow_batches_are_the_same_messages() -> None:
    bucket = PulsarBucket(broker_bucket())
    reader = bucket.message_batches()
    assert reader.schema.names == ["topic", *MESSAGE_SCHEMA.names]
    rows = reader.read_all()
    messages = bucket.iter_messages()
    expected = [(messages.topic, message.ledger, message.entry, message.payload) for message in messages]
    columns = ("topic", "ledger", "entry", "payload")
    assert list(zip(*(rows[name].to_pylist() for name in columns), strict=True)) == expected


def test_indexes_are_read_several_at_a_time() -> None:
    """Each read waits until another one is under way, too."""

    class Meeting(FakeBucket):
        met = threading.Barrier(2, timeout=60)

        def read(self, key: str, offset: int, length: int) -> bytes:
            self.met.wait()
            return super().read(key, offset, length)

    bucket = Meeting()
    for ledger, uuid in ((7, A), (8, B)):
        put_v1(bucket, uuid, ledger, [b"one"])
    assert [row.ledger for row in PulsarBucket(bucket).ledgers(topic=TOPIC)] == [7, 8]


def test_map_files_are_named_and_not_opened() -> None:
    bucket = FakeBucket()
    for part in ("data", "index"):
        bucket.add(f"public/ns/persistent/T/12-{A}/{part}", b"SEQ")
    opened = PulsarBucket(bucket)
    assert list(opened.ledgers(topic=TOPIC)) == [(TOPIC, 12, A, "mapfile", None, 3)]
    assert list(opened.ledgers()) == [(None, 12, A, "mapfile", None, 3)]
    for read in (lambda: opened.open(12), lambda: list(opened.iter_messages(TOPIC))):
        with pytest.raises(Unsupported, match=f"^public/ns/persistent/T/12-{A} is a MapFile"):
            read()
    assert [finding.kind for finding in opened.verify()] == ["unsupported"]
    assert list(find_orphans(opened, read_live([]), older_than_s=0)) == []


def test_two_attempts_that_differ_need_a_choice(tmp_path: Path) -> None:
    bucket = FakeBucket()
    put_v1(bucket, A, 7, [b"one"])
    put_v1(bucket, B, 7, [b"two"])
    with pytest.raises(Conflict, match="--live") as caught:
        PulsarBucket(bucket).open(7)
    assert caught.value.found == [A, B]
    assert PulsarBucket(bucket).open(7, uuid=B).read(0, 0)[0].payload == b"two"
    file = tmp_path / "info.json"
    file.write_text(json.dumps({"ledgers": [{"ledgerId": 7, "isOffloaded": True, "offloadedContextUuid": B}]}))
    live = read_live([str(file)])
    assert PulsarBucket(bucket, live=live).open(7).read(0, 0)[0].payload == b"two"
    assert [message.payload for message in PulsarBucket(bucket, live=live).iter_entries(TOPIC)] == [b"two"]


@pytest.mark.parametrize("text", [
    "", "[]", "{", "7", "{}", '{"ledgers": 1}', '{"ledgers": [1]}', '{"ledgers": [{"ledgerId": -1}]}', '{"ledgers": [{"ledgerId": true}]}',
    '{"ledgers": [{"ledgerId": 1, "offloadedContextUuid": "x/../y"}]}', '{"ledgers": [{"ledgerId": 1, "offloaded": true}]}',
    "[" * 200_000, "1" * 9_999, "\ud800", '{"partitions": {"t": []}}',
])  # fmt: skip
def test_hostile_live_files(tmp_path: Path, text: str) -> None:
    file = tmp_path / "live.json"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    if text in ("", "[]"):
        assert not read_live([str(file)]).ledgers
        return
    with pytest.raises(InvalidArgument, match="live"):
        read_live([str(file)])
