"""``ChunkstoreFileSystem``: segments as files of fsspec, ``chunkstore://SEGMENT``, for libraries that read or append files.

Reading never claims the container; the first file that is opened for writing does. All file systems of one container in a process share
one store, because fsspec makes many objects; in a forked child they are closed. Errors are those of chunkstore, but for
``FileNotFoundError`` and ``FileExistsError``. Overwriting, deleting and renaming are refused. Needs the extra ``fsspec``."""

from __future__ import annotations

import atexit
import errno
import io
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from chunkstore import processes, runtime
from chunkstore.assembly import open_store
from chunkstore.config import MIB, Settings
from chunkstore.engine.reading import ReadableContainer
from chunkstore.engine.replica import Replica
from chunkstore.engine.store import Store
from chunkstore.engine.writer import StorageWriter
from chunkstore.errors import Closed, InvalidArgument, SegmentExists, SegmentNotFound, SegmentSealed, Unsupported
from chunkstore.following import open_replica
from chunkstore.records.arguments import SegmentHandle
from chunkstore.records.logs import without_credentials
from chunkstore.records.segments import SegmentInfo
from chunkstore.registry import Root, root_url

if TYPE_CHECKING:  # fsspec has no types

    class AbstractFileSystem:
        """What is used of it here."""

        @classmethod
        def _strip_protocol(cls, path: str) -> str: ...
else:
    from fsspec.spec import AbstractFileSystem

__all__ = ["ChunkstoreFileSystem"]

_BLOCK_BYTES: Final = 4 * MIB
_NEW: Final = ("wb", "xb")


class _AppendFile(io.RawIOBase):
    """A segment that is appended to: ``write`` queues bytes, which are durable when ``flush`` or ``close`` returns."""

    def __init__(self, writer: StorageWriter, position: int, check_process: Callable[[], None]) -> None:
        super().__init__()
        self._writer = writer
        self._position = position
        self._check_process = check_process

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        """The position after the last write; of a segment with other writers where it would be without them."""
        return self._position

    def write(self, data: Any, /) -> int:
        """Queue the bytes of one append; returns their count. Raises as ``StorageWriter.append``, and what broke the writer before."""
        self._check()
        payload = memoryview(data).cast("B")
        queued = self._writer.append(payload)
        if queued.done():
            queued.result()  # of a broken writer: its error
        self._position += len(payload)
        return len(payload)

    def flush(self) -> None:
        """All that was written is durable and fenced. Raises as ``StorageWriter.flush``; the file is broken then, and writes nothing again.
        Retry: by a new file, where a repetition does no harm."""
        self._check()
        self._writer.flush()

    def close(self) -> None:
        """As ``flush``, and the end. Closed also where it raises. Safe to repeat."""
        if not self.closed:
            try:
                super().close()  # flushes
            finally:
                self._check_process()
                self._writer.close()

    def _check(self) -> None:
        self._check_process()
        if self.closed:
            raise ValueError("I/O operation on closed file")


class _Bytes(io.RawIOBase):
    """The bytes of a segment that were there when it was opened."""

    def __init__(self, store: ReadableContainer, info: SegmentInfo) -> None:
        super().__init__()
        self._store = store
        self._handle = SegmentHandle(info.name, info.id, False)
        self._base = info.start_offset
        self.size = info.length - info.start_offset
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        at = offset + (0, self._at, self.size)[whence]
        if at < 0:
            raise ValueError(f"position {at} is before the start of the file")
        self._at = at
        return at

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer).cast("B")[: max(0, self.size - self._at)]
        count = self._store.read_into(self._handle, self._base + self._at, view) if len(view) else 0
        self._at += count
        return count

    def readall(self) -> bytes:
        left = max(0, self.size - self._at)
        data = self._store.read(self._handle, self._base + self._at, left) if left else b""
        self._at += len(data)
        return data


class _ReadFile(io.BufferedReader):
    """What ``open(..., "rb")`` gives: its ``size`` is fixed. Each block that is read is verified. Raises as ``ReadableContainer.read``."""

    def __init__(self, raw: _Bytes, buffer_bytes: int) -> None:
        super().__init__(raw, buffer_bytes)
        self.size = raw.size


