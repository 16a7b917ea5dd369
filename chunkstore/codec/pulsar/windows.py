"""Windows over the blocks of a data object, checked against its index, and entries one by one: PIP-17 and PIP-76 alike.

Promises: at most a window (1 MiB) or one entry in memory; the end of a block is decided by the index and its header, never by
the look of a length; what follows a block's last entry is padding, all of it; ids ascend, and are dense where the format says so.
Leaves out: which blocks there are (``pip17``, ``pip76``), and Arrow (``arrow``).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from itertools import pairwise
from typing import ClassVar, NamedTuple, NoReturn, Self

from chunkstore.checksum import BytesLike
from chunkstore.codec.pulsar.block_index import BlockSpan
from chunkstore.codec.pulsar.frames import (
    BLOCK_HEADER_BYTES,
    ENTRY_HEADER_BYTES,
    ENTRY_ID_MAX,
    LEDGER_UNKNOWN,
    PADDING_PATTERN,
    BlockFormat,
    BlockHeader,
    DataSource,
    Entry,
    entry_id_at,
    is_padding,
    of_ledger,
    scan_entries,
    signed_length_at,
)
from chunkstore.codec.sources import read_exactly
from chunkstore.config import KIB
from chunkstore.errors import Damaged, InvalidArgument

__all__ = ["BlockReader", "Window", "ascending", "entries_of", "entry_ids", "iter_entries", "trim"]

_WINDOW_BYTES_MIN = 4 * KIB
_MANY_ENTRIES = 256


class Window(NamedTuple):
    """Some whole entries of one block, as they are in ``data`` (valid until the next window is asked for).

    Entry i is ``data[marks[i]:marks[i + 1]]``, its header's 12 bytes included. ``floor`` is the least id the first one may
    have; that ids ascend inside the window, without gaps if it is ``dense``, is for its user to check (``ascending``).
    ``position`` is where ``data`` begins in the object ``name``.
    """

    ledger: int
    data: BytesLike
    marks: list[int]
    floor: int
    name: str
    position: int
    dense: bool

    @property
    def first(self) -> int:
        """The id of its first entry."""
        return entry_id_at(self.data, self.marks[0])

    @property
    def last(self) -> int:
        """The id of its last entry."""
        return entry_id_at(self.data, self.marks[-2])


class BlockReader:
    """Reads the entries of a data object, whose index has been read. Its kinds say which blocks there are.

    ``window_bytes`` is what one read asks for (at least 4 KiB); an entry longer than that is read alone, one longer than
    ``entry_bytes_max`` refused. May be shared between threads if ``source.read`` may be and returns fresh buffers.
    """

    format: ClassVar[BlockFormat]

    def __init__(
        self,
        source: DataSource,
        spans: Iterable[BlockSpan],
        data_length: int,
        ledgers: Iterable[int],
        window_bytes: int,
        entry_bytes_max: int,
    ) -> None:
        """Compare lengths; reads only where they differ. ``Damaged`` if the data object is not as long as the index says."""
        if window_bytes < _WINDOW_BYTES_MIN:
            text = f"windows of {window_bytes} bytes; at least {_WINDOW_BYTES_MIN}"
            raise InvalidArgument(text, argument="window_bytes")
        self.source = source
        self._window_bytes = window_bytes
        self._entry_bytes_max = entry_bytes_max
        self._spans: dict[int, list[BlockSpan]] = {ledger: [] for ledger in ledgers}
        for span in spans:
            self._spans[span.ledger].append(span)
        if source.length != data_length:
            if source.length >= BLOCK_HEADER_BYTES and data_length:
                # Objects of the two formats are distinguished from each other by what they begin with, not by their lengths.
                self._header(self._read(0, BLOCK_HEADER_BYTES), 0)
            text = f"the object has {source.length} bytes, its index says {data_length}"
            self._fail(text, min(source.length, data_length))

    @property
    def ledgers(self) -> tuple[int, ...]:
        """The ids of the ledgers in the object, ascending."""
        return tuple(self._spans)

    def spans(self, ledger: int, first: int = 0, last: int | None = None) -> Sequence[BlockSpan]:
        """The blocks that may hold the entries ``first`` to ``last`` of ``ledger``, ascending. ``InvalidArgument`` as ``windows``."""
        if first < 0 or (last is not None and last < first):
            raise InvalidArgument(f"entries {first} to {last}: not a range", argument="first")
        if ledger not in self._spans:
            held = ", ".join(map(str, self.ledgers[:10])) or "none"
            raise InvalidArgument(f"no ledger {ledger} in {self.source.name}; it holds {held}", argument="ledger")
        spans = self._spans[ledger]
        low = max(0, bisect_right(spans, first, key=lambda span: span.first_entry) - 1)
        high = len(spans) if last is None else bisect_right(spans, last, key=lambda span: span.first_entry)
        return spans[low + (low < high and spans[low].entry_limit <= first) : high]

    def windows(self, ledger: int, first: int = 0, last: int | None = None) -> Iterator[Window]:
        """Windows with the entries ``first`` to ``last`` (both included; ``None``: to the end) of ``ledger``, ascending.

        Reads from the beginning of the block that ``first`` is in. Raises ``InvalidArgument`` for a ledger that is not
        here or a wrong range, ``Damaged`` at the first byte that is wrong, and whatever ``source.read`` raises.
        """
        stop = ENTRY_ID_MAX if last is None else last
        for span in self.spans(ledger, first, last):
            for window in self.scan(span):
                tail = window.last
                if tail >= first:
                    if window.first < first or tail > stop:
                        window = trim(window, entry_ids(window), first, stop)
                    if len(window.marks) > 1:
                        yield window
                if tail >= stop:
                    return

    def scan(self, span: BlockSpan, hint: tuple[int, int] | None = None) -> Iterator[Window]:
        """All entries of one block of this object, window by window.

        ``hint``: the id of an entry and the position of its header, where the scan begins instead; the block's header is not
        read then. Raises as ``windows``, and ``Damaged`` where no such entry of this block begins there.
        """
        position, floor, begin = span.start, span.first_entry, BLOCK_HEADER_BYTES
        if hint is not None:
            (floor, position), begin = hint, 0
            if not span.start + BLOCK_HEADER_BYTES <= position <= span.end - ENTRY_HEADER_BYTES:
                raise Damaged("not a position in this block", object=self.source.name, position=position)
        data = self._read(position, min(self._window_bytes, span.end - position))
        if hint is None:
            self._check_header(span, data)
        elif entry_id_at(data, 0) != floor:
            raise Damaged(f"entry {floor} does not begin here", object=self.source.name, position=position)
        is_empty = True
        while True:
            marks = scan_entries(data, begin, len(data))
            end = position + marks[-1]
            if len(marks) > 1:
                tail = self._tail(span, data, marks, floor, position, is_first=is_empty)
                yield Window(span.ledger, data, marks, floor, self.source.name, position, self.format.dense)
                floor, is_empty = tail + 1, False
            need = self._after(span, data, marks[-1], end, span.first_entry if is_empty else floor)
            if not need:
                return
            position, begin = end, 0
            data = self._read(position, need)
            if len(marks) > _MANY_ENTRIES and isinstance(data, memoryview):
                # Bytes not touched before cost a cache miss per entry in the scan; a copy reads them in one stream.
                data = bytes(data)

    def through(self, read: Callable[[int, int], BytesLike]) -> Self:
        """A reader of the same object whose bytes come from ``read``."""
        other = copy(self)
        other.source = self.source._replace(read=read)
        return other

    def _tail(
        self, span: BlockSpan, data: BytesLike, marks: list[int], floor: int, position: int, *, is_first: bool
    ) -> int:
        """The last id of the entries at ``marks``, whose first one may not be less than ``floor``; is it, if ``is_first``."""
        head, tail = entry_id_at(data, marks[0]), entry_id_at(data, marks[-2])
        wrong = head < floor or tail >= span.entry_limit or (is_first and head != floor)
        if wrong or (self.format.dense and (head != floor or tail - head != len(marks) - 2)):
            found = f"entries {head} to {tail}{of_ledger(span.ledger)} are here, {len(marks) - 1} of them"
            dense = "dense " if self.format.dense else ""
            text = f"{found}, where the index has {dense}ids from {floor} to below {span.entry_limit}"
            self._fail(text, position + marks[0])
        return tail

    def _after(self, span: BlockSpan, data: BytesLike, at: int, end: int, floor: int) -> int:
        """How many bytes to read from ``end`` on (``at`` in ``data``), where the scan stopped; 0 at the end of the block."""
        left = span.end - end
        rest = memoryview(data)[at:]
        if len(rest) < min(left, ENTRY_HEADER_BYTES):
            return min(self._window_bytes, left)
        if left < ENTRY_HEADER_BYTES or signed_length_at(data, at) < 0:
            self._check_padding(rest, end, span.end)
            if floor == span.first_entry:
                self._fail("the block holds no entry", end)
            if self.format.dense and floor < span.entry_limit <= ENTRY_ID_MAX:
                self._fail(f"the block ends here; entries {floor} to {span.entry_limit - 1} are missing", end)
            return 0
        length = signed_length_at(data, at)
        if length + ENTRY_HEADER_BYTES > left:
            self._fail(f"an entry of {length} bytes does not fit the {left} bytes up to the end of its block", end)
        if length > self._entry_bytes_max:
            text = f"an entry of {length} bytes; at most {self._entry_bytes_max} are read (entry_bytes_max)"
            raise Damaged(text, object=self.source.name, position=end)
        if length + ENTRY_HEADER_BYTES > self._window_bytes:
            return length + ENTRY_HEADER_BYTES
        return min(self._window_bytes, left)

    def _check_padding(self, rest: BytesLike, begin: int, end: int) -> None:
        """Raise unless bytes ``begin`` to ``end`` are padding, of which ``rest`` are the first."""
        at, piece = begin, memoryview(rest)
        while True:
            at += len(piece)
            if not is_padding(piece):
                self._fail(f"{end - begin} bytes up to the end of the block are neither an entry nor padding", begin)
            if at >= end:
                return
            # Whole turns of the pattern, so that each piece begins with its first byte.
            at -= (at - begin) % len(PADDING_PATTERN)
            piece = memoryview(self._read(at, min(self._window_bytes, end - at)))

    def _check_header(self, span: BlockSpan, data: BytesLike) -> None:
        header = self._header(data, span.start)
        ledger = span.ledger if self.format.has_ledger else LEDGER_UNKNOWN
        expected = BlockHeader(span.end - span.start, span.first_entry, ledger)
        if header != expected:
            said, wanted = (
                f"{each.length} bytes from entry {each.first_entry}{of_ledger(each.ledger)}"
                for each in (header, expected)
            )
            self._fail(f"the block says {said}, the index {wanted}", span.start)

    def _header(self, data: BytesLike, position: int) -> BlockHeader:
        try:
            return self.format.parse(data, object=self.source.name, position=position)
        except Damaged as error:
            defect = self._defect()
            raise defect or error from error

    def _read(self, position: int, length: int) -> BytesLike:
        return read_exactly(self.source, position, length)

    def _fail(self, message: str, position: int) -> NoReturn:
        raise self._defect() or Damaged(message, object=self.source.name, position=position)

    def _defect(self) -> Damaged | None:
        """The error that names a known defect of the object's writer, if this object has it: proven, not guessed."""
        return None


