"""Places in a stored ledger from which a read goes on: what was scanned there, and the ranges around it.

Promises: a read that begins where another one ended, or inside the window that it held, requests and scans nothing again; cursors at rest
hold at most 128 MiB in the process. Ranges are of 1, 2, 4 and then 8 MiB, the next two of which are read ahead, none of them before a
second one is needed. Hints of the offset cache are checked: a wrong one costs a scan of its block, and nothing else.
Leaves out: which entries are read from which part, beyond ``pieces_of`` (``read_handle``).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from functools import partial
from itertools import islice, pairwise
from typing import Any, Final, NamedTuple

from chunkstore import runtime
from chunkstore.checksum import BytesLike
from chunkstore.codec.pulsar.block_index import BlockSpan
from chunkstore.codec.pulsar.frames import DataSource, entry_id_at
from chunkstore.codec.pulsar.windows import BlockReader, Window, entry_ids, trim
from chunkstore.config import KIB, MIB
from chunkstore.errors import Damaged

__all__ = ["OFFSETS", "RESTING", "Cursor", "LedgerPart", "OffsetCache", "RangeStream", "in_background", "pieces_of"]

_STEP_BYTES: Final = 64 * KIB
"""Of each so many bytes that were scanned one entry's place is kept."""
_RESTING_BYTES_MAX: Final = 128 * MIB
_CURSOR_BYTES: Final = 512 * KIB
"""What a cursor needs besides its ranges, about: two numbers for each entry of its window."""
_RANGE_BYTES_LEAST: Final = 1 * MIB
_RANGE_BYTES_MOST: Final = 8 * MIB
_AHEAD_MAX: Final = 2
"""One is being read while the next one is on its way."""


class LedgerPart(NamedTuple):
    """Entries ``first`` to ``last`` of a ledger in one data object, of either format. ``last`` is there; gaps may be before it, but
    the ledger begins there with ``first`` or below.

    ``reader`` knows the ledger by its id (``LedgerObjectReader(ledger=...)``), and its ``source.read`` may be called by several threads.
    ``identity`` says which object it is, as exactly as is known; None: its name and length do.
    """

    reader: BlockReader
    first: int
    last: int
    identity: Hashable = None


class Piece(NamedTuple):
    """Entries ``first`` to ``last`` of a part: those that no other part gives."""

    part: LedgerPart
    first: int
    last: int


def pieces_of(parts: Sequence[LedgerPart]) -> list[Piece]:
    """Pieces that ascend and do not overlap: where parts do, of the one that comes first."""
    pieces: list[Piece] = []
    edges = sorted({edge for part in parts for edge in (part.first, part.last + 1)})
    for begin, end in pairwise(edges):
        part = next((part for part in parts if part.first <= begin and end <= part.last + 1), None)
        if part is not None and pieces and pieces[-1].part is part and pieces[-1].last == begin - 1:
            pieces[-1] = Piece(part, pieces[-1].first, end - 1)
        elif part is not None:
            pieces.append(Piece(part, begin, end - 1))
    return pieces


class OffsetCache:
    """Where entries begin inside blocks, as earlier scans saw it; blocks that were used least recently go first. Thread-safe.

    A key names a block: its object, as exactly as is known, and where it begins there. What it says is a hint, which its user checks.
    """

    def __init__(self, positions_max: int = 1_000_000) -> None:
        self._positions_max = positions_max
        self._blocks: OrderedDict[Hashable, tuple[array[int], array[int]]] = OrderedDict()
        self._lock = runtime.lock()
        self.positions: int = 0
        """How many are held."""

    def find(self, key: Hashable, entry: int) -> tuple[int, int] | None:
        """The last known entry of the block up to ``entry``: its id and the position of its header."""
        with self._lock:
            entries, positions = self._blocks.get(key, ((), ()))
            at = bisect_right(entries, entry) - 1
            if at < 0:
                return None
            self._blocks.move_to_end(key)
            return entries[at], positions[at]

    def note(self, key: Hashable, window: Window) -> None:
        """Remember some of the entries that a scan of the block has found, after those that are known."""
        with self._lock:
            entries, positions = self._blocks.setdefault(key, (array("q"), array("q")))
            self._blocks.move_to_end(key)
            at, least = 0, positions[-1] + _STEP_BYTES - window.position if positions else 0
            while (at := bisect_left(window.marks, least, lo=at)) < len(window.marks) - 1:
                entries.append(entry_id_at(window.data, window.marks[at]))
                positions.append(window.position + window.marks[at])
                self.positions += 1
                least = window.marks[at] + _STEP_BYTES
            while self.positions > self._positions_max:
                self.positions -= len(self._blocks.popitem(last=False)[1][0])

    def forget(self, key: Hashable) -> None:
        """Remember nothing of a block any more: a hint was wrong."""
        with self._lock:
            self.positions -= len(self._blocks.pop(key, ((), ()))[0])


