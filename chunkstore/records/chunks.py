"""Parts of the chunk storage port: plain data that its calls take and return, and what appends to a journal's log.

Promises: plain data has no resources and may be pickled. ``LogAppender`` makes the storage's own public calls, so whatever wraps a
storage sees each of them; a binding may make the same calls by descriptors that it holds.
Leaves out: what the calls mean (``storage``, under whose name all of this is imported).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Protocol

from chunkstore.checksum import BytesLike
from chunkstore.errors import ChunkstoreError, StorageFull, StorageUnavailable

__all__ = [
    "COMPOSE_RANGES_MAX",
    "Capabilities",
    "ChunkHandle",
    "ChunkInfo",
    "ChunkRange",
    "Composed",
    "ConcatArgument",
    "ListPage",
    "LogAppender",
]

COMPOSE_RANGES_MAX: Final = 10_000
"""Ranges in one ``compose``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a storage can do. Asked once, when a store is opened.

    Attributes:
      append: ``write`` may extend an existing chunk; ``sync`` makes it durable.
      append_journal: the journal may live in an appended file here, with write-then-check as its fence
        (protocol.md A13: local file systems on the allow-list, memory). Implies ``append``.
      create_if_absent: atomic, durable put-if-absent. Without it a storage can only be opened read-only.
      compose: who moves the bytes of ``compose``: "storage" (the server or the kernel, but for what its rules make the client
        carry), or "client" (everything is read and sent again).
      concat, truncate, set_read_only: the optional operations.
      fence_by_stat: ``exists`` is a sound fence check (false where a stat may be stale, as on NFS).
      sync_repeatable: a failed ``sync`` or ``harden`` may be asked again, because a server answers for what it has. Never
        true above a page cache: after a failed fsync the next one may be (protocol 2.3).
      remote: calls cross a network: they take milliseconds, and may hang. Then no caller works for others in its own thread.
      medium: for people: "ext4", "tmpfs", "memory", "s3", ...
    """

    append: bool
    append_journal: bool
    create_if_absent: bool
    compose: Literal["client", "storage"] = "client"
    concat: bool = False
    truncate: bool = False
    set_read_only: bool = False
    fence_by_stat: bool = True
    sync_repeatable: bool = False
    remote: bool = False
    medium: str = ""


class ChunkHandle(NamedTuple):
    """An opened chunk. Plain data, no resource: bindings keep real file handles in a bounded cache of their own."""

    name: str
    writable: bool


class ChunkInfo(NamedTuple):
    """``length`` in bytes; ``modified_ms`` where the storage knows it (never used for safety, but for 90 days: decision 0020)."""

    name: str
    length: int
    modified_ms: int | None = None


class ListPage(NamedTuple):
    """One page of a listing in name order; ``next_after`` continues it, ``None`` ends it."""

    items: tuple[ChunkInfo, ...]
    next_after: str | None


class ConcatArgument(NamedTuple):
    """The first ``length`` bytes of chunk ``name`` take part in a concat (PDP-34)."""

    name: str
    length: int


class ChunkRange(NamedTuple):
    """``[offset, offset + length)`` of chunk ``name``, for ``compose``; at least one byte."""

    name: str
    offset: int
    length: int


class Composed(NamedTuple):
    """What ``compose`` made: its ``length``, of which ``carried_bytes`` went through this client, in and out again; in bytes."""

    length: int
    carried_bytes: int


class _Storage(Protocol):
    """The calls of ``ChunkStorage`` that are made here."""

    def exists(self, name: str) -> bool: ...
    def identity(self, name: str) -> bytes: ...
    def write(self, handle: ChunkHandle, offset: int, data: BytesLike) -> int: ...
    def sync(self, names: Sequence[str]) -> None: ...


class LogAppender:
    """See ``ChunkStorage.log_appender``. Only one thread appends; another one may ``close``."""

    def __init__(self, storage: _Storage, name: str, absent: str, present: str, identity: bytes) -> None:
        self._storage = storage
        self._handle = ChunkHandle(name, True)
        self._absent = absent
        self._present = present
        self._identity = identity

    def write_durable(self, offset: int, data: bytes) -> None:
        """Write ``data`` at ``offset``, which must be the chunk's length, and sync it.

        Raises: ``StorageFull``, ``InvalidOffset``: the write was refused, and what there is of it is incomplete. Any other error: it
        may be there, durable or not. Retry: never, nor another call after an error.
        """
        self._storage.write(self._handle, offset, data)
        try:
            self._storage.sync((self._handle.name,))
        except StorageFull as error:
            raise StorageUnavailable(str(error), object=self._handle.name) from error

    def look(self) -> bool:
        """Whether ``absent`` does not exist and, seen after that, ``present`` is the object of ``identity``.

        False also where that cannot be learned: the storage's own calls tell why.
        """
        storage, identity = self._storage, self._identity
        try:
            return not storage.exists(self._absent) and (not identity or storage.identity(self._present) == identity)
        except ChunkstoreError:
            return False

    def close(self) -> None:
        """Give back what is set aside for further appends; there are none. What was written stays. Safe to repeat."""
