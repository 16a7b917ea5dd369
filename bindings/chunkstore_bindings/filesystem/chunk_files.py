"""Opening chunks: which descriptor serves a name, and when one that is open may still be trusted.

Promises: regular files only, never through a symbolic link, never blocking on a pipe; a descriptor in the cache means the
file that has the name, as far as this machine can tell: small files (they may be hints, which ``put`` replaces) are
checked at each use, others where a read meets their end, is long, or asks for the name (``look_anew``); and where other machines
may write unseen, small files are opened anew each time.
Leaves out: reading and writing, but for what is copied.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence

from chunkstore.errors import ChunkNotFound, InvalidArgument
from chunkstore.storage import BaseChunkStorage, ChunkRange
from chunkstore_bindings.filesystem import posix
from chunkstore_bindings.filesystem.file_cache import FileCache, OpenFile
from chunkstore_bindings.filesystem.folders import Folders

__all__ = ["ChunkFiles"]

_HINT_BYTES_MAX = 64 << 10
"""Files up to this size may be hints that another process replaces (``put``), so an open file is not trusted blindly."""
_O_DIRECT = getattr(os, "O_DIRECT", 0)


class ChunkFiles:
    """The open files of one storage, kept in ``cache``. ``coherent``: what another process does to a name shows here at once."""

    def __init__(self, folders: Folders, cache: FileCache, *, coherent: bool) -> None:
        self._folders = folders
        self._coherent = coherent
        self.cache = cache
        self.open = cache.files

    def open_new(self, name: str, flags: int) -> int:
        """A new descriptor of chunk ``name``. Raises as ``Folders.place``."""
        self._folders.place(name)
        return self._folders.open_file(name, flags)

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
            fd = self.open_new(name, os.O_RDONLY | _O_DIRECT)
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
        fd = self.open_new(name, os.O_RDONLY)
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

    def copy(self, ranges: Sequence[ChunkRange], target: int, target_offset: int) -> int:
        """Copy ranges of chunks to an open file, one after the other, from ``target_offset`` on; the bytes that went through this process.

        Raises ``ChunkNotFound``, ``InvalidArgument`` (a range beyond its chunk's end), and what opening and writing raise; a part may be
        copied then.
        """
        carried_bytes = 0
        for item in ranges:
            # Opened anew: thousands of sources would drive what is read out of the cache, and on a network only opening asks for the
            # length of now.
            try:
                source = self.open_new(item.name, os.O_RDONLY)
            except OSError as error:
                raise self._folders.translate(error, item.name, "opening") from error
            try:
                info = os.fstat(source)
                if not stat.S_ISREG(info.st_mode):
                    raise ChunkNotFound(item.name)
                BaseChunkStorage.check_covered(item, info.st_size)
                done, carried = posix.copy_range(source, item.offset, target, target_offset, item.length)
            except OSError as error:
                raise posix.translate(error, item.name, "copying") from error
            finally:
                os.close(source)
            BaseChunkStorage.check_covered(item, item.offset + done)
            target_offset += done
            carried_bytes += carried
        return carried_bytes

    def _open_file(self, name: str, *, writable: bool) -> OpenFile:
        while True:
            try:
                fd = self.open_new(name, os.O_RDWR if writable else os.O_RDONLY)
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
