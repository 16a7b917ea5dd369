"""A bucket in memory, and scripts that let a store, a bucket and a source fail or end at any one of their calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import pytest

from chunkstore.checksum import BytesLike
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import ChunkNotFound, OutcomeUnknown, StorageUnavailable
from chunkstore.operations.tables import Table
from chunkstore.pulsar import MemorySource
from chunkstore_bindings.bucket.port import Bucket, ObjectHead, ObjectInfo, UnfinishedUpload

__all__ = ["Died", "MemoryBucket", "Script", "hooked"]

T = TypeVar("T")


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


class MemoryBucket(Bucket):
    """As S3: names of user metadata in lower case, unfinished uploads that no listing shows."""

    url = "s3://tier"

    def __init__(self, *, keeps_metadata: bool = True) -> None:
        self.keeps_metadata = keeps_metadata
        self.objects: dict[str, tuple[bytes, dict[str, str]]] = {}
        self.unfinished: dict[str, str] = {}
        self.parts: list[int] = []
        self.script = Script()

    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[ObjectInfo]:
        for key in sorted(self.objects):
            if key.startswith(prefix) and (after is None or key > after):
                yield ObjectInfo(key, len(self.objects[key][0]), 0)

    def head(self, key: str) -> ObjectHead:
        data, metadata = self._get(key)
        return ObjectHead(len(data), 0, metadata)

    def read(self, key: str, offset: int, length: int) -> bytes:
        return self._get(key)[0][offset : offset + length]

    def put(self, key: str, data: BytesLike, metadata: Mapping[str, str] | None = None) -> None:
        self.script.run(f"put {key[-5:]}", lambda: self._set(key, bytes(data), metadata))

    def put_parts(self, key: str, parts: Iterable[BytesLike], metadata: Mapping[str, str] | None = None) -> int:
        upload = f"upload-{len(self.parts)}-{len(self.unfinished)}"
        self.script.run("begin upload", lambda: self.unfinished.update({upload: key}))
        data = b""
        try:
            for part in parts:
                self.parts.append(len(part))
                data += self.script.run("part", partial(bytes, part))
            self.script.run("complete upload", lambda: self._complete(upload, data, metadata))
        except Exception:
            self.unfinished.pop(upload, None)
            raise
        return len(data)

    def delete(self, key: str) -> bool:
        return self.script.run(f"delete {key[-5:]}", lambda: self.objects.pop(key, None)) is not None

    def uploads(self, prefix: str = "") -> Iterator[UnfinishedUpload]:
        found = [UnfinishedUpload(key, name, 0) for name, key in self.unfinished.items() if key.startswith(prefix)]
        return iter(found)

    def abort_upload(self, key: str, upload_id: str) -> None:
        self.script.run("abort", lambda: self.unfinished.pop(upload_id, None))

    def close(self) -> None:
        return

    def _get(self, key: str) -> tuple[bytes, dict[str, str]]:
        if key not in self.objects:
            raise ChunkNotFound(key)
        return self.objects[key]

    def _set(self, key: str, data: bytes, metadata: Mapping[str, str] | None) -> None:
        self.objects[key] = data, {name.lower(): value for name, value in (metadata or {}).items()}

    def _complete(self, upload: str, data: bytes, metadata: Mapping[str, str] | None) -> None:
        self._set(self.unfinished.pop(upload), data, metadata)


@contextmanager
def hooked(script: Script, bucket: MemoryBucket) -> Iterator[None]:
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
