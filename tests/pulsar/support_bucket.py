"""Buckets of Pulsar's objects for tests: a fake one in memory, which keeps user metadata and counts requests, and a genuine broker's."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from chunkstore.checksum import BytesLike
from chunkstore.codec.pulsar.frames import Entry
from chunkstore.codec.pulsar.offload_metadata import TOPIC_KEY, LedgerInfo, encode_metadata
from chunkstore.codec.pulsar.pip76 import SegmentIndex, build_index, read_index
from chunkstore.errors import ChunkNotFound
from chunkstore_bindings.bucket.port import Bucket, ObjectHead, ObjectInfo, UnfinishedUpload
from tests.support.pip17 import METADATA, encode_ledger
from tests.support.pip76 import encode
from tests.support.pulsar_broker import FOLDER

__all__ = [
    "DAY_MS", "TOPIC", "A", "B", "C", "FakeBucket", "broker_bucket", "full", "key_of", "live_files", "put_v1", "put_v2", "url_of",
]  # fmt: skip

DAY_MS = 86_400_000
A, B, C = (f"{letter * 8}-0000-4000-8000-000000000000" for letter in "abc")
TOPIC = "persistent://public/ns/T"


class FakeBucket(Bucket):
    """``objects``: key -> (bytes, when it was written in ms, user metadata); ``calls`` counts requests, a LIST page for each thousand keys;
    ``changes`` has deletions in their order."""

    url = "fake://bucket"

    def __init__(self, *, keeps_metadata: bool = False) -> None:
        self.keeps_metadata = keeps_metadata
        self.objects: dict[str, tuple[bytes, int, dict[str, str]]] = {}
        self.pending: list[UnfinishedUpload] = []
        self.calls: Counter[str] = Counter()
        self.changes: list[str] = []

    def add(self, key: str, data: bytes = b"", at_ms: int = 0, metadata: Mapping[str, str] | None = None) -> None:
        self.objects[key] = (data, at_ms, dict(metadata or {}))

    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[ObjectInfo]:
        for number, key in enumerate(sorted(self.objects)):
            self.calls["list"] += number % 1000 == 0
            if key.startswith(prefix) and (after is None or key > after):
                yield ObjectInfo(key, len(self.objects[key][0]), self.objects[key][1])

    def head(self, key: str) -> ObjectHead:
        self.calls["head"] += 1
        data, at_ms, metadata = self._at(key)
        return ObjectHead(len(data), at_ms, metadata if self.keeps_metadata else {})

    def read(self, key: str, offset: int, length: int) -> bytes:
        self.calls["read"] += 1
        return self._at(key)[0][offset : offset + length]

    def put(self, key: str, data: BytesLike, metadata: Mapping[str, str] | None = None) -> None:
        self.add(key, bytes(data), 0, metadata)

    def put_parts(self, key: str, parts: Iterable[BytesLike], metadata: Mapping[str, str] | None = None) -> int:
        data = b"".join(parts)
        self.put(key, data, metadata)
        return len(data)

    def delete(self, key: str) -> bool:
        self.changes.append(key)
        return self.objects.pop(key, None) is not None

    def uploads(self, prefix: str = "") -> Iterator[UnfinishedUpload]:
        return iter([upload for upload in self.pending if upload.key.startswith(prefix)])

    def abort_upload(self, key: str, upload_id: str) -> None:
        self.changes.append(f"{key} {upload_id}")
        self.pending = [upload for upload in self.pending if upload.upload_id != upload_id]

    def close(self) -> None:
        return

    def _at(self, key: str) -> tuple[bytes, int, dict[str, str]]:
        if key not in self.objects:
            raise ChunkNotFound(key)
        return self.objects[key]


def broker_bucket(folder: str = "indexed", *, at_ms: int = 0, keeps_metadata: bool = False) -> FakeBucket:
    """All objects that the broker wrote in this folder of the fixtures, as if at one time."""
    bucket = FakeBucket(keeps_metadata=keeps_metadata)
    stored = json.loads((FOLDER / folder / "objects.json").read_text(encoding="utf-8"))
    for path in (FOLDER / folder / "objects").iterdir():
        bucket.add(path.name, path.read_bytes(), at_ms, stored[path.name]["user_metadata"])
    return bucket


def live_files(topics: Sequence[str]) -> list[str]:
    """What the broker said of these topics of the fixtures."""
    return [str(FOLDER / f"{topic}.{kind}-internal.json") for topic in topics for kind in ("info", "stats")]


def key_of(topic: str, ledger: int) -> str:
    """The key of the ledger's data object."""
    info = json.loads(Path(live_files([topic])[0]).read_text(encoding="utf-8"))
    [uuid] = [row["offloadedContextUuid"] for row in info["ledgers"] if row["ledgerId"] == ledger]
    return f"{uuid}-ledger-{ledger}"


def full(topic: str) -> str:
    return f"persistent://public/fx/{topic.partition('/')[2]}"


def url_of(folder: str) -> str:
    return (FOLDER / folder / "objects").as_uri()


def put_v1(
    bucket: FakeBucket, uuid: str, ledger: int, payloads: list[bytes], topic: str = TOPIC, **metadata: str
) -> None:
    stored = topic.replace("persistent://public/ns/", "public/ns/persistent/").encode()
    pair = encode_ledger(payloads, metadata=replace(METADATA, custom=((TOPIC_KEY, stored),)))
    bucket.add(f"{uuid}-ledger-{ledger}", pair.data, 0, metadata)
    bucket.add(f"{uuid}-ledger-{ledger}-index", pair.index_bytes, 0, metadata)


def put_v2(
    bucket: FakeBucket, uuid: str, rows: list[tuple[int, int]], *, entries: dict[int, int], **metadata: str
) -> None:
    """A segment with these (ledger, entry); ``entries``: how many each ledger says it has, closed."""
    made = encode([Entry(ledger, entry, b"%d:%d" % (ledger, entry)) for ledger, entry in rows])
    index = made.index
    groups = []
    for group in index.ledgers:
        info = LedgerInfo(ledger=group.ledger, entries=entries[group.ledger], timestamp_ms=1)
        groups.append(group._replace(info=info, metadata=encode_metadata(info)))
    raw = build_index(SegmentIndex(index.data_length, tuple(groups)))
    assert read_index(raw).data_length == len(made.data)
    bucket.add(uuid, made.data, 0, metadata)
    bucket.add(f"{uuid}-index", raw, 0, metadata)
