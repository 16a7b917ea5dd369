"""A segment's bytes as a read-only binary file, and cut into records.

Promises: positions are the segment's offsets; errors are raised at the position where they occur, after all bytes and records before it,
and again if it is read again. Records come lazily: memory is a buffer, its records, and an unfinished one of ``record_bytes_max`` at most;
a follower gives each as soon as it is whole. What ``on_damage="skip"`` leaves out, lines cut by a gap included, is in ``skipped``.
Leaves out: fetching the bytes (``reader``).
"""

from __future__ import annotations

import io
import sys
from abc import abstractmethod
from collections.abc import Iterator
from functools import partial
from typing import Final, NamedTuple

from chunkstore.config import MIB
from chunkstore.errors import ChunkstoreError, Closed, Damaged, InvalidArgument
from chunkstore.records.arguments import SegmentHandle, check_buffer, check_flags, check_number
from chunkstore.records.framing import Framing, RecordSplitter, check_framing

__all__ = ["Record", "RecordReader", "SegmentFile", "SkippedRange"]

_RECORD_BYTES_MAX: Final = 16 * MIB


class SkippedRange(NamedTuple):
    """Bytes ``[start, stop)`` of a segment that were not given out, and why."""

    start: int
    stop: int
    error: Damaged


class Record(NamedTuple):
    """A record's payload, and the offset of its first byte, its prefix included."""

    offset: int
    data: bytes


class SegmentFile(io.RawIOBase):
    """The file methods of ``StorageReader``."""

    name: str
    segment: SegmentHandle
    skipped: list[SkippedRange]
    fetched_to: int  # the offset after the last byte that came from the store; where a polled reader waits
    follows: bool
    error: ChunkstoreError | None  # what ended it
    _held: bytes
    _low: int  # so many bytes of the buffer ``_held`` were given out

    @abstractmethod
    def poll(self) -> bytes | None: ...
    @abstractmethod
    def _advance(self) -> bytes | None: ...
    @abstractmethod
    def _end(self) -> int: ...
    @abstractmethod
    def _go_to(self, offset: int, *, follow: bool) -> None: ...

    @property
    def position(self) -> int:
        """The offset after the last byte returned."""
        return self.fetched_to - len(self._held) + self._low

    def readable(self) -> bool:
        """True. Raises nothing."""
        return True

    def seekable(self) -> bool:
        """True. Raises nothing."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Go on from another offset of the segment, and read ahead anew; ``whence``: as of any file, where the end is ``stop`` or the
        present length. Returns the offset. Raises ``InvalidArgument``, ``Closed``, and as ``ReadableContainer.info``. Retry: safe."""
        if whence not in (io.SEEK_SET, io.SEEK_CUR, io.SEEK_END) or type(offset) is not int:
            raise InvalidArgument(f"seek takes whole numbers, the second 0, 1 or 2, not {whence!r}", argument="whence")
        if whence != io.SEEK_SET:
            offset += self.position if whence == io.SEEK_CUR else self._end()
        check_number(offset, "offset")
        if offset != self.position:
            self._go_to(offset, follow=self.follows)
        return offset

    def lines(self, follow: bool | None = None, *, record_bytes_max: int = _RECORD_BYTES_MAX) -> RecordReader:
        """As ``records("lines")``. Raises as ``records``."""
        return self.records("lines", record_bytes_max=record_bytes_max, follow=follow)

    def records(
        self, framing: Framing, *, record_bytes_max: int = _RECORD_BYTES_MAX, follow: bool | None = None
    ) -> RecordReader:
        """Iterate over ``Record(offset, data)`` pairs from here on; see ``RecordReader``. ``follow``: other than the reader was opened
        with. Raises ``InvalidArgument``, ``Closed``, and with ``follow`` as ``seek``. Retry: safe."""
        check_flags(follow=bool(follow) if follow is None else follow)
        made = RecordReader(self, framing, record_bytes_max)
        if follow not in (None, self.follows):
            self._go_to(self.position, follow=bool(follow))
        return made

    def read(self, size: int | None = -1, /) -> bytes:
        """``size`` bytes, fewer only at the end or before what cannot be read; None or below 0: all, or the error. Raises as ``poll``.
        Retry: safe."""
        return self._take(-1 if size is None else size)

    def readall(self) -> bytes:
        """As ``read()``. Raises as ``read``."""
        return self._take(-1)

    def read1(self, size: int = -1, /) -> bytes:
        """At least a byte and at most ``size``, as soon as there are some; b"" at the end. Raises as ``read``."""
        return self._some(sys.maxsize if size < 0 else size)

    def readinto(self, buffer: bytearray | memoryview, /) -> int:  # type: ignore[override]  # any writable buffer
        """Fill the buffer as ``read`` does, and of a follower as ``read1``; returns the count. Raises as ``read``."""
        target = check_buffer(buffer)
        data = self._some(len(target)) if self.follows else self._take(len(target))
        target[: len(data)] = data
        return len(data)

    def readline(self, size: int | None = -1, /) -> bytes:
        """Up to a newline, which it includes, or ``size`` bytes; b"" at the end. Raises as ``read``."""
        return self._take(-1 if size is None else size, line=True)

    def readlines(self, hint: int | None = -1, /) -> list[bytes]:
        """The remaining lines, whatever ``hint`` says. Raises as ``read``."""
        return io.BytesIO(self._take(-1)).readlines()

    def _take(self, size: int, *, line: bool = False) -> bytes:
        parts: list[bytes] = []
        left = sys.maxsize if size < 0 else size
        try:
            while left and (data := self._some(left, line=line)):
                parts.append(data)
                left -= len(data)
                if line and data.endswith(b"\n"):
                    break
        except (BlockingIOError, ChunkstoreError) as error:
            # A part must not pass for all, or for a line: it stays here, to be read by its size.
            if isinstance(error, BlockingIOError) or size < 0 or line or not parts:
                self._held, self._low = b"".join(parts), 0
                raise
        return b"".join(parts)

    def _some(self, size: int, *, line: bool = False) -> bytes:
        if size and self._low == len(self._held):
            item = self._advance()
            if item is None and self.error is not None:
                raise self.error.copy()
            if item == b"":
                raise BlockingIOError("nothing to read yet")
            self._held, self._low = item or b"", 0
        elif self.closed:
            raise Closed("this reader")
        end = min(len(self._held), self._low + size)
        if line:
            end = self._held.find(b"\n", self._low, end) + 1 or end
        data = self._held[self._low : end]
        self._low = end
        return data


