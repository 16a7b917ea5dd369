"""A storage that keeps the lengths of chunks and forgets their bytes: very large segments at the price of their metadata.

Wraps another storage. Names with a ``d`` folder in them (``.../d/...``, where a container keeps its chunks) are counted
only; everything else (FORMAT, claims, journal, snapshots, hints) goes to the inner storage unchanged.

Promises: offsets, lengths, listing and errors of counted chunks are exact; their bytes read as zeros, always the same.
With ``assume_length`` a chunk that this object has not seen is taken to exist with that length, so that a segment
of a million chunks can be opened in another process although nothing was stored for it.

Leaves out: contents, so checksums of chunks will not match (do not scrub, and do not read whole chunks with
verification); lengths do not outlive this object except through ``assume_length``; an assumed chunk is not listed.
For benchmarks of containers with very many chunks.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import replace

from chunkstore import runtime
from chunkstore.checksum import BytesLike
from chunkstore.errors import ChunkExists, ChunkNotFound, InvalidArgument
from chunkstore.storage import (
    BaseChunkStorage,
    Capabilities,
    ChunkHandle,
    ChunkInfo,
    ChunkRange,
    ChunkStorage,
    Composed,
    ListPage,
)

__all__ = ["LengthOnlyChunkStorage"]

_DELETED = -1
_ZEROS = bytes(1 << 16)


class LengthOnlyChunkStorage(BaseChunkStorage):
    """Counts chunks in ``d`` folders, hands everything else to ``inner`` (which ``close`` closes too).

    Arguments:
      assume_length: length in bytes of counted chunks not made here; None: they do not exist.

    Raises: ``InvalidArgument`` unless ``assume_length`` is None or a whole number from 0 on.
    """

    def __init__(self, inner: ChunkStorage, *, assume_length: int | None = None) -> None:
        if assume_length is not None and (type(assume_length) is not int or assume_length < 0):
            raise InvalidArgument(
                f"assume_length must be None or a whole number from 0 on, not {assume_length!r}",
                argument="assume_length",
            )
        self._inner = inner
        self._assumed = assume_length
        self._lengths: dict[str, int] = {}
        self._names: list[str] | None = None
        self._lock = runtime.lock()
        self._capabilities = replace(inner.capabilities, concat=False, truncate=False, set_read_only=False)

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def url(self) -> str:
        return self._inner.url

    @property
    def address(self) -> str:
        return self._inner.address

    @staticmethod
    def counts(name: str) -> bool:
        """Whether chunks of this name are counted instead of stored."""
        return "/d/" in name or name.startswith("d/")

    def _known(self, name: str) -> int | None:
        length = self._lengths.get(name)
        if length is None:
            return self._assumed
        return None if length == _DELETED else length

    def _length(self, name: str) -> int:
        length = self._known(name)
        if length is None:
            raise ChunkNotFound(name)
        return length

    def _insert(self, name: str, length: int) -> bool:
        with self._lock:
            # An assumed chunk does not prevent its creation: the creator's knowledge wins.
            if self._lengths.get(name, _DELETED) != _DELETED:
                return False
            self._lengths[name] = length
            self._names = None
            return True

    def do_exists(self, name: str) -> bool:
        return self._known(name) is not None if self.counts(name) else self._inner.exists(name)

    def do_create(self, name: str, data: BytesLike | None) -> None:
        if not self.counts(name):
            self._inner.create(name, data)
        elif not self._insert(name, _size(data)):
            raise ChunkExists(name)

    def do_create_if_absent(self, name: str, data: BytesLike) -> bool:
        return self._insert(name, _size(data)) if self.counts(name) else self._inner.create_if_absent(name, data)

    def do_put(self, name: str, data: BytesLike) -> None:
        if not self.counts(name):
            self._inner.put(name, data)
            return
        with self._lock:
            self._lengths[name] = _size(data)
            self._names = None

    def do_open(self, name: str) -> bool:
        if not self.counts(name):
            return self._inner.open_write(name).writable
        self._length(name)
        return True

    def do_read(self, name: str, offset: int, length: int) -> bytes:
        if not self.counts(name):
            return self._inner.read(ChunkHandle(name, False), offset, length)
        return bytes(max(0, min(length, self._length(name) - offset)))

    def do_read_uncached(self, name: str, offset: int, length: int) -> bytes:
        if self.counts(name):
            return self.do_read(name, offset, length)
        return self._inner.read_uncached(ChunkHandle(name, False), offset, length)

    def do_read_into(self, name: str, offset: int, buffer: bytearray | memoryview) -> int:
        if not self.counts(name):
            return self._inner.read_into(ChunkHandle(name, False), offset, buffer)
        with memoryview(buffer) as whole, whole.cast("B") as flat:
            count = max(0, min(len(flat), self._length(name) - offset))
            for start in range(0, count, len(_ZEROS)):
                stop = min(count, start + len(_ZEROS))
                flat[start:stop] = _ZEROS[: stop - start]
            return count

    def do_write(self, name: str, offset: int, data: BytesLike) -> int:
        if not self.counts(name):
            return self._inner.write(ChunkHandle(name, True), offset, data)
        size = _size(data)
        with self._lock:
            length = self._length(name)
            self.check_write_offset(name, expected=length, given=offset)
            self._lengths[name] = length + size
            if self._names is not None and length == self._assumed:
                self._names = None
        return size

    def do_sync(self, names: Sequence[str]) -> None:
        stored = []
        for name in names:
            if self.counts(name):
                self._length(name)
            else:
                stored.append(name)
        if stored:
            self._inner.sync(stored)

    def do_harden(self, name: str) -> None:
        if self.counts(name):
            self._length(name)
        else:
            self._inner.harden(name)

    def do_delete(self, name: str) -> None:
        if not self.counts(name):
            self._inner.delete(name)
            return
        with self._lock:
            self._length(name)
            if self._assumed is None:
                del self._lengths[name]
            else:
                self._lengths[name] = _DELETED
            self._names = None

    def do_list(self, prefix: str, after: str | None, limit: int) -> ListPage:
        stored = self._inner.list(prefix, after=after, limit=limit)
        with self._lock:
            if self._names is None:
                self._names = sorted(name for name, length in self._lengths.items() if length != _DELETED)
            names = self._names
            start = bisect_left(names, prefix)
            if after is not None:
                start = max(start, bisect_right(names, after))
            counted = [
                ChunkInfo(name, self._lengths[name])
                for name in names[start : start + limit + 1]
                if name.startswith(prefix)
            ]
        items = sorted([*(item for item in stored.items if not self.counts(item.name)), *counted])
        # Beyond the last name of the inner page nothing is known of the inner storage yet.
        horizon = stored.next_after
        if horizon is not None:
            items = [item for item in items if item.name <= horizon]
        if len(items) > limit:
            items = items[:limit]
            return ListPage(tuple(items), items[-1].name)
        return ListPage(tuple(items), horizon)

    def do_stat(self, name: str) -> ChunkInfo:
        return ChunkInfo(name, self._length(name)) if self.counts(name) else self._inner.stat(name)

    def do_compose(self, name: str, ranges: Sequence[ChunkRange]) -> Composed:
        if not self.counts(name):
            return super().do_compose(name, ranges)
        for item in ranges:
            self.check_covered(item, self.do_stat(item.name).length)
        length = sum(item.length for item in ranges)
        if not self._insert(name, length):
            raise ChunkExists(name)
        return Composed(length, 0)

    def do_identity(self, name: str) -> bytes:
        return super().do_identity(name) if self.counts(name) else self._inner.identity(name)

    def do_close(self) -> None:
        self._inner.close()


def _size(data: BytesLike | None) -> int:
    return 0 if data is None else memoryview(data).nbytes
