"""The root of a storage, held open, and the folders under it: made durable once, and never a symbolic link.

A path leads to whatever is there at the moment; a descriptor stays with the directory that was opened. So a root that is renamed,
unmounted or replaced under its owner is never mixed up with what is in its place: the owner goes on in the tree that it knows, where
a successor's claim is seen, or meets an error. The first folder of a name is told by its number, before each use: another in its place
is not used.

Promises: after ``make(folder)`` the folder exists and its name, and the names of all its parents up to the root, survive
a power cut; each folder costs that once. The root and the first folder of a name are made only if this object has never
seen them. ``verify(folder)`` refuses a folder that is a symbolic link, or is reached through one.
Leaves out: removing folders.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, TypeVar

from chunkstore import runtime
from chunkstore.errors import (
    ChunkNotFound,
    ChunkstoreError,
    Closed,
    InvalidArgument,
    StorageFull,
    StorageUnavailable,
    Unsupported,
)
from chunkstore_bindings.filesystem import posix

__all__ = ["TEMPORARY_FOLDER", "Folders", "Root"]

T = TypeVar("T")
TEMPORARY_FOLDER = ".chunkstore-tmp"
"""Directly under the root; no chunk's name may begin with it, and it is never listed."""

_FIRSTS_MAX = 64
"""First folders of names that are told from others in their place: containers, of which few share a root."""
_KNOWN_MAX = 1 << 17
"""Folders remembered; beyond it the memory starts anew (each folder is then synced once more)."""
# To look up names in it, a directory need not be readable.
_ROOT_FLAGS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC
_FILE_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class Root:
    """An open directory: the root, or a first folder. A call in progress never loses it: the last user that lets go closes it."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        with contextlib.suppress(OSError):
            close(self.fd)


class Folders:
    """The folders under ``path`` (absolute and real), named relative to it; "" is the root, held if it exists. Safe with threads.

    ``make_room`` is called when no descriptor is left to open a folder with: see ``posix.with_room``.
    """

    def __init__(self, path: str, pool: runtime.Pool, make_room: Callable[[], None], *, make_root: bool) -> None:
        self.path = path
        self.closed = False
        self._pool = pool
        self._make_room = make_room
        self._make_root = make_root
        self._lock = runtime.lock()
        self._root: Root | None = None
        self._verified: set[str] = {""}
        self._durable: set[str] = set()
        self._firsts: dict[str, tuple[tuple[int, int], Root]] = {}
        """The first folders of names that were seen here: their numbers, which are not given again while they are open."""
        self._folder_mode, self._file_mode = 0o777, 0o666
        with contextlib.suppress(OSError):
            self.root()

    def keep_private(self) -> None:
        """What is made from now on may be read by its owner alone."""
        self._folder_mode, self._file_mode = 0o700, 0o600

    def close(self) -> None:
        """Let go of the root."""
        with self._lock:
            self.closed = True
            self._root = None
            self._firsts.clear()

    # Names

    def root(self) -> Root:
        """The root. Raises ``OSError`` as long as it cannot be opened."""
        if self._root is not None:
            return self._root
        if self.closed:
            raise Closed("this chunk storage")
        found = Root(posix.with_room(partial(os.open, self.path, _ROOT_FLAGS), self._make_room))
        with self._lock:
            if self._root is None:
                self._root = found
            return self._root

    def place(self, name: str) -> Root:
        """The root, to look up chunk ``name`` in, on whose way no folder is a symbolic link.

        Open it with ``open_file``. Raises as ``check``, and ``OSError`` where there is no root.
        """
        if name.rpartition("/")[0] not in self._verified or not name.isascii() or name.startswith(TEMPORARY_FOLDER):
            self.check(name)
        root = self.root()
        first, slash, _ = name.partition("/")
        known = self._firsts.get(first) if slash else None
        if known is not None and known[0] != self._number(first):
            raise FileNotFoundError(errno.ENOENT, "its folder was moved or replaced", name)
        return root

    def _number(self, first: str) -> tuple[int, int] | None:
        """What tells a folder from another of its name; None where there is none. Raises ``OSError``: a failing disk says nothing."""
        root = self.root()
        try:
            info = os.stat(first, dir_fd=root.fd, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return (info.st_dev, info.st_ino) if stat.S_ISDIR(info.st_mode) else None

    def check(self, name: str) -> None:
        """Raise ``InvalidArgument`` for a name that cannot be a file's, ``Unsupported`` for a link on the way."""
        if name.partition("/")[0] == TEMPORARY_FOLDER:
            raise InvalidArgument(f"{TEMPORARY_FOLDER!r} holds temporaries; choose another name", argument="name")
        if not name.isascii():
            try:
                name.encode()
            except UnicodeEncodeError:
                raise InvalidArgument(f"chunk name {name!r} is not valid UTF-8", argument="name") from None
        self.verify(name.rpartition("/")[0])

    def open_file(self, path: str, flags: int) -> int:
        """A new descriptor of a file under the root; out of descriptors, what is idle gives way. Raises ``OSError``."""
        root = self.root()
        opening = partial(os.open, path, flags | _FILE_FLAGS, self._file_mode, dir_fd=root.fd)
        return posix.with_room(opening, self._make_room)

    def open_folder(self, folder: str) -> int:
        """A descriptor to read the names in a folder by, or to sync them. Raises ``OSError``."""
        root = self.root()
        return posix.open_directory(folder or ".", self._make_room, root.fd)

    def kind_of(self, path: str) -> Literal["chunk", "folder", "link", "other", "absent"]:
        """What is at ``path`` itself; "absent" also when it cannot be looked at."""
        try:
            root = self.root()
            mode = os.stat(path, dir_fd=root.fd, follow_symlinks=False).st_mode
        except (OSError, ValueError):  # the latter: what no path can be
            return "absent"
        if stat.S_ISREG(mode):
            return "chunk"
        if stat.S_ISDIR(mode):
            return "folder"
        return "link" if stat.S_ISLNK(mode) else "other"

    def remove_quietly(self, path: str) -> None:
        """Remove an unreferenced file; what cannot be removed costs space and nothing else."""
        with contextlib.suppress(OSError):
            root = self.root()
            os.unlink(path, dir_fd=root.fd)

    def is_lost(self, name: str) -> bool:
        """Whether the root, or the first folder of ``name``, was there and has been removed."""
        root = self._root
        first, slash, _ = name.partition("/")
        try:
            if root is not None and os.fstat(root.fd).st_nlink == 0:
                return True
            return bool(slash) and first in self._firsts and self._firsts[first][0] != self._number(first)
        except OSError:
            return True  # what cannot be looked at is not absent

    def lost(self, name: str) -> StorageUnavailable:
        """What is said of a name whose directory is not the one any more that was opened."""
        return StorageUnavailable(
            f"{name!r}: the root {self.path} or the folder {name.partition('/')[0]!r} in it was moved, unmounted, "
            "replaced or removed while it was in use. Nothing is created; check the root, and open it again",
            object=name,
        )

    def translate(self, error: OSError, name: str, doing: str) -> ChunkstoreError:
        """As ``posix.translate``; what is not there because its directory was removed is not called absent."""
        found = posix.translate(error, name, doing)
        return self.lost(name) if isinstance(found, ChunkNotFound) and self.is_lost(name) else found

    def verify(self, folder: str) -> None:
        """Raise ``Unsupported`` if a part of ``folder`` is a symbolic link. A folder that does not exist passes."""
        if folder in self._verified:
            return
        parts = folder.split("/")
        for count in range(1, len(parts) + 1):
            part = "/".join(parts[:count])
            if part in self._verified:
                continue
            kind = self.kind_of(part)
            if kind == "link":
                self._refuse_link(part)
            if kind != "folder":
                return
            self._see(part)
            self._remember(self._verified, part)

    def _see(self, folder: str) -> None:
        if "/" in folder or folder in self._firsts or folder == TEMPORARY_FOLDER or len(self._firsts) >= _FIRSTS_MAX:
            return
        with contextlib.suppress(OSError):
            root = self.root()
            found = Root(os.open(folder, _ROOT_FLAGS | os.O_NOFOLLOW, dir_fd=root.fd))
            info = os.fstat(found.fd)
            self._firsts.setdefault(folder, ((info.st_dev, info.st_ino), found))

    # Making

    def make(self, folder: str) -> None:
        """Make ``folder`` and its parents where they are missing, and make their names durable.

        A fresh folder of another process is synced as well: visible is not yet durable. Raises ``InvalidArgument`` if a part
        is a chunk, ``Unsupported`` if it is a link, ``StorageFull``, ``StorageUnavailable``. Retry: safe.
        """
        if folder in self._durable:
            return
        if "" not in self._durable:
            self._prepare_root()
        parts = folder.split("/") if folder else []
        for count in range(1, len(parts) + 1):
            part = "/".join(parts[:count])
            if part not in self._durable:
                self._make_one(part, "/".join(parts[: count - 1]))

    def make_again(self, folder: str) -> None:
        """As ``make``, without trusting what is remembered: something has removed the folder or a parent.

        What is at or above the container's folder is not made again: it was moved or replaced, and is another's by now.
        """
        lost = folder
        while lost and (lost == TEMPORARY_FOLDER or "/" in lost):
            self._durable.discard(lost)
            self._verified.discard(lost)
            lost = lost.rpartition("/")[0]
        self.make(folder)

    def in_folder(self, folder: str, call: Callable[[], T]) -> T:
        """What ``call`` brings, which is made once more where ``folder`` had been removed. Raises ``OSError``, and as ``make``."""
        try:
            return call()
        except FileNotFoundError:
            self.make_again(folder)
            return call()

    def refuse_folder(self, name: str, error: OSError | None) -> None:
        """Raise ``InvalidArgument`` if what has this name is a folder."""
        if self.kind_of(name) == "folder":
            raise InvalidArgument(f"{name!r} is a folder here, so it cannot be a chunk", argument="name") from error

    def sync(self, folders: Sequence[str]) -> None:
        """Make the names in ``folders`` durable, several at once. Raises ``StorageUnavailable``: they may be or not."""
        try:
            self._pool.run_all([partial(self._sync_one, folder) for folder in folders])
        except OSError as error:
            raise StorageUnavailable(
                f"syncing {list(folders)} under {self.path}: {error.strerror}; whether new names there are durable is unknown",
                object=folders[0],
            ) from error

    def _sync_one(self, folder: str) -> None:
        root = self.root()
        posix.sync_directory(folder or ".", self._make_room, root.fd)

    def _make_one(self, folder: str, parent: str) -> None:
        try:
            if self.is_lost(f"{folder}/"):
                raise self.lost(folder)
            if folder not in self._firsts:
                root = self.root()
                os.mkdir(folder, self._folder_mode, dir_fd=root.fd)
        except FileExistsError:
            kind = self.kind_of(folder)
            if kind == "link":
                self._refuse_link(folder)
            if kind not in ("folder", "absent"):
                raise InvalidArgument(
                    f"{folder!r} is a chunk here, so it cannot be a folder", argument="name"
                ) from None
        except OSError as error:
            raise self._translated(error, folder) from error
        try:
            self._sync_one(parent)
        except OSError as error:
            raise self._translated(error, folder) from error
        self._see(folder)
        self._remember(self._verified, folder)
        self._remember(self._durable, folder)

    def _prepare_root(self) -> None:
        try:
            made = self._root is None and self._make_missing()
            root = self.root()
            if not made:
                # A root in a folder we may not read was made by another user, who must make it durable.
                with contextlib.suppress(PermissionError):
                    posix.sync_directory("..", self._make_room, root.fd)
        except OSError as error:
            raise self._translated(error, self.path) from error
        self._durable.add("")

    def _make_missing(self) -> bool:
        """Make the root where it is missing, never its parents: a misspelt path makes nothing. Whether it was missing."""
        if os.path.isdir(self.path) or not self._make_root:
            return False
        posix.require_parent(self.path)
        with contextlib.suppress(FileExistsError):
            os.mkdir(self.path, self._folder_mode)
        posix.sync_directory(os.path.dirname(self.path), self._make_room)
        return True

    def _translated(self, error: OSError, folder: str) -> InvalidArgument | StorageFull | StorageUnavailable:
        found = posix.translate(error, folder, "making folder")
        if isinstance(found, (InvalidArgument, StorageFull, StorageUnavailable)):
            return found
        if self.is_lost(folder):
            return self.lost(folder)
        return StorageUnavailable(f"making folder {folder!r}: {error.strerror}; check the root", object=folder)

    def _refuse_link(self, folder: str) -> None:
        target = os.path.realpath(f"{self.path}/{folder}")
        raise Unsupported(
            f"folder {folder!r} under {self.path} is a symbolic link to {target}; chunks are kept inside the root only: "
            "use the target as a root of its own, or mount it here",
            feature="symlink",
        )

    @staticmethod
    def _remember(known: set[str], folder: str) -> None:
        if len(known) >= _KNOWN_MAX:
            known.clear()
            known.add("")
        known.add(folder)
