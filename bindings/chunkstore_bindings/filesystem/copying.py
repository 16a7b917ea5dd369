"""Ranges of chunks copied into an open file, inside the kernel where it can.

Promises: all bytes of every range were copied when ``copy`` returns: a copy that the kernel ends early is gone on with, a source
that ends before its range does is an error. Sources are opened for the copy alone, in the folders that are held, and never
written. Leaves out: the file that is copied into; whether it is whole, or durable.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from chunkstore.errors import ChunkNotFound
from chunkstore.storage import BaseChunkStorage, ChunkRange
from chunkstore_bindings.filesystem import posix
from chunkstore_bindings.filesystem.chunk_files import ChunkFiles
from chunkstore_bindings.filesystem.folders import Folders

__all__ = ["Copier"]


class Copier:
    """Copies ranges of the chunks in ``folders``, which ``files`` opens."""

    def __init__(self, folders: Folders, files: ChunkFiles) -> None:
        self._folders = folders
        self._files = files

    def copy(self, ranges: Sequence[ChunkRange], target: int, target_offset: int) -> int:
        """Copy them, one after the other, to ``target`` from ``target_offset`` on; the bytes that went through this process.

        Raises ``ChunkNotFound``, ``InvalidArgument`` (a range beyond its chunk's end), what opening raises, and ``OSError`` of the
        copying itself; a part may be copied then.
        """
        carried_bytes = 0
        for item in ranges:
            source = self._opened(item)
            try:
                done, carried = posix.copy_range(source, item.offset, target, target_offset, item.length)
            finally:
                os.close(source)
            BaseChunkStorage.check_covered(item, item.offset + done)
            target_offset += done
            carried_bytes += carried
        return carried_bytes

    def _opened(self, item: ChunkRange) -> int:
        """A new descriptor: thousands of sources would drive what is read out of the cache of files. And where other machines
        write, opening is what asks for the length of now."""
        try:
            fd = self._files.open_fd(*self._folders.place(item.name), os.O_RDONLY)
        except OSError as error:
            raise self._folders.translate(error, item.name, "opening") from error
        try:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode):
                raise ChunkNotFound(item.name)
            BaseChunkStorage.check_covered(item, info.st_size)
        except BaseException:
            os.close(fd)
            raise
        return fd
