"""The system calls that need care: durable syncs, complete writes, and the translation of ``OSError``.

Promises: ``write_all`` returns only when every byte was taken; a sync that fails raises and is never repeated here;
``translate`` gives every ``OSError`` one of chunkstore's errors with its text and a remedy.
Leaves out: policy (who may retry what), which belongs to the storage.
"""

from __future__ import annotations

import errno
import mmap
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from chunkstore.checksum import BytesLike
from chunkstore.errors import (
    AccessDenied,
    ChunkNotFound,
    ChunkstoreError,
    InvalidArgument,
    RootUnavailable,
    StorageFull,
    StorageUnavailable,
    Unsupported,
)
from chunkstore.records.chunks import filled

__all__ = [
    "OFFSET_MAX",
    "copy_range",
    "fill",
    "identity_of",
    "in_doubt",
    "open_directory",
    "read_span",
    "read_span_direct",
    "require_parent",
    "sync_all",
    "sync_data",
    "sync_directory",
    "translate",
    "with_room",
    "write_all",
]

OFFSET_MAX = (1 << 63) - 1
"""The largest offset a system call takes; nothing is stored at or beyond it."""
T = TypeVar("T")
_ONE_CALL_BYTES = 0x7FFFF000
"""What Linux moves by one system call."""
_DIRECT_BYTES = 4 << 20
_DIRECT_BLOCK_BYTES = 1 << 16
"""A multiple of what any file system asks for."""
_DIRECT_TRIES = 4
"""Reads that bring nothing new, before the file counts as ended."""
_COPY_BYTES = 4 << 20
_NO_COPY_RANGE = {errno.ENOSYS, errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM}

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_ABSENT = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENXIO}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
_REMEDY = {
    errno.EACCES: "grant this user read and write permission under the root",
    errno.EPERM: "check the owner and the attributes (chattr) of the file",
    errno.EROFS: "mount the file system writable",
    errno.EMFILE: "raise `ulimit -n` or lower open_files_max",
    errno.ENFILE: "the whole machine is out of file handles; raise fs.file-max",
    errno.EIO: "check the kernel log and the disk's health",
    errno.ESTALE: "the network file system lost the file; check the server and its exports",
    errno.ETIMEDOUT: "check the network file system's server",
}

if sys.platform == "darwin":
    import fcntl

    def sync_all(fd: int) -> None:
        """Make content and attributes of ``fd`` durable (on this system fsync alone stops at the drive's cache)."""
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)

    def sync_data(fd: int) -> None:
        """Make content and length of ``fd`` durable."""
        fcntl.fcntl(fd, fcntl.F_FULLFSYNC)

else:

    def sync_all(fd: int) -> None:
        """Make content and attributes of ``fd`` durable. Raises ``OSError``; afterwards the unsynced content is in doubt."""
        os.fsync(fd)

    def sync_data(fd: int) -> None:
        """Make content and length of ``fd`` durable. Raises ``OSError``; afterwards the unsynced content is in doubt."""
        os.fdatasync(fd)


def with_room(opening: Callable[[], T], make_room: Callable[[], None]) -> T:
    """What ``opening`` gives; out of descriptors, ``make_room`` is called and then ``opening`` once more. Raises ``OSError``."""
    try:
        return opening()
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
    make_room()
    return opening()


def open_directory(path: str, make_room: Callable[[], None], dir_fd: int | None = None) -> int:
    """A descriptor to read the names in directory ``path`` by, or to sync them; ``path`` may be relative to ``dir_fd``.

    ``make_room``: see ``with_room``. Raises ``OSError``.
    """
    return with_room(partial(os.open, path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=dir_fd), make_room)


def sync_directory(path: str, make_room: Callable[[], None], dir_fd: int | None = None) -> None:
    """Make the names in directory ``path`` durable; see ``open_directory``. Raises ``OSError``."""
    # Making room is for the opening alone: a sync that failed is never repeated.
    fd = open_directory(path, make_room, dir_fd)
    try:
        sync_all(fd)
    finally:
        os.close(fd)


def identity_of(info: os.stat_result) -> tuple[int, int, int]:
    """What tells a file from others of its name. The time too, because numbers of inodes are used again."""
    return info.st_dev, info.st_ino, info.st_mtime_ns


def write_all(fd: int, data: BytesLike, offset: int) -> int:
    """Write all of ``data`` at ``offset`` and return its length in bytes. Raises ``OSError``; a part may be written then."""
    size = len(data) if type(data) is not memoryview else data.nbytes
    done = os.pwrite(fd, data, offset)
    if done == size:
        return size
    with memoryview(data) as whole, whole.cast("B") as view:
        while done < size:
            with view[done:] as rest:
                done += os.pwrite(fd, rest, offset + done)
    return size


