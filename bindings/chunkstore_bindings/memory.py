"""Chunks in a dictionary of this process: reference semantics for everything else, and fast.

Promises: every operation is atomic under one lock; ``memory://NAME`` names the same contents for every storage opened in
this process, until ``forget_memory`` (closing a storage keeps them). Nothing a caller passes in or gets back is shared
with the contents. Leaves out: durability (there is none; ``sync`` and ``harden`` only check that the chunk exists).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from chunkstore import runtime
from chunkstore.checksum import BytesLike
from chunkstore.errors import ChunkExists, ChunkNotFound, InvalidArgument
from chunkstore.storage import BaseChunkStorage, Capabilities, ChunkInfo, ChunkRange, Composed, ConcatArgument, ListPage

__all__ = ["MemoryChunkStorage", "forget_memory"]

_SCHEME = "memory://"


class _Chunk:
    __slots__ = ("data", "modified_ms", "read_only")

    def __init__(self, data: bytearray) -> None:
        self.data = data
        self.modified_ms = runtime.now_ms()
        self.read_only = False


class _Contents:
    """What one ``memory://NAME`` holds. ``names`` is the sorted list of names, or None when it has to be made again."""

    __slots__ = ("chunks", "lock", "names")

    def __init__(self) -> None:
        self.lock = runtime.lock()
        self.chunks: dict[str, _Chunk] = {}
        self.names: list[str] | None = None


_registry: dict[str, _Contents] = {}


def forget_memory(url: str) -> None:
    """Drop the contents of ``url``: the next open starts empty. Storages that are open keep what they have."""
    _registry.pop(url, None)


