"""``pulsar orphans`` and ``pulsar rm``: exactly what no broker refers to, and a forgotten file never costs a topic."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from chunkstore import runtime
from chunkstore.buckets import open_bucket
from chunkstore.errors import Conflict, InvalidArgument
from chunkstore.pulsar.bucket import PulsarBucket
from chunkstore.pulsar.live import LiveFiles, read_live
from chunkstore.pulsar.orphans import Orphan, find_orphans, read_rows, remove_orphans
from chunkstore_bindings.bucket.port import UnfinishedUpload
from tests.cli.conftest import Call
from tests.pulsar.support_bucket import (
    DAY_MS,
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
)  # fmt: skip
from tests.support.pulsar_broker import TOPICS
from tests.support.servers.s3server import S3Server

INDEXED = [topic for topic in TOPICS if topic.startswith("indexed")]
TXN = full("indexed/txn")


def live_of(topics: list[str]) -> LiveFiles:
    return read_live(live_files(topics))


def copy_pair(bucket: FakeBucket, topic: str, ledger: int, uuid: str, *, as_ledger: int | None = None) -> str:
    """Another attempt with the same objects; its key."""
    key, copied = key_of(topic, ledger), f"{uuid}-ledger-{ledger if as_ledger is None else as_ledger}"
    for end in ("", "-index"):
        bucket.objects[copied + end] = bucket.objects[key + end]
    return copied


def planted() -> FakeBucket:
    """A broker's bucket with an orphan of each kind, of the topic ``indexed/txn``."""
    bucket = broker_bucket(keeps_metadata=True)
    copy_pair(bucket, "indexed/txn", 38, A)
    del bucket.objects[copy_pair(bucket, "indexed/txn", 39, B) + "-index"]
    del bucket.objects[copy_pair(bucket, "indexed/txn", 42, C)]
    copy_pair(bucket, "indexed/txn", 42, A, as_ledger=41)
    bucket.pending.append(UnfinishedUpload(f"{B}-ledger-42", "u1", 0))
    return bucket


KINDS = {
    ("second-attempt", f"{A}-ledger-38-index"),
    ("second-attempt", f"{A}-ledger-38"),
    ("unlisted-ledger", f"{A}-ledger-41-index"),
    ("unlisted-ledger", f"{A}-ledger-41"),
    ("data-without-index", f"{B}-ledger-39"),
    ("index-without-data", f"{C}-ledger-42-index"),
    ("unfinished-upload", f"{B}-ledger-42"),
}


def found_in(bucket: FakeBucket, live: LiveFiles, older_than_s: float = 86_400) -> set[tuple[str, str]]:
    return {
        (orphan.kind, orphan.object) for orphan in find_orphans(PulsarBucket(bucket), live, older_than_s=older_than_s)
    }


def test_a_brokers_bucket_has_none() -> None:
    for keeps_metadata in (False, True):
        assert not found_in(broker_bucket(keeps_metadata=keeps_metadata), live_of(INDEXED))


