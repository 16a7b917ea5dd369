"""A bounded cache of open files, cheap to hit and safe with threads.

Promises
* A descriptor in use is never closed: every user of an ``OpenFile`` holds a reference to the object, and the descriptor is
  closed when the last reference goes. A hit is one dictionary look-up and takes no lock. (An exception that a caller
  keeps, keeps its frames: users drop their reference in ``finally``, or a deleted chunk would hold on to its space.)
* At most ``capacity`` files stay open, plus those in use at the moment (when all were, until the next ``add`` or ``trim``).
* There is one writable ``OpenFile`` per name at a time, so that its ``lock`` orders all writers of this process. A file
  whose lock is held is not evicted; ``retired`` tells a writer who waited that it must look the file up again.
* Unsynced bytes are never left to a closed descriptor: a dirty file is synced before it is evicted, because an error of
  the disk is reported only to descriptors that were open when it happened.

Leaves out: opening (the storage does it). Eviction is second chance, not exact LRU: a hit must not move anything.
"""

from __future__ import annotations

import contextlib
import os
from collections import OrderedDict
from collections.abc import Callable

from chunkstore import runtime

__all__ = ["FileCache", "OpenFile"]

_CLEAN_STEPS_MAX = 32
"""How far eviction looks for a file that costs no sync, before it takes a dirty one."""


class OpenFile:
    """An open descriptor and what is known of its file.

    Attributes: ``writable``: opened for writing; ``recheck``: small enough to be a hint that is replaced, so each
    use asks whether the name still means this file; ``dirty``: written since the last sync began; ``retired``: no longer
    in the cache; ``used``: since the last sweep; ``lock``: one writer at a time; ``sync_lock``: one sync at a time (a
    disk error is reported to one of two concurrent syncs only).
    """

    __slots__ = ("dirty", "fd", "lock", "recheck", "retired", "sync_lock", "used", "writable")

    def __init__(self, fd: int, *, writable: bool, recheck: bool) -> None:
        self.fd = fd
        self.writable = writable
        self.recheck = recheck
        self.dirty = False
        self.retired = False
        self.used = True
        self.lock = runtime.lock()
        self.sync_lock = runtime.lock()

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # Nothing is lost with an error here: bytes count only after a sync, and syncs report their own.
        with contextlib.suppress(OSError):
            close(self.fd)


class FileCache:
    """Open files by chunk name. ``sync_before_close(name, file)`` is called, with both locks held, for a dirty victim."""

    def __init__(self, capacity: int, sync_before_close: Callable[[str, OpenFile], None]) -> None:
        # Ordered from the oldest; a plain dict would walk over the holes that moving to the end leaves at its front.
        self.files: OrderedDict[str, OpenFile] = OrderedDict()
        self._capacity = capacity
        self._sync_before_close = sync_before_close
        self._lock = runtime.lock()

    def add(self, name: str, file: OpenFile) -> OpenFile:
        """Keep ``file`` under ``name`` and return the file to use, which may be one that another thread added first."""
        with self._lock:
            present = self.files.get(name)
            if present is not None and (present.writable or not file.writable):
                return present
            if present is not None:
                present.retired = True
            self.files[name] = file
        self.trim(keep=file)
        return file

    def trim(self, *, keep: OpenFile | None = None) -> None:
        """Evict down to the capacity, as far as files are idle; ``add`` does so, and users of many files at once."""
        while len(self.files) > self._capacity and self._evict_one(keep=keep):
            pass

    def drop(self, name: str, file: OpenFile | None = None) -> None:
        """Forget ``name`` (only if it still means ``file``, where given) without syncing it."""
        with self._lock:
            present = self.files.get(name)
            if present is not None and (file is None or present is file):
                present.retired = True
                del self.files[name]

    def shrink(self) -> None:
        """Evict everything that is idle."""
        while self._evict_one(any_age=True):
            pass

    def close(self) -> None:
        """Forget everything without syncing it."""
        with self._lock:
            for file in self.files.values():
                file.retired = True
            self.files.clear()

    def _evict_one(self, *, keep: OpenFile | None = None, any_age: bool = False) -> bool:
        victim = self._choose_victim(keep, any_age)
        if victim is None:
            return False
        name, file = victim
        try:
            if file.dirty:
                file.dirty = False
                self._sync_before_close(name, file)
        finally:
            self.drop(name, file)
            file.retired = True
            file.sync_lock.release()
            file.lock.release()
        return True

    def _choose_victim(self, keep: OpenFile | None, any_age: bool) -> tuple[str, OpenFile] | None:
        """The oldest file not used of late, clean ones first; its locks are held then. None if all are busy."""
        with self._lock:
            for dirty_too, steps in ((False, _CLEAN_STEPS_MAX), (True, 2 * len(self.files))):
                for _ in range(min(steps, 2 * len(self.files))):
                    name = next(iter(self.files))
                    file = self.files[name]
                    spared = file is keep or (file.used and not any_age) or (file.dirty and not dirty_too)
                    if not spared and file.lock.acquire(blocking=False):
                        if file.sync_lock.acquire(blocking=False):
                            return name, file
                        file.lock.release()
                    file.used = False
                    self.files.move_to_end(name)
        return None
