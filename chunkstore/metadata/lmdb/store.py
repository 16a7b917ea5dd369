"""The store and its views on an LMDB environment: rows and index entries as they are, and one row for the head.

Promises: the port's. A commit costs its row puts and one more; it is applied in one write transaction, conditional on the
head read inside it.
Leaves out: opening and trust (``cache``), errors of LMDB (``environment``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from struct import Struct
from typing import TypeVar

import lmdb

from chunkstore.config import MIB
from chunkstore.errors import ChunkstoreError, Closed, Damaged, StorageUnavailable, Unsupported
from chunkstore.metadata.cachedir import translate_os
from chunkstore.metadata.fold import fold, may_follow
from chunkstore.metadata.index import count_chunks, locate
from chunkstore.metadata.lmdb.environment import Environment, release, translate
from chunkstore.metadata.port import Commit, Head, MetadataStore, MetadataView, Position

__all__ = ["HEAD_KEY", "LmdbMetadataStore", "LmdbMetadataView", "pack_head"]

T = TypeVar("T")

HEAD_KEY = b"\0head"
_FIRST_ROW = b"\x01"  # every key of a row or index entry is above it, the store's own below
_HEAD = Struct(">B16sQ16sQQQ32s")
_HEAD_VERSION = 2
_LOAD_PAIRS = 32_768
_LOAD_BYTES = 8 * MIB


def pack_head(container_uuid: bytes, head: Head) -> bytes:
    """The head row's value (FORMAT.md of the metadata folder)."""
    lsn, record_hash, epoch, index, end = head.position
    return _HEAD.pack(
        _HEAD_VERSION, container_uuid, lsn, record_hash, epoch, index, end, head.digest.to_bytes(32, "big")
    )


def _read_head(txn: lmdb.Transaction[bytes], container_uuid: bytes) -> Head:
    raw = txn.get(HEAD_KEY)
    if raw is None or len(raw) != _HEAD.size or raw[0] != _HEAD_VERSION or raw[1:17] != container_uuid:
        raise StorageUnavailable("the metadata cache is not of this container or version; delete it", object="head")
    _, _, lsn, record_hash, epoch, index, end, digest = _HEAD.unpack(raw)
    return Head(Position(lsn, record_hash, epoch, index, end), int.from_bytes(digest, "big"))


def _floor(cursor: lmdb.Cursor[bytes], key: bytes) -> tuple[bytes, bytes] | None:
    if cursor.set_range(key):
        if cursor.key() == key:
            return cursor.item()
        return cursor.item() if cursor.prev() else None
    return cursor.item() if cursor.last() else None


