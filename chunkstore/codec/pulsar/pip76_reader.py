"""Reading a PIP-76 offload segment: windows over its blocks, checked against the index, and entries one by one.

Promises: at most a window (1 MiB) or one entry in memory; the end of a block is decided by the index and its header, never by
the look of a length; ids ascend; entries that are missing (gaps) are simply not there. Objects written by Pulsar's own writer,
whose positions leave out each block's first entry, are recognised by name. Leaves out: reading such objects all the same
(``salvage``), Arrow (``pip76_arrow``), and ledgers that go on in another segment.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple, NoReturn

from chunkstore.checksum import BytesLike
from chunkstore.codec.pulsar.pip76 import (
    BLOCK_HEADER_BEGIN,
    BLOCK_HEADER_BYTES,
    ENTRY_BYTES_MAX,
    ENTRY_HEADER_BYTES,
    ENTRY_ID_MAX,
    WINDOW_BYTES,
    BlockHeader,
    DataSource,
    Entry,
    entry_id_at,
    is_padding,
    parse_block_header,
    scan_entries,
    signed_length_at,
)
from chunkstore.codec.pulsar.pip76_index import BlockSpan, SegmentIndex
from chunkstore.config import KIB
from chunkstore.errors import ChunkstoreError, Damaged, InvalidArgument

__all__ = ["SegmentReader", "Window", "ascending", "iter_entries"]

_WINDOW_BYTES_MIN = 4 * KIB
_MANY_ENTRIES = 256
_PROOF_BLOCKS_MAX = 64
"""Blocks that are looked at to find out what is wrong with an object: the first full one shows it."""


class Window(NamedTuple):
    """Some whole entries of one block, as they lie in ``data`` (valid until the next window is asked for).

    Entry i is ``data[marks[i]:marks[i + 1]]``, its header's 12 bytes included. ``floor`` is the least id the first one may
    have; that ids ascend inside the window is for its user to check (``ascending``).
    ``position`` is where ``data`` begins in the object ``name``.
    """

    ledger: int
    data: BytesLike
    marks: list[int]
    floor: int
    name: str
    position: int


class SegmentReader:
    """Reads the entries of one offload segment, whose index has been read, from its data object.

    ``window_bytes`` is what one read asks for (at least 4 KiB); an entry longer than that is read alone, one longer than
    ``entry_bytes_max`` refused. May be shared between threads if ``source.read`` may be and returns fresh buffers.
    """

    def __init__(
        self,
        source: DataSource,
        index: SegmentIndex,
        *,
        window_bytes: int = WINDOW_BYTES,
        entry_bytes_max: int = ENTRY_BYTES_MAX,
    ) -> None:
        """Compare lengths; reads only where they differ. ``Damaged`` if the data object is not as long as the index says."""
        if window_bytes < _WINDOW_BYTES_MIN:
            raise InvalidArgument(
                f"windows of {window_bytes} bytes; at least {_WINDOW_BYTES_MIN}", argument="window_bytes"
            )
        self.source = source
        self.index = index
        self._window_bytes = window_bytes
        self._entry_bytes_max = entry_bytes_max
        spans = index.spans()
        self._spans: dict[int, list[BlockSpan]] = {group.ledger: [] for group in index.ledgers}
        for span in spans:
            self._spans[span.ledger].append(span)
        if source.length != index.data_length:
            self._fail(
                f"the object has {source.length} bytes, its index says {index.data_length}",
                min(source.length, index.data_length),
            )

    @property
    def ledgers(self) -> tuple[int, ...]:
        """The ids of the ledgers in this segment, ascending."""
        return tuple(self._spans)

    def windows(self, ledger: int, first: int = 0, last: int | None = None) -> Iterator[Window]:
        """Windows with the entries ``first`` to ``last`` (both included; ``None``: to the end) of ``ledger``, ascending.

        Reads from the beginning of the block that ``first`` lies in. Raises ``InvalidArgument`` for a ledger that is not
        here or a wrong range, ``Damaged`` at the first byte that is wrong, and whatever ``source.read`` raises.
        """
        if first < 0 or (last is not None and last < first):
            raise InvalidArgument(f"entries {first} to {last}: not a range", argument="first")
        self.index.group(ledger)
        stop = ENTRY_ID_MAX if last is None else last
        for span in self._spans[ledger]:
            if span.entry_limit <= first:
                continue
            if span.first_entry > stop:
                return
            yield from self._block(span, first, stop)

    def _block(self, span: BlockSpan, first: int, stop: int) -> Iterator[Window]:
        position = span.start
        data = self._read(position, min(self._window_bytes, span.end - position))
        self._check_header(span, data)
        begin, floor = BLOCK_HEADER_BYTES, span.first_entry
        while True:
            marks = scan_entries(data, begin, len(data))
            end = position + marks[-1]
            if len(marks) > 1:
                head, tail = entry_id_at(data, marks[0]), entry_id_at(data, marks[-2])
                is_first = floor == span.first_entry
                if head < floor or tail >= span.entry_limit or (is_first and head != floor):
                    self._fail(
                        f"entries {head} to {tail} of ledger {span.ledger} stand here, where the index has ids from {floor} "
                        f"to below {span.entry_limit}",
                        position + marks[0],
                    )
                if tail >= first:
                    window = Window(span.ledger, data, marks, floor, self.source.name, position)
                    if head < first or tail > stop:
                        window = _trim(window, first, stop)
                    if len(window.marks) > 1:
                        yield window
                if tail >= stop:
                    return
                floor = tail + 1
            need = self._after(span, data, marks[-1], end, floor)
            if not need:
                return
            position, begin = end, 0
            data = self._read(position, need)
            if len(marks) > _MANY_ENTRIES and isinstance(data, memoryview):
                # Bytes not touched before cost a cache miss per entry in the scan; a copy reads them in one stream.
                data = bytes(data)

    def _after(self, span: BlockSpan, data: BytesLike, at: int, end: int, floor: int) -> int:
        """How many bytes to read from ``end`` on (``at`` in ``data``), where the scan stopped; 0 at the end of the block."""
        left = span.end - end
        rest = memoryview(data)[at:]
        if len(rest) < min(left, ENTRY_HEADER_BYTES):
            return min(self._window_bytes, left)
        if left < ENTRY_HEADER_BYTES or signed_length_at(data, at) < 0:
            if not is_padding(rest):
                self._fail(f"{left} bytes up to the end of the block are neither an entry nor padding", end)
            if floor == span.first_entry:
                self._fail("the block holds no entry", end)
            return 0
        length = signed_length_at(data, at)
        if length + ENTRY_HEADER_BYTES > left:
            self._fail(f"an entry of {length} bytes does not fit the {left} bytes up to the end of its block", end)
        if length > self._entry_bytes_max:
            raise Damaged(
                f"an entry of {length} bytes; at most {self._entry_bytes_max} are read (entry_bytes_max)",
                object=self.source.name,
                position=end,
            )
        if length + ENTRY_HEADER_BYTES > self._window_bytes:
            return length + ENTRY_HEADER_BYTES
        return min(self._window_bytes, left)

    def _check_header(self, span: BlockSpan, data: BytesLike) -> None:
        try:
            header = parse_block_header(data, object=self.source.name, position=span.start)
        except Damaged as error:
            defect = self._defect()
            raise defect or error from error
        expected = BlockHeader(span.end - span.start, span.first_entry, span.ledger)
        if header != expected:
            self._fail(
                f"the block says {header.length} bytes from entry {header.first_entry} of ledger {header.ledger}, the index "
                f"{expected.length} bytes from entry {expected.first_entry} of ledger {expected.ledger}",
                span.start,
            )

    def _read(self, position: int, length: int) -> BytesLike:
        data = self.source.read(position, length)
        if len(data) < length:
            raise Damaged(
                f"{length} bytes asked for, {len(data)} read: the object is cut off",
                object=self.source.name,
                position=position + len(data),
            )
        return data if len(data) == length else memoryview(data)[:length]

    def _fail(self, message: str, position: int) -> NoReturn:
        raise self._defect() or Damaged(message, object=self.source.name, position=position)

    def _defect(self) -> Damaged | None:
        """The error that names the first-entry defect, if this object has it: proven, not guessed.

        Pulsar's own writer leaves the first entry of a full block out of the block's length, and so out of all later offsets
        and the data length. A block that goes on beyond its declared end, by no more than its first entry is long, up to the
        very block that the index has next (or the object's end), is the proof.
        """
        spans = sorted((span for spans in self._spans.values() for span in spans), key=lambda span: span.start)
        try:
            for span, follower in zip(spans[:_PROOF_BLOCKS_MAX], [*spans[1:], None], strict=False):
                head = self._read(span.start, BLOCK_HEADER_BYTES + ENTRY_HEADER_BYTES)
                header = parse_block_header(head, object=self.source.name, position=span.start)
                first_length = signed_length_at(head, BLOCK_HEADER_BYTES)
                if (header.ledger, header.first_entry) != (span.ledger, span.first_entry):
                    return None
                if not 0 <= first_length <= self._entry_bytes_max:
                    return None
                declared_end = span.start + header.length
                surplus = self._surplus(span.start, declared_end, first_length, follower)
                if surplus is None:
                    return None
                if surplus:
                    lost = "" if surplus == first_length else ", except those at a block's end that were never written"
                    return Damaged(
                        f"first-entry defect of Pulsar's own PIP-76 writer: block lengths, index offsets and the data length "
                        f"leave out the first entry of each full block (the block at {span.start} says {header.length} bytes "
                        f"and has {header.length + surplus}); the entries are there{lost}: recover them with salvage",
                        object=self.source.name,
                        position=declared_end,
                    )
        except ChunkstoreError:
            return None
        return None

    def _surplus(self, start: int, position: int, most: int, follower: BlockSpan | None) -> int | None:
        """How far behind ``position``, 0 to ``most``, the block ``follower`` begins; without one, where the object ends, if
        the entries of the block at ``start`` go on up to there.
        """
        if follower is None:
            surplus = self.source.length - position
            sound = 0 <= surplus <= most and (not surplus or self._entries_reach_the_end(start))
            return surplus if sound else None
        length = min(most + BLOCK_HEADER_BYTES, self.source.length - position)
        if length < BLOCK_HEADER_BYTES:
            return None
        data = bytes(self._read(position, length))
        found = data.find(BLOCK_HEADER_BEGIN)
        while 0 <= found <= length - BLOCK_HEADER_BYTES:
            header = parse_block_header(
                data[found : found + BLOCK_HEADER_BYTES], object=self.source.name, position=position + found
            )
            if (header.ledger, header.first_entry) == (follower.ledger, follower.first_entry):
                return found
            found = data.find(BLOCK_HEADER_BEGIN, found + 1)
        return None

    def _entries_reach_the_end(self, start: int) -> bool:
        """Whether the block at ``start`` is nothing but entries with ascending ids, the last of which ends the object."""
        position, previous = start + BLOCK_HEADER_BYTES, -1
        while position < self.source.length:
            length = min(self._window_bytes, self.source.length - position)
            data = self._read(position, length)
            marks = scan_entries(data, 0, length)
            for mark in marks[:-1]:
                entry = entry_id_at(data, mark)
                if entry <= previous:
                    return False
                previous = entry
            if len(marks) > 1:
                position += marks[-1]
            elif length < ENTRY_HEADER_BYTES or signed_length_at(data, 0) < 0:
                return False
            else:
                position += ENTRY_HEADER_BYTES + signed_length_at(data, 0)
        return position == self.source.length


def _trim(window: Window, first: int, stop: int) -> Window:
    """The entries ``first`` to ``stop`` of the window. All ids are looked at, so that disorder cannot hide any of these."""
    ids = list(_ids(window))
    low, high = bisect_left(ids, first), bisect_right(ids, stop)
    return window._replace(marks=window.marks[low : high + 1], floor=max(window.floor, first))


def ascending(window: Window, ids: Iterable[int]) -> Iterator[int]:
    """These ids of the window's entries, one by one. Raises ``Damaged`` where they do not ascend from its floor."""
    previous = window.floor - 1
    for number, entry in enumerate(ids):
        if entry <= previous:
            raise Damaged(
                f"entry id {entry} of ledger {window.ledger} follows {previous}: ids ascend",
                object=window.name,
                position=window.position + window.marks[number] + 4,
            )
        previous = entry
        yield entry


def _ids(window: Window) -> Iterator[int]:
    return ascending(window, (entry_id_at(window.data, mark) for mark in window.marks[:-1]))


def iter_entries(reader: SegmentReader, ledger: int, first: int = 0, last: int | None = None) -> Iterator[Entry]:
    """The entries ``first`` to ``last`` (both included) of ``ledger``, one object each; gaps are left out.

    For tools and tests; ``pip76_arrow.read_batches`` is much faster. Errors are those of ``SegmentReader.windows``.
    """
    for window in reader.windows(ledger, first, last):
        data = memoryview(window.data)
        for entry, mark, end in zip(_ids(window), window.marks, window.marks[1:], strict=False):
            yield Entry(ledger, entry, bytes(data[mark + ENTRY_HEADER_BYTES : end]))
