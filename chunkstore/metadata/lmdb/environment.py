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
from typing import TypeVar

import lmdb

from chunkstore.config import KIB, MIB
from chunkstore.errors import (
    CacheDamaged,
    ChunkstoreError,
    Closed,
    DeadlineExceeded,
    InvalidArgument,
    StorageFull,
    StorageUnavailable,
)
from chunkstore.metadata.cachedir import StoreLock, forget, mark_clean
from chunkstore.metadata.lmdb.behind import Behind, StoredHead
from chunkstore.metadata.port import Position
from chunkstore.metadata.seen_end import EndFile
from chunkstore.runtime import Lock, defer_interrupt, lock, monotonic_s, sleep_s

__all__ = ["Environment", "abandon", "acquire", "release", "share", "translate"]

T = TypeVar("T")

_READERS_MAX = 510
_LOCK_FILE_BYTES = 36 * KIB  # holds that many readers
_MAP_BYTES_FALLBACK = 64 * MIB
_MAP_BYTES_MAX = 1 << 46
_VIEWS_WAIT_S = 5.0
_ROOM_BYTES = 256 * MIB
_LAST_WRITE_S = 2.0
_DAMAGED_ERRORS = (
    lmdb.CorruptedError,
    lmdb.CursorFullError,
    lmdb.IncompatibleError,
    lmdb.InvalidError,
    lmdb.PageFullError,
    lmdb.PageNotFoundError,
    lmdb.PanicError,
    lmdb.VersionMismatchError,
)


def translate(error: lmdb.Error, path: str) -> ChunkstoreError:
    """The error that says what an LMDB error means to the caller."""
    if isinstance(error, _DAMAGED_ERRORS):
        forget(path)  # so that it is not trusted again
        return CacheDamaged(
            f"the metadata cache {path} is damaged ({error}); it is rebuilt from the journal", object=path
        )
    if isinstance(error, lmdb.DiskError) or error.code in (ENOSPC, EDQUOT) or (error.code == EIO and _is_full(path)):
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