class RecordReader(Iterator[Record]):
    """An iterator of ``Record`` objects; made by ``StorageReader.lines`` and ``records``, which it reads buffer by buffer: do not read that
    otherwise meanwhile. A line has no newline; the last one of a segment may lack it. At the reader's offset a record is taken to begin.

    ``next`` raises as the reader's ``poll``, and ``Damaged``: a record above the limit, or the last one is cut off.
    """

    def __init__(self, reader: SegmentFile, framing: Framing, record_bytes_max: int) -> None:
        check_framing(framing)
        check_number(record_bytes_max, "record_bytes_max")
        self.reader = reader
        self._lines = framing == "lines"
        self._make = partial(RecordSplitter, reader.name, framing, record_bytes_max=record_bytes_max)
        self._at = reader.position
        self._splitter = self._make(start=self._at)
        self._ready: list[Record] = []
        self._cut_at: int | None = None
        """Where the line began of which a gap took a part: what follows the gap is left out up to a newline."""

    def __repr__(self) -> str:
        return f"<RecordReader of {self.reader!r}>"

    def __next__(self) -> Record:
        while not self._ready:
            self._splitter.feed(b"")  # what is wrong already needs no wait for more
            if (found := self._cut(next(self.reader, None))) is None:
                raise StopIteration
            self._ready = found[::-1]
        return self._ready.pop()

    def poll(self) -> list[Record] | None:
        """Records that are whole by now, without a wait for an append: [] where a follower would wait, None at the end. Raises and retry
        as of the reader's ``poll``."""
        found: list[Record] | None = self._ready[::-1]
        self._ready, data = [], None
        while found == [] and data != b"":
            self._splitter.feed(b"")
            data = self.reader.poll()
            found = self._cut(data)
        return found

    def _cut(self, data: bytes | None) -> list[Record] | None:
        """The records that end in the next buffer; None after the last."""
        reader = self.reader
        if data is None and reader.error is not None:
            raise reader.error.copy()
        start = reader.position - len(data or b"")
        if start != self._at and self._cut_at is None:
            if not self._lines:
                raise reader.skipped[-1].error.copy()
            self._cut_at = self._at - self._splitter.unfinished_bytes
        self._at = reader.position
        if self._cut_at is not None:
            end = 0 if data is None else data.find(b"\n") + 1
            if data is not None and not end:
                return []
            self._leave_out(self._cut_at, start + end)
            data = None if data is None else data[end:]
        found = self._splitter.end() if data is None else self._splitter.feed(data)
        records = list(map(Record, *found))
        return None if data is None and not records else records

    def _leave_out(self, start: int, stop: int) -> None:
        """A gap takes the lines with it that it cut."""
        skipped = self.reader.skipped
        error = skipped[-1].error
        while skipped and skipped[-1].start >= start:
            error = skipped.pop().error
        skipped.append(SkippedRange(start, stop, error))
        self._splitter, self._cut_at = self._make(start=stop), None
