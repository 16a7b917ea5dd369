"""Buckets of Pulsar's objects for tests: a fake one in memory, which may fail or end at any call, and a genuine broker's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import pytest

from chunkstore.checksum import BytesLike
from chunkstore.codec.pulsar.frames import Entry
from chunkstore.codec.pulsar.offload_metadata import TOPIC_KEY, LedgerInfo, encode_metadata
from chunkstore.codec.pulsar.pip76 import SegmentIndex, build_index, read_index
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import ChunkNotFound, OutcomeUnknown, StorageUnavailable
from chunkstore.operations.tables import Table
from chunkstore.pulsar import MemorySource
from chunkstore_bindings.bucket.port import Bucket, ObjectHead, ObjectInfo, UnfinishedUpload
from tests.support.pip17 import METADATA, encode_ledger
from tests.support.pip76 import encode
from tests.support.pulsar_broker import FOLDER

__all__ = [
    "DAY_MS", "TOPIC", "A", "B", "C", "Died", "FakeBucket", "Script", "broker_bucket", "full", "hooked", "key_of", "live_files", "put_v1",
    "put_v2", "url_of",
]  # fmt: skip

T = TypeVar("T")

DAY_MS = 86_400_000
A, B, C = (f"{letter * 8}-0000-4000-8000-000000000000" for letter in "abc")
TOPIC = "persistent://public/ns/T"


class Died(BaseException):
    """The process ended here."""


class Script:
    """Fails call number ``at``, ``before`` or after it is done: with an error, or (``dies``) for good."""

    def __init__(self, at: int = -1, *, before: bool = True, dies: bool = False) -> None:
        self.at, self.before, self.dies = at, before, dies
        self.calls: list[str] = []
        self.dead = False

    def run(self, name: str, call: Callable[[], T]) -> T:
        if self.dead:
            raise Died
        self.calls.append(name)
        hit = len(self.calls) - 1 == self.at
        if hit and self.before:
            self._fail(StorageUnavailable(name))
        result = call()
        if hit:
            self._fail(OutcomeUnknown(name))
        return result

    def _fail(self, error: Exception) -> None:
        self.dead = self.dies
        raise Died if self.dies else error


class FakeBucket(Bucket):
    """As S3: names of user metadata in lower case, unfinished uploads that no listing shows.

    ``objects``: key -> (bytes, when it was written in ms, user metadata); ``changes``: deletions in their order; every change goes by
    ``script``.
    """

    url = "s3://tier"

    def __init__(self, *, keeps_metadata: bool = False) -> None:
        self.keeps_metadata = keeps_metadata
        self.objects: dict[str, tuple[bytes, int, dict[str, str]]] = {}
        self.pending: list[UnfinishedUpload] = []
        self.changes: list[str] = []
        self.script = Script()
        self._uploads = count()

    def add(self, key: str, data: bytes = b"", at_ms: int = 0, metadata: Mapping[str, str] | None = None) -> None:
        self.objects[key] = (data, at_ms, {name.lower(): value for name, value in (metadata or {}).items()})

    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[ObjectInfo]:
        for key in sorted(self.objects):
            if key.startswith(prefix) and (after is None or key > after):
                yield ObjectInfo(key, len(self.objects[key][0]), self.objects[key][1])

    def head(self, key: str) -> ObjectHead:
        data, at_ms, metadata = self._at(key)
        return ObjectHead(len(data), at_ms, metadata if self.keeps_metadata else {})

    def read(self, key: str, offset: int, length: int) -> bytes:
        return self._at(key)[0][offset : offset + length]

    def put(self, key: str, data: BytesLike, metadata: Mapping[str, str] | None = None) -> None:
        self.script.run(f"put {key[-5:]}", lambda: self.add(key, bytes(data), 0, metadata))

    def put_parts(self, key: str, parts: Iterable[BytesLike], metadata: Mapping[str, str] | None = None) -> int:
        upload = UnfinishedUpload(key, f"upload-{next(self._uploads)}", 0)
        self.script.run("begin upload", lambda: self.pending.append(upload))
        data = b""
        try:
            for part in parts:
                data += self.script.run("part", partial(bytes, part))
            self.script.run("complete upload", lambda: self._complete(upload, data, metadata))
        except Exception:
            self.pending = [item for item in self.pending if item != upload]
            raise
        return len(data)

    def delete(self, key: str) -> bool:
        self.changes.append(key)
        return self.script.run(f"delete {key[-5:]}", lambda: self.objects.pop(key, None)) is not None

    def uploads(self, prefix: str = "") -> Iterator[UnfinishedUpload]:
        return iter([upload for upload in self.pending if upload.key.startswith(prefix)])

    def abort_upload(self, key: str, upload_id: str) -> None:
        self.changes.append(f"{key} {upload_id}")
        left = [upload for upload in self.pending if upload.upload_id != upload_id]
        self.script.run("abort", lambda: setattr(self, "pending", left))

    def close(self) -> None:
        return

    def _at(self, key: str) -> tuple[bytes, int, dict[str, str]]:
        if key not in self.objects:
            raise ChunkNotFound(key)
        return self.objects[key]

    def _complete(self, upload: UnfinishedUpload, data: bytes, metadata: Mapping[str, str] | None) -> None:
        self.pending.remove(upload)
        self.add(upload.key, data, 0, metadata)


@contextmanager
def hooked(script: Script, bucket: FakeBucket) -> Iterator[None]:
    """Every change of a container's tables and segments, of the bucket and of a source in memory goes by ``script``."""

    def hook(kind: type, name: str) -> None:
        original = getattr(kind, name)

        def call(self: Any, *arguments: Any, **more: Any) -> Any:
            return script.run(f"{kind.__name__}.{name}", lambda: original(self, *arguments, **more))

        patch.setattr(kind, name, call)

    with pytest.MonkeyPatch.context() as patch:
        for kind, names in (
            (Table, ("put", "delete")),
            (ChunkedSegmentStorage, ("commit", "append_many")),
            (MemorySource, ("delete",)),
        ):
            for name in names:
                hook(kind, name)
        patch.setattr(bucket, "script", script)
        yield


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
