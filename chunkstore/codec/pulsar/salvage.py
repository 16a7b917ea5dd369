"""Salvage of PIP-76 data objects without their index: every entry that can be found, by scanning block after block.

For objects whose index is lost or wrong, above all those of Pulsar's own writer, whose block lengths and offsets leave out the
first entry of each full block: lengths in block headers are not believed, only the headers themselves and the chain of entries.
Promises: an entry is given out once the bytes behind it make sense (another entry with a higher id, padding, the next block,
or the object's end); bytes that make none are reported, never silently skipped; memory for one window or entry.
Leaves out: entries that were never written (Pulsar's writer may lose the last ones of a block), and any order but the object's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterator
from struct import Struct
from typing import NamedTuple

from chunkstore.codec.pulsar.frames import (
    BLOCK_HEADER_BYTES,
    ENTRY_BYTES_MAX,
    ENTRY_HEADER_BYTES,
    ENTRY_ID_MAX,
    PADDING_PATTERN,
    PIP76,
    WINDOW_BYTES,
    BlockHeader,
    DataSource,
    Entry,
    padding,
)
from chunkstore.config import KIB
from chunkstore.errors import Damaged

__all__ = ["SkippedBytes", "salvage_entries"]

_FRAME = Struct(">iq")
_BEGIN = PIP76.begin
_RESERVED = bytes(92)
_LOOK_BYTES = 64 * KIB
_GAP_MAX = 1 << 32
"""Entry ids that leap further are taken for bytes that are no entry."""


class SkippedBytes(NamedTuple):
    """Bytes ``position`` to ``position + length`` of the object that are neither block, entry nor padding, and why."""

    position: int
    length: int
    reason: str


class _Framed(NamedTuple):
    """What looks like an entry: its id, and where it begins and ends."""

    entry: int
    begin: int
    end: int


def salvage_entries(
    source: DataSource,
    *,
    ledgers: Collection[int] | None = None,
    skipped: Callable[[SkippedBytes], object] | None = None,
    entry_bytes_max: int = ENTRY_BYTES_MAX,
) -> Iterator[Entry]:
    """Every entry in the data object, in the order of its bytes; ``skipped`` is called with bytes that make no sense.

    ``ledgers`` are the ids that may occur, if they are known (the index knows them, also where its positions are wrong).
    Raises nothing about damage, only what ``source.read`` raises. An object that is no PIP-76 data object at all yields
    nothing and is skipped as a whole.
    """
    scan = _Scan(source, ledgers, entry_bytes_max)
    position = 0
    while position < scan.length:
        header = scan.header(position)
        if header is not None:
            position = scan.skip_padding((yield from scan.block(position + BLOCK_HEADER_BYTES, header)))
        if position < scan.length and (header is None or scan.header(position) is None):
            end = scan.find_header(position)
            if skipped is not None:
                reason = (
                    "no block begins here" if header is None else f"no entry of ledger {header.ledger} and no padding"
                )
                skipped(SkippedBytes(position, end - position, reason))
            position = end


class _Scan:
    """Looks at the object through one window. ``length`` shrinks if the object turns out to be cut off."""

    def __init__(self, source: DataSource, ledgers: Collection[int] | None, entry_bytes_max: int) -> None:
        self._source = source
        self._ledgers = ledgers
        self._entry_bytes_max = entry_bytes_max
        self._data = memoryview(b"")
        self._begin = 0
        self._owned = False
        self.length = source.length

    def _at(self, position: int, length: int) -> memoryview:
        """``length`` bytes from ``position`` on, fewer at the object's end."""
        length = min(length, self.length - position)
        offset = position - self._begin
        if offset < 0 or offset + length > len(self._data):
            want = min(max(length, WINDOW_BYTES), self.length - position)
            self._data, self._begin, offset = memoryview(self._source.read(position, want)), position, 0
            self._owned = False
            if len(self._data) < want:
                self.length = position + len(self._data)
        return self._data[offset : offset + length]

    def _peek(self, position: int, length: int) -> memoryview:
        """As ``_at``, for a few bytes that an entry leads to, however far away: the window stays where it is.

        What is no entry may lead anywhere, and there may be one every 140 bytes: moving the window each time would read the
        object thousands of times over.
        """
        length = min(length, self.length - position)
        offset = position - self._begin
        end = self._begin + len(self._data)
        if length <= 0 or position <= end or offset < 0:
            return self._at(position, length)
        if not self._owned:
            # The source may reuse its buffer for the next read.
            self._data, self._owned = memoryview(bytes(self._data)), True
        data = memoryview(self._source.read(position, length))
        if len(data) < length:
            self.length = position + len(data)
        return data[:length]

    def header(self, position: int) -> BlockHeader | None:
        """The block header at ``position``, if all of its 128 bytes look like one."""
        return self._header_in(self._at(position, BLOCK_HEADER_BYTES), position)

    def _header_in(self, data: memoryview, position: int) -> BlockHeader | None:
        if data[: len(_BEGIN)] != _BEGIN or data[BLOCK_HEADER_BYTES - len(_RESERVED) :] != _RESERVED:
            return None
        try:
            header = PIP76.parse(data, object=self._source.name, position=position)
        except Damaged:
            return None
        return header if self._ledgers is None or header.ledger in self._ledgers else None

    def find_header(self, position: int) -> int:
        """Where the next block header begins, from ``position`` on; the object's length if there is none."""
        while position < self.length:
            # Less than a window at a time: what follows the next header is most often in the window already.
            data = bytes(self._at(position, _LOOK_BYTES))
            found = data.find(_BEGIN)
            while found >= 0:
                if self.header(position + found) is not None:
                    return position + found
                found = data.find(_BEGIN, found + 1)
            # The beginning of a header may stand at the end of this look.
            position += max(1, len(data) - len(_BEGIN) + 1)
        return self.length

    def skip_padding(self, position: int) -> int:
        """Where the padding that begins at ``position`` ends: at the first byte that is none."""
        while position < self.length:
            # A multiple of the pattern, so that each look begins with the pattern's first byte.
            data = bytes(self._at(position, _LOOK_BYTES))
            pattern = padding(len(data))
            if data != pattern:
                return position + next(at for at in range(len(data)) if data[at] != pattern[at])
            position += len(data)
        return position

    def block(self, at: int, header: BlockHeader) -> Generator[Entry, None, int]:
        """The entries from ``at`` on that belong to the block of ``header``; returns where they end."""
        # The header may be wrong about the first id; what decides is that entries follow each other.
        held = self._framed(at, 0, ENTRY_ID_MAX)
        while held is not None and held.end <= self.length:
            following = self._framed(held.end, held.entry + 1, held.entry + _GAP_MAX)
            if following is None and not self._ends_block(held.end):
                return held.begin
            # One entry is read at a time, whatever its length claims, and only if all of it is there.
            payload = bytes(self._at(held.begin + ENTRY_HEADER_BYTES, held.end - held.begin - ENTRY_HEADER_BYTES))
            if held.end > self.length:
                return held.begin
            yield Entry(header.ledger, held.entry, payload)
            at, held = held.end, following
        return at

    def _framed(self, at: int, entry_min: int, entry_max: int) -> _Framed | None:
        """What stands at ``at``, if it looks like an entry with such an id; it may reach beyond the object's end."""
        data = self._peek(at, BLOCK_HEADER_BYTES)
        if len(data) < ENTRY_HEADER_BYTES or self._header_in(data, at) is not None:
            return None
        length, entry = _FRAME.unpack_from(data)
        if not 0 <= length <= self._entry_bytes_max or not entry_min <= entry <= entry_max:
            return None
        return _Framed(entry, at, at + ENTRY_HEADER_BYTES + length)

    def _ends_block(self, at: int) -> bool:
        """Whether a block may end at ``at``: a whole turn of padding, or less and then a block or the object's end."""
        turn = len(PADDING_PATTERN)
        data = self._peek(at, turn + BLOCK_HEADER_BYTES)
        skipped = 0
        while skipped < min(turn, len(data)) and data[skipped] == PADDING_PATTERN[skipped]:
            skipped += 1
        if skipped == turn or self.length - at - skipped < ENTRY_HEADER_BYTES:
            return True
        return self._header_in(data[skipped : skipped + BLOCK_HEADER_BYTES], at + skipped) is not None
