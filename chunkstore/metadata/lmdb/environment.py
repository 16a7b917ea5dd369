"""LMDB environments: one per store directory and process, shared by reference count, growing where they are too small.

An environment that this process must not use (a parent's, a closed one, a damaged one) is refused by name. The map is changed only
while no view of this process is open, or after waiting for those that are. The store's lock is held while any handle is open, so that
no one waits for LMDB's own lock. LMDB's errors end here (``translate``).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from errno import EDQUOT, EIO, ENOSPC
from typing import TypeVar, cast

import lmdb

from chunkstore.config import KIB, MIB
from chunkstore.errors import (
    CacheDamaged,
    ChunkstoreError,
    DeadlineExceeded,
    InvalidArgument,
    StorageFull,
    StorageUnavailable,
)
from chunkstore.metadata.cachedir import EndFile, StoreLock, forget, mark_clean, translate_os
from chunkstore.metadata.ordered_map import OrderedMap, StoredHead, Transaction
from chunkstore.metadata.rows import RowDamaged
from chunkstore.runtime import defer_interrupt, monotonic_s, sleep_s

__all__ = ["Environment", "abandon", "acquire", "translate"]

T = TypeVar("T")

_READERS_MAX = 510
_LOCK_FILE_BYTES = 36 * KIB  # holds that many readers
_MAP_BYTES_FALLBACK = 64 * MIB
_MAP_BYTES_MAX = 1 << 46
_VIEWS_WAIT_S = 5.0
_ROOM_BYTES = 256 * MIB
_LAST_WRITE_S = 2.0
_DAMAGED_ERRORS = (
    RowDamaged,
    lmdb.CorruptedError,
    lmdb.CursorFullError,
    lmdb.IncompatibleError,
    lmdb.InvalidError,
    lmdb.PageFullError,
    lmdb.PageNotFoundError,
    lmdb.PanicError,
    lmdb.VersionMismatchError,
)


def translate(error: Exception, path: str) -> ChunkstoreError:
    """The error that says what an error of LMDB or of a row means to the caller."""
    if isinstance(error, _DAMAGED_ERRORS):
        forget(path)  # so that it is not trusted again
        return CacheDamaged(
            f"the metadata cache {path} is damaged ({error}); it is rebuilt from the journal", object=path
        )
    code = error.code if isinstance(error, lmdb.Error) else 0
    if isinstance(error, lmdb.DiskError) or code in (ENOSPC, EDQUOT) or (code == EIO and _is_full(path)):
        return StorageFull(f"no space left for the metadata cache {path}; free some, or set cache_dir", object=path)
    if isinstance(error, lmdb.ReadersFullError | lmdb.MapFullError):
        return StorageFull(
            f"the metadata cache {path} is at a limit: {error}; close views no longer needed", object=path
        )
    if isinstance(error, lmdb.BadValsizeError):
        return InvalidArgument(f"a metadata key must have 1 to 511 bytes: {error}", argument="key")
    return StorageUnavailable(
        f"the metadata cache {path} failed, or the view was ended: {error}; open a new view, or the store again",
        object=path,
    )


def _is_full(path: str) -> bool:
    """Whether what LMDB calls an I/O error was a write cut short by the disk's end."""
    try:
        found = os.statvfs(path)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize < MIB


