"""Chunks as files in a directory tree: local disks (journal appended) and network file systems (journal in slots).

Promises
* ``create_if_absent`` and ``compose`` are atomic in name and content and durable, also against a crash at any point: a temporary is
  written (copied inside the kernel, where it can) and synced, linked to the name, the directory synced. No link(2): ``Unsupported``.
  The answer of the first is durable both ways.
* ``write`` compares the offset with the file's size and writes there with pwrite, one writer of a chunk at a time.
* ``sync`` makes content and name durable. When it fails, the chunk is in doubt for ever: later ``write`` and ``sync`` of
  that name raise ``StorageUnavailable`` at once, because a second sync of lost pages would report success.
* No name reaches outside the root, no symbolic link below it is followed. (A guard against mishaps, not against who can write there.)
* Names are resolved in the root that was opened (``folders``). A root that is renamed, unmounted or replaced meanwhile is never mixed up
  with what takes its place: all goes on in the tree that was opened, or fails with ``StorageUnavailable`` once that is deleted.
  Nothing at or above the first folder of a name is made twice. Open anew to serve a new place.
* File handles are bounded by ``open_files_max``, 65 more, and the calls in progress.

Chunk ``a/b/c`` is the file ``<root>/a/b/c``; temporaries in ``<root>/.chunkstore-tmp`` are never listed. A name cannot be a chunk and a
folder at once. Empty folders stay. Readers are not told that the tree they read was moved (``identity`` tells). A chunk that *another
process* deletes or replaces may stay readable while its file is open. Deletion is not synced: after a power cut a chunk may be back.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from urllib.parse import quote

from chunkstore import runtime
from chunkstore.checksum import BytesLike
from chunkstore.errors import (
    ChunkExists,
    ChunkNotFound,
    InvalidArgument,
    Unsupported,
)
from chunkstore.records.chunks import LogAppender
from chunkstore.storage import Capabilities, ChunkInfo, ChunkRange, Composed, ConcatArgument
from chunkstore_bindings.filesystem import mounts, posix
from chunkstore_bindings.filesystem.appender import FileAppender
from chunkstore_bindings.filesystem.atomic import AtomicFiles, write_parts
from chunkstore_bindings.filesystem.chunk_files import ChunkFiles
from chunkstore_bindings.filesystem.file_cache import FileCache, OpenFile
from chunkstore_bindings.filesystem.folders import Folders
from chunkstore_bindings.filesystem.tree import TreeStorage, names_in, walk_names

__all__ = ["SYNC_WORKERS", "FilesystemChunkStorage"]

SYNC_WORKERS = 32
"""Files synced at the same time; a disk takes that many in about the time of one."""
_DIRECT_READ_BYTES = 1 << 20
"""Longer reads ask for the file's size first, so that a wild length costs no memory."""


