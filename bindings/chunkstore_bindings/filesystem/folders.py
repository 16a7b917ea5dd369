"""The folders under a root: where a name is, made durable once, and never a symbolic link.

Promises: after ``make(folder)`` the folder exists and its name, and the names of all its parents up to the root, survive
a power cut; each folder costs that once. The root and the first folder of a name are made only if this object has never
held them. ``verify(folder)`` refuses a folder that is a symbolic link, or is reached through one.
Leaves out: removing folders.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from chunkstore.errors import (
    ChunkNotFound,
    ChunkstoreError,
    InvalidArgument,
    StorageFull,
    StorageUnavailable,
    Unsupported,
)
from chunkstore.runtime import Pool
from chunkstore_bindings.filesystem import posix
from chunkstore_bindings.filesystem.held import Held, HeldFolders

__all__ = ["TEMPORARY_FOLDER", "Folders", "kind_of"]

TEMPORARY_FOLDER = ".chunkstore-tmp"
"""Directly under the root; no chunk's name may begin with it, and it is never listed."""

_KNOWN_MAX = 1 << 17
"""Folders remembered; beyond it the memory starts anew (each folder is then synced once more)."""


def kind_of(held: Held, rest: str) -> Literal["chunk", "folder", "link", "other", "absent"]:
    """What is at ``rest`` in a directory itself; "absent" also when it cannot be looked at."""
    try:
        mode = os.stat(rest, dir_fd=held.fd, follow_symlinks=False).st_mode
    except OSError:
        return "absent"
    if stat.S_ISREG(mode):
        return "chunk"
    if stat.S_ISDIR(mode):
        return "folder"
    return "link" if stat.S_ISLNK(mode) else "other"


