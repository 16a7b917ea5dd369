"""The port to a bucket: what its kinds have in common.

Promises: keys are listed in the order of their bytes; an object appears whole or not at all; every call ends by its deadline;
foreign exceptions never leak. Leaves out: conditions and versions of objects.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import NamedTuple, Self

from chunkstore.checksum import BytesLike
from chunkstore.errors import InvalidArgument
from chunkstore.records.names import utf8_bytes

__all__ = ["Bucket", "ObjectHead", "ObjectInfo", "UnfinishedUpload", "check_key", "check_range"]


class ObjectInfo(NamedTuple):
    """What a listing says of an object: its key below the bucket's prefix, its length in bytes, when it was written (ms since 1970)."""

    key: str
    length: int
    modified_ms: int


class ObjectHead(NamedTuple):
    """One object: length in bytes, when it was written (ms since 1970), and its user metadata, names in lower case."""

    length: int
    modified_ms: int
    metadata: Mapping[str, str]


class UnfinishedUpload(NamedTuple):
    """A multipart upload that was begun and neither completed nor aborted: no listing of objects shows it."""

    key: str
    upload_id: str
    started_ms: int


def check_key(key: str, *, is_path: bool = False) -> None:
    """Raise ``InvalidArgument`` for what is not a relative path without NUL, ``.`` and ``..``; ``is_path``: without empty parts, too."""
    parts = key.split("/")
    refused = "\0" in key or utf8_bytes(key) < 0 or not parts[0] or (is_path and "" in parts)
    if refused or not {".", ".."}.isdisjoint(parts):
        text = f"{key!r} cannot be a key; a key is a relative path in UTF-8 without NUL and the parts '.' and '..'"
        raise InvalidArgument(text, argument="key")


def check_range(offset: int, length: int) -> None:
    """Raise ``InvalidArgument`` for negative numbers."""
    if offset < 0 or length < 0:
        raise InvalidArgument(f"{length} bytes from offset {offset} are not a valid range", argument="offset")


class Bucket(ABC):
    """Objects below one prefix. Thread-safe; a context manager.

    Every call raises ``AccessDenied``, ``StorageUnavailable`` (``RootUnavailable``: a folder that is missing), ``Unsupported`` (a
    symbolic link) and ``DeadlineExceeded``, and ``InvalidArgument`` for a key that cannot be one (``check_key``). Calls about one object
    raise ``ChunkNotFound`` where it is missing. Retry: always safe.
    """

    url: str
    """Where it is, without credentials: for messages."""
    keeps_metadata: bool
    """Whether objects have user metadata. If not, ``put`` with metadata is ``Unsupported``."""

    @abstractmethod
    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[ObjectInfo]:
        """All objects whose key begins with ``prefix``, ascending, those above ``after`` only; a request for a page of 1000."""

    @abstractmethod
    def head(self, key: str) -> ObjectHead:
        """Length, time and user metadata of an object."""

    @abstractmethod
    def read(self, key: str, offset: int, length: int) -> bytes:
        """These bytes of an object, in one request; fewer only where it ends, none beyond."""

    def put(self, key: str, data: BytesLike, metadata: Mapping[str, str] | None = None) -> None:
        """Write an object, in the place of one that is there. Durable when it returns."""
        self.put_parts(key, [data], metadata)

    @abstractmethod
    def put_parts(self, key: str, parts: Iterable[BytesLike], metadata: Mapping[str, str] | None = None) -> int:
        """Write an object from consecutive parts, of which one is in memory at a time; its length in bytes.

        With S3 it is one multipart upload: each part but the last has at least 5 MiB (else ``InvalidArgument``). It appears when
        all parts are there. An error, of ``parts`` too, aborts it. Durable when it returns.
        """

    @abstractmethod
    def delete(self, key: str) -> bool:
        """Delete an object; whether it was there. S3 does not tell: True."""

    def uploads(self, prefix: str = "") -> Iterator[UnfinishedUpload]:
        """Multipart uploads under way, and those that were never ended; none where the storage has no such thing."""
        return iter(())

    def abort_upload(self, key: str, upload_id: str) -> None:  # noqa: B027  (where there are no uploads)
        """Give up an unfinished upload, with its parts. Of one that is gone: nothing."""

    def close(self) -> None:  # noqa: B027  (where there are no connections)
        """Close connections. Safe to repeat."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
