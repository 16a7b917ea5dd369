"""A bucket that is a folder, of this machine or of HDFS: a key is a path below it.

Promises: as the file storage and the HDFS storage that it is asked of: an object is written to a temporary, made durable and renamed over
what is there in one step; temporaries are in a hidden folder of the root, are never listed, and are removed after an error. No symbolic
link below the root is followed: listings leave it out, other calls raise ``Unsupported``.
Leaves out: user metadata; in HDFS, keys with ``:``, which it takes in no path.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from chunkstore.checksum import BytesLike
from chunkstore.errors import ChunkNotFound, InvalidArgument, RootUnavailable, Unsupported
from chunkstore.storage import ChunkHandle
from chunkstore_bindings.bucket.port import Bucket, ObjectHead, ObjectInfo, check_key, check_range
from chunkstore_bindings.filesystem import FilesystemChunkStorage
from chunkstore_bindings.filesystem.tree import TreeStorage

__all__ = ["FileBucket"]


class FileBucket(Bucket):
    """See ``Bucket``. Where the root is missing, ``put`` makes it; other calls raise ``RootUnavailable``. ``close`` closes the storage."""

    keeps_metadata = False

    def __init__(self, storage: TreeStorage) -> None:
        self._storage = storage
        self.url = storage.url

    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[ObjectInfo]:
        self._require_root(prefix)
        try:
            for info in self._storage.walk(prefix, after):
                yield ObjectInfo(info.name, info.length, info.modified_ms or 0)
        except Unsupported:
            return  # the prefix leads through a link

    def head(self, key: str) -> ObjectHead:
        with self._asked(key):
            found = self._storage.stat(key)
        return ObjectHead(found.length, found.modified_ms or 0, {})

    def read(self, key: str, offset: int, length: int) -> bytes:
        check_range(offset, length)
        with self._asked(key):
            if isinstance(self._storage, FilesystemChunkStorage):
                self._storage.open_read(key)  # another process may have replaced what is open here
            return self._storage.read(ChunkHandle(key, False), offset, length)

    def put_parts(self, key: str, parts: Iterable[BytesLike], metadata: Mapping[str, str] | None = None) -> int:
        if metadata:
            raise Unsupported("files have no user metadata; write to an s3:// bucket", feature="metadata")
        self._check(key)
        return self._storage.put_parts(key, parts)

    def delete(self, key: str) -> bool:
        try:
            with self._asked(key):
                self._storage.stat(key)  # what is no file is not removed
                self._storage.delete(key)
        except ChunkNotFound:
            return False
        return True

    def close(self) -> None:
        self._storage.close()

    def _check(self, key: str) -> None:
        check_key(key, is_path=True)
        if isinstance(self._storage, FilesystemChunkStorage):
            self._storage.exists(key)  # a link is refused
        elif ":" in key:
            raise InvalidArgument(f"{key!r} cannot be a key in HDFS: no ':'", argument="key")

    @contextmanager
    def _asked(self, key: str) -> Iterator[None]:
        self._check(key)
        try:
            yield
        except ChunkNotFound:
            self._require_root(key)
            raise

    def _require_root(self, key: str) -> None:
        if not self._storage.has_root():
            remedy = "correct the URL, or make the folder"
            raise RootUnavailable(self.url, "the folder does not exist", object=key, remedy=remedy)
