"""``StorageReader``: iterate over a segment's bytes with read-ahead, and follow its tail.

Promises: buffers come in order, without gaps or overlaps, from ``start`` to ``stop`` (or the end at the time it is reached);
at most ``prefetch_bytes`` are held in advance; with ``follow`` it waits for more until the segment is sealed, deleted or the
reader closed. Errors of reading are raised at the position where they occur, after all buffers before it.
Leaves out: random access (``store.read``).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Self

from chunkstore import runtime
from chunkstore.errors import BadOffset, ChunkstoreError, Closed, InvalidArgument, SegmentTruncated, StorageUnavailable

if TYPE_CHECKING:
    from chunkstore.reading import ReadingHalf, SegmentHandle

__all__ = ["StorageReader", "check_reader"]

_FOLLOW_WAIT_S: Final = 0.5
_PIECE_BYTES_MIN: Final = 4096
_PIECE_BYTES_MAX: Final = 1 << 28


def check_reader(start: object, stop: object, prefetch_bytes: object, piece_bytes: object) -> None:
    """Check a reader's arguments. Raises ``InvalidArgument``."""
    for value, argument in (
        (0 if start is None else start, "start"),
        (0 if stop is None else stop, "stop"),
        (prefetch_bytes, "prefetch_bytes"),
    ):
        if type(value) is not int or value < 0:
            raise InvalidArgument(f"{argument} must be a whole number from 0 on, not {value!r}", argument=argument)
    if type(piece_bytes) is not int or not _PIECE_BYTES_MIN <= piece_bytes <= _PIECE_BYTES_MAX:
        raise InvalidArgument(
            f"piece_bytes must be from {_PIECE_BYTES_MIN} to {_PIECE_BYTES_MAX}, not {piece_bytes!r}",
            argument="piece_bytes",
        )


class StorageReader:
    """An iterator of ``bytes`` objects of at most ``piece_bytes``; also a context manager. For one consuming thread.

    ``position`` is the offset behind the last buffer returned. ``prefetch_bytes`` 0 reads only when asked.
    """

    def __init__(
        self,
        store: ReadingHalf,
        handle: SegmentHandle,
        *,
        start: int,
        stop: int | None,
        prefetch_bytes: int,
        follow: bool,
        piece_bytes: int,
    ) -> None:
        check_reader(start, stop, prefetch_bytes, piece_bytes)
        info = store.info(handle)
        if start < info.start_offset:
            raise SegmentTruncated(handle.name, start_offset=info.start_offset, offset=start)
        if start > info.length and not follow:
            raise BadOffset(handle.name, expected=info.length, given=start)
        self.position = start
        self._store = store
        self._handle = handle
        self._stop = stop
        self._follow = follow
        self._piece_bytes = piece_bytes
        self._ahead_max = max(1, prefetch_bytes // piece_bytes) if prefetch_bytes else 0
        self._condition = runtime.condition()
        self._ready: deque[bytes | ChunkstoreError | None] = deque()
        self._closed = False
        self._ended = False
        self._task: runtime.Task | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        """The next buffer. Raises ``StopIteration`` at the end, ``Closed``, and what reading raises."""
        if self._closed:
            raise Closed("this reader")
        if self._ended:
            raise StopIteration
        item = self._next_item()
        if isinstance(item, bytes):
            self.position += len(item)
            return item
        self._ended = True
        if item is None:
            raise StopIteration
        raise item

    def close(self) -> None:
        """End reading ahead. Safe to repeat."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        if self._task is not None:
            self._task.join(timeout=10)

    def _next_item(self) -> bytes | ChunkstoreError | None:
        if not self._ahead_max:
            return self._read_one(self.position)
        if self._task is None:
            self._task = runtime.spawn(self._read_ahead, "chunkstore-reader")
        with self._condition:
            while not self._ready:
                if self._closed:
                    return None
                self._condition.wait(1.0)
            item = self._ready.popleft()
            self._condition.notify()
            return item

    def _read_ahead(self) -> None:
        position = self.position
        while True:
            item = self._read_one(position)
            with self._condition:
                while len(self._ready) >= self._ahead_max and not self._closed:
                    self._condition.wait(1.0)
                if self._closed:
                    return
                self._ready.append(item)
                self._condition.notify()
            if not isinstance(item, bytes):
                return
            position += len(item)

    def _read_one(self, position: int) -> bytes | ChunkstoreError | None:
        """The buffer at ``position``, None at the end, or the error to raise there."""
        try:
            while True:
                length = self._piece_bytes if self._stop is None else min(self._piece_bytes, self._stop - position)
                if length <= 0:
                    return None
                try:
                    data = self._store.read(self._handle, position, length)
                except BadOffset:
                    if not self._follow:
                        raise
                    data = b""
                if data:
                    return data
                if not self._follow or self._closed:
                    return None
                info = self._store.wait(self._handle, position, _FOLLOW_WAIT_S)
                if info.sealed and info.length <= position:
                    return None
        except ChunkstoreError as error:
            return error
        except Exception as error:  # noqa: BLE001  (carried to the consuming thread)
            # Not from a well-behaved binding; but nobody must wait for ever for a thread that it has ended.
            wrapped = StorageUnavailable(f"unexpected {type(error).__name__} while reading: {error}")
            wrapped.__cause__ = error
            return wrapped
