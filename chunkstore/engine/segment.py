"""``store["name"]``: one segment, with the calls of its store that are about one.

Promises: it binds the segment's id, as a handle does: of a deleted segment every call raises ``SegmentNotFound``, whatever has its name.
It holds no resources and may be kept. Of a replica it is a ``SegmentView``, which changes nothing.
Leaves out: sealing, truncating, joining, deleting (the store's methods take ``handle``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from chunkstore.checksum import BytesLike
from chunkstore.engine.reader import StorageReader
from chunkstore.engine.segment_file import RecordReader
from chunkstore.engine.writer import StorageWriter
from chunkstore.records.arguments import SegmentHandle
from chunkstore.records.framing import Framing
from chunkstore.records.segments import LayoutChunk, SegmentInfo

__all__ = ["Segment", "SegmentView"]


class _Readable(Protocol):
    @property
    def reader(self) -> Callable[..., StorageReader]: ...
    def info(self, segment: SegmentHandle, /) -> SegmentInfo: ...
    def read(self, segment: SegmentHandle, offset: int, length: int, /) -> bytes: ...
    def layout(self, segment: SegmentHandle, /) -> Iterator[LayoutChunk]: ...


class _Writable(_Readable, Protocol):
    @property
    def append(self) -> Callable[..., int]: ...
    @property
    def writer(self) -> Callable[..., StorageWriter]: ...


class SegmentView:
    """A segment that is read. Methods raise, and may be retried, as those of the store under their names."""

    def __init__(self, store: _Readable, handle: SegmentHandle) -> None:
        self._store = store
        self.handle = handle

    @property
    def name(self) -> str:
        """The segment's name."""
        return self.handle.name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} of {self._store!r}>"

    def __len__(self) -> int:
        """The bytes from the start offset to the end. Raises as ``info``."""
        info = self.info()
        return info.length - info.start_offset

    def __bool__(self) -> bool:
        return True  # also an empty one

    def info(self) -> SegmentInfo:
        """As ``store.info``."""
        return self._store.info(self.handle)

    def read(self, offset: int, length: int) -> bytes:
        """As ``store.read``."""
        return self._store.read(self.handle, offset, length)

    def layout(self) -> Iterator[LayoutChunk]:
        """As ``store.layout``."""
        return self._store.layout(self.handle)

    def reader(self, **arguments: Any) -> StorageReader:
        """As ``store.reader``."""
        return self._store.reader(self.handle, **arguments)

    def lines(self, follow: bool = False, **arguments: Any) -> RecordReader:
        """As ``lines`` of a reader from the start on."""
        return self.records("lines", follow, **arguments)

    def records(self, framing: Framing, follow: bool = False, **arguments: Any) -> RecordReader:
        """As ``records`` of a reader from the start on."""
        return self.reader(follow=follow).records(framing, **arguments)


class Segment(SegmentView):
    """A segment of an owned container. Methods raise, and may be retried, as those of the store under their names."""

    _store: _Writable

    def append(self, data: BytesLike, **arguments: Any) -> int:
        """As ``store.append``."""
        return self._store.append(self.handle, data, **arguments)

    def writer(self, **arguments: Any) -> StorageWriter:
        """As ``store.writer``."""
        return self._store.writer(self.handle, **arguments)
