"""Appending to one file, and looking at two names, by descriptors that are held: one system call each.

Promises: as ``LogAppender``. ``absent`` is looked for in the first folder that was opened, ``present`` by its path, as ``exists`` and
``identity`` do it. The file is longer than what was written, until ``close``: zeros follow, which take no space. After a sync that
finds another size, the file system writes its own journal, too.
Leaves out: file systems that other machines change, too (there the storage's own calls are made).
"""

from __future__ import annotations

import os
from contextlib import suppress

from chunkstore.errors import Closed, InvalidOffset
from chunkstore.records.chunks import LogAppender
from chunkstore_bindings.filesystem import posix
from chunkstore_bindings.filesystem.file_cache import OpenFile
from chunkstore_bindings.filesystem.folders import Folders, Root

__all__ = ["FileAppender"]

_AHEAD_BYTES = 1 << 18
_NEVER = -1


class FileAppender(LogAppender):
    """``file`` is that of ``name``; ``failed``: names whose sync has failed. Raises ``OSError`` where there is no folder to look in."""

    def __init__(
        self, file: OpenFile, folders: Folders, failed: set[str], name: str, absent: str, present: str, identity: bytes
    ) -> None:
        self._name = name
        self._file: OpenFile | None = file
        self._failed = failed
        self._folders = folders
        folders.check(absent)
        first, slash, rest = absent.partition("/")
        self._folder: Root | None = Root(folders.open_folder(first if slash else ""))
        self._rest = rest if slash else first
        self._path = f"{folders.path}/{present}"
        self._seen = tuple(map(int, identity.split()))
        self._end = self._size = os.fstat(file.fd).st_size

    def write_durable(self, offset: int, data: bytes) -> None:
        file = self._file
        if file is None or self._folders.closed:
            raise Closed("this log, or its chunk storage")
        with file.lock:
            if self._failed and self._name in self._failed:
                raise posix.in_doubt(self._name)
            if offset != self._end:
                raise InvalidOffset(self._name, expected=self._end, given=offset)
            self._end = _NEVER  # unless all goes well
            end = offset + len(data)
            if end > self._size:
                self._size = end + _AHEAD_BYTES
                with suppress(OSError):  # then each write makes it longer
                    os.ftruncate(file.fd, self._size)
            try:
                posix.write_all(file.fd, data, offset)
            except OSError as error:
                raise posix.translate(error, self._name, "writing") from error
            try:
                posix.sync_data(file.fd)
            except OSError as error:
                self._failed.add(self._name)
                raise posix.in_doubt(self._name, error) from error
            self._end = end

    def look(self) -> bool:
        folder = self._folder
        if folder is None or self._folders.closed:
            return False
        try:
            os.stat(self._rest, dir_fd=folder.fd, follow_symlinks=False)
        except FileNotFoundError:
            try:
                own = os.stat(self._path, follow_symlinks=False)
                return (own.st_dev, own.st_ino, own.st_mtime_ns) == self._seen  # as ``posix.identity_of``
            except OSError:
                return False
        except OSError:
            return False
        return False

    def close(self) -> None:
        file, self._file, self._folder = self._file, None, None
        # A write that hangs may yet go on: then the file stays as it is.
        if file is not None and file.lock.acquire(blocking=False):
            end, self._end = self._end, _NEVER
            try:
                if end != _NEVER:
                    os.ftruncate(file.fd, end)
            except OSError:
                pass  # readers pass zeros by
            finally:
                file.lock.release()
