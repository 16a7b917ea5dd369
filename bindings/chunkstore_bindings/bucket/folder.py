"""A bucket that is a folder: a key is a path below it.

Promises: an object is written to a temporary next to its place, synced and renamed; then its folders are synced. Temporaries are never
listed, and are removed after an error. A listing holds the sorted names of one folder per level, and asks for a file's length when it
comes to it. No symbolic link below the root is followed: listings leave it out, other calls raise ``Unsupported``. This guards against
mishaps, not against a hostile process that writes there.
Leaves out: user metadata, names that are not UTF-8, temporaries of processes that were killed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Final
from urllib.parse import quote

from chunkstore import runtime
from chunkstore.checksum import BytesLike
from chunkstore.errors import ChunkNotFound, InvalidArgument, RootUnavailable, Unsupported
from chunkstore_bindings.bucket.port import Bucket, ObjectHead, ObjectInfo, check_key, check_range
from chunkstore_bindings.filesystem import posix
from chunkstore_bindings.filesystem.folders import TEMPORARY_FOLDER
from chunkstore_bindings.filesystem.tree import names_in, walk_names

__all__ = ["FolderBucket"]

_IN_THE_WAY: Final = (errno.EEXIST, errno.ENOENT, errno.ENOTDIR, errno.EISDIR)


class FolderBucket(Bucket):
    """See ``Bucket``. ``path``: the folder. Where it is missing, ``put`` makes it, but no parent; other calls raise
    ``RootUnavailable``."""

    keeps_metadata = False

    def __init__(self, path: str) -> None:
        self._root = os.path.realpath(path)
        self.url = "file://" + quote(os.fsencode(self._root))

    def list(self, prefix: str = "", *, after: str | None = None) -> Iterator[ObjectInfo]:
        with self._translated(prefix, "listing"):
            os.close(self._open(""))
            for key in walk_names(partial(names_in, self._open), prefix=prefix, after=after):
                try:
                    info = os.stat(os.path.join(self._root, key), follow_symlinks=False)
                except (FileNotFoundError, NotADirectoryError):
                    continue
                if stat.S_ISREG(info.st_mode) and f"/{TEMPORARY_FOLDER}" not in f"/{key}":
                    yield ObjectInfo(key, info.st_size, runtime.label_ms(info.st_mtime_ns))

    def head(self, key: str) -> ObjectHead:
        with self._translated(key, "looking for"):
            info = os.stat(self._path(key), follow_symlinks=False)
        if not stat.S_ISREG(info.st_mode):
            raise ChunkNotFound(key)
        return ObjectHead(info.st_size, runtime.label_ms(info.st_mtime_ns), {})

    def read(self, key: str, offset: int, length: int) -> bytes:
        check_range(offset, length)
        with self._translated(key, "reading"):
            fd = os.open(self._path(key), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                info = os.fstat(fd)
                if not stat.S_ISREG(info.st_mode):
                    raise ChunkNotFound(key)
                return posix.read_span(fd, offset, min(offset + length, info.st_size))
            finally:
                os.close(fd)

    def put_parts(self, key: str, parts: Iterable[BytesLike], metadata: Mapping[str, str] | None = None) -> int:
        if metadata:
            raise Unsupported("files have no user metadata; write to an s3:// bucket", feature="metadata")
        path, translated = self._path(key), partial(self._translated, key, "writing")
        folder, top, length = os.path.dirname(path), self._root, 0
        temporary = f"{folder}/{TEMPORARY_FOLDER}-{runtime.token(12).hex()}"
        if not os.path.isdir(top):
            posix.require_parent(top)
            top = os.path.dirname(top)
        with translated():
            os.makedirs(folder, exist_ok=True)
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            for part in parts:  # an error of theirs is not translated
                with translated():
                    length += posix.write_all(fd, part, length)
            with translated():
                posix.sync_all(fd)
                os.replace(temporary, path)
                posix.sync_directory(folder, lambda: None)
                while folder != top:  # what another process has made just now, too
                    folder = os.path.dirname(folder)
                    posix.sync_directory(folder, lambda: None)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        finally:
            os.close(fd)
        return length

    def delete(self, key: str) -> bool:
        try:
            self.head(key)
            with self._translated(key, "deleting"):
                os.unlink(self._path(key))
        except ChunkNotFound:
            return False
        return True

    def _path(self, key: str) -> str:
        check_key(key, is_path=True)
        if f"/{TEMPORARY_FOLDER}" in f"/{key}":
            raise InvalidArgument(f"{key!r}: {TEMPORARY_FOLDER} is reserved for temporaries", argument="key")
        path = os.path.join(self._root, key)
        if os.path.realpath(path) != path:
            raise Unsupported(f"{key!r} is a symbolic link, or below one; links are not followed", feature="symlink")
        return path

    def _open(self, folder: str) -> int:
        path = os.path.join(self._root, folder) if folder else self._root
        if os.path.realpath(path) != path:
            raise NotADirectoryError(errno.ENOTDIR, "a symbolic link", path)
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    @contextmanager
    def _translated(self, key: str, doing: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if not os.path.isdir(self._root) and error.errno in _IN_THE_WAY:
                remedy = "correct the URL, or make the folder"
                raise RootUnavailable(self.url, "the folder does not exist", object=key, remedy=remedy) from error
            if doing == "writing" and error.errno in _IN_THE_WAY:
                text = f"writing {key!r}: a file or folder blocks its path, or its folder was removed; check the path and retry"
                raise InvalidArgument(text, argument="key") from error
            raise posix.refused(error, key, doing, self.url) from error