class FilesystemChunkStorage(TreeStorage):
    """A chunk storage in the directory ``path``.

    Arguments:
      path: the root, held from now on if it exists. It is made by the first write, in a parent that exists, unless ``create_root``
        is false; then it must exist. ``close`` lets go of it.
      open_files_max: file handles kept open (8 or more); stay well below ``ulimit -n``.
      medium: the file system's type, where the caller knows better than ``/proc/self/mountinfo``.

    Raises: ``InvalidArgument``; ``StorageUnavailable`` if the root is missing and may not be made, or cannot be looked at.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        open_files_max: int = 512,
        create_root: bool = True,
        medium: str | None = None,
    ) -> None:
        text = os.fspath(path) if isinstance(path, os.PathLike) else path
        if not isinstance(text, str) or not text or "\0" in text:
            raise InvalidArgument(f"path must be a directory's path, not {text!r}", argument="path")
        if type(open_files_max) is not int or open_files_max < 8:
            raise InvalidArgument(
                f"open_files_max must be 8 or more, not {open_files_max!r}", argument="open_files_max"
            )
        self._root = os.path.realpath(text)
        self._url = "file://" + quote(os.fsencode(self._root))
        kind, local = mounts.file_system_of_root(self._root, may_be_missing=create_root)
        if medium is not None:
            kind, local = medium, medium in mounts.LOCAL_TYPES
        self._coherent = local
        self._capabilities = Capabilities(
            append=True,
            append_journal=local,
            create_if_absent=True,
            compose="storage",
            concat=True,
            truncate=True,
            set_read_only=True,
            fence_by_stat=local,
            medium=kind,
        )
        self._pool = runtime.pool("chunkstore-sync", SYNC_WORKERS)
        self._cache = FileCache(open_files_max, self._sync_victim)
        self._folders = Folders(self._root, self._pool, self._cache.shrink, make_root=create_root)
        self._files = ChunkFiles(self._folders, self._cache, coherent=local)
        self._open = self._files.open
        self._atomic = AtomicFiles(self._folders, medium=kind)
        # Names created here whose directory entry has not been synced yet, and names whose sync has failed.
        self._unsynced: set[str] = set()
        self._failed: set[str] = set()

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def url(self) -> str:
        return self._url

    def keep_private(self) -> None:
        """From now on files and folders that it makes, its root included, are their owner's alone (0600, 0700)."""
        self._folders.keep_private()

    def free_bytes(self) -> int | None:
        return mounts.free_bytes(self._root) if self._coherent else None  # elsewhere it is a request

    # Names -----------------------------------------------------------------------------------------------------------

    def _look(self, name: str) -> os.stat_result | None:
        """Fresh attributes of a chunk; None if there is none (also where the name is a folder)."""
        try:
            root = self._folders.place(name)
            info = os.stat(name, dir_fd=root.fd, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise posix.translate(error, name, "looking for") from error
        if stat.S_ISLNK(info.st_mode):
            raise Unsupported(
                f"{name!r} is a symbolic link; chunks are never followed through links", feature="symlink"
            )
        return info if stat.S_ISREG(info.st_mode) else None

    def _must_look(self, name: str) -> os.stat_result:
        if (info := self._look(name)) is None:
            raise self._folders.lost(name) if self._folders.is_lost(name) else ChunkNotFound(name)
        return info

    def do_exists(self, name: str) -> bool:
        return self._look(name) is not None

    def do_stat(self, name: str) -> ChunkInfo:
        info = self._must_look(name)
        return ChunkInfo(name, info.st_size, runtime.label_ms(info.st_mtime_ns))

    def do_identity(self, name: str) -> bytes:
        """Of the chunk in the tree that was opened, and only if the path leads there, too: a caller that opens the root now, or
        opened it a moment ago, found the same tree. (A copy that consists of hard links counts as the same.)"""
        try:
            seen = posix.identity_of(os.stat(f"{self._root}/{name}", follow_symlinks=False))
        except (FileNotFoundError, NotADirectoryError):
            raise ChunkNotFound(name) from None
        except OSError as error:
            raise posix.translate(error, name, "looking for") from error
        info = self._look(name)
        if info is None or posix.identity_of(info) != seen:
            raise ChunkNotFound(name)
        return b"%d %d %d" % seen

    def do_open(self, name: str) -> bool:
        self._files.look_anew(name)
        return self._must_look(name).st_mode & 0o222 != 0

    # Reading ---------------------------------------------------------------------------------------------------------

    def do_read(self, name: str, offset: int, length: int) -> bytes:
        file = self._open.get(name)
        if file is None or file.recheck:
            file = self._files.readable(name)
        file.used = True
        try:
            if length <= _DIRECT_READ_BYTES and offset <= posix.OFFSET_MAX - length:
                data = os.pread(file.fd, length, offset)
                if len(data) == length:
                    return data
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise posix.translate(error, name, "reading") from error
        finally:
            del file
        return self._read_carefully(name, offset, length)

    def do_read_uncached(self, name: str, offset: int, length: int) -> bytes:
        data = self._files.read_direct(name, offset, length)
        return data if data is not None else b"" if name in self._failed else self.do_read(name, offset, length)

    def _read_carefully(self, name: str, offset: int, length: int) -> bytes:
        """Long reads, and short ones that met what seems the end: never asks for more memory than the file can fill."""
        file = self._files.latest(name)
        try:
            return posix.read_span(file.fd, offset, min(offset + length, os.fstat(file.fd).st_size))
        except OSError as error:
            raise posix.translate(error, name, "reading") from error
        finally:
            del file

    def do_read_into(self, name: str, offset: int, buffer: bytearray | memoryview) -> int:
        file = self._open.get(name)
        if file is None or file.recheck:
            file = self._files.readable(name)
        file.used = True
        size = len(buffer) if type(buffer) is bytearray else memoryview(buffer).nbytes
        done = 0
        try:
            if offset > posix.OFFSET_MAX - size:
                return 0
            done = os.preadv(file.fd, (buffer,), offset)
            if done == size:
                return done
            return self._fill(name, offset, buffer, done, file)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise posix.translate(error, name, "reading") from error
        finally:
            del file
        return self._fill(name, offset, buffer, 0, None)

    def _fill(self, name: str, offset: int, buffer: bytearray | memoryview, done: int, begun: OpenFile | None) -> int:
        """Continue a read of ``begun`` that stopped early: at the end of the file, or at the 2 GiB that one call moves."""
        file = self._files.latest(name)
        try:
            # The name may mean another file by now (``put``); bytes of two files are the content of none.
            return posix.fill(file.fd, buffer, offset, done if file is begun else 0)
        except OSError as error:
            raise posix.translate(error, name, "reading") from error
        finally:
            del file, begun

    # Creating atomically ---------------------------------------------------------------------------------------------

    def do_create_if_absent(self, name: str, data: BytesLike) -> bool:
        return self._atomic.create_if_absent(name, lambda file: write_parts(file, name, [data]))

    def do_put(self, name: str, data: BytesLike) -> None:
        self._put_parts(name, [data])

    def _put_parts(self, name: str, parts: Iterable[BytesLike]) -> int:
        length = self._atomic.put(name, parts)
        self._cache.drop(name)
        self._failed.discard(name)
        self._unsynced.discard(name)
        return length

    # Appending -------------------------------------------------------------------------------------------------------

    def do_create(self, name: str, data: BytesLike | None) -> None:
        self._folders.check(name)
        self._folders.make(name.rpartition("/")[0])
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        try:
            fd = self._folders.in_folder(name.rpartition("/")[0], partial(self._files.open_new, name, flags))
        except OSError as error:
            if error.errno == errno.EEXIST:
                self._folders.refuse_folder(name, error)
                raise ChunkExists(name) from error
            raise self._folders.translate(error, name, "creating") from error
        file = OpenFile(fd, writable=True, recheck=False)
        self._failed.discard(name)
        self._unsynced.add(name)
        try:
            if data is not None:
                file.dirty = True
                posix.write_all(fd, data, 0)
            # The cache may still hold an older chunk that another process has deleted.
            self._cache.drop(name)
            self._cache.add(name, file)
        except OSError as error:
            # The chunk is not referred to yet, so a torn one need not stay.
            self._unsynced.discard(name)
            self._folders.remove_quietly(name)
            raise posix.translate(error, name, "creating") from error
        finally:
            del file

    def _writable(self, name: str) -> OpenFile:
        if self._failed and name in self._failed:
            raise posix.in_doubt(name)
        return self._files.writable(name)

    def do_write(self, name: str, offset: int, data: BytesLike) -> int:
        while True:
            file = self._writable(name)
            file.used = True
            try:
                with file.lock:
                    if file.retired:
                        continue
                    info = os.fstat(file.fd)
                    if info.st_nlink == 0:
                        self._cache.drop(name, file)
                        raise ChunkNotFound(name)
                    if not info.st_mode & 0o222:
                        self._cache.drop(name, file)
                        continue
                    if info.st_size != offset:
                        self.check_write_offset(name, expected=info.st_size, given=offset)
                    file.dirty = True
                    return posix.write_all(file.fd, data, offset)
            except OSError as error:
                raise posix.translate(error, name, "writing") from error
            finally:
                del file

    def log_appender(self, name: str, *, absent: str, present: str, identity: bytes) -> LogAppender:
        if not self._coherent or not identity:
            return super().log_appender(name, absent=absent, present=present, identity=identity)
        for each in (name, absent, present):
            self._check(each)
        try:
            return FileAppender(self._writable(name), self._folders, self._failed, name, absent, present, identity)
        except OSError as error:
            raise self._folders.translate(error, absent, "looking for") from error

    def do_sync(self, names: Sequence[str]) -> None:
        if len(names) == 1:
            name = names[0]
            self._sync_file(name)
            if name in self._unsynced:
                self._folders.sync([name.rpartition("/")[0]])
                self._unsynced.discard(name)
            return
        distinct = list(dict.fromkeys(names))
        if not distinct:
            return
        try:
            self._pool.run_all([partial(self._sync_file, name) for name in distinct])
        finally:
            self._cache.trim()
        fresh = [name for name in distinct if name in self._unsynced]
        if fresh:
            self._folders.sync(list(dict.fromkeys(name.rpartition("/")[0] for name in fresh)))
            self._unsynced.difference_update(fresh)

    def _sync_file(self, name: str) -> None:
        file = self._open.get(name)
        if file is None:
            file = self._files.readable(name)
        try:
            with file.sync_lock:
                # Inside the lock: a sync that failed while we waited has taken the error with it.
                if self._failed and name in self._failed:
                    raise posix.in_doubt(name)
                file.dirty = False
                try:
                    posix.sync_data(file.fd)
                except OSError as error:
                    self._failed.add(name)
                    self._cache.drop(name, file)
                    raise posix.in_doubt(name, error) from error
        finally:
            del file

    def _sync_victim(self, name: str, file: OpenFile) -> None:
        try:
            posix.sync_data(file.fd)
        except OSError:
            # The caller wanted another file; the next sync or write of this one gets the error.
            self._failed.add(name)

    def do_harden(self, name: str) -> None:
        """Also after a failed sync of this name: hardening is about what others can see; ``read_uncached`` tells what there is."""
        try:
            self._files.harden(name, self._failed)
        except OSError as error:
            raise self._folders.translate(error, name, "hardening") from error
        folder = name.rpartition("/")[0]
        self._folders.make(folder)
        self._folders.sync([folder])
        self._unsynced.discard(name)

    # The rest --------------------------------------------------------------------------------------------------------

    def do_delete(self, name: str) -> None:
        try:
            root = self._folders.place(name)
            os.unlink(name, dir_fd=root.fd)
        except OSError as error:
            # Unlinking a folder is refused with EPERM on some systems.
            if error.errno == errno.EPERM and self._folders.kind_of(name) == "folder":
                raise ChunkNotFound(name) from error
            raise self._folders.translate(error, name, "deleting") from error
        finally:
            self._cache.drop(name)
        self._unsynced.discard(name)
        self._failed.discard(name)

    def walk(self, prefix: str, after: str | None) -> Iterator[ChunkInfo]:
        def look(folder: str) -> list[str]:
            self._folders.verify(folder[:-1])
            return names_in(self._folders.open_folder, folder)

        is_empty = True
        try:
            for name in walk_names(look, prefix=prefix, after=after):
                if (info := self._look(name)) is not None:
                    is_empty = False
                    yield ChunkInfo(name, info.st_size, runtime.label_ms(info.st_mtime_ns))
        except OSError as error:
            raise posix.translate(error, prefix, "listing") from error
        if is_empty and self._folders.is_lost(prefix):
            raise self._folders.lost(prefix)

    def has_root(self) -> bool:
        return os.path.isdir(self._root)

    def do_compose(self, name: str, ranges: Sequence[ChunkRange]) -> Composed:
        if self._look(name) is not None:
            raise ChunkExists(name)
        carried: list[int] = []
        if not self._atomic.create_if_absent(name, lambda file: carried.append(self._files.copy(ranges, file, 0))):
            raise ChunkExists(name)
        return Composed(sum(item.length for item in ranges), carried[0])

    def do_concat(self, arguments: Sequence[ConcatArgument]) -> int:
        """Not atomic: after an error the target may be cut or longer. Durable after ``sync`` of the target. Sources stay."""
        ranges = [ChunkRange(item.name, 0, item.length) for item in arguments]
        for item in ranges:
            self.check_covered(item, self._must_look(item.name).st_size)
        name, _, end = ranges[0]
        with self._locked(name, "joining chunks into") as file:
            os.ftruncate(file.fd, end)
            self._files.copy(ranges[1:], file.fd, end)
        return sum(item.length for item in ranges)

    def do_truncate(self, name: str, length: int) -> None:
        with self._locked(name, "truncating") as file:
            size = os.fstat(file.fd).st_size
            if length > size:
                raise InvalidArgument(
                    f"chunk {name!r} has {size} bytes; it cannot be cut to {length}", argument="length"
                )
            os.ftruncate(file.fd, length)

    @contextmanager
    def _locked(self, name: str, doing: str) -> Iterator[OpenFile]:
        """The file of a chunk, which no other thread writes meanwhile."""
        while True:
            file = self._writable(name)
            try:
                with file.lock:
                    if not file.retired:
                        file.dirty = True
                        yield file
                        return
            except OSError as error:
                raise posix.translate(error, name, doing) from error
            finally:
                del file

    def do_set_read_only(self, name: str, read_only: bool) -> None:
        mode = stat.S_IMODE(self._must_look(name).st_mode)
        try:
            # The mode bits are what counts; root could write all the same, so writes look at them.
            root = self._folders.place(name)
            os.chmod(name, mode & ~0o222 if read_only else mode | 0o200, dir_fd=root.fd)
        except OSError as error:
            raise posix.translate(error, name, "marking") from error

    def do_close(self) -> None:
        self._cache.close()
        self._folders.close()
        self._pool.close()
