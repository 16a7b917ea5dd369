"""Files whose name and content appear together: a synced temporary, then link(2) or rename(2), then the folder's sync.

Promises: a crash at any point leaves either the whole file under its name or nothing but a temporary, which is in
``<root>/.chunkstore-tmp``, is never listed, and is swept a day later. ``create_if_absent`` never replaces; its answer is
durable both ways. Leaves out: file systems without hard links (``Unsupported``: a rename would replace silently).
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterable
from functools import partial

from chunkstore import runtime
from chunkstore.checksum import BytesLike
from chunkstore.errors import StorageUnavailable, Unsupported
from chunkstore_bindings.filesystem import posix
from chunkstore_bindings.filesystem.folders import TEMPORARY_FOLDER, Folders

__all__ = ["AtomicFiles", "write_parts"]

_STALE_MS = 24 * 3600 * 1000
_SWEEP_ENTRIES_MAX = 10_000
_NO_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EXDEV}


def write_parts(file: int, name: str, parts: Iterable[BytesLike]) -> int:
    """Write consecutive parts to an open file, one in memory at a time; their length. Raises chunkstore's errors, and what they raise."""
    length = 0
    for part in parts:
        try:
            length += posix.write_all(file, part, length)
        except OSError as error:
            raise posix.translate(error, name, "writing") from error
        del part  # before the next one is made
    return length


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
        if not created:
            self._folders.refuse_folder(name, None)
        self._folders.sync([folder])
        return created

    def put(self, name: str, parts: Iterable[BytesLike]) -> int:
        """As the port says, of consecutive parts; their length in bytes. Raises also what making them raises."""
        length = 0

        def fill(file: int) -> None:
            nonlocal length
            length = write_parts(file, name, parts)

        folder = name.rpartition("/")[0]
        self._folders.check(name)
        self._folders.make(folder)
        temporary, fd = self._write_temporary(name, fill)
        os.close(fd)
        try:
            root = self._folders.place(name)
            replace = partial(os.replace, temporary, name, src_dir_fd=root.fd, dst_dir_fd=root.fd)
            self._folders.in_folder(folder, replace)
        except OSError as error:
            self._folders.remove_quietly(temporary)
            self._folders.refuse_folder(name, error)
            if error.errno == errno.ENOENT:
                raise self._vanished(name) from error
            raise posix.translate(error, name, "putting") from error
        self._folders.sync([folder])
        return length

    def _vanished(self, name: str) -> StorageUnavailable:
        if self._folders.is_lost(name):
            return self._folders.lost(name)
        return StorageUnavailable(f"the folder of {name!r} or the temporary vanished; retry", object=name)

    def _link(self, name: str, temporary: str, fd: int) -> bool:
        try:
            root = self._folders.place(name)
            link = partial(os.link, temporary, name, src_dir_fd=root.fd, dst_dir_fd=root.fd)
            self._folders.in_folder(name.rpartition("/")[0], link)
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
            raise posix.translate(error, name, "linking") from error
        return True

    def _write_temporary(self, name: str, fill: Callable[[int], object]) -> tuple[str, int]:
        """A synced temporary that ``fill`` has written, still open: its path, and its descriptor."""
        self._sweep()
        temporary = f"{TEMPORARY_FOLDER}/{runtime.token(12).hex()}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        try:
            fd = self._folders.in_folder(TEMPORARY_FOLDER, partial(self._folders.open_file, temporary, flags))
        except OSError as error:
            if error.errno == errno.ENOENT:
                raise StorageUnavailable(
                    f"{self._folders.path}/{TEMPORARY_FOLDER} vanished; retry", object=name
                ) from error
            raise posix.translate(error, name, "writing") from error
        try:
            fill(fd)
            try:
                posix.sync_all(fd)
            except OSError as error:
                raise posix.translate(error, name, "writing") from error
        except BaseException:
            os.close(fd)
            self._folders.remove_quietly(temporary)
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
