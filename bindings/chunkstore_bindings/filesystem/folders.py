"""The folders under a root: made durable once, and never a symbolic link.

Promises: after ``make(folder)`` the folder exists and its name, and the names of all its parents up to the root, survive
a power cut; each folder costs that once. ``verify(folder)`` refuses a folder that is, or lies behind, a symbolic link.
Leaves out: removing folders.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

from chunkstore.errors import InvalidArgument, StorageFull, StorageUnavailable, Unsupported
from chunkstore.runtime import Pool
from chunkstore_bindings.filesystem import posix

__all__ = ["TEMPORARY_FOLDER", "Folders", "kind_of"]

TEMPORARY_FOLDER = ".chunkstore-tmp"
"""Directly under the root; no chunk's name may begin with it, and it is never listed."""

_KNOWN_MAX = 1 << 17
"""Folders remembered; beyond it the memory starts anew (each folder is then synced once more)."""


def kind_of(path: str) -> Literal["chunk", "folder", "link", "other", "absent"]:
    """What lies at ``path`` itself; "absent" also when it cannot be looked at."""
    try:
        mode = os.stat(path, follow_symlinks=False).st_mode
    except OSError:
        return "absent"
    if stat.S_ISREG(mode):
        return "chunk"
    if stat.S_ISDIR(mode):
        return "folder"
    return "link" if stat.S_ISLNK(mode) else "other"


class Folders:
    """The folders under ``root`` (an absolute real path), named relative to it; "" is the root itself. Safe with threads.

    ``make_room`` is called when no descriptor is left to open a folder with: see ``posix.with_room``.
    """

    def __init__(self, root: str, pool: Pool, make_room: Callable[[], None], *, make_root: bool) -> None:
        self._root = root
        self._pool = pool
        self._make_room = make_room
        self._make_root = make_root
        self._verified: set[str] = {""}
        self._durable: set[str] = set()

    def path(self, name: str) -> str:
        """The path of chunk ``name``, whose folder is no symbolic link (open the last part with O_NOFOLLOW).

        Raises ``InvalidArgument`` for a name that cannot be a file's, ``Unsupported`` for a link on the way.
        """
        if name.startswith(TEMPORARY_FOLDER) and name.partition("/")[0] == TEMPORARY_FOLDER:
            raise InvalidArgument(f"{TEMPORARY_FOLDER!r} is kept for temporaries; choose another name", argument="name")
        if not name.isascii():
            try:
                name.encode()
            except UnicodeEncodeError:
                raise InvalidArgument(f"chunk name {name!r} is not valid UTF-8", argument="name") from None
        self.verify(name.rpartition("/")[0])
        return f"{self._root}/{name}"

    def verify(self, folder: str) -> None:
        """Raise ``Unsupported`` if a part of ``folder`` is a symbolic link. A folder that does not exist passes."""
        if folder in self._verified:
            return
        parts = folder.split("/")
        for count in range(1, len(parts) + 1):
            part = "/".join(parts[:count])
            if part in self._verified:
                continue
            kind = kind_of(f"{self._root}/{part}")
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
        """As ``make``, without trusting what is remembered: something has removed the folder or a parent."""
        lost = folder
        while lost:
            self._durable.discard(lost)
            self._verified.discard(lost)
            lost = lost.rpartition("/")[0]
        self._durable.discard("")
        self.make(folder)

    def sync(self, folders: Sequence[str]) -> None:
        """Make the names in ``folders`` durable, several at once. Raises ``StorageUnavailable``: they may be or not."""
        calls = [partial(posix.sync_directory, f"{self._root}/{folder}", self._make_room) for folder in folders]
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

    def _make_one(self, folder: str, parent: str) -> None:
        path = f"{self._root}/{folder}"
        try:
            try:
                os.mkdir(path)
            except FileExistsError:
                kind = kind_of(path)
                if kind == "link":
                    self._refuse_link(folder)
                if kind not in ("folder", "absent"):
                    raise InvalidArgument(
                        f"{folder!r} is a chunk here, so it cannot be a folder", argument="name"
                    ) from None
            posix.sync_directory(f"{self._root}/{parent}", self._make_room)
        except OSError as error:
            raise self._translated(error, folder) from error
        self._remember(self._verified, folder)
        self._remember(self._durable, folder)

    def _prepare_root(self) -> None:
        missing = []
        place = self._root
        while not os.path.isdir(place) and self._make_root and place != os.path.dirname(place):
            missing.append(place)
            place = os.path.dirname(place)
        try:
            for path in reversed(missing):
                with contextlib.suppress(FileExistsError):
                    os.mkdir(path)
                posix.sync_directory(os.path.dirname(path), self._make_room)
            if not missing:
                if not os.path.isdir(self._root):
                    raise StorageUnavailable(f"the root {self._root} is gone; mount or create it", object=self._root)
                # A root in a folder we may not read was made by another user, who must make it durable.
                with contextlib.suppress(PermissionError):
                    posix.sync_directory(os.path.dirname(self._root), self._make_room)
        except OSError as error:
            raise self._translated(error, self._root) from error
        self._durable.add("")

    @staticmethod
    def _translated(error: OSError, folder: str) -> InvalidArgument | StorageFull | StorageUnavailable:
        found = posix.translate(error, folder, "making folder")
        if isinstance(found, (InvalidArgument, StorageFull, StorageUnavailable)):
            return found
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