class Environment:
    """An LMDB environment, its users in this process, and the gate that lets the map be changed."""

    def __init__(self, path: str, map_bytes: int, held: StoreLock) -> None:
        self.path = path
        self.handle: lmdb.Environment = _open_handle(path, map_bytes)
        self._held = held
        self.count = 1
        """Handles of this process."""
        self.end_file: EndFile | None = None
        """Where the head that is written is recorded, beside the rows; of a writing owner's. Used with ``writing`` held."""
        self.writing: Lock = lock()
        self.behind: Behind = Behind()
        """Commits that no transaction has yet; whoever writes takes them along. Changed with ``writing`` held."""
        self.last_head: StoredHead | None = None
        """What the last transaction left as the head, if that is known; in a transaction ``written_head`` is what it will leave."""
        self.written_head: StoredHead | None = None
        self.at: Position | None = None
        """Where the state stands; None while it moves, and where this is not known. Set with ``writing`` held."""
        self.views: set[int] = set()
        self.gate_open: bool = True
        self.inherited: bool = False
        self.damage: CacheDamaged | None = None

    def translate(self, error: lmdb.Error) -> ChunkstoreError:
        """As the function; after damage nothing begins here any more."""
        translated = translate(error, self.path)
        if isinstance(translated, CacheDamaged) and self.damage is None:
            self.damage = translated
            self.at = None
            self.gate_open = False  # sends every reader to check()
        return translated

    def begin_read(self, ticket: int) -> lmdb.Transaction[bytes]:
        """A read transaction, counted as long as ``ticket`` is in ``views``.

        The ticket is entered before the gate is looked at, and ``_remap`` closes the gate before it looks at the tickets:
        whichever is second sees the other.
        """
        self.views.add(ticket)
        if self.gate_open:
            try:
                return self.handle.begin()
            except lmdb.Error:
                pass  # looked into below
        self.views.discard(ticket)
        return self._begin_read_slowly(ticket)

    def _begin_read_slowly(self, ticket: int) -> lmdb.Transaction[bytes]:
        deadline = monotonic_s() + 2 * _VIEWS_WAIT_S
        while monotonic_s() < deadline:
            self.check()
            self.views.add(ticket)
            try:
                if self.gate_open:
                    return self.handle.begin()
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

    def check(self) -> None:
        """Raise if this process may not use the environment."""
        if self.inherited:
            raise StorageUnavailable(
                f"the metadata cache {self.path} was opened before this process was forked; open the store again here, "
                "or start processes with the 'spawn' method",
                object=self.path,
            )
        if self.count <= 0:
            raise Closed("this metadata store")
        if self.damage is not None:
            raise self.damage.copy()

    def write(self, body: Callable[[lmdb.Transaction[bytes]], T], deadline_s: float) -> T:
        """Run ``body``, which applies what is ``behind``, in a write transaction and commit it; once more from the start whenever the
        map had to change."""
        if self.inherited or self.count <= 0 or self.damage is not None:
            self.check()
        with defer_interrupt():
            self._take(deadline_s)
            try:
                while True:
                    try:
                        self.written_head = self.at = None
                        with self.handle.begin(write=True) as txn:
                            done = body(txn)
                        known = self.last_head = self.written_head
                        if self.end_file is not None and known is not None:
                            self.end_file.note(known.head)
                        self.behind = Behind()
                        if known is not None:
                            self.at = known.head.position
                            if self._has_room():
                                self.behind = Behind(known.head.position, known.tallied.totals)
                        return done
                    except lmdb.MapFullError as error:
                        size_bytes = 2 * self.handle.info()["map_size"]
                        if size_bytes > _MAP_BYTES_MAX:
                            raise self.translate(error) from error
                        self._remap(size_bytes)
                    except lmdb.Error as error:
                        raise self.translate(error) from error
            finally:
                self.writing.release()

    def _has_room(self) -> bool:
        """Whether what is put off now can surely be written later: what was acknowledged must be there on a full disk, too."""
        try:
            found = os.statvfs(self.path)
        except OSError:
            return False  # the directory was deleted, say
        return found.f_bavail * found.f_frsize >= _ROOM_BYTES

    def _take(self, wait_s: float) -> None:
        if not self.writing.acquire(False) and not self.writing.acquire(timeout=wait_s):
            raise DeadlineExceeded("waiting for the metadata store's writer", deadline_s=wait_s)

    def _remap(self, size_bytes: int) -> None:
        """Change the size of the map. The caller holds ``_writing``.

        Views in progress are waited for; one that outlasts the wait is ended, and says so when it is used next.
        """
        self.gate_open = False
        try:
            deadline = monotonic_s() + _VIEWS_WAIT_S
            while self.views and monotonic_s() < deadline:
                sleep_s(0.001)
            self.handle.set_mapsize(size_bytes)
        except lmdb.Error as error:
            raise self.translate(error) from error
        finally:
            self.gate_open = self.damage is None

    def record_end(self, end: EndFile) -> None:
        """Record in ``end`` from now on what is written."""
        with defer_interrupt(), self.writing:
            if self.end_file is not None:
                self.end_file.close(clean=False)
            self.end_file = end

    def end(self, *, clean: bool) -> bool:
        """Release everything, after the last handle; ``clean``: synced and marked so. False, with no effect, while a thread of ours
        does not end its writing."""
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
        self.handle.close()
        if self.end_file is not None:
            self.end_file.close(clean=clean)
            self.end_file = None
        self._held.release()

    def leave_to_parent(self) -> None:
        """In a forked child: closing LMDB would release reader slots that the parent uses."""
        self.inherited = True
        self.gate_open = False  # sends every reader to check()
        self._held.leave_to_parent()


_environments: dict[str, Environment] = {}
_environments_lock = lock()


def _after_fork_in_child() -> None:
    """Leave the parent's environments alone."""
    global _environments_lock  # noqa: PLW0603  (another thread may have held it when the process was forked)
    _environments_lock = lock()
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
    with _environments_lock:
        try:
            environment = _environments[path] = Environment(path, map_bytes, held)
        except BaseException:
            held.release()
            raise
        return environment


def share(environment: Environment) -> bool:
    """Count one more handle; False if there is none any more, or it is damaged."""
    with _environments_lock:
        if environment.inherited or environment.count <= 0 or environment.damage is not None:
            return False
        environment.count += 1
        return True


def release(environment: Environment, *, clean: bool) -> None:
    """Give a handle back. The last one closes the store, which is marked if it is ``clean``."""
    if environment.inherited:
        return
    with _environments_lock:
        environment.count -= 1
        if environment.count > 0:
            return
        if environment.end(clean=clean):
            del _environments[environment.path]
        else:
            environment.count = 1  # the thread that is writing keeps it, and its lock, for ever


def abandon(folder: str) -> None:
    """Close every environment below ``folder``, in use or not: for simulations, whose processes die without closing.

    Nothing of it may be used afterwards.
    """
    below = os.path.realpath(folder) + os.sep
    with _environments_lock:
        for path in [path for path in _environments if path.startswith(below)]:
            environment = _environments.pop(path)
            environment.count = 0
            environment.close()