def read_span(fd: int, start: int, end: int) -> bytes:
    """The bytes from ``start`` up to ``end``, fewer if the file ends before. Raises ``OSError``."""
    size = end - start
    if size <= 0:
        return b""
    if size <= _ONE_CALL_BYTES:
        data = os.pread(fd, size, start)
        if len(data) == size or not data:
            return data
        del data
    return filled(size, lambda view: fill(fd, view, start, 0))


def read_span_direct(fd: int, start: int, end: int) -> bytes:
    """As ``read_span``, of a file that was opened with ``O_DIRECT``, which wants whole blocks and memory that is aligned, too."""
    if end <= start:
        return b""
    parts: list[bytes] = []
    size = min(_DIRECT_BYTES, end - start + _DIRECT_BLOCK_BYTES)
    tries_left = _DIRECT_TRIES
    with mmap.mmap(-1, size + -size % _DIRECT_BLOCK_BYTES) as block:
        while start < end and tries_left:
            base = start - start % _DIRECT_BLOCK_BYTES
            count = min(os.preadv(fd, (block,), base), end - base)
            if base + count > start:
                parts.append(block[start - base : count])
                start, tries_left = base + count, _DIRECT_TRIES
            else:
                # The file ends there, or it was a short read that did not reach where the last one ended.
                tries_left = tries_left - 1 if count else 0
    return b"".join(parts)


def fill(fd: int, buffer: bytearray | memoryview, offset: int, done: int) -> int:
    """Read into ``buffer`` from its byte ``done`` on (``offset`` is that of its byte 0) until it is full or the file ends.

    Returns the bytes now valid. Raises ``OSError``.
    """
    with memoryview(buffer) as whole, whole.cast("B") as view:
        while done < len(view):
            with view[done:] as rest:
                step = os.preadv(fd, (rest,), offset + done)
            if step == 0:
                break
            done += step
    return done


def copy_range(source: int, source_offset: int, target: int, target_offset: int, length: int) -> tuple[int, int]:
    """Copy ``length`` bytes; returns the bytes copied, and how many of them went through this process.

    Inside the kernel where it can, else through a buffer. Short only if ``source`` is shorter. Raises ``OSError``.
    """
    done = carried = 0
    in_kernel = hasattr(os, "copy_file_range")
    while done < length:
        if in_kernel:
            try:
                step = os.copy_file_range(source, target, length - done, source_offset + done, target_offset + done)
            except OSError as error:
                if error.errno not in _NO_COPY_RANGE:
                    raise
                in_kernel = False
                continue
            if step == 0:
                # Some file systems answer 0 instead of an error; the plain copy below finds the true end.
                in_kernel = False
                continue
        else:
            data = os.pread(source, min(_COPY_BYTES, length - done), source_offset + done)
            if not data:
                break
            step = write_all(target, data, target_offset + done)
            carried += step
        done += step
    return done, carried


def require_parent(root: str) -> None:
    """Raise ``RootUnavailable`` unless the folder exists that the folder ``root`` is to be made in."""
    parent = os.path.dirname(root)
    if not os.path.isdir(parent):
        raise RootUnavailable(
            f"file://{root}", f"its parent folder {parent} is missing", remedy=f"create {parent}, or correct the path"
        )


def in_doubt(name: str, error: OSError | None = None) -> StorageUnavailable:
    """What is said of a chunk whose sync has failed, now with ``error`` or earlier."""
    what = f"an earlier sync of {name!r} failed" if error is None else f"syncing {name!r}: {error.strerror}"
    return StorageUnavailable(f"{what}; its latest bytes are in doubt, write a new chunk", object=name)


def translate(error: OSError, name: str, doing: str) -> ChunkstoreError:
    """The chunkstore error for ``error``, met while ``doing`` something to chunk ``name``. Raise it ``from error``."""
    code = error.errno
    text = error.strerror or str(error)
    if code in _ABSENT:
        return ChunkNotFound(name)
    if code in _FULL:
        return StorageFull(f"{doing} {name!r}: {text}; free space (or raise the quota) and retry", object=name)
    if code == errno.ENAMETOOLONG:
        return InvalidArgument(
            f"chunk name {name!r} is too long for this file system; use shorter parts", argument="name"
        )
    if code == errno.ELOOP:
        return Unsupported(
            f"{name!r} is a symbolic link; chunks are never read or written through links", feature="symlink"
        )
    remedy = _REMEDY.get(code or 0, "fix the cause and retry")
    kind = AccessDenied if code in _DENIED else StorageUnavailable
    return kind(f"{doing} {name!r}: {text}; {remedy}", object=name)
