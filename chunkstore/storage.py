"""The chunk storage port: the small interface under everything (PDP-34's ``ChunkStorage``), and its common base.

Promises
* Names are relative paths of ``/``-separated parts (``names.check_object_name``); a name is never reused.
* A storage is linearizable per name for ``create_if_absent``, ``read``, ``delete``, ``stat``, ``exists``: later calls see the effect.
* Every operation is thread-safe; every foreign error arrives as ``StorageUnavailable``, chained.
* All operations share ``InvalidArgument`` (before any effect), ``Closed``, ``StorageUnavailable`` (may have happened), ``StorageFull``.

Leaves out: retries (a wrapper), checksums of contents (the engine keeps them in metadata), listing by anything but prefix.
A binding subclasses ``BaseChunkStorage``, which checks arguments, and writes ``do_*``. The rest stays ``Unsupported``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from chunkstore.checksum import BytesLike
from chunkstore.errors import ChunkExists, Closed, InvalidArgument, InvalidOffset, Unsupported
from chunkstore.records.arguments import check_data_buffer, check_number, check_range, check_ranges
from chunkstore.records.chunks import (
    COMPOSE_RANGES_MAX,
    OURS,
    Capabilities,
    ChunkHandle,
    ChunkInfo,
    ChunkRange,
    Composed,
    ConcatArgument,
    ListPage,
    LogAppender,
    translated,
    translating,
)
from chunkstore.records.names import check_object_name, check_object_text

__all__ = [
    "COMPOSE_RANGES_MAX",
    "BaseChunkStorage",
    "Capabilities",
    "ChunkHandle",
    "ChunkInfo",
    "ChunkRange",
    "ChunkStorage",
    "Composed",
    "ConcatArgument",
    "ListPage",
    "LogAppender",
    "iter_listing",
    "translated",
]


class ChunkStorage(ABC):
    """The port. See the module's text for what all operations share."""

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What this storage can do; constant for the object's life."""

    @property
    @abstractmethod
    def url(self) -> str:
        """The root as a URL, without credentials."""

    @property
    def address(self) -> str:
        """Where the root is, without credentials and tuning: by it a metadata cache tells a root from copies of it."""
        return self.url

    @abstractmethod
    def exists(self, name: str) -> bool:
        """Whether a chunk of this name exists, asked freshly (never from a cache)."""

    @abstractmethod
    def create(self, name: str, data: BytesLike | None = None) -> ChunkHandle:
        """Create a chunk exclusively, empty or with ``data``, and return a write handle.

        Raises: ``ChunkExists``. Durability: with ``data`` on a storage without ``append``, durable on return; else only after ``sync``.
        Atomicity: exclusive; the content is atomic only without ``append``. Retry: not safe (may meet its own first attempt).
        """

    @abstractmethod
    def create_if_absent(self, name: str, data: BytesLike) -> bool:
        """Create ``name`` with exactly ``data``, atomically and durably, unless it exists.

        Returns True if this call created it, False if the name was taken (compare contents to learn by which writer). Raises:
        ``Unsupported`` without the capability; ``StorageUnavailable`` when the outcome is unknown: it may still take effect later
        (protocol.md 2.3). Retry: safe with identical bytes, followed by comparing contents.
        """

    @abstractmethod
    def put(self, name: str, data: BytesLike) -> None:
        """Write ``name`` unconditionally, replacing what was there, atomically and durably. Only for hints. Retry: safe."""

    @abstractmethod
    def open_read(self, name: str) -> ChunkHandle:
        """A read handle. Raises: ``ChunkNotFound``."""

    @abstractmethod
    def open_write(self, name: str) -> ChunkHandle:
        """A write handle (read-only if the chunk is read-only). Raises: ``ChunkNotFound``."""

    @abstractmethod
    def read(self, handle: ChunkHandle, offset: int, length: int) -> bytes:
        """Up to ``length`` bytes from ``offset``; short only at the chunk's end, empty at or beyond it.

        Raises: ``ChunkNotFound``. Retry: safe.
        """

    @abstractmethod
    def read_uncached(self, handle: ChunkHandle, offset: int, length: int) -> bytes:
        """As ``read``, of what the storage itself holds, past any page cache of this machine.

        For what a good ``harden`` may not prove: pages that a sync of somebody else's has failed to write count as clean, and stay
        readable (protocol.md 2.3). Where the file system cannot: as ``read``, or nothing of a chunk for which a sync has failed here.
        """

    @abstractmethod
    def read_into(self, handle: ChunkHandle, offset: int, buffer: bytearray | memoryview) -> int:
        """Fill ``buffer`` (writable, contiguous, uint8 of shape (n,)) from ``offset``; returns the count, short only at the end."""

    @abstractmethod
    def write(self, handle: ChunkHandle, offset: int, data: BytesLike) -> int:
        """Append ``data`` at ``offset``, which must be the chunk's length. Returns ``len(data)``.

        Raises: ``ChunkNotFound``, ``InvalidOffset``, ``Unsupported`` (no ``append``), ``StorageFull``.
        Durability: only after ``sync``. Atomicity: none; after any error the chunk may be longer. The storage must not
        keep ``data``. Retry: not safe.
        """

    def log_appender(self, name: str, *, absent: str, present: str, identity: bytes) -> LogAppender:
        """What appends to ``name`` only, and looks at two names: is ``absent`` still absent, has ``present`` its ``identity``, if any?

        No one else writes to ``name`` any more. Until the appender is closed, zeros may follow what was written. Raises as ``open_write``.
        """
        return LogAppender(self, name, absent, present, identity)

    @abstractmethod
    def sync(self, names: Sequence[str]) -> None:
        """Make everything written to these chunks durable, their names included. No-op where writes are durable.

        Raises: ``StorageUnavailable`` when a sync failed: what was written since the last good sync is in doubt for ever.
        """

    @abstractmethod
    def harden(self, name: str) -> None:
        """Make durable what is *visible* under this name: content and directory entry (protocol.md P6).

        Raises: ``ChunkNotFound`` (object stores, where nothing is visible that is not durable, may succeed silently).
        """

    @abstractmethod
    def delete(self, name: str) -> None:
        """Delete a chunk. Raises: ``ChunkNotFound`` (object stores may succeed silently). Retry: safe."""

    @abstractmethod
    def list(self, prefix: str = "", *, after: str | None = None, limit: int = 1000) -> ListPage:
        """Chunks whose name begins with ``prefix``, in name order (code points), those above ``after`` only, ``limit`` at most."""

    @abstractmethod
    def stat(self, name: str) -> ChunkInfo:
        """Name and length, asked freshly. Raises: ``ChunkNotFound``."""

    @abstractmethod
    def identity(self, name: str) -> bytes:
        """What tells this very object from every other one that may carry its name, such as one in a copy of the tree.

        Asked freshly; stays while the object is not written. Empty where a name can only ever mean one object.
        Raises: ``ChunkNotFound``, also where the tree that was opened is known to lie elsewhere by now; ``StorageUnavailable``.
        """

    def free_bytes(self) -> int | None:
        """Free space where chunks are, asked freshly; None where that has no meaning, or would be a request."""
        return None

    @abstractmethod
    def compose(self, name: str, ranges: Sequence[ChunkRange]) -> Composed:
        """Create chunk ``name`` exclusively with the bytes of these ranges, one after the other; sources stay as they are.

        From 1 to ``COMPOSE_RANGES_MAX`` ranges; of one chunk several, overlapping ones too. The ranges must not change meanwhile:
        closed chunks, or what is below the length of one that grows. Returns the new chunk's length and how much of it this
        client carried.
        Raises: ``ChunkExists``; ``ChunkNotFound`` (a source); ``InvalidArgument`` (no range, too many, an empty one, one beyond
        its chunk's end, one of ``name`` itself); ``Unsupported`` without ``create_if_absent``; ``StorageFull``. Then nothing
        of the chunk is seen; after ``StorageUnavailable`` it may be there, whole, now or later.
        Atomicity: exclusive, and seen whole or not at all. (S3 servers that ignore a condition on completing an upload do not
        exclude who composes the same name at the same moment.) Durability: content and name, on return.
        Retry: not safe under this name, as it may meet its own first attempt; take a new one.
        """

    @abstractmethod
    def concat(self, arguments: Sequence[ConcatArgument]) -> int:
        """Join the first ``length`` bytes of each argument into the first one; returns its new length.

        Sources may or may not vanish. Raises: ``ChunkNotFound``, ``Unsupported``, ``InvalidArgument`` (fewer than two, a source
        equal to the target, two equal neighbours, a length beyond its chunk).
        """

    @abstractmethod
    def truncate(self, handle: ChunkHandle, length: int) -> None:
        """Cut the chunk to ``length`` bytes. Raises: ``ChunkNotFound``, ``Unsupported``, ``InvalidArgument``."""

    @abstractmethod
    def set_read_only(self, handle: ChunkHandle, read_only: bool) -> None:
        """Mark the chunk read-only or writable. Raises: ``ChunkNotFound``, ``Unsupported``."""

    @abstractmethod
    def close(self) -> None:
        """Release all resources; later calls raise ``Closed``. Safe to repeat."""


