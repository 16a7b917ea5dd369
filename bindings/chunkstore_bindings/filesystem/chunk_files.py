"""Opening chunks: which descriptor serves a name, and when one that is open may still be trusted.

Promises: regular files only, never through a symbolic link, never blocking on a pipe; a descriptor in the cache means the
file that has the name, as far as this machine can tell: small files (they may be hints, which ``put`` replaces) are
checked at each use, others where a read meets their end, is long, or asks for the name (``look_anew``); and where other machines
may write unseen, small files are opened anew each time.
Leaves out: reading and writing.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from functools import partial

from chunkstore.errors import ChunkNotFound, InvalidArgument
from chunkstore_bindings.filesystem import posix
from chunkstore_bindings.filesystem.file_cache import FileCache, OpenFile
from chunkstore_bindings.filesystem.folders import Folders
from chunkstore_bindings.filesystem.held import Held

__all__ = ["ChunkFiles"]

_HINT_BYTES_MAX = 64 << 10
"""Files up to this size may be hints that another process replaces (``put``), so an open file is not trusted blindly."""
_O_DIRECT = getattr(os, "O_DIRECT", 0)
_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class ChunkFiles:
    """The open files of one storage, kept in ``cache``. ``coherent``: what another process does to a name shows here at once.

    ``make_room`` is called when no descriptor is left: see ``posix.with_room``.
    """

    def __init__(self, folders: Folders, cache: FileCache, make_room: Callable[[], None], *, coherent: bool) -> None:
        self._folders = folders
        self._make_room = make_room
        self._coherent = coherent
        self.cache = cache
        self.open = cache.files

    def open_fd(self, held: Held, rest: str, flags: int) -> int:
        """A new descriptor; out of descriptors, what is idle gives way. Raises ``OSError``."""
        mode = self._folders.file_mode
        return posix.with_room(partial(os.open, rest, flags | _FLAGS, mode, dir_fd=held.fd), self._make_room)

    def readable(self, name: str) -> OpenFile:
        """The file of ``name``. Raises ``ChunkNotFound`` and what opening raises."""
        file = self.open.get(name)
        if file is not None and self._drop_nameless(name, file):
            file = None
        return file if file is not None else self._open_file(name, writable=False)

    def look_anew(self, name: str) -> None:
        """Forget a file that is open for reading, and has lost its name to another one, as where a backup was put in a root's place."""
        file = self.open.get(name)
        if file is not None:
            self._drop_nameless(name, file)

    def _drop_nameless(self, name: str, file: OpenFile) -> bool:
        """Forget it if it is open for reading and has lost the name; whether it was."""
        if file.writable or not _gone(file):
            return False
        self.cache.drop(name, file)
        return True

    def writable(self, name: str) -> OpenFile:
        """The one file of ``name`` that is open for writing. Raises also ``InvalidArgument`` if the chunk is read-only."""
        file = self.open.get(name)
        return file if file is not None and file.writable else self._open_file(name, writable=True)

    def latest(self, name: str) -> OpenFile:
        """As ``readable``, and on a network file system with its length as the server has it: checked at open only."""
        if not self._coherent:
            file = self.open.get(name)
            # Our own writer knows more than the server does.
            if file is not None and not file.writable:
                self.cache.drop(name, file)
        return self.readable(name)

    def read_direct(self, name: str, offset: int, length: int) -> bytes | None:
        """A read past the page cache, of a regular file; None where the file system, or this system, knows no such reads."""
        if not _O_DIRECT:
            return None
        try:
            fd = self.open_fd(*self._folders.place(name), os.O_RDONLY | _O_DIRECT)
            try:
                return posix.read_span_direct(fd, offset, min(offset + length, os.fstat(fd).st_size))
            finally:
                os.close(fd)
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):
                return None
            raise self._folders.translate(error, name, "reading") from error

    def harden(self, name: str, failed: set[str]) -> None:
        """Sync what is visible of a regular file; its name joins ``failed`` where that fails. Raises ``OSError``."""
        fd = self.open_fd(*self._folders.place(name), os.O_RDONLY)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise ChunkNotFound(name)
            try:
                posix.sync_all(fd)
            except OSError:
                failed.add(name)
                raise
        finally:
            os.close(fd)

    def _open_file(self, name: str, *, writable: bool) -> OpenFile:
        while True:
            try:
                held, rest = self._folders.place(name)
                fd = self.open_fd(held, rest, os.O_RDWR if writable else os.O_RDONLY)
            except OSError as error:
                raise self._folders.translate(error, name, "opening") from error
            file = OpenFile(fd, writable=writable, recheck=False)
            try:
                info = os.fstat(fd)
                if not stat.S_ISREG(info.st_mode):
                    raise ChunkNotFound(name)
                if writable and not info.st_mode & 0o222:
                    raise InvalidArgument(
                        f"chunk {name!r} is read-only; set_read_only(handle, False) first", argument="handle"
                    )
                file.recheck = not writable and info.st_size <= _HINT_BYTES_MAX
                if file.recheck and not self._coherent:
                    return file
                file = self.cache.add(name, file)
                if not _gone(file):
                    return file
                # Deleted or replaced between open and add, so it was not dropped from the cache. Look again.
                self.cache.drop(name, file)
            except OSError as error:
                raise posix.translate(error, name, "opening") from error
            finally:
                del file


def _gone(file: OpenFile) -> bool:
    """Whether the file has lost its name: deleted, or replaced by another."""
    try:
        return os.fstat(file.fd).st_nlink == 0
    except OSError:
        return True
