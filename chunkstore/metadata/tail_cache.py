"""The bytes of extents that were committed last, so that who reads what was just appended asks no storage (protocol 3.7).

Kept is the end of each segment, by the segment's id and offsets: ids are never reused, and a committed byte at an offset never changes.
So it does not matter where the bytes are meanwhile: a take-over that gives extents another address, a spill and a concat change nothing
of it, and a caller that has bounded a read by a view of the rows finds the bytes of that view, or nothing.

Promises: what is put was committed (``OwnedEpoch``, ``Follower``), and is given out as it was put. What a segment has here is
contiguous; the segments that were appended to longest ago go first, each from its oldest byte on, but before them what is in chunks.
Bounded, with what keeping it costs.
Thread-safe.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

from chunkstore import runtime
from chunkstore.journal import OpCode
from chunkstore.metadata.port import Op

__all__ = ["TailCache", "TailCounts", "extents_of"]

_COMPACTED_FROM: Final = 1024
_PIECE_BYTES: Final = 120
_SEGMENT_BYTES: Final = 500
"""About what keeping a piece, and a segment, takes."""
_APPEND: Final = int(OpCode.APPEND)


class TailCounts(NamedTuple):
    """Reads that were answered from memory, and those that went to the journal's objects for extents; and what is held."""

    hits: int
    misses: int
    held_bytes: int


class _Tail:
    """The end of one segment: pieces by the offsets where they begin, those in front of ``first`` are gone."""

    __slots__ = ("end", "first", "pieces", "starts")

    def __init__(self, start: int) -> None:
        self.starts: list[int] = []
        self.pieces: list[bytes] = []
        self.first = 0
        self.end = start


class TailCache:
    """See the module. ``bytes_max`` 0 keeps nothing."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._lock = runtime.lock()
        self._tails: OrderedDict[int, _Tail] = OrderedDict()
        self._spilled: OrderedDict[int, int] = OrderedDict()
        """Up to where segments that are held were spilled, the oldest spill first."""
        self._bytes = self._hits = self._misses = 0

    @property
    def room_bytes(self) -> int:
        """So much of it, what keeping it takes included, may wait for being spilled: before it is forgotten, it shall be."""
        return self._bytes_max * 3 // 4

    @property
    def is_off(self) -> bool:
        """Whether nothing is ever kept."""
        return not self._bytes_max

    def put(self, segment_id: int, offset: int, data: bytes) -> None:
        """``data`` was committed at ``offset`` of the segment, after all that was put of it before."""
        if len(data) > self._bytes_max or not data:
            return
        with self._lock:
            tail = self._tails.get(segment_id)
            if tail is not None and tail.end != offset:
                # What came between is in chunks.
                self._forget(segment_id, tail)
                tail = None
            if tail is None:
                tail = self._tails[segment_id] = _Tail(offset)
                self._bytes += _SEGMENT_BYTES
            else:
                self._tails.move_to_end(segment_id)
            tail.starts.append(offset)
            tail.pieces.append(data)
            tail.end = offset + len(data)
            self._bytes += len(data) + _PIECE_BYTES
            while self._bytes > self._bytes_max and self._tails:
                self._drop_first(*self._next_to_go())

    def put_record(self, ops: Sequence[Op], blob: bytes) -> None:
        """The extents of a record that is committed, by its operations; those of another form are left out."""
        if self.is_off:
            return
        begin = 0
        for segment_id, offset, length, _ in extents_of(ops, len(blob)):
            data = blob if length == len(blob) else blob[begin : begin + length]
            self.put(segment_id, offset, data)
            begin += length

    def find(self, segment_id: int, offset: int, length: int) -> list[bytes] | None:
        """The bytes ``[offset, offset + length)`` of the segment, which is not empty, in pieces; None: they are not all held."""
        if segment_id not in self._tails:
            return None
        with self._lock:
            tail = self._tails.get(segment_id)
            if tail is None or offset + length > tail.end or offset < tail.starts[tail.first]:
                return None
            self._hits += 1
            low = bisect_right(tail.starts, offset, tail.first) - 1
            if offset + length <= tail.starts[low] + len(tail.pieces[low]):
                piece, begin = tail.pieces[low], offset - tail.starts[low]
                return [piece if length == len(piece) else piece[begin : begin + length]]
            high = bisect_right(tail.starts, offset + length - 1, low)
            pieces, begin = tail.pieces[low:high], offset - tail.starts[low]
            end = offset + length - tail.starts[high - 1]
        pieces[0] = pieces[0][begin:]
        pieces[-1] = pieces[-1][:end]
        return pieces

    def missed(self) -> None:
        """A read has to go to the journal's objects."""
        with self._lock:
            self._misses += 1

    def spilled(self, segment_id: int, stop: int) -> None:
        """What is in front of ``stop`` can be read from chunks by now: it goes before what cannot."""
        with self._lock:
            if segment_id in self._tails:
                self._spilled[segment_id] = stop

    def clear(self) -> None:
        """Forget everything that is held."""
        with self._lock:
            self._tails.clear()
            self._spilled.clear()
            self._bytes = 0

    def counts(self) -> TailCounts:
        """What was read from here so far, and what is here now."""
        with self._lock:
            return TailCounts(self._hits, self._misses, self._bytes)

    def _forget(self, segment_id: int, tail: _Tail) -> None:
        del self._tails[segment_id]
        self._spilled.pop(segment_id, None)
        kept = len(tail.starts) - tail.first
        self._bytes -= tail.end - tail.starts[tail.first] + kept * _PIECE_BYTES + _SEGMENT_BYTES

    def _next_to_go(self) -> tuple[int, _Tail]:
        while self._spilled:
            segment_id, stop = next(iter(self._spilled.items()))
            tail = self._tails[segment_id]
            if tail.starts[tail.first] + len(tail.pieces[tail.first]) <= stop:
                return segment_id, tail
            del self._spilled[segment_id]
        return next(iter(self._tails.items()))

    def _drop_first(self, segment_id: int, tail: _Tail) -> None:
        if tail.first == len(tail.starts) - 1:
            self._forget(segment_id, tail)
            return
        self._bytes -= len(tail.pieces[tail.first]) + _PIECE_BYTES
        tail.pieces[tail.first] = b""
        tail.first += 1
        if tail.first >= _COMPACTED_FROM and 2 * tail.first >= len(tail.starts):
            del tail.starts[: tail.first], tail.pieces[: tail.first]
            tail.first = 0


def extents_of(ops: Sequence[Op], size_bytes: int) -> list[tuple[int, int, int, bytes]]:
    """The extents that a record's operations tell of, in the order of its bytes: segment id, offset, length and chunk id of each.

    Nothing where they do not make the ``size_bytes`` that the record has.
    """
    found: list[tuple[int, int, int, bytes]] = []
    open_at: dict[object, int] = {}
    total = 0
    for op in ops:
        if op[0] != _APPEND:
            continue
        _, segment_id, offset, length, chunks = op[:5]
        if op[5:6] == (1,):
            open_at[segment_id] = len(found)
            found.append((segment_id, offset, length, chunks[0][1]))  # type: ignore[arg-type, index]
        elif chunks:
            open_at.pop(segment_id, None)  # what comes after is of those
            continue
        elif segment_id in open_at:
            at = open_at[segment_id]
            found[at] = (*found[at][:2], found[at][2] + length, found[at][3])  # type: ignore[operator]
        else:
            continue
        total += length  # type: ignore[operator]
    return found if total == size_bytes else []