def trim(window: Window, ids: Sequence[int], first: int, last: int) -> Window:
    """The entries ``first`` to ``last`` of the window, whose ids are ``ids``: all of them, checked, so that disorder cannot hide any."""
    low, high = bisect_left(ids, first), bisect_right(ids, last)
    return window._replace(marks=window.marks[low : high + 1], floor=max(window.floor, first))


def ascending(window: Window, ids: Iterable[int]) -> Iterator[int]:
    """These ids of the window's entries, one by one. Raises ``Damaged`` where they do not ascend from its floor, or a dense window has a
    gap."""
    previous = window.floor - 1
    for number, entry in enumerate(ids):
        if entry <= previous or (window.dense and entry != previous + 1):
            rule = "are dense" if window.dense else "ascend"
            text = f"entry id {entry}{of_ledger(window.ledger)} follows {previous}: ids {rule}"
            raise Damaged(text, object=window.name, position=window.position + window.marks[number] + 4)
        previous = entry
        yield entry


def entry_ids(window: Window) -> list[int]:
    """The ids of the window's entries. Raises as ``ascending``."""
    return list(ascending(window, (entry_id_at(window.data, mark) for mark in window.marks[:-1])))


def entries_of(window: Window) -> Iterator[Entry]:
    """The window's entries, one object each. Raises as ``ascending``, after the entries that are good."""
    data = memoryview(window.data)
    ledger, is_dense, floor = window.ledger, window.dense, window.floor
    for mark, end in pairwise(window.marks):
        entry = entry_id_at(data, mark)
        if entry < floor or (is_dense and entry != floor):
            entry_ids(window)  # raises
        floor = entry + 1
        yield Entry(ledger, entry, bytes(data[mark + ENTRY_HEADER_BYTES : end]))


def iter_entries(reader: BlockReader, ledger: int, first: int = 0, last: int | None = None) -> Iterator[Entry]:
    """The entries ``first`` to ``last`` (both included) of ``ledger``, one object each; gaps are left out.

    For tools and tests; ``arrow.read_batches`` is much faster. Errors are those of ``BlockReader.windows``.
    """
    for window in reader.windows(ledger, first, last):
        yield from entries_of(window)
