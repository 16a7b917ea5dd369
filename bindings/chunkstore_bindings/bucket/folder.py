"""A bucket that is a folder: a key is a path below it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from chunkstore import runtime
from chunkstore.checksum import BytesLike
from chunkstore.errors import ChunkNotFound, InvalidArgument, StorageUnavailable, Unsupported
from chunkstore_bindings.bucket.port import Bucket, ObjectHead, ObjectInfo, UnfinishedUpload

__all__ = ["FolderBucket"]

_TEMPORARY = ".chunkstore-tmp-"


class FolderBucket(Bucket):
    """See ``Bucket``. ``url``: ``file:///PATH``."""

    keeps_metadata = False

    def __init__(self, url: str) -> None:
        self.url = url
        self._root = Path(unquote(urlsplit(url).path))

    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[ObjectInfo]:
        keys = sorted(
            str(path.relative_to(self._root))
            for path in self._root.rglob("*")
            if path.is_file() and not path.name.startswith(_TEMPORARY)
        )
        for key in keys:
            if key.startswith(prefix) and (after is None or key > after):
                info = (self._root / key).stat()
                yield ObjectInfo(key, info.st_size, runtime.label_ms(info.st_mtime_ns))

    def head(self, key: str) -> ObjectHead:
        try:
            info = self._path(key).stat()
        except FileNotFoundError as error:
            raise ChunkNotFound(key) from error
        return ObjectHead(info.st_size, runtime.label_ms(info.st_mtime_ns), {})

    def read(self, key: str, offset: int, length: int) -> bytes:
        try:
            with self._path(key).open("rb") as file:
                return os.pread(file.fileno(), length, offset)
        except FileNotFoundError as error:
            raise ChunkNotFound(key) from error
        except OSError as error:
            raise StorageUnavailable(f"{key}: {error.strerror}") from error

    def put(self, key: str, data: BytesLike, metadata: Mapping[str, str] | None = None) -> None:
        self.put_parts(key, [data], metadata)

    def put_parts(self, key: str, parts: Iterable[BytesLike], metadata: Mapping[str, str] | None = None) -> int:
        if metadata:
            raise Unsupported("files have no user metadata", feature="metadata")
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.parent / f"{_TEMPORARY}{runtime.token(8).hex()}"
        with temporary.open("wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
            length = file.tell()
        temporary.replace(path)
        return length

    def delete(self, key: str) -> bool:
        try:
            self._path(key).unlink()
        except FileNotFoundError:
            return False
        return True

    def uploads(self, prefix: str = "") -> Iterator[UnfinishedUpload]:
        return iter(())

    def abort_upload(self, key: str, upload_id: str) -> None:
        return

    def close(self) -> None:
        return

    def _path(self, key: str) -> Path:
        parts = key.split("/")
        if not key or key.startswith("/") or any(part in ("", ".", "..") for part in parts) or "\0" in key:
            raise InvalidArgument(f"{key!r} cannot be a key", argument="key")
        return self._root / key