OFFSETS: Final = OffsetCache()


def done_here(call: Callable[[], Any]) -> runtime.Future[Any]:
    """The future of what ``call`` returns or raises; it is done."""
    future = runtime.future()
    future.set_running_or_notify_cancel()
    _run(call, future)
    return future


def in_background(call: Callable[[], Any], name: str) -> runtime.Future[Any]:
    """As ``done_here``, from a thread of its own; from the caller's where the system gives no more threads."""
    future = runtime.future()
    future.set_running_or_notify_cancel()
    if runtime.spawn_if_possible(partial(_run, call, future), name) is None:
        _run(call, future)
    return future


def _run(call: Callable[[], Any], future: runtime.Future[Any]) -> None:
    try:
        result = call()
    except BaseException as error:  # noqa: BLE001  (raised where the result is wanted)
        future.set_exception(error)
    else:
        future.set_result(result)


class RangeStream:
    """Reads ``source`` from ``position`` on, as far as its bytes belong to ``spans``, which ascend. Not thread-safe.

    ``stop``: no range goes beyond; may be raised at any time. ``source.read`` is called by other threads, too.
    """

    def __init__(self, source: DataSource, spans: Sequence[BlockSpan], position: int, stop: int) -> None:
        self.stop = stop
        self._source = source
        self._spans = spans
        self._at = 0
        self._start = self._position = position
        self._size = _RANGE_BYTES_LEAST
        self._held: deque[tuple[int, bytes]] = deque()
        self._ahead: deque[tuple[int, int, runtime.Future[Any]]] = deque()

    @property
    def held_bytes(self) -> int:
        """Bytes of all ranges that are held or under way."""
        return sum(len(data) for _, data in self._held) + sum(end - begin for begin, end, _ in self._ahead)

    def read(self, position: int, length: int) -> BytesLike:
        """As ``DataSource.read``; the buffer never changes. What does not continue the stream is a read of its own."""
        end = position + length
        while self._held and self._held[0][0] + len(self._held[0][1]) <= position:
            self._held.popleft()
        covered = self._held[-1][0] + len(self._held[-1][1]) if self._held else position
        while covered < end and self._take(covered):
            covered = self._held[-1][0] + len(self._held[-1][1])
        if not self._held or self._held[0][0] > position:
            return self._source.read(position, length)
        pieces = [memoryview(data)[max(0, position - at) : end - at] for at, data in self._held if at < end]
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _take(self, expected: int) -> bool:
        """Hold one more range; whether there is one that begins at ``expected``, and is whole."""
        if not self._ahead and self._next()[0] == expected:
            self._request(ahead=False)
        if not self._ahead or self._ahead[0][0] != expected:
            return False
        begin, end, future = self._ahead.popleft()
        self._held.append((begin, future.result()))
        while begin != self._start and len(self._ahead) < _AHEAD_MAX and self._request(ahead=True):
            pass
        return len(self._held[-1][1]) == end - begin

    def _next(self) -> tuple[int, int]:
        """The range that follows; an empty one where there is none."""
        spans = self._spans
        while self._at < len(spans) and spans[self._at].end <= self._position:
            self._at += 1
        if self._at == len(spans):
            return self._position, self._position
        begin, end = max(spans[self._at].start, self._position), spans[self._at].end
        limit = min(begin + self._size, self.stop)
        for span in islice(spans, self._at + 1, None):
            if span.start != end or end >= limit:
                break
            end = span.end
        return begin, min(end, limit)

    def _request(self, *, ahead: bool) -> bool:
        """Have the range that follows read; whether there is one."""
        begin, end = self._next()
        if end <= begin:
            return False

        def read() -> bytes:
            data = self._source.read(begin, end - begin)[: end - begin]
            return data if type(data) is bytes else bytes(data)

        future = in_background(read, "chunkstore-read-ahead") if ahead else done_here(read)
        self._ahead.append((begin, end, future))
        self._position, self._size = end, min(2 * self._size, _RANGE_BYTES_MOST)
        return True


