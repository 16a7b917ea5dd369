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

__all__ = ["Bucket", "ObjectHead", "ObjectInfo", "UnfinishedUpload"]


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


class Bucket(ABC):
    """Objects below one prefix. Thread-safe; a context manager.

    Every call raises ``AccessDenied``, ``StorageUnavailable`` and ``DeadlineExceeded``, and ``InvalidArgument`` for a key that
    cannot be one. Those about one object raise ``ChunkNotFound`` where it is missing. Retry: always safe.
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

    @abstractmethod
    def put(self, key: str, data: BytesLike, metadata: Mapping[str, str] | None = None) -> None:
        """Write an object, in the place of one that is there. Durable when it returns."""

    @abstractmethod
    def put_parts(self, key: str, parts: Iterable[BytesLike], metadata: Mapping[str, str] | None = None) -> int:
        """Write an object from consecutive parts, of which one is in memory at a time; its length in bytes.

        With S3 it is one multipart upload: each part but the last has at least 5 MiB (else ``InvalidArgument``). It appears when
        all parts are there. An error, of ``parts`` too, aborts it. Durable when it returns.
        """

    @abstractmethod
    def delete(self, key: str) -> bool:
        """Delete an object; whether it was there, as far as the storage tells."""

    @abstractmethod
    def uploads(self, prefix: str = "") -> Iterator[UnfinishedUpload]:
        """Multipart uploads under way, and those that were left behind; none where the storage has no such thing."""

    @abstractmethod
    def abort_upload(self, key: str, upload_id: str) -> None:
        """Give up an unfinished upload, with its parts. Of one that is gone: nothing."""

    @abstractmethod
    def close(self) -> None:
        """Close connections. Safe to repeat."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
