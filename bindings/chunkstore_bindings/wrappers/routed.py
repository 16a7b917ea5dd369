"""The door to foreign chunks: names ``@k/...`` are read in root ``k``, everything else is passed on (decision 0021). Extents, which lie in
records of the container's own journal, are read through it, too.

Promises: a root is opened when something in it is read, looked at before a byte of it is believed, and closed with this storage
or by ``close_roots``. Of these names only looking is possible; whatever would change one is refused before anything is asked. What a
root cannot answer is ``RootUnavailable`` with its URL; an object that is not there is ``ChunkNotFound`` under the name that was
asked for. ``compose`` copies their ranges through this client, into temporaries.
Leaves out: which roots there are (``metadata.roots``), opening one and telling it from another (``chunkstore.registry``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple, Protocol, TypeVar

from chunkstore import runtime
from chunkstore.checksum import BytesLike
from chunkstore.config import MIB
from chunkstore.deadline import until
from chunkstore.errors import (
    ChunkNotFound,
    ChunkstoreError,
    Closed,
    Damaged,
    DeadlineExceeded,
    InvalidArgument,
    RootUnavailable,
    StorageUnavailable,
    Unsupported,
)
from chunkstore.metadata.roots import OWN_ROOT
from chunkstore.names import ContainerNames, parse_routed
from chunkstore.records import RootRecord
from chunkstore.storage import ChunkHandle, ChunkInfo, ChunkRange, ChunkStorage, Composed, ReadRange
from chunkstore_bindings.wrappers.wrapping import READING, WrappingChunkStorage

__all__ = ["RootOpener", "RoutedChunkStorage"]

T = TypeVar("T")
_PIECE_BYTES: Final = 16 * MIB


class RootOpener(Protocol):
    """Who knows how to open a root (``chunkstore.registry.Roots``)."""

    def open(self, root: RootRecord) -> ChunkStorage:
        """The storage of a root that is not our own. Raises what opening raises, and ``RootUnavailable``."""

    def confirm(self, storage: ChunkStorage, root: RootRecord) -> None:
        """Raise ``RootUnavailable`` if what lies there is known to be something else than was adopted from."""


class _Root(NamedTuple):
    record: RootRecord
    storage: ChunkStorage


class RoutedChunkStorage(WrappingChunkStorage):
    """See the module. Thread-safe. ``find``: the row of a root; ``deadline_s``: of calls behind a network that nobody bounds."""

    def __init__(
        self,
        inner: ChunkStorage,
        names: ContainerNames,
        find: Callable[[int], RootRecord | None],
        opener: RootOpener,
        *,
        deadline_s: float,
    ) -> None:
        super().__init__(inner)
        self._names = names
        self._find = find
        self._opener = opener
        self._deadline_s = deadline_s
        self._lock = runtime.lock()
        self._roots: dict[int, _Root] = {}
        self._closed = False

    def around(self, operation: str, names: Sequence[str], size_bytes: int, call: Callable[[], T]) -> T:
        if operation not in READING or operation == "list":
            for name in names:
                _own(name)
        return call()

    # Of every append: without the gate, and as few calls as can be.

    def write(self, handle: ChunkHandle, offset: int, data: BytesLike) -> int:
        if isinstance(handle, ChunkHandle) and handle.name[:1] == "@":
            _own(handle.name)
        return self.inner.write(handle, offset, data)

    def sync(self, names: Sequence[str]) -> None:
        for name in names:
            if name[:1] == "@":
                _own(name)
        self.inner.sync(names)

    # Looking

    def exists(self, name: str) -> bool:
        if not _is_foreign(name):
            return self.inner.exists(name)
        try:
            self.stat(name)
        except ChunkNotFound:
            return False
        return True

    def open_read(self, name: str) -> ChunkHandle:
        if not _is_foreign(name):
            return self.inner.open_read(name)
        self.stat(name)
        return ChunkHandle(name, False)

    def open_write(self, name: str) -> ChunkHandle:
        return self.inner.open_write(name) if not _is_foreign(name) else self.open_read(name)

    def read(self, handle: ChunkHandle, offset: int, length: int) -> bytes:
        if not isinstance(handle, ChunkHandle) or not _is_foreign(handle.name):
            return self.inner.read(handle, offset, length)
        return self._ask(handle.name, lambda storage, there, base: storage.read(there, base + offset, length))

    def read_uncached(self, handle: ChunkHandle, offset: int, length: int) -> bytes:
        if not isinstance(handle, ChunkHandle) or not _is_foreign(handle.name):
            return self.inner.read_uncached(handle, offset, length)
        return self._ask(handle.name, lambda storage, there, base: storage.read_uncached(there, base + offset, length))

    def read_into(self, handle: ChunkHandle, offset: int, buffer: bytearray | memoryview) -> int:
        if not isinstance(handle, ChunkHandle) or not _is_foreign(handle.name):
            return self.inner.read_into(handle, offset, buffer)
        return self._ask(handle.name, lambda storage, there, base: storage.read_into(there, base + offset, buffer))

    def read_ranges(self, handle: ChunkHandle, ranges: Sequence[ReadRange]) -> list[bytes]:
        if not isinstance(handle, ChunkHandle) or not _is_foreign(handle.name):
            return self.inner.read_ranges(handle, ranges)
        return [self.read(handle, item.offset, item.length) for item in ranges]

    def stat(self, name: str) -> ChunkInfo:
        if not _is_foreign(name):
            return self.inner.stat(name)

        def stat(storage: ChunkStorage, there: ChunkHandle, base: int) -> ChunkInfo:
            found = storage.stat(there.name)
            return found._replace(name=name, length=max(0, found.length - base))

        return self._ask(name, stat)

    def identity(self, name: str) -> bytes:
        if not _is_foreign(name):
            return self.inner.identity(name)
        return self._ask(name, lambda storage, there, _: storage.identity(there.name))

    # Copying

    def compose(self, name: str, ranges: Sequence[ChunkRange]) -> Composed:
        known = isinstance(ranges, Sequence) and all(isinstance(item, ChunkRange) for item in ranges)
        if not known or not any(_is_foreign(item.name) for item in ranges):
            return super().compose(name, ranges)
        _own(name)
        made: list[str] = []
        try:
            parts, carried = self._own_parts(ranges, made)
            done = self.inner.compose(name, parts)
            return done._replace(carried_bytes=done.carried_bytes + carried)
        finally:
            for temporary in made:
                with suppress(ChunkstoreError):
                    self.inner.delete(temporary)

    def _own_parts(self, ranges: Sequence[ChunkRange], made: list[str]) -> tuple[list[ChunkRange], int]:
        """The same bytes in objects of our own, and how many were copied; ``made``: the temporaries."""
        parts: list[ChunkRange] = []
        carried = 0
        for item in ranges:
            if not _is_foreign(item.name):
                parts.append(item)
                continue
            if item.length < 1:
                raise InvalidArgument(f"an empty range of chunk {item.name!r}", argument="ranges")
            position, stop = item.offset, item.offset + item.length
            while position < stop:
                wanted = min(_PIECE_BYTES, stop - position)
                data = self.read(ChunkHandle(item.name, False), position, wanted)
                if len(data) != wanted:
                    text = f"chunk {item.name!r} ends before byte {stop}"
                    raise InvalidArgument(text, argument="ranges")
                made.append(self._names.temporary(runtime.token(16).hex()))
                self.inner.create_if_absent(made[-1], data)
                parts.append(ChunkRange(made[-1], 0, wanted))
                carried, position = carried + wanted, position + wanted
        return parts, carried

    # Roots

    def _ask(self, name: str, call: Callable[[ChunkStorage, ChunkHandle, int], T]) -> T:
        routed = parse_routed(name)
        if routed is None:
            raise InvalidArgument(f"{name!r:.300} is no name in a root", argument="name")
        number, base, rest = routed
        if number == OWN_ROOT and self._is_journals(rest):
            try:
                return call(self.inner, ChunkHandle(rest, False), base)
            except ChunkNotFound as error:
                raise ChunkNotFound(name) from error
        with until(runtime.monotonic_s() + self._deadline_s):
            root = self._opened(number, name)
            there = ChunkHandle(root.record.prefix + rest, False)
            if root.storage is self.inner and there.name.startswith(f"{self._names.container}/"):
                raise Damaged("the row leads back into its own container; run check", object=name)
            try:
                return call(root.storage, there, base)
            except ChunkNotFound as error:
                self._opener.confirm(root.storage, root.record)
                raise ChunkNotFound(name) from error
            except (StorageUnavailable, DeadlineExceeded) as error:
                if isinstance(error, RootUnavailable):
                    raise
                raise RootUnavailable(root.record.url or self.inner.url, error.message, object=name) from error

    def _is_journals(self, name: str) -> bool:
        """Whether it is an object that extents lie in."""
        return self._names.parse_log(name) is not None or self._names.parse_slot(name) is not None

    def _opened(self, number: int, name: str) -> _Root:
        with self._lock:
            found = self._roots.get(number)
        if found is not None:
            return found
        record = self._find(number)
        if record is None:
            raise Damaged("its root is not known here; run check", object=name)
        made = _Root(record, self.inner)
        if record.url:
            try:
                made = _Root(record, self._opener.open(record))
            except RootUnavailable as error:
                error.object = error.object or name
                raise
            except ChunkstoreError as error:
                raise RootUnavailable(record.url, error.message, object=name) from error
        with self._lock:
            found = made if self._closed else self._roots.setdefault(number, made)
            closed = self._closed
        if (closed or found is not made) and record.url:
            made.storage.close()
        if closed:
            raise Closed("this chunk storage")
        return found

    def close_roots(self) -> None:
        """Close what was opened here; the storage behind it stays. Safe to repeat."""
        with self._lock:
            self._closed = True
            roots = list(self._roots.values())
            self._roots.clear()
        for root in roots:
            if root.record.url:
                root.storage.close()

    def close(self) -> None:
        self.close_roots()
        self.inner.close()


def _is_foreign(name: object) -> bool:
    return isinstance(name, str) and name[:1] == "@"


def _own(name: object) -> None:
    if _is_foreign(name):
        raise Unsupported(f"{name!r:.300} is an object of another root, which nothing here changes", feature="foreign")
