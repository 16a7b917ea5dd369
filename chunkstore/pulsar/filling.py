"""Filling a topic's offload segments, one after the other: pure bytes, for a caller that stores them.

Promises: which entries may follow, where blocks and offload segments end, and what index and context say, is decided here alone; the same
entries give the same bytes, added one by one or as arrays, however cut. Leaves out: storing (``writer`` at the owner, Spark's tasks).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from chunkstore.checksum import BytesLike
from chunkstore.codec.pulsar.block_index import BlockSpan
from chunkstore.codec.pulsar.encoding import EncodedBlock
from chunkstore.codec.pulsar.frames import BLOCK_HEADER_BYTES, ENTRY_HEADER_BYTES, check_entry
from chunkstore.codec.pulsar.offload_metadata import LedgerInfo
from chunkstore.codec.pulsar.pip76 import SegmentEncoder
from chunkstore.config import KIB, MIB
from chunkstore.errors import InvalidArgument
from chunkstore.pulsar.contexts import LEDGERS_MAX, EntryRange
from chunkstore.pulsar.planning import BLOCKS_MAX

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Filled", "SegmentFiller"]

_BLOCK_BYTES_LEAST: Final = 4 * KIB
_BLOCK_BYTES_MOST: Final = 64 * MIB
_SEGMENT_BYTES_MOST: Final = 1 << 40
_NO_FIRST_ENTRY: Final = BLOCK_HEADER_BYTES
"""Pulsar's reader begins with the object's first bytes: read as an entry, a block header has its own length as its id."""


class Filled(NamedTuple):
    """What completes an offload segment: the length of its data, its index, and the entries that its context tells of."""

    data_length: int
    index_data: bytes
    ranges: tuple[EntryRange, ...]


class SegmentFiller:
    """Not thread-safe. ``put`` is called with each block, ``complete`` with what completes an offload segment; a block that follows is the
    first of the next one. Where they raise, the error passes through, and the filler is of no use any more.

    An offload segment ends with the block at which its data have reached ``segment_bytes_max``, or where no block or ledger more fits; one
    block later where the next one would go on with entry 128 of its ledger (Pulsar's own reader fails on that as the first entry of a
    ledger in a segment). Raises ``InvalidArgument``.
    """

    def __init__(
        self,
        put: Callable[[EncodedBlock], object],
        complete: Callable[[Filled], object],
        *,
        segment_bytes_max: int = 64 * MIB,
        block_bytes: int = 1 * MIB,
    ) -> None:
        for value, least, most, argument in (
            (segment_bytes_max, 1, _SEGMENT_BYTES_MOST, "segment_bytes_max"),
            (block_bytes, _BLOCK_BYTES_LEAST, _BLOCK_BYTES_MOST, "block_bytes"),
        ):
            if type(value) is not int or not least <= value <= most:
                raise InvalidArgument(f"{argument} is {least} to {most} bytes, not {value!r}", argument=argument)
        self._put = put
        self._complete = complete
        self._segment_bytes_max = segment_bytes_max
        self._block_bytes = block_bytes
        self.lasts: dict[int, int] = {}
        """By ledger: the last entry that ``put`` has taken, or of which somebody else is known to have it."""
        self._sizes: dict[int, int | None] = {}
        """By ledger: bytes of all its payloads; None: not known, because this filler has not seen all of them."""
        self._begin()

    @property
    def pending_bytes(self) -> int:
        """Bytes of entries that wait for their block to be cut."""
        return self._encoder.pending_bytes

    def last_added(self, ledger: int) -> int:
        """The last entry of ``ledger`` that was added, or is known; -1 if there is none."""
        return max(self.lasts.get(ledger, -1), self._added.get(ledger, -1))

    def append(self, ledger: int, entry: int, payload: BytesLike) -> None:
        """Add one entry. Ids ascend within a ledger, over all offload segments, and may leave gaps. Another ledger than before ends the
        block. Raises ``InvalidArgument`` (nothing was added)."""
        self._check(ledger, entry, len(payload))
        self._make_room(ledger, entry, len(payload))
        self._encoder.append(entry, payload)
        self._added[ledger] = entry

    def append_batch(self, ledger: int, first: int, payloads: pa.Array | pa.ChunkedArray) -> None:
        """Add an Arrow array of payloads with the ids from ``first`` on, without gaps. As ``append``; needs pyarrow and numpy."""
        from chunkstore.codec.pulsar.arrow import append_fitting, checked_payloads, longest_of

        chunks = checked_payloads(payloads)
        if not chunks:
            return
        self._check(ledger, first, longest_of(chunks))
        check_entry(first + sum(map(len, chunks)) - 1, 0, first - 1)
        for chunk in chunks:
            done = 0
            while done < len(chunk):
                self._make_room(ledger, first, chunk[done].as_buffer().size)
                added = append_fitting(self._encoder, first, chunk.slice(done))
                done, first = done + added, first + added
                self._added[ledger] = first - 1

    def adopt(self, span: BlockSpan, last_entry: int) -> None:
        """As ``SegmentEncoder.adopt``; how many entries there are is not known then."""
        self._encoder.adopt(span, last_entry)
        self._firsts.setdefault(span.ledger, span.first_entry)
        self._counts[span.ledger] = self._sizes[span.ledger] = None
        self._blocks += 1
        self.lasts[span.ledger] = last_entry

    def flush(self) -> None:
        """Hand out the block at hand, however short."""
        self._encoder.cut()

    def complete(self) -> None:
        """Flush, and complete the offload segment at hand if it has entries."""
        self._encoder.cut()
        length = self._encoder.length
        if length:
            for ledger in self._firsts:
                self._encoder.describe(LedgerInfo(ledger=ledger, size=self._sizes[ledger]))
            index = self._encoder.finish()
            ranges = (
                EntryRange(ledger, first, self.lasts[ledger], self._counts[ledger] or 0)
                for ledger, first in sorted(self._firsts.items())
            )
            self._complete(Filled(length, index, tuple(ranges)))
            self._begin()

    # Helpers

    def _begin(self) -> None:
        self._encoder = SegmentEncoder(self._take, block_bytes_max=self._block_bytes)
        self._firsts: dict[int, int] = {}
        self._counts: dict[int, int | None] = {}
        """Entries by ledger; None: there are blocks of another writer."""
        self._added: dict[int, int] = {}
        self._blocks = 0
        self._ledger = -1

    def _check(self, ledger: int, entry: int, length: int) -> None:
        if type(ledger) is not int or type(entry) is not int:
            raise InvalidArgument("ledger and entry are whole numbers", argument="ledger")
        check_entry(entry, length, self.last_added(ledger))
        if ledger < 0 or ledger >> 63:
            raise InvalidArgument(f"ledger id {ledger}", argument="ledger")

    def _make_room(self, ledger: int, entry: int, length: int) -> None:
        """Make ``ledger`` the one at hand, with room for the entry, in this offload segment or the next one."""
        if ledger != self._ledger or ENTRY_HEADER_BYTES + length > self._encoder.room:
            self._encoder.cut()
        if not self.pending_bytes:
            self._begin_block(ledger, entry)

    def _begin_block(self, ledger: int, entry: int) -> None:
        known = ledger in self._firsts
        full = self._encoder.length >= self._segment_bytes_max or self._blocks >= BLOCKS_MAX - 1
        shifted = known and entry == _NO_FIRST_ENTRY and self._blocks < BLOCKS_MAX
        if (full and not shifted) or (not known and len(self._firsts) >= LEDGERS_MAX):
            self.complete()
        if ledger != self._ledger:
            self._encoder.begin_ledger(ledger)
            self._ledger = ledger

    def _take(self, block: EncodedBlock) -> None:
        """The encoder's sink."""
        self._put(block)
        self._blocks += 1
        self._firsts.setdefault(block.ledger, block.first_entry)
        self.lasts[block.ledger] = block.last_entry
        before = self._counts.get(block.ledger, 0)
        self._counts[block.ledger] = None if before is None else before + block.entries
        size = self._sizes.get(block.ledger, None if block.first_entry else 0)
        self._sizes[block.ledger] = None if size is None else size + block.payload_bytes
