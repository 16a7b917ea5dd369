"""A bucket without a broker: what a genuine broker offloaded, listed and read, and which attempt of a ledger counts."""

from __future__ import annotations

import hashlib
import json
from base64 import b64decode
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from chunkstore.codec.pulsar.message_batches import MESSAGE_SCHEMA
from chunkstore.errors import AccessDenied, Conflict, Damaged, InvalidArgument, Unsupported
from chunkstore.pulsar.bucket import PulsarBucket
from chunkstore.pulsar.bucket_objects import topic_name
from chunkstore.pulsar.contexts import LedgerNotFound
from chunkstore.pulsar.live import read_live
from tests.cli.conftest import Call
from tests.pulsar.support_bucket import (
    TOPIC,
    A,
    B,
    C,
    FakeBucket,
    broker_bucket,
    full,
    key_of,
    live_files,
    put_v1,
    put_v2,
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
    own = call(
        "pulsar",
        "ls",
        url_of(folder),
        "--topic",
        topic.replace("persistent://public/fx", "public/fx/persistent"),
        "--json",
    )
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
    result = call("pulsar", "read", url_of("indexed"), "--topic", full("indexed/txn"), "--messages", "--json")
    same_as_seen(result.lines, "indexed/txn")
    assert result.err == b"chunkstore: 11 messages of aborted transactions are left out\n"
    lines = call(
        "pulsar",
        "read",
        url_of("indexed"),
        "--topic",
        full("indexed/txn"),
        "--messages",
        "--transactions",
        "all",
        "--json",
    ).lines
    assert [line["txn_state"] for line in lines].count("aborted") == 11
    err = call("pulsar", "read", url_of("indexed"), "--topic", full("indexed/chunks"), "--messages").err
    assert err == b"chunkstore: 1 chunked messages are left out: not all of their chunks are in the bucket\n"


def test_one_ledgers_transactions_end_in_a_later_one() -> None:
    bucket = PulsarBucket(broker_bucket())
    whole = list(bucket.iter_messages(full("indexed/txn")))
    found = bucket.iter_messages(ledger=38)
    assert list(found) == [message for message in whole if message.ledger == 38]
    assert found.summary.messages_open == 0
    assert found.summary.messages_aborted > 0
    some = list(bucket.iter_messages(ledger=38, first=5, last=9))
    assert some == [message for message in whole if message.ledger == 38 and 5 <= message.entry <= 9]


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


def test_foreign_keys_cost_list_pages_only() -> None:
    bucket = FakeBucket(keeps_metadata=True)
    for number in range(50_000):
        bucket.add(f"{number:08x}-0000-4000-8000-00000000000G")
        bucket.add(f"logs/{number}-ledger-{number}-index")
    put_v1(bucket, A, 7, [b"one"])
    assert [row.ledger for row in PulsarBucket(bucket).ledgers()] == [7]
    assert bucket.calls == {"list": 101}
    assert [row.topic for row in PulsarBucket(bucket).ledgers(details=True)] == [TOPIC]
    assert bucket.calls == {"list": 202, "read": 1}


@pytest.mark.parametrize("key", [
    f"{A.upper()}-ledger-1", f"{A}-ledger-01", f"{A}-ledger-1-index-index", f"{A}-ledger--1", f"x{A}", f"{A}x", f"a/{A}-ledger-1",
    f"{A}-ledger-1\n", f"{A}-ledger-99999999999999999999", f"{A}-ledger-\u0661",
])  # fmt: skip
def test_keys_that_only_look_alike(key: str) -> None:
    bucket = FakeBucket()
    bucket.add(key)
    assert not list(PulsarBucket(bucket).attempts())


def test_two_attempts_with_the_same_bytes_are_one() -> None:
    bucket = FakeBucket()
    for uuid in (A, B):
        put_v1(bucket, uuid, 7, [b"one", b"two"])
    opened = PulsarBucket(bucket)
    with opened.open(7) as handle:
        assert [entry.payload for entry in handle.read(0, 1)] == [b"one", b"two"]
        assert (handle.last_add_confirmed, handle.length, handle.closed) == (1, 6, True)
    assert opened.notes == [f"ledger 7 is here 2 times with the same bytes: {A}, {B}"]


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


def test_two_topics_or_clusters_with_one_ledger_id() -> None:
    bucket = FakeBucket(keeps_metadata=True)
    put_v1(bucket, A, 7, [b"one"], pulsarclustername="east")
    put_v1(bucket, B, 7, [b"two"], TOPIC + "2", pulsarclustername="east")
    with pytest.raises(Conflict, match="--topic") as caught:
        PulsarBucket(bucket).open(7)
    assert caught.value.found == [TOPIC, TOPIC + "2"]
    assert PulsarBucket(bucket).open(7, topic="public/ns/persistent/T2").read(0, 0)[0].payload == b"two"
    put_v1(bucket, C, 7, [b"one"], pulsarclustername="west")
    with pytest.raises(Conflict, match="cluster") as caught:
        PulsarBucket(bucket).open(7, topic=TOPIC)
    assert caught.value.found == ["east", "west"]
    with pytest.raises(LedgerNotFound, match="pulsar ls"):
        PulsarBucket(bucket).open(7, topic="nowhere")


def test_segments_of_pip76_and_both_formats_together() -> None:
    bucket = FakeBucket(keeps_metadata=True)
    said = {1: 10, 2: 10}
    put_v2(bucket, B, [(1, 5), (1, 6), (2, 0), (2, 1)], entries=said, managedledgername="public/ns/persistent/T")
    put_v2(bucket, A, [(2, 2), (2, 3), (2, 9)], entries=said)
    opened = PulsarBucket(bucket)
    rows = [(row.topic, row.ledger, row.uuid, row.format, row.entries) for row in opened.ledgers(details=True)]
    assert rows == [(TOPIC, 1, B, "v2", 5), (TOPIC, 2, A, "v2", 8), (TOPIC, 2, B, "v2", 2)]
    assert [(row.ledger, row.uuid) for row in opened.ledgers()] == [(None, A), (None, B)]
    with opened.open(2) as handle:
        assert [entry.entry for entry in handle.iter_entries()] == [0, 1, 2, 3, 9]
        assert (handle.last_add_confirmed, handle.closed) == (9, True)
    assert not opened.open(1).closed
    put_v1(bucket, C, 2, [b"%d" % entry for entry in range(4)])
    with PulsarBucket(bucket).open(2) as handle:
        assert [entry.payload for entry in handle.iter_entries()] == [b"0", b"1", b"2", b"3", b"2:9"]


def test_map_files_are_named_and_not_opened() -> None:
    bucket = FakeBucket()
    for part in ("data", "index"):
        bucket.add(f"public/ns/persistent/T/12-{A}/{part}", b"SEQ")
    opened = PulsarBucket(bucket)
    assert list(opened.ledgers(topic=TOPIC)) == [(TOPIC, 12, A, "mapfile", None, 3)]
    with pytest.raises(Unsupported, match="MapFile"):
        opened.open(12)
    assert [finding.kind for finding in opened.verify()] == ["unsupported"]


def test_a_damaged_index_leaves_the_others_readable() -> None:
    bucket = FakeBucket()
    put_v1(bucket, A, 7, [b"one"])
    put_v1(bucket, B, 8, [b"two"])
    bucket.add(f"{A}-ledger-7-index", b"\0" * 40)
    opened = PulsarBucket(bucket)
    assert [(row.topic, row.ledger, row.entries) for row in opened.ledgers(details=True)] == [
        (None, 7, None),
        (TOPIC, 8, 1),
    ]
    assert [entry.payload for entry in opened.iter_entries(TOPIC)] == [b"two"]
    assert f"{A}-ledger-7-index" in opened.notes[0]
    with pytest.raises(Damaged):
        opened.open(7)


def test_names_of_topics() -> None:
    assert topic_name("public/ns/persistent/a%2Fb+c") == "persistent://public/ns/a/b c"
    assert topic_name("persistent://public/ns/a%2Fb") == "persistent://public/ns/a%2Fb"
    assert topic_name("t/cluster/ns/persistent/x") == "persistent://t/cluster/ns/x"
    assert topic_name("odd") == "odd"


def test_no_permission_is_one_line(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = FakeBucket()

    def refuse(prefix: str = "", *, after: str | None = None) -> Any:
        raise AccessDenied("fake://bucket: listing it is not permitted")

    monkeypatch.setattr(bucket, "list", refuse)
    monkeypatch.setattr("chunkstore.pulsar.bucket.open_bucket", lambda url: bucket)
    for verb in ("ls", "verify", "read"):
        err = call("pulsar", verb, "fake://bucket", code=1).err
        assert err == b"chunkstore: fake://bucket: listing it is not permitted\n"


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


def test_live_files_of_many_shapes(tmp_path: Path) -> None:
    info = {
        "ledgers": [
            {"ledgerId": 1, "isOffloaded": True, "offloadedContextUuid": A},
            {"ledgerId": 2, "isOffloaded": False},
        ]
    }
    stats = {"ledgers": [{"ledgerId": 1, "offloaded": True}, {"ledgerId": 2, "offloaded": False}]}
    shapes = (
        json.dumps(info) + "\n" + json.dumps(stats),
        json.dumps([stats, info]),
        json.dumps({"partitions": {TOPIC: info}}) + json.dumps({"partitions": {TOPIC: stats}}),
    )
    for number, text in enumerate(shapes):
        file = tmp_path / f"{number}=.json"
        file.write_text(text)
        live = read_live([f"public/ns/persistent/T={file}"])
        assert (live.uuids, live.complete) == ({1: A}, {1: True, 2: False})
        assert [(item.topic, item.ledgers) for item in live.documents] == [(TOPIC, {1: A, 2: None})]
        assert read_live([str(file)]).documents[0].topic == (TOPIC if number == 2 else None)
    # stats-internal loads the topic, which opens a ledger that an info-internal of before does not have.
    newer = {"ledgers": [*stats["ledgers"], {"ledgerId": 3, "offloaded": False}]}
    opened = {"ledgers": [{"ledgerId": 4, "entries": 0, "offloaded": False}]}
    other = tmp_path / "other.json"
    other.write_text(json.dumps([info, newer, opened]))
    assert read_live([str(other)]).ledgers == {1, 2}
    for rows in (
        [{"ledgerId": 3, "entries": 1, "offloaded": False}],
        [*stats["ledgers"], {"ledgerId": 3, "offloaded": True}],
    ):
        other.write_text(json.dumps([info, {"ledgers": rows}]))
        with pytest.raises(InvalidArgument, match="info-internal"):
            read_live([str(other)])
    other.write_text(json.dumps(info).replace(A, B))
    with pytest.raises(Conflict, match="one cluster"):
        read_live([str(tmp_path / "0=.json"), str(other)])