class Folders:
    """The folders of ``held``, named relative to its root; "" is the root itself. Safe with threads.

    ``make_room`` is called when no descriptor is left to open a folder with: see ``posix.with_room``.
    """

    def __init__(self, held: HeldFolders, pool: Pool, make_room: Callable[[], None], *, make_root: bool) -> None:
        self.held = held
        self._root = held.path
        self._open = held.folders
        self._pool = pool
        self._make_room = make_room
        self._make_root = make_root
        self._verified: set[str] = {""}
        self._durable: set[str] = set()
        self._folder_mode, self.file_mode = 0o777, 0o666

    def keep_private(self) -> None:
        """What is made from now on may be read by its owner alone."""
        self._folder_mode, self.file_mode = 0o700, 0o600

    def place(self, name: str) -> tuple[Held, str]:
        """The directory to look for chunk ``name`` in, and its path there, on which no folder is a symbolic link.

        Open the last part with O_NOFOLLOW. Raises as ``check``, and ``OSError`` where there is no such directory.
        """
        folder, _, _ = name.rpartition("/")
        if folder in self._verified and name.isascii():
            first, _, rest = name.partition("/")
            held = self._open.get(first)
            if held is not None and held.written:
                return held, rest
        self.check(name)
        return self.directory(name)

    def directory(self, name: str) -> tuple[Held, str]:
        """The directory to look for a chunk or a folder of this name in, and its path there. Raises ``OSError`` where there is none."""
        first, slash, rest = name.partition("/")
        return (self.held.folder(first), rest) if slash else (self.held.root(), first)

    def inside(self, folder: str) -> tuple[Held, str]:
        """As ``directory``, to open ``folder`` itself: the first folder of a name is the one that is held, whatever it is called now."""
        if not folder:
            return self.held.root(), "."
        return self.directory(folder if folder == TEMPORARY_FOLDER else f"{folder}/.")

    def check(self, name: str) -> None:
        """Raise ``InvalidArgument`` for a name that cannot be a file's, ``Unsupported`` for a link on the way."""
        if name.startswith(TEMPORARY_FOLDER) and name.partition("/")[0] == TEMPORARY_FOLDER:
            raise InvalidArgument(f"{TEMPORARY_FOLDER!r} holds temporaries; choose another name", argument="name")
        if not name.isascii():
            try:
                name.encode()
            except UnicodeEncodeError:
                raise InvalidArgument(f"chunk name {name!r} is not valid UTF-8", argument="name") from None
        self.verify(name.rpartition("/")[0])

    def kind_of(self, name: str) -> Literal["chunk", "folder", "link", "other", "absent"]:
        """What has this name."""
        try:
            return kind_of(*self.directory(name))
        except OSError:
            return "absent"

    def translate(self, error: OSError, name: str, doing: str) -> ChunkstoreError:
        """As ``posix.translate``; what is not there because its directory was deleted is not called absent."""
        found = posix.translate(error, name, doing)
        return self.held.lost(name) if isinstance(found, ChunkNotFound) and self.held.is_lost(name) else found

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
            self._remember(self._verified, part)

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

    def sync(self, folders: Sequence[str]) -> None:
        """Make the names in ``folders`` durable, several at once. Raises ``StorageUnavailable``: they may be or not."""
        calls = [partial(self._sync_one, folder) for folder in folders]
        try:
            if len(calls) == 1:
                calls[0]()
            else:
                self._pool.run_all(calls)
        except OSError as error:
            raise StorageUnavailable(
                f"syncing {list(folders)} under {self._root}: {error.strerror}; whether new names there are durable is unknown",
                object=folders[0],
            ) from error

    def _sync_one(self, folder: str) -> None:
        held, rest = self.inside(folder)
        posix.sync_directory(rest, self._make_room, held.fd)

    def _make_one(self, folder: str, parent: str) -> None:
        is_first = not parent and folder != TEMPORARY_FOLDER
        try:
            try:
                if not (is_first and self.held.was_held(folder)):
                    held, rest = self.directory(folder)
                    os.mkdir(rest, self._folder_mode, dir_fd=held.fd)
            except FileExistsError:
                kind = self.kind_of(folder)
                if kind == "link":
                    self._refuse_link(folder)
                if kind not in ("folder", "absent"):
                    raise InvalidArgument(
                        f"{folder!r} is a chunk here, so it cannot be a folder", argument="name"
                    ) from None
            if is_first:
                self.held.keep(folder)
            self._sync_one(parent)
        except OSError as error:
            raise self._translated(error, folder) from error
        self._remember(self._verified, folder)
        self._remember(self._durable, folder)

    def _prepare_root(self) -> None:
        try:
            made = not self.held.is_open and self._make_missing()
            root = self.held.root()
            if not made:
                # A root in a folder we may not read was made by another user, who must make it durable.
                with contextlib.suppress(PermissionError):
                    posix.sync_directory("..", self._make_room, root.fd)
        except OSError as error:
            raise self._translated(error, self._root) from error
        self._durable.add("")

    def _make_missing(self) -> bool:
        """Make the root where it is missing, never its parents: a misspelt path makes nothing. Whether it was missing."""
        if os.path.isdir(self._root) or not self._make_root:
            return False
        posix.require_parent(self._root)
        with contextlib.suppress(FileExistsError):
            os.mkdir(self._root, self._folder_mode)
        posix.sync_directory(os.path.dirname(self._root), self._make_room)
        return True

    def _translated(self, error: OSError, folder: str) -> InvalidArgument | StorageFull | StorageUnavailable:
        found = posix.refused(error, folder, "making folder", self._root)
        if isinstance(found, (InvalidArgument, StorageFull, StorageUnavailable)):
            return found
        vanished = "/" not in folder and self.held.was_held(folder)
        if error.errno == errno.ENOENT and (vanished or self.held.is_lost(folder)):
            return self.held.lost(folder)
        return StorageUnavailable(f"making folder {folder!r}: {error.strerror}; check the root", object=folder)

    def _refuse_link(self, folder: str) -> None:
        target = os.path.realpath(f"{self._root}/{folder}")
        raise Unsupported(
            f"folder {folder!r} under {self._root} is a symbolic link to {target}; chunks are kept inside the root only: "
            "use the target as a root of its own, or mount it here",
            feature="symlink",
        )

    @staticmethod
    def _remember(known: set[str], folder: str) -> None:
        if len(known) >= _KNOWN_MAX:
            known.clear()
            known.add("")
        known.add(folder)
