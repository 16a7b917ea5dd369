"""The directories that a storage works in: its root, and the first folder of each name, held open from their first use on.

A path leads to whatever is there at the moment; a descriptor stays with the directory that was opened. So a root or a
container's folder that is renamed, unmounted or replaced under its owner is never mixed up with what is in its place:
the owner goes on in the tree that it knows, where a successor's claim is seen, or meets an error.

Promises: once open, neither the root nor a folder that was held is ever looked up or made by name again, but for folders
that were only looked at and have been deleted, or had to give way to others. Folders that were written to are held until
``close``, and ``_LOOKED_AT_MAX`` others at most. No symbolic link is followed below the root.
Leaves out: deeper folders, and making any (``folders``).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from functools import partial

from chunkstore import runtime
from chunkstore.errors import Closed, StorageUnavailable
from chunkstore_bindings.filesystem import posix

__all__ = ["Held", "HeldFolders"]

_LOOKED_AT_MAX = 64
# To look up names in it, a directory need not be readable.
_FLAGS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC


class Held:
    """An open directory. Its descriptor is closed when the last user lets go of it, so a call in progress never loses it."""

    __slots__ = ("fd", "written")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.written = False

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        with contextlib.suppress(OSError):
            close(self.fd)

    def is_gone(self) -> bool:
        """Whether it has been deleted: nothing can be made in it any more."""
        try:
            return os.fstat(self.fd).st_nlink == 0
        except OSError:
            return True


class HeldFolders:
    """The directories under ``root`` (an absolute real path), which is held from now on if it exists. Safe with threads.

    ``make_room`` is called when no descriptor is left to open a folder with: see ``posix.with_room``.
    """

    def __init__(self, root: str, make_room: Callable[[], None]) -> None:
        self.path = root
        self.folders: dict[str, Held] = {}
        """By the first part of names."""
        self._make_room = make_room
        self._lock = runtime.lock()
        self._root: Held | None = None
        self._known: set[str] = set()
        self.closed = False
        with contextlib.suppress(OSError):
            self.root()

    @property
    def is_open(self) -> bool:
        """Whether the root is held."""
        return self._root is not None

    def root(self) -> Held:
        """The root. Raises ``OSError`` as long as it cannot be opened."""
        if self._root is not None:
            return self._root
        if self.closed:
            raise Closed("this chunk storage")
        found = Held(posix.with_room(partial(os.open, self.path, _FLAGS), self._make_room))
        with self._lock:
            if self._root is None:
                self._root = found
            return self._root

    def folder(self, first: str) -> Held:
        """The folder ``first`` under the root. Raises ``OSError`` if there is none, also where it is a link."""
        held = self.folders.get(first)
        if held is not None and (held.written or not held.is_gone()):
            return held
        root = self.root()
        found = Held(posix.with_room(partial(os.open, first, _FLAGS | os.O_NOFOLLOW, dir_fd=root.fd), self._make_room))
        with self._lock:
            present = self.folders.get(first)
            if present is not None and present is not held:
                return present
            self.folders[first] = found
            self._known.add(first)
            existence_checked = [name for name, folder in self.folders.items() if not folder.written]
            if len(existence_checked) > _LOOKED_AT_MAX:
                del self.folders[existence_checked[0]]
        return found

    def was_held(self, first: str) -> bool:
        """Whether this folder was ever there: then it is not made any more."""
        return first in self._known

    def keep(self, first: str) -> None:
        """Hold ``first`` until ``close``: something is to be written there. Raises ``OSError``, ``StorageUnavailable``."""
        while True:
            held = self.folder(first)
            with self._lock:
                # Another thread may have let go of it meanwhile.
                if self.folders.get(first) is held:
                    held.written = True
                    return

    def is_lost(self, name: str) -> bool:
        """Whether the directory that we hold for ``name`` has been deleted."""
        first, slash, _ = name.partition("/")
        held = self.folders.get(first) if slash else None
        # Of a folder that was never there, the root may say it.
        held = held if held is not None else self._root
        return held is not None and held.is_gone()

    def lost(self, name: str) -> StorageUnavailable:
        """What is said of a name whose directory is not the one any more that was opened."""
        return StorageUnavailable(
            f"{name!r}: the root {self.path} or the folder {name.partition('/')[0]!r} in it was moved, unmounted, "
            "replaced or removed while it was in use. Nothing is created; check the root, and open it again",
            object=name,
        )

    def let_go(self) -> None:
        """Close what was only looked at."""
        with self._lock:
            for first in [first for first, held in self.folders.items() if not held.written]:
                del self.folders[first]

    def close(self) -> None:
        """Let go of everything."""
        with self._lock:
            self.closed = True
            self._root = None
            self.folders.clear()
