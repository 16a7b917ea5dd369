"""What every wrapper shares: a storage in front of another one that passes each call through one gate.

Promises: capabilities, URL and address are those of what is wrapped; arguments and answers are passed on untouched; wrappers may be
stacked in any order, and ``layers`` finds one of them again. What a binding raises that is not an error of chunkstore's own becomes
one, chained (``guarded``): bindings that are built on ``BaseChunkStorage`` translate at their own border and are left as they are,
also inside other wrappers; everything else gets one more wrapper.
Leaves out: what other wrappers do at their gate; ``AssertionError`` and ``MemoryError``, which say nothing about the storage.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from chunkstore.checksum import BytesLike
from chunkstore.errors import ChunkstoreError
from chunkstore.storage import (
    BaseChunkStorage,
    Capabilities,
    ChunkHandle,
    ChunkInfo,
    ChunkRange,
    ChunkStorage,
    Composed,
    ConcatArgument,
    ListPage,
    translated,
)

__all__ = [
    "OPERATIONS",
    "READING",
    "WRITING",
    "GuardedChunkStorage",
    "WrappingChunkStorage",
    "bytes_carried",
    "bytes_read",
    "guarded",
    "layers",
    "size_of",
]

T = TypeVar("T")

READING: Final = ("exists", "open_read", "open_write", "read", "list", "stat", "identity")
"""Calls that only look; ``read_uncached`` and ``read_into`` count as ``read``."""
WRITING: Final = (
    "create",
    "create_if_absent",
    "put",
    "write",
    "sync",
    "harden",
    "delete",
    "compose",
    "concat",
    "truncate",
    "set_read_only",
)
OPERATIONS: Final = READING + WRITING
"""The names under which calls are reported to a gate."""


def size_of(data: BytesLike | None) -> int:
    """Bytes in a buffer; 0 for None."""
    return 0 if data is None else memoryview(data).nbytes


def bytes_read(answer: object) -> int:
    """Bytes in what ``read`` or ``read_into`` returned."""
    if isinstance(answer, int):
        return answer
    if isinstance(answer, bytes):
        return len(answer)
    return sum(len(item) for item in answer) if isinstance(answer, list) else 0


def bytes_carried(answer: object) -> int:
    """Bytes that ``compose`` read and sent again."""
    return answer.carried_bytes if isinstance(answer, Composed) else 0


def layers(storage: ChunkStorage) -> Iterator[ChunkStorage]:
    """The storage, what it wraps, and so on down to the binding."""
    while True:
        yield storage
        if not isinstance(storage, WrappingChunkStorage):
            return
        storage = storage.inner


class WrappingChunkStorage(ChunkStorage):
    """Passes every call on, through ``around``. ``close`` closes what is wrapped, too."""

    def __init__(self, inner: ChunkStorage) -> None:
        self.inner = inner

    @abstractmethod
    def around(self, operation: str, names: Sequence[str], size_bytes: int, call: Callable[[], T]) -> T:
        """Perform ``call``. ``operation`` is one of ``OPERATIONS``; ``size_bytes`` is what is sent; bytes that come back
        are in the answer (bytes, a list of bytes, or the count that ``read_into`` returns). What ``compose`` carried, in and out
        again, is in its answer."""

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def address(self) -> str:
        return self.inner.address

    def free_bytes(self) -> int | None:
        return self.inner.free_bytes()  # past the gate: it is no request

    def exists(self, name: str) -> bool:
        return self.around("exists", (name,), 0, lambda: self.inner.exists(name))

    def create(self, name: str, data: BytesLike | None = None) -> ChunkHandle:
        return self.around("create", (name,), _sent(data), lambda: self.inner.create(name, data))

    def create_if_absent(self, name: str, data: BytesLike) -> bool:
        return self.around("create_if_absent", (name,), _sent(data), lambda: self.inner.create_if_absent(name, data))

    def put(self, name: str, data: BytesLike) -> None:
        self.around("put", (name,), _sent(data), lambda: self.inner.put(name, data))

    def open_read(self, name: str) -> ChunkHandle:
        return self.around("open_read", (name,), 0, lambda: self.inner.open_read(name))

    def open_write(self, name: str) -> ChunkHandle:
        return self.around("open_write", (name,), 0, lambda: self.inner.open_write(name))

    def read(self, handle: ChunkHandle, offset: int, length: int) -> bytes:
        return self.around("read", _names(handle), 0, lambda: self.inner.read(handle, offset, length))

    def read_uncached(self, handle: ChunkHandle, offset: int, length: int) -> bytes:
        return self.around("read", _names(handle), 0, lambda: self.inner.read_uncached(handle, offset, length))

    def read_into(self, handle: ChunkHandle, offset: int, buffer: bytearray | memoryview) -> int:
        return self.around("read", _names(handle), 0, lambda: self.inner.read_into(handle, offset, buffer))

    def write(self, handle: ChunkHandle, offset: int, data: BytesLike) -> int:
        return self.around("write", _names(handle), _sent(data), lambda: self.inner.write(handle, offset, data))

    def sync(self, names: Sequence[str]) -> None:
        self.around("sync", names, 0, lambda: self.inner.sync(names))

    def harden(self, name: str) -> None:
        self.around("harden", (name,), 0, lambda: self.inner.harden(name))

    def delete(self, name: str) -> None:
        self.around("delete", (name,), 0, lambda: self.inner.delete(name))

    def list(self, prefix: str = "", *, after: str | None = None, limit: int = 1000) -> ListPage:
        return self.around("list", (prefix,), 0, lambda: self.inner.list(prefix, after=after, limit=limit))

    def stat(self, name: str) -> ChunkInfo:
        return self.around("stat", (name,), 0, lambda: self.inner.stat(name))

    def identity(self, name: str) -> bytes:
        return self.around("identity", (name,), 0, lambda: self.inner.identity(name))

    def compose(self, name: str, ranges: Sequence[ChunkRange]) -> Composed:
        return self.around("compose", (name,), 0, lambda: self.inner.compose(name, ranges))

    def concat(self, arguments: Sequence[ConcatArgument]) -> int:
        names = tuple(item.name for item in arguments if isinstance(item, ConcatArgument))
        return self.around("concat", names, 0, lambda: self.inner.concat(arguments))

    def truncate(self, handle: ChunkHandle, length: int) -> None:
        self.around("truncate", _names(handle), 0, lambda: self.inner.truncate(handle, length))

    def set_read_only(self, handle: ChunkHandle, read_only: bool) -> None:
        self.around("set_read_only", _names(handle), 0, lambda: self.inner.set_read_only(handle, read_only))

    def close(self) -> None:
        self.inner.close()


def _sent(data: object) -> int:
    # What is no buffer is refused by what is wrapped, not here.
    return size_of(data) if isinstance(data, (bytes, bytearray, memoryview)) else 0


def _names(handle: object) -> tuple[str, ...]:
    return (handle.name,) if isinstance(handle, ChunkHandle) else ()


class GuardedChunkStorage(WrappingChunkStorage):
    """Translates foreign exceptions of every call into ``StorageUnavailable``."""

    def around(self, operation: str, names: Sequence[str], size_bytes: int, call: Callable[[], T]) -> T:
        try:
            return call()
        except (ChunkstoreError, AssertionError, MemoryError):
            raise
        except Exception as error:
            raise translated(error, operation, ", ".join(names)) from error


def guarded(storage: ChunkStorage) -> ChunkStorage:
    """``storage``, inside a guard unless it has one. Doing it twice is doing it once."""
    for layer in layers(storage):
        if isinstance(layer, (BaseChunkStorage, GuardedChunkStorage)):
            return storage
    return GuardedChunkStorage(storage)
