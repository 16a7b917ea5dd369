"""``StorageReader``: iterate over a segment's bytes with read-ahead, and follow its tail.

Promises: buffers come in order, without gaps or overlaps, from ``start`` to ``stop`` (or the end at the time it is reached);
at most ``prefetch_bytes`` are held in advance, and from a remote storage several pieces are read at a time; with ``follow`` it waits for
more until the segment is sealed and read to its end, or the reader is closed; ``poll`` never waits for that. A segment that is deleted or
moved by concat first raises ``SegmentNotFound`` with the offset. Errors of reading are raised at the position where they occur, after all
buffers before it: damage where the bad block begins. With ``on_damage="skip"`` bad blocks are left out, and only these, and ``skipped``
names them. Reading ahead also ends when a reader is garbage-collected. Not for use in a forked child.
Leaves out: what makes it a file, and gives records (``segment_file``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, Literal, NamedTuple, Protocol, Self, TypeAlias

from chunkstore import runtime
from chunkstore.config import MIB
from chunkstore.engine.segment_file import SegmentFile, SkippedRange
from chunkstore.errors import (
    BadOffset,
    ChunkstoreError,
    Closed,
    Damaged,
    InvalidArgument,
    SegmentNotFound,
    SegmentTruncated,
    StorageUnavailable,
)
from chunkstore.records.arguments import SegmentHandle, check_flags, check_number
from chunkstore.records.segments import SegmentInfo

__all__ = ["OnDamage", "ReaderOptions", "SkippedRange", "StorageReader", "gone"]

OnDamage = Literal["raise", "skip"]

_FOLLOW_WAIT_S: Final = 3600.0
_JOIN_S: Final = 10.0
_THREAD: Final = "chunkstore-reader"
_PIECE_BYTES_MIN: Final = 4096
_PIECE_BYTES_MAX: Final = 1 << 28
_REMOTE_WAYS: Final = 8
"""So many pieces are read at a time from a remote storage: one connection brings a piece for each round trip."""


class _Readable(Protocol):
    """What a reader asks of its store."""

    def read(self, segment: SegmentHandle, offset: int, length: int, /) -> bytes: ...


_Wait: TypeAlias = Callable[[SegmentHandle, int, float, Callable[[], bool]], SegmentInfo]
"""As ``store.wait``; the last is asked twice a second, and ends it early."""


def gone(segment: str, offset: int) -> SegmentNotFound:
    """The error of a follower whose segment ends before it is sealed and read to its end."""
    text = f"segment {segment!r} was deleted or moved by concat; it was read up to offset {offset}, not to a sealed end"
    return SegmentNotFound(segment, f"{text}; at_lsn opens an earlier state, which may hold the rest")


class ReaderOptions(NamedTuple):
    """What a reader reads, and how far ahead; its fields: arguments of ``reader``."""

    start: int | None = None
    stop: int | None = None
    prefetch_bytes: int = 8 * MIB
    follow: bool = False
    piece_bytes: int = MIB
    on_damage: OnDamage = "raise"

    def end(self, offset: int) -> int:
        """``offset``, or ``stop`` where that is lower."""
        return offset if self.stop is None else min(self.stop, offset)

    def check(self) -> None:
        """Raise ``InvalidArgument`` unless all is in range."""
        check_number(0 if self.start is None else self.start, "start")
        check_number(0 if self.stop is None else self.stop, "stop")
        check_number(self.prefetch_bytes, "prefetch_bytes")
        check_flags(follow=self.follow)
        piece: object = self.piece_bytes
        if type(piece) is not int or not _PIECE_BYTES_MIN <= piece <= _PIECE_BYTES_MAX:
            text = f"piece_bytes must be from {_PIECE_BYTES_MIN} to {_PIECE_BYTES_MAX}, not {piece!r}"
            raise InvalidArgument(text, argument="piece_bytes")
        if self.on_damage not in ("raise", "skip"):
            text = f"on_damage must be 'raise' or 'skip', not {self.on_damage!r}"
            raise InvalidArgument(text, argument="on_damage")


class StorageReader(SegmentFile):
    """An iterator of ``bytes`` objects of at most ``piece_bytes`` (``lines`` gives lines), and a read-only binary file whose positions are
    the segment's offsets; also a context manager. For one consuming thread. After ``poll`` its file methods raise ``BlockingIOError``, and
    take nothing, where they would wait for an append.

    ``position`` is the offset after the last byte returned. ``prefetch_bytes`` 0 reads only when asked. ``skipped``: with
    ``on_damage="skip"``, the ranges before ``position`` that could not be read, and at the end also those after it.
    """

    def __init__(
        self,
        store: _Readable,
        info: SegmentInfo,
        wait: _Wait,
        options: ReaderOptions,
        *,
        remote: bool = False,
    ) -> None:
        start = info.start_offset if options.start is None else options.start
        handle = SegmentHandle(info.name, info.id, False)
        if start < info.start_offset:
            raise SegmentTruncated(handle.name, start_offset=info.start_offset, offset=start)
        if start > info.length and not options.follow:
            raise BadOffset(handle.name, expected=info.length, given=start)
        self.segment: SegmentHandle = handle
        self.name: str = handle.name
        self._store = store
        self._options = options
        self._wait = partial(wait, handle)
        self.skipped: list[SkippedRange] = []
        self._read_at = partial(store.read, handle)
        self._ahead_max = max(1, options.prefetch_bytes // options.piece_bytes) if options.prefetch_bytes else 0
        self._ways_max = min(_REMOTE_WAYS if remote else 1, self._ahead_max)
        self._tasks: list[runtime.Task] = []
        self._retired: list[runtime.Task] = []
        self._reads_ahead = True
        self._begin(start, info.length, follow=options.follow)

    def _begin(self, start: int, length: int, *, follow: bool) -> None:
        self.follows: bool = follow
        options = self._options = self._options._replace(start=start, follow=follow)
        self._pieces = _Pieces(self._read_at, self._wait, options, start, length)
        pieces_left = -(-(options.end(length) - start) // options.piece_bytes)
        self._ways = max(1, min(self._ways_max, pieces_left))
        self._is_ahead = length - start >= options.piece_bytes  # of a polled or sought reader: whether to read ahead
        self._ended = False
        self.error: ChunkstoreError | None = None
        self._held, self._low = b"", 0
        self.fetched_to: int = start

    def __repr__(self) -> str:
        state = "closed" if self.closed else "ended" if self._ended else "open"
        return f"<StorageReader {self.segment.name!r} position={self.position} {state} of {self._store!r}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def __del__(self) -> None:
        # The threads refer to the pieces only, so that a dropped reader is collected; it must not wait for them.
        if hasattr(self, "_pieces"):
            self._pieces.forget()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        """The next buffer. Raises ``StopIteration`` at the end, ``Closed``, and as ``ReadableContainer.read``."""
        if (item := self._advance()) is None:
            raise StopIteration
        return item

    def poll(self) -> bytes | None:
        """As ``next``, but it never waits for an append: b"" where a follower would, None at the end. From the first ``poll`` on no
        thread of this reader waits at the tail; ``segment`` and ``fetched_to`` say for what to wait. Raises ``Closed``, and as
        ``ReadableContainer.read``. Retry: safe."""
        self.never_wait()
        return self._advance()

    def never_wait(self) -> None:
        """From now on this waits for no append; see ``poll``. Raises nothing."""
        self._pieces.waits = False

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return self._pieces.closed

    def _end(self) -> int:
        return self._options.end(self._wait(0, 0.0, bool).length)

    def _go_to(self, offset: int, *, follow: bool) -> None:
        former = self._pieces
        if former.closed:
            raise Closed("this reader")
        former.close()
        self._retired = [task for task in (*self._retired, *self._tasks) if task.is_alive()]
        self._tasks = []
        self._begin(offset, former.known_end, follow=follow)
        self._pieces.waits = former.waits
        self._is_ahead = self._reads_ahead = False  # random access reads ahead after a whole piece

    def _advance(self) -> bytes | None:
        if self._pieces.closed:
            raise Closed("this reader")
        rest, self._held, self._low = self._held[self._low :], b"", 0
        if rest:
            return rest
        if self._ended:
            return None
        while isinstance(item := self._next_item(), SkippedRange):
            self.skipped.append(item)
            self.fetched_to = item.stop
        if isinstance(item, bytes):
            self.fetched_to += len(item)
            return item
        self._ended = True
        if item is None:
            return None
        self.error = item
        raise item

    def close(self, wait_s: float = _JOIN_S) -> None:
        """End reading ahead, waiting ``wait_s`` at most for what is being read. Raises nothing. Safe to repeat."""
        self._pieces.close()
        deadline_s = runtime.monotonic_s() + wait_s
        for task in (*self._retired, *self._tasks):
            task.join(timeout=max(0.0, deadline_s - runtime.monotonic_s()))

    def _next_item(self) -> _Item:
        pieces = self._pieces
        if not self._ahead_max:
            return pieces.read(self.fetched_to)
        if not self._is_ahead and not (pieces.waits and self._reads_ahead):
            item = pieces.read(self.fetched_to)
            if isinstance(item, bytes) and len(item) == self._options.piece_bytes:
                self._is_ahead = True
                pieces.go_on(self.fetched_to + len(item))
            return item
        if not self._tasks:
            ahead = partial(pieces.read_ahead, self._ahead_max)
            self._tasks.append(runtime.spawn(ahead, _THREAD))
            more = (runtime.spawn_if_possible(ahead, _THREAD) for _ in range(self._ways - 1))
            self._tasks += [task for task in more if task is not None]
        item = pieces.take()
        if item == b"":
            self._is_ahead = False
            self._tasks.clear()  # they end: there is nothing to read ahead
        return item


_Item = bytes | SkippedRange | ChunkstoreError | None
"""A buffer, what is left out in its place, the error to raise there, or None at the end."""


class _Ahead:
    """A piece that somebody reads ahead."""

    __slots__ = ("item", "position", "read")

    def __init__(self, position: int) -> None:
        self.position = position
        self.read = False
        self.item: _Item = None


class _Pieces:
    """A segment's bytes in pieces, and those of them that are read ahead, in order.

    Below ``known_end`` pieces are taken to be whole, so that several can be read at a time. Where one is not (damage, a truncation), what
    was read after it is given up, and reading goes on after what it brought. At the known end there is one at a time.
    """

    def __init__(
        self,
        read_at: Callable[[int, int], bytes],
        wait_at: Callable[[int, float, Callable[[], bool]], SegmentInfo],
        options: ReaderOptions,
        start: int,
        known_end: int,
    ) -> None:
        self._read_at = read_at
        self._wait_at = wait_at
        self._options = options
        self._piece_bytes = options.piece_bytes
        self._condition = runtime.condition()
        self.known_end = known_end
        self._ahead: deque[_Ahead] = deque()
        self._next: int | None = start
        """Where the next piece begins that is to be read ahead; None after the last."""
        self._reading = 0
        self.closed = False
        self.waits = True  # whether a follower's reads wait for appends; else they give b""

    def close(self) -> None:
        """No more of them."""
        with self._condition:
            self.closed = True
            self._condition.notify_all()

    def _is_closed(self) -> bool:
        return self.closed

    def forget(self) -> None:
        """As ``close``, without the lock, for the garbage collector: waiting threads notice within a second."""
        self.closed = True

    def go_on(self, position: int) -> None:
        """Read ahead from here."""
        with self._condition:
            self._next = position

    def take(self) -> _Item:
        """The next one that was read ahead."""
        with self._condition:
            while not (self._ahead and self._ahead[0].read):
                if self.closed:
                    return None
                self._condition.wait(1.0)
            item = self._ahead.popleft().item
            self._condition.notify_all()
            return item

    def read_ahead(self, ahead_max: int) -> None:
        """Read ``ahead_max`` pieces in advance, to the end. For several threads."""
        while True:
            with self._condition:
                while not self.closed and self._next is not None and not self._may_begin(self._next, ahead_max):
                    self._condition.wait(1.0)
                if self.closed or self._next is None:
                    return
                piece = _Ahead(self._next)
                self._ahead.append(piece)
                self._next += self._piece_bytes
                self._reading += 1
            item = self.read(piece.position)
            with self._condition:
                self._reading -= 1
                piece.item, piece.read = item, True
                self._go_on_after(piece)
                self._condition.notify_all()

    def _may_begin(self, position: int, ahead_max: int) -> bool:
        if len(self._ahead) >= ahead_max:
            return False
        return not self._reading or position + self._piece_bytes <= self.known_end

    def _go_on_after(self, piece: _Ahead) -> None:
        """With the condition held: where a piece is not as long as it was taken for, what follows it begins elsewhere."""
        item = piece.item
        if isinstance(item, bytes) and item:
            following: int | None = piece.position + len(item)
        else:
            following = item.stop if isinstance(item, SkippedRange) else None
        if following == piece.position + self._piece_bytes or piece not in self._ahead:
            return
        while self._ahead[-1] is not piece:
            self._ahead.pop()
        self._next = following

    def read(self, position: int) -> _Item:
        """The buffer at ``position``, None at the end, or the error to raise there."""
        try:
            while True:
                length = self._options.end(position + self._piece_bytes) - position
                if length <= 0:
                    return None
                try:
                    found = self._read_whole_blocks(position, length)
                except BadOffset:
                    if not self._options.follow:
                        raise
                    found = b""
                if found:
                    return found
                if not self._options.follow or self.closed:
                    return None
                info = self._wait_at(position, _FOLLOW_WAIT_S if self.waits else 0.0, self._is_closed)
                self._know_end(info.length)
                if info.length <= position and (info.sealed or not self.waits):
                    return None if info.sealed else b""
        except SegmentNotFound as error:
            return gone(error.segment, position) if self._options.follow else error
        except ChunkstoreError as error:
            return error
        except Exception as error:  # noqa: BLE001  (carried to the consuming thread)
            # A defect of a binding must not leave the consumer waiting for a thread that has ended.
            wrapped = StorageUnavailable(f"unexpected {type(error).__name__} while reading: {error}")
            wrapped.__cause__ = error
            return wrapped

    def _know_end(self, end: int) -> None:
        with self._condition:
            self.known_end = end
            self._condition.notify_all()

    def _read_whole_blocks(self, position: int, length: int) -> bytes | SkippedRange:
        """Readable bytes up to the first bad block; where that is at ``position``, it is raised or skipped."""
        while True:
            try:
                return self._read_at(position, length)
            except Damaged as error:
                if position < error.start < position + length:
                    length = error.start - position
                elif self._options.on_damage == "skip" and error.start <= position < error.stop:
                    return SkippedRange(position, self._options.end(error.stop), error)
                else:
                    raise
