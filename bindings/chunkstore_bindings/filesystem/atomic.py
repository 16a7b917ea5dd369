"""Files whose name and content appear together: a synced temporary, then link(2) or rename(2), then the folder's sync.

Promises: a crash at any point leaves either the whole file under its name or nothing but a temporary, which is in
``<root>/.chunkstore-tmp``, is never listed, and is swept a day later. ``create_if_absent`` never replaces; its answer is
durable both ways. Leaves out: file systems without hard links (``Unsupported``: a rename would replace silently).
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from functools import partial

from chunkstore import runtime
from chunkstore.checksum import BytesLike
from chunkstore.errors import InvalidArgument, StorageUnavailable, Unsupported
from chunkstore_bindings.filesystem import posix
from chunkstore_bindings.filesystem.folders import TEMPORARY_FOLDER, Folders

__all__ = ["AtomicFiles"]

_STALE_MS = 24 * 3600 * 1000
_SWEEP_ENTRIES_MAX = 10_000
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}


class AtomicFiles:
    """Atomic creation in ``folders``. ``medium``: the file system's type."""

    def __init__(self, folders: Folders, *, medium: str) -> None:
        self._folders = folders
        self._medium = medium
        self._swept = False

    def create_if_absent(self, name: str, fill: Callable[[int], object]) -> bool:
        """As the port says, with what ``fill`` writes to the descriptor that it is given. The folder is synced also when the
        name was taken: "taken" must still be true after a power cut. Raises also what ``fill`` raises."""
        folder = name.rpartition("/")[0]
        self._folders.check(name)
        self._folders.make(folder)
        temporary, fd = self._write_temporary(name, fill)
        try:
            created = self._link(name, temporary, fd)
        finally:
            os.close(fd)
            self._folders.remove_quietly(temporary)
        if not created and self._folders.kind_of(name) == "folder":
            raise InvalidArgument(f"{name!r} is a folder here, so it cannot be a chunk", argument="name")
        self._folders.sync([folder])
        return created

    def put(self, name: str, data: BytesLike) -> None:
        """As the port says."""
        folder = name.rpartition("/")[0]
        self._folders.check(name)
        self._folders.make(folder)
        temporary, fd = self._write_temporary(name, lambda file: posix.write_all(file, data, 0))
        os.close(fd)
        try:
            root = self._folders.root()
            replace = partial(os.replace, temporary, name, src_dir_fd=root.fd, dst_dir_fd=root.fd)
            try:
                replace()
            except FileNotFoundError:
                self._folders.make_again(folder)
                replace()
        except OSError as error:
            self._folders.remove_quietly(temporary)
            if self._folders.kind_of(name) == "folder":
                raise InvalidArgument(f"{name!r} is a folder here, so it cannot be a chunk", argument="name") from error
            if error.errno == errno.ENOENT:
                raise self._vanished(name) from error
            raise posix.translate(error, name, "putting") from error
        self._folders.sync([folder])

    def _vanished(self, name: str) -> StorageUnavailable:
        if self._folders.is_lost(name):
            return self._folders.lost(name)
        return StorageUnavailable(f"the folder of {name!r} or the temporary vanished; retry", object=name)

    def _link(self, name: str, temporary: str, fd: int) -> bool:
        try:
            root = self._folders.root()
            link = partial(os.link, temporary, name, src_dir_fd=root.fd, dst_dir_fd=root.fd)
            try:
                link()
            except FileNotFoundError:
                self._folders.make_again(name.rpartition("/")[0])
                link()
        except OSError as error:
            if os.fstat(fd).st_nlink == 2:
                # The reply was lost on the way (NFS sends again, and then meets its own link).
                return True
            if error.errno == errno.EEXIST:
                return False
            if error.errno == errno.ENOENT:
                raise self._vanished(name) from error
            if error.errno in _NO_LINKS:
                raise Unsupported(
                    f"{self._folders.path} ({self._medium}): hard links do not work here ({error.strerror}), so {name!r} cannot "
                    "be created atomically; use one file system with link(2) for the whole root",
                    feature="create_if_absent",
                ) from error
            raise posix.refused(error, name, "linking", self._folders.path) from error
        return True

    def _write_temporary(self, name: str, fill: Callable[[int], object]) -> tuple[str, int]:
        """A synced temporary that ``fill`` has written, still open: its path, and its descriptor."""
        self._sweep()
        temporary = f"{TEMPORARY_FOLDER}/{runtime.token(12).hex()}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        try:
            try:
                fd = self._folders.open_file(temporary, flags)
            except FileNotFoundError:
                self._folders.make_again(TEMPORARY_FOLDER)
                fd = self._folders.open_file(temporary, flags)
        except OSError as error:
            if error.errno == errno.ENOENT:
                raise StorageUnavailable(
                    f"{self._folders.path}/{TEMPORARY_FOLDER} vanished; retry", object=name
                ) from error
            raise posix.refused(error, name, "writing", self._folders.path) from error
        try:
            fill(fd)
            posix.sync_all(fd)
        except BaseException as error:
            os.close(fd)
            self._folders.remove_quietly(temporary)
            if isinstance(error, OSError):
                raise posix.refused(error, name, "writing", self._folders.path) from error
            raise
        return temporary, fd

    def _sweep(self) -> None:
        """Make the folder of temporaries, and once remove what crashes left there more than a day ago.

        A clock that is wrong costs a writer an error, never data: a temporary that is gone cannot be linked.
        """
        self._folders.make(TEMPORARY_FOLDER)
        if self._swept:
            return
        self._swept = True
        limit_ms = runtime.now_ms() - _STALE_MS
        # Another process may sweep at the same time, or own what is there.
        with contextlib.suppress(OSError):
            fd = self._folders.open_folder(TEMPORARY_FOLDER)
            try:
                with os.scandir(fd) as entries:
                    for _, entry in zip(range(_SWEEP_ENTRIES_MAX), entries, strict=False):
                        if runtime.label_ms(entry.stat(follow_symlinks=False).st_mtime_ns) < limit_ms:
                            self._folders.remove_quietly(f"{TEMPORARY_FOLDER}/{entry.name}")
            finally:
                os.close(fd)
