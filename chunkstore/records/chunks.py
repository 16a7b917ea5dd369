"""Parts of the chunk storage port (``chunkstore.storage``, which says what its calls mean).

* Plain data that calls take and return. It has no resources and may be pickled.
* ``LogAppender`` appends to a journal's log. It makes the storage's own public calls, so every wrapper sees them; a binding may make the
  same calls by descriptors that it holds.
* ``translated`` and ``translating``: foreign exceptions of a binding become errors of ours.
* ``filled`` and ``joined``: results of type ``bytes``, filled in place. ``filled`` needs the memory of its result, ``joined`` up to an
  eighth more; neither makes a second copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import wraps
from io import SEEK_END, BytesIO
from typing import Final, Literal, NamedTuple, Protocol

from chunkstore.checksum import BytesLike
from chunkstore.errors import ChunkstoreError, StorageFull, StorageUnavailable

__all__ = [
    "COMPOSE_RANGES_MAX",
    "OURS",
    "Capabilities",
    "ChunkHandle",
    "ChunkInfo",
    "ChunkRange",
    "Composed",
    "ConcatArgument",
    "ListPage",
    "LogAppender",
    "filled",
    "joined",
    "translated",
    "translating",
]

OURS: Final = (ChunkstoreError, AssertionError, MemoryError)
"""What passes a translation untouched."""

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


def translated(error: Exception, operation: str, name: str = "") -> StorageUnavailable:
    """A foreign exception of a binding as an error of ours; to be raised ``from`` it."""
    return StorageUnavailable(
        f"unexpected {type(error).__name__} in {operation}{' of ' + name if name else ''}: {error}", object=name
    )


def translating(method: Callable[..., object]) -> Callable[..., object]:
    """A ``do_*`` method whose foreign exceptions are ``translated``."""
    operation = method.__name__.removeprefix("do_")

    @wraps(method)
    def call(*arguments: object) -> object:
        try:
            return method(*arguments)
        except OURS:
            raise
        except Exception as error:
            name = arguments[1] if len(arguments) > 1 and isinstance(arguments[1], str) else ""
            raise translated(error, operation, name) from error

    return call


def filled(size_bytes: int, fill: Callable[[memoryview], int]) -> bytes:
    """``size_bytes`` bytes that ``fill`` writes; the first ones only where it returns a smaller count.

    A ``BytesIO`` keeps its content as ``bytes`` and hands that out itself, unless it has another size or somebody still holds a
    view of it (then a copy: what is returned never changes). ``bytes`` of a ``bytearray``, and ``join``, always copy.
    """
    room = BytesIO(bytes(size_bytes))
    with room.getbuffer() as view:
        count = fill(view)
        if count != size_bytes:
            return bytes(view[:count])
    return room.getvalue()


def joined(pieces: Iterable[bytes | bytearray | memoryview]) -> bytes:
    """The pieces as one, whose size is not known beforehand. Each is let go before the next one is asked for; one alone is not copied."""
    rest = iter(pieces)
    gathered = BytesIO(next(rest, b""))
    gathered.seek(0, SEEK_END)
    for piece in rest:
        gathered.write(piece)
    return gathered.getvalue()