class _Shared:
    """The store of one container in this process: a replica, and an owner from the first writing on."""

    def __init__(self, root: Root, container: str) -> None:
        self._root, self._container = root, container
        self.options: dict[str, Any] = {}
        self._lock = runtime.lock()
        self._replica: Replica | None = None
        self._owner: Store | None = None
        self._files: weakref.WeakSet[_AppendFile] = weakref.WeakSet()
        self._inherited = False
        processes.tell_in_child(self)

    def _leave_to_parent(self) -> None:
        self._inherited = True

    def configure(self, options: dict[str, Any]) -> None:
        """Take these options for the next opening. Raises ``InvalidArgument`` where it is open with others."""
        if options != self.options and (self._owner or self._replica):
            root = without_credentials(str(self._root))
            text = f"container {self._container!r} of {root} is open in this process with other options: close that one"
            raise InvalidArgument(text, argument="storage_options")
        self.options = options

    def reading(self) -> ReadableContainer:
        """The owner; else a replica that has caught up."""
        self._check_process()
        with self._lock:
            if self._owner is not None:
                return self._owner
            if self._replica is None:
                self._replica = open_replica(self._root, container=self._container, settings=self.options["settings"])
                return self._replica
            replica = self._replica
        replica.refresh()
        return replica

    def owning(self) -> Store:
        self._check_process()
        with self._lock:
            if self._owner is None:
                self._owner = open_store(self._root, container=self._container, **self.options)
            return self._owner

    def append_file(self, writer: StorageWriter, position: int) -> _AppendFile:
        file = _AppendFile(writer, position, self._check_process)
        self._files.add(file)
        return file

    def close(self) -> None:
        """Close the files, then the stores; all of them, also where a file raises."""
        if self._inherited:
            return
        with self._lock, ExitStack() as stack:
            for store in (self._replica, self._owner):
                if store is not None:
                    stack.callback(store.close)
            self._owner = self._replica = None
            for file in list(self._files):
                stack.callback(file.close)

    def _check_process(self) -> None:
        if self._inherited:
            raise Closed(f"the file system of container {self._container!r}, made before this process was forked,")


_shared: dict[tuple[int, str, str], _Shared] = {}


def _close_all() -> None:
    with ExitStack() as stack:
        for shared in _shared.values():
            stack.callback(shared.close)


atexit.register(_close_all)