class MemoryChunkStorage(BaseChunkStorage):
    """A chunk storage in memory.

    Arguments:
      url: ``memory://NAME``; the same name shares the contents.
      append: False makes it behave like an object store: chunks come with their content and never grow.

    Raises: ``InvalidArgument`` for another kind of URL.
    """

    def __init__(self, url: str = "memory://default", *, append: bool = True) -> None:
        if not isinstance(url, str) or not url.startswith(_SCHEME) or len(url) == len(_SCHEME):
            raise InvalidArgument(f"write memory://NAME, not {url!r}", argument="url")
        self._url = url
        self._contents = _registry.setdefault(url, _Contents())
        self._chunks = self._contents.chunks
        self._lock = self._contents.lock
        self._capabilities = Capabilities(
            append=append,
            append_journal=append,
            create_if_absent=True,
            compose="storage",
            concat=True,
            truncate=True,
            set_read_only=True,
            sync_repeatable=True,
            medium="memory",
        )

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def url(self) -> str:
        return self._url

    def _find(self, name: str) -> _Chunk:
        chunk = self._chunks.get(name)
        if chunk is None:
            raise ChunkNotFound(name)
        return chunk

    def _find_writable(self, name: str) -> _Chunk:
        chunk = self._find(name)
        if chunk.read_only:
            raise InvalidArgument(
                f"chunk {name!r} is read-only; call set_read_only(handle, False) first", argument="handle"
            )
        return chunk

    def do_exists(self, name: str) -> bool:
        with self._lock:
            return name in self._chunks

    def do_create(self, name: str, data: BytesLike | None) -> None:
        if not self._insert(name, data if data is not None else b""):
            raise ChunkExists(name)

    def do_create_if_absent(self, name: str, data: BytesLike) -> bool:
        return self._insert(name, data)

    def _insert(self, name: str, data: BytesLike) -> bool:
        chunk = _Chunk(bytearray(data))
        with self._lock:
            if name in self._chunks:
                return False
            self._chunks[name] = chunk
            self._contents.names = None
            return True

    def do_put(self, name: str, data: BytesLike) -> None:
        chunk = _Chunk(bytearray(data))
        with self._lock:
            if name not in self._chunks:
                self._contents.names = None
            self._chunks[name] = chunk

    def do_open(self, name: str) -> bool:
        with self._lock:
            return not self._find(name).read_only

    def do_read(self, name: str, offset: int, length: int) -> bytes:
        # The copy is made under the lock: a bytearray cannot grow while a view of it exists.
        with self._lock, memoryview(self._find(name).data) as view:
            return bytes(view[offset : offset + length])

    def do_read_into(self, name: str, offset: int, buffer: bytearray | memoryview) -> int:
        with memoryview(buffer) as whole, whole.cast("B") as flat, self._lock:
            data = self._find(name).data
            count = max(0, min(len(flat), len(data) - offset))
            with memoryview(data) as view:
                flat[:count] = view[offset : offset + count]
        return count

    def do_write(self, name: str, offset: int, data: BytesLike) -> int:
        with self._lock:
            chunk = self._chunks.get(name)
            if chunk is None or chunk.read_only:
                chunk = self._find_writable(name)
            before = len(chunk.data)
            if before != offset:
                self.check_write_offset(name, expected=before, given=offset)
            chunk.data += data
            chunk.modified_ms = runtime.now_ms()
            return len(chunk.data) - before

    def do_sync(self, names: Sequence[str]) -> None:
        with self._lock:
            for name in names:
                if name not in self._chunks:
                    raise ChunkNotFound(name)

    def do_harden(self, name: str) -> None:
        with self._lock:
            self._find(name)

    def do_delete(self, name: str) -> None:
        with self._lock:
            self._find(name)
            del self._chunks[name]
            self._contents.names = None

    def do_list(self, prefix: str, after: str | None, limit: int) -> ListPage:
        with self._lock:
            names = self._contents.names
            if names is None:
                names = self._contents.names = sorted(self._chunks)
            start = bisect_left(names, prefix)
            if after is not None:
                start = max(start, bisect_right(names, after))
            items: list[ChunkInfo] = []
            for name in names[start : start + limit + 1]:
                if not name.startswith(prefix):
                    break
                if len(items) == limit:
                    return ListPage(tuple(items), items[-1].name)
                chunk = self._chunks[name]
                items.append(ChunkInfo(name, len(chunk.data), chunk.modified_ms))
            return ListPage(tuple(items), None)

    def do_stat(self, name: str) -> ChunkInfo:
        with self._lock:
            chunk = self._find(name)
            return ChunkInfo(name, len(chunk.data), chunk.modified_ms)

    def do_compose(self, name: str, ranges: Sequence[ChunkRange]) -> Composed:
        with self._lock:
            if name in self._chunks:
                raise ChunkExists(name)
            chunk = _Chunk(self._joined(ranges))
            self._chunks[name] = chunk
            self._contents.names = None
            return Composed(len(chunk.data), 0)

    def do_concat(self, arguments: Sequence[ConcatArgument]) -> int:
        with self._lock:
            joined = self._joined([ChunkRange(item.name, 0, item.length) for item in arguments])
            target = self._find_writable(arguments[0].name)
            target.data = joined
            target.modified_ms = runtime.now_ms()
            return len(joined)

    def _joined(self, ranges: Sequence[ChunkRange]) -> bytearray:
        joined = bytearray()
        for item in ranges:
            data = self._find(item.name).data
            self.check_covered(item, len(data))
            with memoryview(data) as view:
                joined += view[item.offset : item.offset + item.length]
        return joined

    def do_truncate(self, name: str, length: int) -> None:
        with self._lock:
            chunk = self._find_writable(name)
            if length > len(chunk.data):
                raise InvalidArgument(
                    f"chunk {name!r} has {len(chunk.data)} bytes; it cannot be cut to {length}", argument="length"
                )
            del chunk.data[length:]
            chunk.modified_ms = runtime.now_ms()

    def do_set_read_only(self, name: str, read_only: bool) -> None:
        with self._lock:
            self._find(name).read_only = read_only