class Cursor:
    """A place in a piece. For one thread at a time."""

    def __init__(self, piece: Piece, ledger: int, first: int) -> None:
        self.piece = piece
        self._reader = piece.part.reader
        self._spans = self._reader.spans(ledger, first, piece.last)
        if not self._spans or first == piece.part.first < self._spans[0].first_entry:
            raise Damaged(f"entry {first} of ledger {ledger} is missing here", object=self._reader.source.name)
        self._identity = piece.part.identity or self._reader.source[:2]
        self._first = self._next = first
        self._last = -1
        """The last entry of the call at hand."""
        self._stream: RangeStream | None = None
        self._scanned = self._scan()
        self._window: Window | None = None
        self._ids: list[int] | None = None
        """Those of the window; None: not needed yet."""

    @property
    def held_bytes(self) -> int:
        """Bytes that it holds, about."""
        return _CURSOR_BYTES + (self._stream.held_bytes if self._stream is not None else 0)

    def reaches(self, entry: int) -> bool:
        """Whether a read that begins with ``entry`` goes on here."""
        window = self._window
        return entry == self._next or (window is not None and window.first <= entry <= window.last)

    def windows(self, first: int, last: int) -> Iterator[Window]:
        """The entries ``first``, which it ``reaches``, to ``last``. Raises as ``BlockReader.windows``; it is of no use then."""
        self._last = last
        if self._stream is not None:
            self._stream.stop = self._spans[-1].end  # a second call: there may be a third
        while first <= last:
            window = self._window
            if window is None or window.last < first:
                self._window, self._ids = next(self._scanned, None), None
                if self._window is None:
                    break
                continue
            cut = window
            if window.first < first or window.last > last:
                self._ids = self._ids or entry_ids(window)
                cut = trim(window, self._ids, first, last)
            if len(cut.marks) > 1:
                yield cut
            first = window.last + 1
        self._next = last + 1

    def close(self) -> None:
        """Give up what is held; what is under way is discarded when it comes."""
        self._scanned.close()
        self._window = self._stream = None

    def _scan(self) -> Generator[Window | None, None, None]:
        """All windows from about ``first`` on; None where a block begins that the call at hand does not need."""
        view = self._reader
        for number, span in enumerate(self._spans):
            while span.first_entry > self._last:
                yield None
            key = (self._identity, span.start)
            hint = OFFSETS.find(key, self._first) if not number else None
            for begin in (None,) if hint is None or hint[0] == span.first_entry else (hint, None):
                if not number:
                    view = self._view(span.start if begin is None else begin[1])
                try:
                    for window in view.scan(span, begin):
                        OFFSETS.note(key, window)
                        yield window
                    break
                except Damaged:
                    if begin is None:
                        raise
                    OFFSETS.forget(key)  # the object is another one, or damaged: its beginning says so

    def _view(self, position: int) -> BlockReader:
        """A reader from ``position`` on, for the call at hand no further than it needs."""
        needed = bisect_right(self._spans, self._last, key=lambda span: span.first_entry)
        self._stream = RangeStream(self._reader.source, self._spans, position, self._spans[needed - 1].end)
        return self._reader.through(self._stream.read)


class Resting:
    """Cursors between two calls, of all handles, the one that was used least recently first."""

    def __init__(self) -> None:
        self._lock = runtime.lock()
        self.cursors: list[Cursor] = []

    def take(self, piece: Piece, entry: int) -> Cursor | None:
        """A cursor in this piece that reaches ``entry``: the caller's from now on."""
        with self._lock:
            for at in reversed(range(len(self.cursors))):
                if self.cursors[at].piece is piece and self.cursors[at].reaches(entry):
                    return self.cursors.pop(at)
        return None

    def put(self, cursor: Cursor) -> None:
        """Keep a cursor, as long as there is room."""
        with self._lock:
            self.cursors.append(cursor)
            while sum(each.held_bytes for each in self.cursors) > _RESTING_BYTES_MAX:
                self.cursors.pop(0).close()

    def drop(self, pieces: Sequence[Piece]) -> None:
        """Give up all of these pieces."""
        gone = {id(piece) for piece in pieces}
        with self._lock:
            for cursor in [cursor for cursor in self.cursors if id(cursor.piece) in gone]:
                cursor.close()
                self.cursors.remove(cursor)


RESTING: Final = Resting()