class ChunkstoreFileSystem(AbstractFileSystem):
    """``fsspec.filesystem("chunkstore", root=..., container=...)``; a context manager that closes.

    Options: ``root`` (default: ``$CHUNKSTORE_ROOT``), ``container`` (``$CHUNKSTORE_CONTAINER``, else "default"), ``settings``, and for
    writing ``create`` (make a missing container) and ``wait_s`` (for a live owner; None: as ``chunkstore.open``).

    Modes: "rb"; "ab" appends, and creates a missing segment; "wb" and "xb" create a segment, and raise ``FileExistsError`` where it exists.
    Text modes likewise. Written bytes are durable and fenced once ``flush`` or ``close`` of the file has returned; one ``write`` appears
    completely or not at all. The first byte of a file is the first one that is readable: of a truncated segment that at its
    ``start_offset``, which ``info`` names. A slash in a name makes folders, which exist as long as a segment is in them.

    Raises ``InvalidArgument``, and at use as ``chunkstore.open_replica``, ``chunkstore.open`` (writing) and the store's methods.
    """

    protocol: ClassVar[str] = "chunkstore"
    cachable: ClassVar[bool] = False  # an object holds nothing: what is open is shared by root and container

    def __init__(
        self,
        *,
        root: Root | None = None,
        container: str | None = None,
        create: bool = True,
        wait_s: float | None = None,
        settings: Settings | None = None,
    ) -> None:
        super().__init__()
        chosen = root if root is not None else os.environ.get("CHUNKSTORE_ROOT")
        if chosen is None:
            raise InvalidArgument("no root: give the storage option root, or set CHUNKSTORE_ROOT", argument="root")
        self.container: str = container or os.environ.get("CHUNKSTORE_CONTAINER") or "default"
        waiting = {} if wait_s is None else {"wait_s": wait_s}
        url = root_url(chosen)
        self._shared = _shared.setdefault((os.getpid(), url, self.container), _Shared(url, self.container))
        self._shared.configure({"create": create, "settings": settings, **waiting})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all files that are open for writing, then the container in this process; its next use opens it again. Raises the last error
        of a file's ``close``; all is closed then, too. Happens at the interpreter's end by itself. Safe to repeat."""
        self._shared.close()

    def info(self, path: str, **unused: object) -> dict[str, Any]:
        """Name, size in bytes and type ("file", "directory"); of a file also the fields of ``SegmentInfo`` that describe it.

        Raises ``FileNotFoundError``, and as ``ReadableContainer.info``."""
        name, store = self._strip_protocol(path), self._shared.reading()
        if name and (found := _find(store, name)) is not None:
            return _described(found)
        if name and next(store.segments(f"{name}/", limit=1), None) is None:
            raise _missing(name)
        return {"name": name, "size": 0, "type": "directory"}

    def ls(self, path: str, detail: bool = True, **unused: object) -> list[Any]:
        """What is in a folder ("" has all), or the file itself; names only without ``detail``. Costs a scan of all segments below.

        Raises as ``info``."""
        name = self._strip_protocol(path)
        found = list(dict(self._children(name)).values())
        if name and not found:
            found = [self.info(path)]
        return found if detail else list(dict.fromkeys(item["name"] for item in found))

    def exists(self, path: str, **unused: object) -> bool:
        """Whether there is such a file or folder. Raises as ``info`` but for ``FileNotFoundError``."""
        return self._type(path) != ""

    def isfile(self, path: str) -> bool:
        """Whether there is such a segment. Raises as ``exists``."""
        return self._type(path) == "file"

    def isdir(self, path: str) -> bool:
        """Whether a segment is below. Raises as ``exists``."""
        return self._type(path) == "directory"

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **unused: object) -> bytes:
        """The bytes ``[start, end)`` of a file, as a slice: negative ones count from its end; ``cat_ranges`` reads many.

        Raises ``FileNotFoundError``, and as ``ReadableContainer.read``."""
        store, info = self._found(path)
        low, high, _ = slice(start, end).indices(info.length - info.start_offset)
        handle = SegmentHandle(info.name, info.id, False)
        return store.read(handle, info.start_offset + low, max(0, high - low))

    def _open(
        self, path: str, mode: str = "rb", block_size: int | None = None, autocommit: bool = True, **unused: object
    ) -> Any:
        """``block_size``: what a file reads at a time, and what it queues before it writes; default 4 MiB."""
        if not autocommit:
            raise Unsupported(
                "files here belong to no transaction: each flush is durable at once", feature="transaction"
            )
        block_bytes = block_size or _BLOCK_BYTES
        if mode == "rb":
            return _ReadFile(_Bytes(*self._found(path)), block_bytes)
        if mode != "ab" and mode not in _NEW:
            raise InvalidArgument(f"mode must be rb, ab, wb or xb, or one of text, not {mode!r}", argument="mode")
        store = self._shared.owning()
        try:
            handle = store.create(path)
        except SegmentExists as error:
            if mode in _NEW:
                text = "a segment is never overwritten; append to it (mode ab), or choose another name"
                raise FileExistsError(errno.EEXIST, text, path) from error
            handle = store.open_write(path)
        info = store.info(handle)
        if info.sealed:
            raise SegmentSealed(path)
        writer = store.writer(handle, flush_bytes=min(block_bytes, _BLOCK_BYTES))
        return self._shared.append_file(writer, info.length - info.start_offset)

    def _found(self, path: str) -> tuple[ReadableContainer, SegmentInfo]:
        name, store = self._strip_protocol(path), self._shared.reading()
        found = _find(store, name) if name else None
        if found is None:
            raise _missing(name)
        return store, found

    def _type(self, path: str) -> str:
        try:
            return str(self.info(path)["type"])
        except FileNotFoundError:
            return ""

    def _children(self, folder: str) -> Iterator[tuple[str, dict[str, Any]]]:
        prefix = f"{folder}/" if folder else ""
        for info in self._shared.reading().segments(prefix):
            child, slash, _ = info.name[len(prefix) :].partition("/")
            name = f"{prefix}{child}"
            yield name + slash, {"name": name, "size": 0, "type": "directory"} if slash else _described(info)


def _find(store: ReadableContainer, name: str) -> SegmentInfo | None:
    try:
        return store.info(name)
    except SegmentNotFound:
        return None


def _missing(name: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "no such segment", name)


def _described(info: SegmentInfo) -> dict[str, Any]:
    fields = ("start_offset", "sealed", "created_at", "modified_at")
    size = info.length - info.start_offset
    return {"name": info.name, "size": size, "type": "file"} | {field: getattr(info, field) for field in fields}