class Environment(OrderedMap):
    """An LMDB environment, and the gate that lets its map be changed."""

    errors = (AttributeError, lmdb.Error, RowDamaged)

    def __init__(self, path: str, map_bytes: int, held: StoreLock) -> None:
        super().__init__(path)
        self.handle: lmdb.Environment = _open_handle(path, map_bytes)
        self._held = held
        self._end_file: EndFile | None = None
        """Where the head that is written is recorded, next to the rows; of a writing owner's. Used with ``writing`` held."""
        self._gate_open: bool = True

    def meaning(self, error: Exception) -> ChunkstoreError:
        return translate(error, self.path)

    def translate(self, error: Exception) -> ChunkstoreError:
        translated = super().translate(error)
        if self.damage is not None:
            self._gate_open = False  # sends every reader to check()
        return translated

    def begin_read(self, ticket: int) -> Transaction:
        """See ``OrderedMap``.

        The ticket is entered before the gate is looked at, and ``_remap`` closes the gate before it looks at the tickets:
        whichever is second sees the other.
        """
        self.views.add(ticket)
        if self._gate_open:
            try:
                return cast("Transaction", self.handle.begin())
            except lmdb.Error:
                pass  # looked into below
        self.views.discard(ticket)
        return self._begin_read_slowly(ticket)

    def _begin_read_slowly(self, ticket: int) -> Transaction:
        deadline = monotonic_s() + 2 * _VIEWS_WAIT_S
        while monotonic_s() < deadline:
            self.check()
            self.views.add(ticket)
            try:
                if self._gate_open:
                    return cast("Transaction", self.handle.begin())
            except lmdb.ReadersFullError as error:
                if not self.handle.reader_check():  # no slot of a dead process was freed
                    self.views.discard(ticket)
                    raise self.translate(error) from error
            except lmdb.Error as error:
                self.views.discard(ticket)
                raise self.translate(error) from error
            self.views.discard(ticket)
            sleep_s(0.001)
        raise DeadlineExceeded("opening a metadata view", deadline_s=2 * _VIEWS_WAIT_S)

    def transact(self, body: Callable[[Transaction], T]) -> T:
        while True:
            try:
                with self.handle.begin(write=True) as txn:
                    return body(cast("Transaction", txn))
            except lmdb.MapFullError as error:
                size_bytes = 2 * self.handle.info()["map_size"]
                if size_bytes > _MAP_BYTES_MAX:
                    raise self.translate(error) from error
                self.written_head = None
                self._remap(size_bytes)
            except (lmdb.Error, RowDamaged) as error:
                raise self.translate(error) from error

    def recorded(self, known: StoredHead) -> None:
        if self._end_file is not None:
            self._end_file.note(known.head)

    def has_room(self) -> bool:
        try:
            found = os.statvfs(self.path)
        except OSError:
            return False  # the directory was deleted, say
        return found.f_bavail * found.f_frsize >= _ROOM_BYTES

    def free_bytes(self) -> int | None:
        try:
            found = os.statvfs(self.path)
        except FileNotFoundError:
            # The cache was deleted, which is always allowed: the open environment stays usable, its path is unknown.
            return None
        except OSError as error:
            raise translate_os(error, self.path) from error
        return found.f_bavail * found.f_frsize

    def entry_count(self) -> int:
        return int(self.handle.stat()["entries"])

    def _remap(self, size_bytes: int) -> None:
        """Change the size of the map. The caller holds ``_writing``.

        Views in progress are waited for; one that outlasts the wait is ended, and says so when it is used next.
        """
        self._gate_open = False
        try:
            deadline = monotonic_s() + _VIEWS_WAIT_S
            while self.views and monotonic_s() < deadline:
                sleep_s(0.001)
            self.handle.set_mapsize(size_bytes)
        except lmdb.Error as error:
            raise self.translate(error) from error
        finally:
            self._gate_open = self.damage is None

    def record_end(self, end: EndFile) -> None:
        """Record in ``end`` from now on what is written."""
        with defer_interrupt(), self.writing:
            if self._end_file is not None:
                self._end_file.close(clean=False)
            self._end_file = end

    def end(self, *, clean: bool) -> bool:
        """See ``OrderedMap``; ``clean``: synced and marked so. False while a thread of ours does not end its writing."""
        with defer_interrupt():
            if not self.writing.acquire(timeout=_LAST_WRITE_S):
                return False
            try:
                # Without the mark the store is made anew.
                with suppress(lmdb.Error, OSError):
                    if clean:
                        self.handle.sync(True)
                        mark_clean(self.path)
            finally:
                self.close(clean=clean)
                self.writing.release()
        return True

    def close(self, *, clean: bool = False) -> None:
        """Release everything. Not while it is in use."""
        _environments.pop(self.path, None)
        self.handle.close()
        if self._end_file is not None:
            self._end_file.close(clean=clean)
            self._end_file = None
        self._held.release()

    def leave_to_parent(self) -> None:
        """In a forked child: closing LMDB would release reader slots that the parent uses."""
        self.inherited = True
        self._gate_open = False  # sends every reader to check()
        self._held.leave_to_parent()


_environments: dict[str, Environment] = {}


def _after_fork_in_child() -> None:
    """Leave the parent's environments alone."""
    for environment in _environments.values():
        environment.leave_to_parent()
    _environments.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)


def _reserve_lock_file(path: str) -> None:
    """Give LMDB's lock file its blocks now: LMDB maps it with holes, and a full disk would kill the process that touches one.

    Raises ``OSError``. Not for a store that this process has open: closing the file would drop its locks.
    """
    file = os.open(os.path.join(path, "lock.mdb"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(file, 0, _LOCK_FILE_BYTES)
    finally:
        os.close(file)


def _open_handle(path: str, map_bytes: int) -> lmdb.Environment:
    def attempt(size_bytes: int) -> lmdb.Environment:
        return lmdb.open(
            path,
            map_size=size_bytes,
            metasync=False,
            sync=False,
            readahead=False,
            max_readers=_READERS_MAX,
            max_spare_txns=1,
        )

    _reserve_lock_file(path)
    try:
        return attempt(map_bytes)
    except lmdb.MemoryError:
        return attempt(min(map_bytes, _MAP_BYTES_FALLBACK))  # little address space: the map grows on demand


def acquire(path: str, map_bytes: int, held: StoreLock) -> Environment:
    """The environment of a store directory that this process has not open; the lock is given back with it.

    Raises ``OSError`` or ``lmdb.Error``; then the lock is released.
    """
    path = os.path.realpath(path)
    try:
        environment = _environments[path] = Environment(path, map_bytes, held)
    except BaseException:
        held.release()
        raise
    return environment


def abandon(folder: str) -> None:
    """Close every environment below ``folder``, in use or not: for simulations, whose processes die without closing.

    Nothing of it may be used afterwards.
    """
    below = os.path.realpath(folder) + os.sep
    for environment in [environment for path, environment in _environments.items() if path.startswith(below)]:
        environment.count = 0
        environment.close()