def _scan(txn: lmdb.Transaction[bytes], start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
    cursor = txn.cursor()
    if cursor.set_range(max(start, _FIRST_ROW)):
        for item in cursor.iternext():
            if item[0] >= stop:
                return
            yield item


class _WriteTransaction:
    """LMDB's transaction as the index and the fold want it."""

    __slots__ = ("_cursor", "_txn", "delete", "get", "put")

    def __init__(self, txn: lmdb.Transaction[bytes]) -> None:
        self._txn = txn
        self._cursor: lmdb.Cursor[bytes] | None = None
        self.get: Callable[[bytes], bytes | None] = txn.get
        self.put: Callable[[bytes, bytes], bool] = txn.put
        self.delete: Callable[[bytes], bool] = txn.delete

    def floor(self, key: bytes) -> tuple[bytes, bytes] | None:
        if self._cursor is None:
            self._cursor = self._txn.cursor()
        return _floor(self._cursor, key)

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        return _scan(self._txn, start, stop)


class LmdbMetadataView(MetadataView):
    """One read transaction; opened as ``_OpenView``."""

    __slots__ = ("_cursor", "_environment", "_head", "_txn", "_uuid")

    def __init__(self, environment: Environment, container_uuid: bytes) -> None:
        self._environment = environment
        self._txn: lmdb.Transaction[bytes] | None = None
        self._txn = environment.begin_read(id(self))
        self._uuid = container_uuid
        self._cursor: lmdb.Cursor[bytes] | None = None
        self._head: Head | None = None

    def _error(self, error: Exception) -> ChunkstoreError:
        if self._txn is None:
            return Closed("this metadata view")
        self._environment.check()
        assert isinstance(error, lmdb.Error)
        return translate(error, self._environment.path)

    @property
    def head(self) -> Head:
        if self._head is None:
            try:
                self._head = _read_head(self._txn, self._uuid)  # type: ignore[arg-type]
            except (AttributeError, lmdb.Error) as error:
                raise self._error(error) from error
        return self._head

    def get(self, key: bytes) -> bytes | None:
        try:
            return self._txn.get(key)  # type: ignore[union-attr]
        except (AttributeError, lmdb.Error) as error:
            raise self._error(error) from error

    def scan(self, start: bytes, stop: bytes) -> Iterator[tuple[bytes, bytes]]:
        try:
            yield from _scan(self._txn, start, stop)  # type: ignore[arg-type]
        except (AttributeError, lmdb.Error) as error:
            raise self._error(error) from error

    def _find(self, key: bytes) -> tuple[bytes, bytes] | None:
        if self._cursor is None:
            self._cursor = self._txn.cursor()  # type: ignore[union-attr]
        return _floor(self._cursor, key)

    def locate(self, segment_id: int, offset: int) -> tuple[bytes, int] | None:
        try:
            return locate(self._find, segment_id, offset)
        except (AttributeError, lmdb.Error) as error:
            raise self._error(error) from error

    def count_chunks(self, segment_id: int, start: int, stop: int) -> int:
        try:
            return count_chunks(self.scan, self._find, segment_id, start, stop)
        except (AttributeError, lmdb.Error) as error:
            raise self._error(error) from error

    def close(self) -> None:
        txn = self._txn
        if txn is not None:
            self._txn = self._cursor = None
            if not self._environment.inherited:
                txn.abort()
                self._environment.views.discard(id(self))
        self.__class__ = LmdbMetadataView


class _OpenView(LmdbMetadataView):
    """A view that is not closed yet. Only it has a finalizer, because Python drops an interrupt that it raises inside one."""

    __slots__ = ()

    def __del__(self) -> None:
        # Interrupted at its first step, it has nothing to close.
        if hasattr(self, "_txn"):
            self.close()


class LmdbMetadataStore(MetadataStore):
    """See the module's text. Made by ``LmdbMetadataCache`` and ``open_reader``."""

    def __init__(self, environment: Environment, container_uuid: bytes, *, writes: bool, deadline_s: float) -> None:
        self._environment = environment
        self._uuid = container_uuid
        self._writes = writes
        self._deadline_s = deadline_s
        self._open = True
        self._last_head: tuple[bytes, Head | None] = (b"", None)

    @property
    def environment(self) -> Environment:
        """What it is a handle on; other handles may share it."""
        return self._environment

    @property
    def path(self) -> str:
        """The store's directory."""
        return self._environment.path

    def _check(self) -> Environment:
        if not self._open:
            raise Closed("this metadata store")
        return self._environment

    def _write(self, body: Callable[[lmdb.Transaction[bytes]], T]) -> T:
        if not self._open or not self._writes:
            self._check()
            raise Unsupported(
                "this metadata store was opened by open_reader; only its owner changes it", feature="write"
            )
        return self._environment.write(body, self._deadline_s)

    def head(self) -> Head:
        with _OpenView(self._check(), self._uuid) as view:
            return view.head

    def view(self) -> MetadataView:
        return _OpenView(self._check(), self._uuid)

    def get(self, key: bytes) -> bytes | None:
        with _OpenView(self._check(), self._uuid) as view:
            return view.get(key)

    def apply(self, commits: Sequence[Commit], *, verify: bool) -> bool:
        def body(txn: lmdb.Transaction[bytes]) -> bool:
            # The head is nearly always what this process wrote last: comparing bytes is cheaper than decoding them.
            raw, head = self._last_head
            if head is None or txn.get(HEAD_KEY) != raw:
                head = _read_head(txn, self._uuid)
            if not may_follow(head, commits):
                return False
            head = fold(_WriteTransaction(txn), head, commits, verify=verify)
            raw = pack_head(self._uuid, head)
            txn.put(HEAD_KEY, raw)
            self._last_head = raw, head
            return True

        return self._write(body) if commits else True

    def jump(self, position: Position, digest: int) -> bool:
        def body(txn: lmdb.Transaction[bytes]) -> bool:
            head = _read_head(txn, self._uuid)
            if head.digest != digest or position.lsn < head.position.lsn:
                return False
            txn.put(HEAD_KEY, pack_head(self._uuid, head._replace(position=position)))
            return True

        return self._write(body)

    def load(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        batch: list[tuple[bytes, bytes]] = []
        size_bytes = 0
        for pair in pairs:
            batch.append(pair)
            size_bytes += len(pair[1])
            if len(batch) >= _LOAD_PAIRS or size_bytes >= _LOAD_BYTES:
                self._load_batch(batch)
                batch = []
                size_bytes = 0
        if batch:
            self._load_batch(batch)

    def _load_batch(self, batch: Sequence[tuple[bytes, bytes]]) -> None:
        def body(txn: lmdb.Transaction[bytes]) -> None:
            if batch[0][0] < _FIRST_ROW or txn.cursor().putmulti(batch, append=True)[1] != len(batch):
                raise Damaged(
                    "rows to load are not in ascending key order, or the store is not empty",
                    object=f"metadata row {batch[0][0]!r} and those behind it",
                )

        self._write(body)

    def finish_load(self, head: Head) -> None:
        self._write(lambda txn: txn.put(HEAD_KEY, pack_head(self._uuid, head)))

    def entry_count(self) -> int:
        return int(self._check().handle.stat()["entries"])

    def free_bytes(self) -> int | None:
        path = self._check().path
        try:
            found = os.statvfs(path)
        except FileNotFoundError:
            # The cache was deleted, which is always allowed: the open environment stays usable, its path is unknown.
            return None
        except OSError as error:
            raise translate_os(error, path) from error
        return found.f_bavail * found.f_frsize

    def close(self, *, clean: bool) -> None:
        if self._open:
            self._open = False
            release(self._environment, writes=self._writes, clean=clean)
