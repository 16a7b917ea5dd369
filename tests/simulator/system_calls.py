"""What the file system binding calls ``os`` while a simulated world with bindings is open: system calls of a simulated kernel.

Every call that looks at the tree or changes it is one step of the process that makes it (``wire``): others go on before and behind
it, and it may fail, be cut short, or be the last thing that its process does. Closing, fstat(2) and opening a folder take no
step: what they see is what the call behind them acts on.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NoReturn, Protocol

from chunkstore.errors import StorageFull, StorageUnavailable
from tests.simulator.kernel import Directory, File, Kernel, Node, Status
from tests.simulator.virtual import EPOCH_MS

_numbers = itertools.count(1 << 20)
"""Never a real descriptor's, nor one of another world: what is let go of late closes nothing of somebody else's."""
_TEMPORARY: Final = ".chunkstore-tmp"
_EPOCH_NS: Final = EPOCH_MS * 1_000_000


class Step(Protocol):
    """Make one step of the present process; returns what ``apply`` does."""

    def __call__(
        self, step: str, name: str, apply: Callable[[], Any], *, data: bytes | None = None, changes: bool = True
    ) -> Any: ...


class Descriptor:
    """An open file or folder. ``errors_known``: failed syncs of the file that this descriptor needs not be told of.
    ``is_direct``: reads pass the page cache by."""

    __slots__ = ("errors_known", "is_direct", "name", "node")

    def __init__(self, node: Node, name: str, flags: int = 0) -> None:
        self.is_direct = bool(flags & SystemCalls.O_DIRECT)
        self.node = node
        self.name = name
        self.errors_known = node.errors if isinstance(node, File) else 0


class Write:
    """The effect of pwrite(2). A part of it may come alone, or all of it later."""

    __slots__ = ("data", "file", "now", "offset")

    def __init__(self, file: File, offset: int, data: bytes, now: Callable[[], int]) -> None:
        self.file = file
        self.offset = offset
        self.data = data
        self.now = now

    def __call__(self) -> int:
        return self.file.write(self.offset, self.data, self.now())


class _Entry:
    """What ``scandir`` yields."""

    __slots__ = ("_node", "name")

    def __init__(self, name: str, node: Node) -> None:
        self.name = name
        self._node = node

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return isinstance(self._node, Directory)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return isinstance(self._node, File)

    def stat(self, *, follow_symlinks: bool = True) -> Status:
        return Status(self._node, _EPOCH_NS)


class _Entries:
    def __init__(self, entries: list[_Entry]) -> None:
        self._entries = entries

    def __enter__(self) -> Iterator[_Entry]:
        return iter(self._entries)

    def __exit__(self, *_: object) -> None:
        return None


class _Paths:
    """``os.path``, where it asks the kernel."""

    dirname = staticmethod(os.path.dirname)

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    def realpath(self, path: str) -> str:
        return path

    def lexists(self, path: str) -> bool:
        try:
            self._kernel.find(path)
        except OSError:
            return False
        return True

    def isdir(self, path: str) -> bool:
        return self.lexists(path) and isinstance(self._kernel.find(path), Directory)


class SystemCalls:
    """See the module. ``root`` is the path of the storage's root, ``step`` makes one step of the present process."""

    PathLike = os.PathLike
    fsencode = staticmethod(os.fsencode)
    fspath = staticmethod(os.fspath)
    O_RDONLY, O_RDWR, O_CREAT, O_EXCL = os.O_RDONLY, os.O_RDWR, os.O_CREAT, os.O_EXCL
    O_DIRECTORY, O_CLOEXEC, O_NOFOLLOW, O_NONBLOCK = os.O_DIRECTORY, os.O_CLOEXEC, os.O_NOFOLLOW, os.O_NONBLOCK
    O_PATH = getattr(os, "O_PATH", os.O_RDONLY)
    O_DIRECT = getattr(os, "O_DIRECT", 1 << 14)

    def __init__(self, kernel: Kernel, root: str, step: Step) -> None:
        self.path = _Paths(kernel)
        self._kernel = kernel
        self._root = root
        self._step = step
        self._open: dict[int, Descriptor] = {}

    # Helpers

    def _at(self, dir_fd: int | None) -> Directory | None:
        if dir_fd is None:
            return None
        found = self._descriptor(dir_fd).node
        assert isinstance(found, Directory)
        return found

    def _name(self, path: str, dir_fd: int | None) -> str:
        """A path as the name of a chunk, by the names under which folders were opened."""
        stem = self._open[dir_fd].name if dir_fd in self._open and dir_fd is not None else ""
        whole = f"{stem}/{path}" if stem else path
        parts = [part for part in whole.removeprefix(self._root).split("/") if part not in ("", ".")]
        return "/".join(parts)

    def _descriptor(self, fd: int) -> Descriptor:
        found = self._open.get(fd)
        assert found is not None, f"a descriptor is used that is not open: {fd}"
        return found

    def _file(self, fd: int) -> File:
        found = self._descriptor(fd).node
        if isinstance(found, Directory):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        return found

    def _new(self, node: Node, name: str, flags: int = 0) -> int:
        number = next(_numbers)
        self._open[number] = Descriptor(node, name, flags)
        return number

    def _call(
        self, step: str, name: str, apply: Callable[[], Any], *, data: bytes | None = None, changes: bool = True
    ) -> Any:
        def caught() -> Any:
            # The answer of a call, as whoever looks on may see it.
            try:
                return apply()
            except OSError as error:
                return error.with_traceback(None)

        write = apply if isinstance(apply, Write) else caught
        if name.startswith(_TEMPORARY) and step in ("pwrite", "fsync", "creat"):
            step = {"creat": "temporary"}.get(step, f"{step}-temporary")
        try:
            result = self._step(step, name, write, data=data, changes=changes)
        except StorageFull as error:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name) from error
        except StorageUnavailable as error:
            raise OSError(errno.EIO, os.strerror(errno.EIO), name) from error
        if not isinstance(result, OSError):
            return result
        try:
            raise result
        finally:
            # Or it would hold itself, and with it everything that its callers hold, until some collection.
            del result

    # Names

    def open(self, path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        name, at = self._name(path, dir_fd), self._at(dir_fd)
        if flags & os.O_DIRECTORY:
            folder = self._kernel.find(path, at)
            if not isinstance(folder, Directory):
                raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            return self._new(folder, name)
        if flags & os.O_CREAT:
            return self._new(self._call("creat", name, lambda: self._kernel.create(path, at)), name)
        node = self._call("open", name, lambda: self._kernel.find(path, at), changes=False)
        if flags & os.O_RDWR and isinstance(node, Directory):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return self._new(node, name, flags)

    def close(self, fd: int) -> None:
        # Also by a process that is dying, and by whatever lets go of a file at any time: no step.
        self._open.pop(fd, None)

    def stat(self, path: str, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> Status:
        at = self._at(dir_fd)
        found: Status = self._call(
            "stat",
            self._name(path, dir_fd),
            lambda: Status(self._kernel.find(path, at), _EPOCH_NS),
            changes=False,
        )
        return found

    def fstat(self, fd: int) -> Status:
        return Status(self._descriptor(fd).node, _EPOCH_NS)

    def mkdir(self, path: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        at = self._at(dir_fd)
        self._call("mkdir", self._name(path, dir_fd), lambda: self._kernel.make(path, at))

    def chmod(self, path: str, mode: int, *, dir_fd: int | None = None) -> None:
        at = self._at(dir_fd)

        def change() -> None:
            file = self._kernel.file(path, at)
            file.mode = file.mode & ~0o7777 | mode

        self._call("chmod", self._name(path, dir_fd), change)

    def unlink(self, path: str, *, dir_fd: int | None = None) -> None:
        at = self._at(dir_fd)
        self._call("unlink", self._name(path, dir_fd), lambda: self._kernel.unlink(path, at))

    def link(self, src: str, dst: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        at, to = self._at(src_dir_fd), self._at(dst_dir_fd)

        def link() -> bool:
            try:
                self._kernel.link(src, at, dst, to)
            except FileExistsError:
                return False
            return True

        name = self._name(dst, dst_dir_fd)
        if not self._call("link", name, link, data=self._bytes(src, at)):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)

    def replace(self, src: str, dst: str, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        at, to = self._at(src_dir_fd), self._at(dst_dir_fd)
        self._call(
            "rename",
            self._name(dst, dst_dir_fd),
            lambda: self._kernel.rename(src, at, dst, to),
            data=self._bytes(src, at),
        )

    def _bytes(self, path: str, at: Directory | None) -> bytes | None:
        try:
            return bytes(self._kernel.file(path, at).data)
        except OSError:
            return None

    def scandir(self, fd: int) -> _Entries:
        descriptor = self._descriptor(fd)
        folder = descriptor.node
        assert isinstance(folder, Directory)
        entries: list[_Entry] = self._call(
            "readdir",
            descriptor.name,
            lambda: [_Entry(name, node) for name, node in folder.entries.items()],
            changes=False,
        )
        return _Entries(entries)

    # Bytes

    def pread(self, fd: int, size: int, offset: int) -> bytes:
        file, descriptor = self._file(fd), self._open[fd]

        def read() -> bytes:
            return file.stored(offset, size) if descriptor.is_direct else bytes(file.data[offset : offset + size])

        data: bytes = self._call("pread", descriptor.name, read, changes=False)
        return data

    def preadv(self, fd: int, buffers: Sequence[bytearray | memoryview], offset: int) -> int:
        (buffer,) = buffers
        with memoryview(buffer) as whole, whole.cast("B") as view:
            data = self.pread(fd, len(view), offset)
            view[: len(data)] = data
            return len(data)

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, offset: int) -> int:
        body = bytes(data)
        effect = Write(self._file(fd), offset, body, self._kernel.now)
        return int(self._call("pwrite", self._open[fd].name, effect, data=body))

    def copy_file_range(self, src: int, dst: int, count: int, offset_src: int, offset_dst: int) -> int:
        """A write, whose bytes come from a file: what goes wrong with writes goes wrong with it."""
        data = bytes(self._file(src).data[offset_src : offset_src + count])
        return self.pwrite(dst, data, offset_dst) if data else 0

    def ftruncate(self, fd: int, length: int) -> None:
        file = self._file(fd)
        self._call("truncate", self._open[fd].name, lambda: file.cut(length, self._kernel.now()))

    def fsync(self, fd: int) -> None:
        descriptor = self._descriptor(fd)
        node = descriptor.node
        if isinstance(node, Directory):
            self._call("fsync-folder", descriptor.name, node.sync)
            return
        try:
            self._call("fsync", descriptor.name, lambda: _sync(descriptor, node))
        finally:
            # A sync that failed is told once to each descriptor.
            descriptor.errors_known = node.errors

    fdatasync = fsync

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"the simulated kernel has no os.{name}")


def _sync(descriptor: Descriptor, file: File) -> None:
    file.sync()
    if file.errors > descriptor.errors_known:
        raise OSError(errno.EIO, os.strerror(errno.EIO), descriptor.name)