def test_one_of_each_kind() -> None:
    orphans = find_orphans(PulsarBucket(planted()), live_of(INDEXED))
    assert {(orphan.kind, orphan.object) for orphan in orphans} == KINDS
    for orphan in orphans:
        data = planted().objects.get(orphan.object)
        expected = None if orphan.kind == "unfinished-upload" or data is None else len(data[0])
        assert (orphan.bytes, orphan.uuid) == (expected, orphan.object[:36])
        assert orphan.age_s == pytest.approx(runtime.now_ms() // 1000, abs=600)
    assert {orphan.topic for orphan in orphans if orphan.kind == "unlisted-ledger"} == {TXN}


def test_nothing_young_is_one() -> None:
    bucket = planted()
    young = runtime.now_ms() - DAY_MS // 2
    for key, (data, _, metadata) in list(bucket.objects.items()):
        bucket.objects[key] = (data, young, metadata)
    bucket.pending = [upload._replace(started_ms=young) for upload in bucket.pending]
    assert not found_in(bucket, live_of(INDEXED))
    assert found_in(bucket, live_of(INDEXED), DAY_MS / 4000) == KINDS
    data, _, metadata = bucket.objects[f"{A}-ledger-38"]
    bucket.objects[f"{A}-ledger-38"] = (data, runtime.now_ms(), metadata)
    assert found_in(bucket, live_of(INDEXED), 60) == {row for row in KINDS if "ledger-38" not in row[1]}


def write_live(path: Path, uuids: dict[int, str | None], complete: dict[int, bool]) -> LiveFiles:
    info = [
        {"ledgerId": ledger, "isOffloaded": uuid is not None} | ({"offloadedContextUuid": uuid} if uuid else {})
        for ledger, uuid in uuids.items()
    ]
    stats = [{"ledgerId": ledger, "offloaded": done} for ledger, done in complete.items()]
    path.write_text(json.dumps([{"ledgers": info}, {"ledgers": stats}]))
    return read_live([str(path)])


def test_what_may_be_in_use_is_none(tmp_path: Path) -> None:
    bucket = FakeBucket()
    put_v1(bucket, A, 7, [b"one"])
    put_v1(bucket, B, 8, [b"under way"])
    del bucket.objects[f"{B}-ledger-8-index"]
    bucket.pending.append(UnfinishedUpload(f"{B}-ledger-8", "u1", 0))
    file = tmp_path / "live.json"
    assert not found_in(bucket, write_live(file, {7: A, 8: B, 9: None}, {7: True, 8: False, 9: False}), 0)
    put_v1(bucket, C, 7, [b"one"])
    second = {("second-attempt", f"{C}-ledger-7"), ("second-attempt", f"{C}-ledger-7-index")}
    assert found_in(bucket, write_live(file, {7: A, 8: B, 9: None}, {7: True}), 0) == second
    # The named attempt is not known to be complete, or is not there: the other one may be all there is.
    assert not found_in(bucket, write_live(file, {7: A, 8: B, 9: None}, {7: False}), 0)
    assert not found_in(bucket, write_live(file, {7: B, 8: B, 9: None}, {7: True}), 0)
    data = bucket.objects[f"{A}-ledger-7"]
    bucket.add(f"{A}-ledger-7", data[0][:-1])
    assert not found_in(bucket, write_live(file, {7: A, 8: B, 9: None}, {7: True}), 0)
    bucket.objects[f"{A}-ledger-7"] = data
    put_v1(bucket, B, 6, [b"so that the topic is known"])
    assert not found_in(bucket, write_live(file, {6: B, 7: "d" + A[1:], 9: None}, {7: True}), 0)
    assert found_in(bucket, write_live(file, {6: B, 7: A, 9: None}, {7: True}), 0) == second
    assert not found_in(bucket, write_live(file, {7: None, 8: B, 9: None}, {}), 0)


def test_a_live_pair_of_another_cluster_is_never_removed(tmp_path: Path) -> None:
    bucket = FakeBucket(keeps_metadata=True)
    put_v1(bucket, A, 7, [b"one"], pulsarclustername="west")
    write_live(tmp_path / "1", {5: None, 9: None}, {})
    live = read_live([f"{TOPIC}={tmp_path / '1'}"])
    rows = find_orphans(PulsarBucket(bucket), live, older_than_s=0)
    with pytest.raises(InvalidArgument, match="--cluster"):  # nothing tells which cluster the file is of
        list(remove_orphans(PulsarBucket(bucket), live, rows))
    assert len(list(remove_orphans(PulsarBucket(bucket), live, rows, cluster="west", dry_run=True))) == 2
    assert not list(find_orphans(PulsarBucket(bucket), live, older_than_s=0, cluster="east"))
    put_v1(bucket, B, 5, [b"east's"], pulsarclustername="east")
    write_live(tmp_path / "1", {5: B, 9: None}, {5: True})
    live = read_live([f"{TOPIC}={tmp_path / '1'}"])
    assert not found_in(bucket, live, 0)
    with pytest.raises(InvalidArgument, match="east"):
        list(remove_orphans(PulsarBucket(bucket), live, rows, cluster="west"))
    assert len(bucket.objects) == 4


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """The planted bucket as a folder, without the upload, which a folder cannot have."""
    place = tmp_path / "bucket"
    place.mkdir()
    for key, (data, _, _) in planted().objects.items():
        (place / key).write_bytes(data)
    return place.as_uri()


def keys_in(folder: str) -> set[str]:
    return {path.name for path in Path(folder.removeprefix("file://")).iterdir()}


def test_rm_deletes_what_its_dry_run_says(call: Call, folder: str, tmp_path: Path) -> None:
    live = [word for file in live_files(INDEXED) for word in ("--live", file)]
    assert call("pulsar", "orphans", folder, *live, "--json").lines == []
    listed = call("pulsar", "orphans", folder, *live, "--older-than", "0", "--json")
    rows = listed.lines
    assert {(row["kind"], row["object"]) for row in rows} == {row for row in KINDS if row[0] != "unfinished-upload"}
    for row in rows:
        expected = ["kind", "object", "ledger", "uuid", "bytes", "age_s"]
        assert list(row) == expected + (["topic"] if row["kind"] == "unlisted-ledger" else [])
    more = live_files(INDEXED)
    people = call("pulsar", "orphans", folder, "--older-than", "0", "--live", *more).out.splitlines()
    assert [line.split(b"\t")[1].decode() for line in people] == [row["object"] for row in rows]
    file = tmp_path / "rows"
    file.write_bytes(listed.out)
    before = keys_in(folder)
    planned = call("pulsar", "rm", folder, "--from", file, *live, "--dry-run", "--json").lines
    assert keys_in(folder) == before
    assert call("pulsar", "rm", folder, "--from", file, *live, "--json").lines == [
        {**row, "age_s": pytest.approx(row["age_s"], abs=600)} for row in planned
    ]
    assert keys_in(folder) == before - {row["object"] for row in rows} == set(broker_bucket().objects)
    assert call("pulsar", "rm", folder, "--from", file, *live, "--json").lines == []


def test_over_s3_with_an_unfinished_upload(call: Call, moto: S3Server, tmp_path: Path) -> None:
    name = moto.make_bucket()
    url = moto.root(name, "tier")
    with open_bucket(url) as bucket:
        for key, (data, _, metadata) in broker_bucket(keeps_metadata=True).objects.items():
            if re.search("-ledger-(38|39|42)", key):
                bucket.put(key, data, metadata)
    moto.client.create_multipart_upload(Bucket=name, Key=f"tier/{B}-ledger-42")
    assert [line["topic"] for line in call("pulsar", "ls", url, "--details", "--json").lines] == [TXN] * 3
    assert call("pulsar", "verify", url, "--json").document == {"ok": True, "findings": []}
    assert len(call("pulsar", "read", url, "--messages", "--topic", TXN, "--json").lines) == 36
    live = ("--live", *live_files(["indexed/txn"]))
    listed = call("pulsar", "orphans", url, *live, "--older-than", "0", "--json")
    assert [(row["kind"], row["object"], row["bytes"]) for row in listed.lines] == [
        ("unfinished-upload", f"{B}-ledger-42", None)
    ]
    (tmp_path / "rows").write_bytes(listed.out)
    assert len(call("pulsar", "rm", url, *live, "--from", tmp_path / "rows", "--json").lines) == 1
    assert "Uploads" not in moto.client.list_multipart_uploads(Bucket=name)
    assert call("pulsar", "orphans", url, *live, "--older-than", "0", "--json").out == b""


def rows_of(bucket: FakeBucket, live: LiveFiles) -> list[Orphan]:
    """As they come out of a file."""
    rows = find_orphans(PulsarBucket(bucket), live)
    lines = [json.dumps({**row._asdict(), "upload_id": None}).encode() for row in rows]
    return read_rows(lines)


def removed(bucket: FakeBucket, live: LiveFiles, rows: list[Orphan], **options: Any) -> list[str]:
    return [row.object for row in remove_orphans(PulsarBucket(bucket), live, rows, **options)]


def test_indexes_go_first_and_uploads_are_aborted() -> None:
    bucket, live = planted(), live_of(INDEXED)
    rows = rows_of(bucket, live)
    assert len(removed(bucket, live, rows)) == len(KINDS)
    assert bucket.changes[-1] == f"{B}-ledger-42 u1"
    ends = [change.endswith("-index") for change in bucket.changes]
    assert ends == sorted(ends, reverse=True)
    assert bucket.objects == broker_bucket(keeps_metadata=True).objects
    assert not bucket.pending


def test_a_forgotten_file_costs_no_topic() -> None:
    bucket = planted()
    live = live_of([topic for topic in INDEXED if topic != "indexed/txn"])
    rows = rows_of(bucket, live)
    assert {row.object for row in rows} > {key_of("indexed/txn", 38), f"{A}-ledger-38"}
    unlisted = [row for row in rows if row.kind == "unlisted-ledger"]
    with pytest.raises(InvalidArgument, match="--gone-topic") as caught:
        removed(bucket, live, unlisted)
    assert TXN in caught.value.message
    with pytest.raises(InvalidArgument, match="--gone-topic"):
        removed(bucket, live, [row for row in rows if row.kind == "data-without-index"])
    assert not bucket.changes
    with pytest.raises(InvalidArgument, match="not gone"):
        removed(bucket, live, unlisted, gone_topics=[full("indexed/c-none")])
    assert len(removed(bucket, live, unlisted, gone_topics=["public/fx/persistent/txn"])) == len(unlisted)


def test_a_topic_that_is_not_known_is_refused() -> None:
    bucket, live = broker_bucket(), live_of(INDEXED)
    for number, uuid in ((38, A), (7777, B)):
        bucket.add(f"{uuid}-ledger-{number}", b"data of an attempt that died")
    dead, unknown = rows_of(bucket, live)
    with pytest.raises(InvalidArgument, match="topic is not known"):
        removed(bucket, live, [dead, unknown])
    assert not bucket.changes
    assert removed(bucket, live, [dead]) == [f"{A}-ledger-38"]


def test_a_bucket_that_changed_is_refused() -> None:
    live = live_of(INDEXED)
    rows = rows_of(planted(), live)

    def refuses(bucket: FakeBucket) -> None:
        with pytest.raises(Conflict, match="list the orphans again"):
            removed(bucket, live, rows)
        assert not bucket.changes

    bucket = planted()
    bucket.objects[f"{B}-ledger-39-index"] = bucket.objects[key_of("indexed/txn", 39) + "-index"]
    refuses(bucket)  # the attempt was completed
    for key in (f"{A}-ledger-41", f"{C}-ledger-42-index"):
        bucket = planted()
        data, at_ms, metadata = bucket.objects[key]
        bucket.objects[key] = (data + b"x", at_ms, metadata)
        refuses(bucket)
        bucket.objects[key] = (data, runtime.now_ms(), metadata)
        refuses(bucket)
    keys = [key for key in planted().objects if key.startswith(A)]
    assert all(key in {row.object for row in rows} for key in keys)
    bucket = planted()
    with pytest.raises(InvalidArgument, match="leave out its index"):
        removed(bucket, live, [row for row in rows if not row.object.endswith("41-index")])


def test_a_ledger_that_is_newer_than_the_files_is_refused(tmp_path: Path) -> None:
    bucket = FakeBucket()
    put_v1(bucket, A, 7, [b"one"])
    put_v1(bucket, C, 10, [b"new"])
    file = tmp_path / "live.json"
    live = write_live(file, {7: A, 9: None}, {7: True})
    rows = find_orphans(PulsarBucket(bucket), live)
    assert live.taken_ms == pytest.approx(runtime.now_ms(), abs=DAY_MS)
    old = replace(live, taken_ms=-1)
    with pytest.raises(InvalidArgument, match="create them again"):
        removed(bucket, old, rows)
    put_v1(bucket, C, 8, [b"not listed any more, and older than 9"])
    assert len(removed(bucket, old, find_orphans(PulsarBucket(bucket), old)[2:])) == 2
    assert len(removed(bucket, live, rows)) == 2


@pytest.mark.parametrize("line", [
    b"", b"{", b"[]", b"7", b'{"kind": "second-attempt"}', b"[" * 70_000, b'"' + b"x" * 70_000 + b'"', b"\xff",
    b'{"kind": "odd", "object": "a", "ledger": 1, "uuid": "b", "bytes": 1, "age_s": 1}',
    b'{"kind": "second-attempt", "object": 7, "ledger": 1, "uuid": "b", "bytes": 1, "age_s": 1}',
    b'{"kind": "second-attempt", "object": "a", "ledger": true, "uuid": "b", "bytes": 1, "age_s": 1}',
    b'{"kind": ["x"], "object": "a", "ledger": 1, "uuid": "b", "bytes": 1, "age_s": 1}',
])  # fmt: skip
def test_hostile_rows(line: bytes) -> None:
    with pytest.raises(InvalidArgument, match="line 1"):
        read_rows([line])


def test_a_row_names_nothing_that_is_no_orphan() -> None:
    bucket, live = planted(), live_of(INDEXED)
    key = key_of("indexed/txn", 38)
    for kind in ("second-attempt", "unlisted-ledger", "data-without-index"):
        row = Orphan(kind, key, 38, key[:36], len(bucket.objects[key][0]), 0, TXN)
        with pytest.raises(Conflict):
            removed(bucket, live, [row, row._replace(object=f"{key}-index")])
    assert not bucket.changes
