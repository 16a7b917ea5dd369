"""A storage in front of another one: every call passes one gate, where a test counts, waits or fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

from chunkstore.checksum import BytesLike
from chunkstore.storage import (
    Capabilities,
    ChunkHandle,
    ChunkInfo,
    ChunkRange,
    ChunkStorage,
    Composed,
    ConcatArgument,
    ListPage,
)

T = TypeVar("T")
Pieces: TypeAlias = list[bytes]
Hook = Callable[[str, tuple[str, ...]], None]
"""Called with the operation and the object names; may wait, or raise."""


def nothing(operation: str, names: tuple[str, ...]) -> None:
    """A hook that does nothing."""


class Forwarding(ChunkStorage):
    """Passes every call on. Override ``around`` (operation, object names, the call itself)."""

    def __init__(self, inner: ChunkStorage) -> None:
        self.inner = inner

    def around(self, operation: str, names: tuple[str, ...], call: Callable[[], T]) -> T:
        return call()

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
        return self.inner.free_bytes()

    def exists(self, name: str) -> bool:
        return self.around("exists", (name,), lambda: self.inner.exists(name))

    def create(self, name: str, data: BytesLike | None = None) -> ChunkHandle:
        return self.around("create", (name,), lambda: self.inner.create(name, data))

    def create_if_absent(self, name: str, data: BytesLike) -> bool:
        return self.around("create_if_absent", (name,), lambda: self.inner.create_if_absent(name, data))

    def put(self, name: str, data: BytesLike) -> None:
        self.around("put", (name,), lambda: self.inner.put(name, data))

    def open_read(self, name: str) -> ChunkHandle:
        return self.around("open_read", (name,), lambda: self.inner.open_read(name))

    def open_write(self, name: str) -> ChunkHandle:
        return self.around("open_write", (name,), lambda: self.inner.open_write(name))

    def read(self, handle: ChunkHandle, offset: int, length: int) -> bytes:
        return self.around("read", _names(handle), lambda: self.inner.read(handle, offset, length))

    def read_uncached(self, handle: ChunkHandle, offset: int, length: int) -> bytes:
        return self.around("read", _names(handle), lambda: self.inner.read_uncached(handle, offset, length))

    def read_into(self, handle: ChunkHandle, offset: int, buffer: bytearray | memoryview) -> int:
        return self.around("read", _names(handle), lambda: self.inner.read_into(handle, offset, buffer))

    def write(self, handle: ChunkHandle, offset: int, data: BytesLike) -> int:
        return self.around("write", _names(handle), lambda: self.inner.write(handle, offset, data))

    def sync(self, names: Sequence[str]) -> None:
        self.around("sync", tuple(names), lambda: self.inner.sync(names))

    def harden(self, name: str) -> None:
        self.around("harden", (name,), lambda: self.inner.harden(name))

    def delete(self, name: str) -> None:
        self.around("delete", (name,), lambda: self.inner.delete(name))

    def list(self, prefix: str = "", *, after: str | None = None, limit: int = 1000) -> ListPage:
        return self.around("list", (prefix,), lambda: self.inner.list(prefix, after=after, limit=limit))

    def stat(self, name: str) -> ChunkInfo:
        return self.around("stat", (name,), lambda: self.inner.stat(name))

    def identity(self, name: str) -> bytes:
        return self.around("identity", (name,), lambda: self.inner.identity(name))

    def compose(self, name: str, ranges: Sequence[ChunkRange]) -> Composed:
        return self.around("compose", (name,), lambda: self.inner.compose(name, ranges))

    def concat(self, arguments: Sequence[ConcatArgument]) -> int:
        return self.around(
            "concat",
            tuple(item.name for item in arguments if isinstance(item, ConcatArgument)),
            lambda: self.inner.concat(arguments),
        )

    def truncate(self, handle: ChunkHandle, length: int) -> None:
        self.around("truncate", _names(handle), lambda: self.inner.truncate(handle, length))

    def set_read_only(self, handle: ChunkHandle, read_only: bool) -> None:
        self.around("set_read_only", _names(handle), lambda: self.inner.set_read_only(handle, read_only))

    def close(self) -> None:
        self.inner.close()


class Hooked(Forwarding):
    """Calls ``before`` and ``after`` around every call."""

    def __init__(self, inner: ChunkStorage) -> None:
        super().__init__(inner)
        self.before: Hook = nothing
        self.after: Hook = nothing

    def around(self, operation: str, names: tuple[str, ...], call: Callable[[], T]) -> T:
        self.before(operation, names)
        result = call()
        self.after(operation, names)
        return result


def _names(handle: object) -> tuple[str, ...]:
    # What is no handle is refused by the storage, not here.
    return (handle.name,) if isinstance(handle, ChunkHandle) else ()