_Pieces: TypeAlias = list[bytes]  # ``list`` means the listing inside the classes


def iter_listing(storage: ChunkStorage, prefix: str = "", *, after: str | None = None) -> Iterator[ChunkInfo]:
    """All chunks whose name begins with ``prefix``, those above ``after`` only, in name order. Raises what ``list`` raises."""
    while True:
        page = storage.list(prefix, after=after)
        yield from page.items
        after = page.next_after
        if after is None:
            return


class BaseChunkStorage(ChunkStorage):
    """Argument checks around ``do_*`` methods, as PDP-34 names them. Bindings override ``do_*``, and ``log_appender`` at will."""

    _closed = False

    def __init_subclass__(cls, **named: object) -> None:
        super().__init_subclass__(**named)
        for name, method in list(vars(cls).items()):
            # Three are translated where they are called: every append has four of them, every read one.
            if name.startswith("do_") and name not in ("do_exists", "do_read", "do_write"):
                setattr(cls, name, translating(method))

    def _check(self, name: str) -> None:
        if self._closed:
            raise Closed("this chunk storage")
        if type(name) is not str:
            check_object_name(name)
        check_object_text(name)

    def _check_handle(self, handle: ChunkHandle, *, writable: bool = False) -> None:
        if self._closed:
            raise Closed("this chunk storage")
        if not isinstance(handle, ChunkHandle) or not isinstance(handle.name, str):
            raise InvalidArgument(f"a ChunkHandle is needed, not {handle!r:.100}", argument="handle")
        # A handle is plain data, which anybody may have made: "../x" would leave the root.
        check_object_text(handle.name)
        if writable and not handle.writable:
            raise InvalidArgument(f"the handle of {handle.name!r} is read-only; use open_write", argument="handle")

    def exists(self, name: str) -> bool:
        self._check(name)
        try:
            return self.do_exists(name)
        except OURS:
            raise
        except Exception as error:
            raise translated(error, "exists", name) from error

    def create(self, name: str, data: BytesLike | None = None) -> ChunkHandle:
        self._check(name)
        if data is not None:
            check_data_buffer(data, "data")
        elif not self.capabilities.append:
            raise Unsupported(f"{self.url} cannot append: an empty {name!r} would be useless", feature="append")
        self.do_create(name, data)
        return ChunkHandle(name, True)

    def create_if_absent(self, name: str, data: BytesLike) -> bool:
        self._check(name)
        check_data_buffer(data, "data")
        return self.do_create_if_absent(name, data)

    def put(self, name: str, data: BytesLike) -> None:
        self._check(name)
        check_data_buffer(data, "data")
        self.do_put(name, data)

    def open_read(self, name: str) -> ChunkHandle:
        self._check(name)
        self.do_open(name)
        return ChunkHandle(name, False)

    def open_write(self, name: str) -> ChunkHandle:
        self._check(name)
        return ChunkHandle(name, self.do_open(name))

    def read(self, handle: ChunkHandle, offset: int, length: int) -> bytes:
        self._check_handle(handle)
        check_range(offset, length)
        try:
            return self.do_read(handle.name, offset, length)
        except OURS:
            raise
        except Exception as error:
            raise translated(error, "read", handle.name) from error

    def read_uncached(self, handle: ChunkHandle, offset: int, length: int) -> bytes:
        self._check_handle(handle)
        check_range(offset, length)
        return self.do_read_uncached(handle.name, offset, length)

    def read_into(self, handle: ChunkHandle, offset: int, buffer: bytearray | memoryview) -> int:
        self._check_handle(handle)
        check_number(offset, "offset")
        check_data_buffer(buffer, "buffer")
        if isinstance(buffer, bytes) or (isinstance(buffer, memoryview) and buffer.readonly):
            raise InvalidArgument("buffer must be writable", argument="buffer")
        return self.do_read_into(handle.name, offset, buffer)

    def write(self, handle: ChunkHandle, offset: int, data: BytesLike) -> int:
        self._check_handle(handle, writable=True)
        if type(offset) is not int or offset < 0:
            check_number(offset, "offset")
        if type(data) is not bytes:
            check_data_buffer(data, "data")
        if not self.capabilities.append:
            raise Unsupported(
                f"{self.url} cannot append to {handle.name!r}; create it with its content", feature="append"
            )
        try:
            return self.do_write(handle.name, offset, data)
        except OURS:
            raise
        except Exception as error:
            raise translated(error, "write", handle.name) from error

    def sync(self, names: Sequence[str]) -> None:
        if self._closed:
            raise Closed("this chunk storage")
        for name in names:
            if type(name) is not str:
                check_object_name(name)
            check_object_text(name)
        self.do_sync(names)

    def harden(self, name: str) -> None:
        self._check(name)
        self.do_harden(name)

    def delete(self, name: str) -> None:
        self._check(name)
        self.do_delete(name)

    def list(self, prefix: str = "", *, after: str | None = None, limit: int = 1000) -> ListPage:
        if self._closed:
            raise Closed("this chunk storage")
        if not isinstance(prefix, str) or prefix.startswith("/") or ".." in prefix.split("/") or "\0" in prefix:
            raise InvalidArgument(f"prefix must be the beginning of a chunk name, not {prefix!r}", argument="prefix")
        if type(limit) is not int or not 1 <= limit <= 1_000_000:
            raise InvalidArgument(f"limit must be a whole number from 1 to 1000000, not {limit!r}", argument="limit")
        return self.do_list(prefix, after, limit)

    def stat(self, name: str) -> ChunkInfo:
        self._check(name)
        return self.do_stat(name)

    def identity(self, name: str) -> bytes:
        self._check(name)
        return self.do_identity(name)

    def compose(self, name: str, ranges: Sequence[ChunkRange]) -> Composed:
        self._check(name)
        if not self.capabilities.create_if_absent:
            raise Unsupported(f"{self.url} cannot compose {name!r}", feature="compose")
        check_ranges(name, ranges)
        return self.do_compose(name, ranges)

    def concat(self, arguments: Sequence[ConcatArgument]) -> int:
        if self._closed:
            raise Closed("this chunk storage")
        if not self.capabilities.concat:
            raise Unsupported(f"{self.url} cannot concat chunks", feature="concat")
        if len(arguments) < 2:
            raise InvalidArgument("concat needs a target and at least one source", argument="arguments")
        for position, item in enumerate(arguments):
            if not isinstance(item, ConcatArgument):
                raise InvalidArgument("concat takes ConcatArgument items", argument="arguments")
            self._check(item.name)
            check_number(item.length, "length")
            if position and (item.name == arguments[0].name or item.name == arguments[position - 1].name):
                raise InvalidArgument(f"chunk {item.name!r} is named twice in a concat", argument="arguments")
        return self.do_concat(arguments)

    def truncate(self, handle: ChunkHandle, length: int) -> None:
        self._check_handle(handle, writable=True)
        check_number(length, "length")
        if not self.capabilities.truncate:
            raise Unsupported(f"{self.url} cannot truncate {handle.name!r}", feature="truncate")
        self.do_truncate(handle.name, length)

    def set_read_only(self, handle: ChunkHandle, read_only: bool) -> None:
        self._check_handle(handle)
        if not self.capabilities.set_read_only:
            raise Unsupported(f"{self.url} cannot mark {handle.name!r} read-only", feature="set_read_only")
        self.do_set_read_only(handle.name, read_only)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.do_close()

    # What a binding provides. Names and arguments have been checked.
    @abstractmethod
    def do_exists(self, name: str) -> bool: ...
    @abstractmethod
    def do_create(self, name: str, data: BytesLike | None) -> None: ...
    @abstractmethod
    def do_create_if_absent(self, name: str, data: BytesLike) -> bool: ...
    @abstractmethod
    def do_put(self, name: str, data: BytesLike) -> None: ...
    @abstractmethod
    def do_open(self, name: str) -> bool:
        """Check that it exists (``ChunkNotFound``); returns whether it may be written."""

    @abstractmethod
    def do_read(self, name: str, offset: int, length: int) -> bytes: ...

    def do_read_uncached(self, name: str, offset: int, length: int) -> bytes:
        return self.do_read(name, offset, length)

    @abstractmethod
    def do_read_into(self, name: str, offset: int, buffer: bytearray | memoryview) -> int: ...

    @abstractmethod
    def do_write(self, name: str, offset: int, data: BytesLike) -> int: ...
    @abstractmethod
    def do_sync(self, names: Sequence[str]) -> None: ...
    @abstractmethod
    def do_harden(self, name: str) -> None: ...
    @abstractmethod
    def do_delete(self, name: str) -> None: ...
    @abstractmethod
    def do_list(self, prefix: str, after: str | None, limit: int) -> ListPage: ...
    @abstractmethod
    def do_stat(self, name: str) -> ChunkInfo: ...

    def do_identity(self, name: str) -> bytes:
        self.do_stat(name)
        return b""

    def do_compose(self, name: str, ranges: Sequence[ChunkRange]) -> Composed:
        """What any storage can do that creates atomically: the bytes are read into memory, and created from there."""
        if self.do_exists(name):
            raise ChunkExists(name)
        pieces: _Pieces = []
        for item in ranges:
            pieces.append(self.do_read(item.name, item.offset, item.length))
            self.check_covered(item, item.offset + len(pieces[-1]))
        data = b"".join(pieces)
        if not self.do_create_if_absent(name, data):
            raise ChunkExists(name)
        return Composed(len(data), len(data))

    def do_concat(self, arguments: Sequence[ConcatArgument]) -> int:
        raise Unsupported(f"{self.url} cannot concat chunks", feature="concat")

    def do_truncate(self, name: str, length: int) -> None:
        raise Unsupported(f"{self.url} cannot truncate chunks", feature="truncate")

    def do_set_read_only(self, name: str, read_only: bool) -> None:
        raise Unsupported(f"{self.url} cannot mark chunks read-only", feature="set_read_only")

    def do_close(self) -> None:
        return None

    @staticmethod
    def check_write_offset(name: str, *, expected: int, given: int) -> None:
        """Raise ``InvalidOffset`` unless a write begins at the chunk's length. For bindings."""
        if expected != given:
            raise InvalidOffset(name, expected=expected, given=given)

    @staticmethod
    def check_covered(item: ChunkRange, length: int) -> None:
        """Raise ``InvalidArgument`` unless a chunk of ``length`` bytes has all of this range. For bindings."""
        if item.offset + item.length > length:
            text = f"chunk {item.name!r} ends before byte {item.offset + item.length}"
            raise InvalidArgument(text, argument="ranges")
