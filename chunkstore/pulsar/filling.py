"""Filling a topic's offload segments, one after the other: pure bytes, for a caller that stores them.

Promises: which entries may follow, where blocks and offload segments end, and what index and context say, is decided here alone; the same
entries give the same bytes, added one by one or as arrays, however cut. Leaves out: storing (``writer`` at the owner, Spark's tasks).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from chunkstore.checksum import BytesLike
from chunkstore.codec.pulsar.encoding import EncodedBlock
from chunkstore.codec.pulsar.frames import BLOCK_HEADER_BYTES, ENTRY_HEADER_BYTES, check_entry
from chunkstore.codec.pulsar.offload_metadata import LedgerInfo
from chunkstore.codec.pulsar.pip76_writer import SegmentEncoder
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

    # What ``append_batch`` of the codec asks of an encoder

    @property
    def dense(self) -> bool:
        """Whether entries follow each other without gaps: they need not."""
        return self._encoder.dense

    @property
    def room(self) -> int:
        """Bytes of framed entries that still fit the block at hand."""
        return self._encoder.room

    @property
    def pending_bytes(self) -> int:
        """Bytes of entries that wait for their block to be cut."""
        return self._encoder.pending_bytes

    @property
    def last_entry(self) -> int:
        """The last entry of the ledger at hand."""
        return self.last_added(self._ledger)

    def append_framed(self, first: int, last: int, entries: int, framed: BytesLike) -> None:
        """As ``SegmentEncoder.append_framed``."""
        self._encoder.append_framed(first, last, entries, framed)

    def cut(self) -> None:
        """End the block at hand, for an entry of its ledger follows that does not fit; and the offload segment, if it is full."""
        ledger = self._ledger
        self._encoder.cut()
        self._begin_block(ledger, self.lasts[ledger] + 1)

    # Filling

    def last_added(self, ledger: int) -> int:
        """The last entry of ``ledger`` that was added, or is known; -1 if there is none."""
        return max(self.lasts.get(ledger, -1), self._added.get(ledger, -1))

    def append(self, ledger: int, entry: int, payload: BytesLike) -> None:
        """Add one entry. Ids ascend within a ledger, over all offload segments, and may leave gaps. Another ledger than before ends the
        block. Raises ``InvalidArgument`` (nothing was added)."""
        self._turn_to(ledger, entry, len(payload))
        self._encoder.append(entry, payload)
        self._added[ledger] = entry

    def append_batch(self, ledger: int, first: int, payloads: pa.Array | pa.ChunkedArray) -> None:
        """Add an Arrow array of payloads with the ids from ``first`` on, without gaps. As ``append``; needs pyarrow."""
        from chunkstore.codec.pulsar.arrow import append_batch

        if getattr(payloads, "null_count", 1):
            raise InvalidArgument("payloads are an Arrow array without nulls", argument="payloads")
        if len(payloads):
            self._turn_to(ledger, first, 0)
            append_batch(self, first, payloads)
            self._added[ledger] = first + len(payloads) - 1

    def adopt(self, ledger: int, first_entry: int, last_entry: int, length: int) -> None:
        """As ``SegmentEncoder.adopt``; how many entries there are is not known then."""
        self._encoder.adopt(ledger, first_entry, last_entry, length)
        self._firsts.setdefault(ledger, first_entry)
        self._counts[ledger] = self._sizes[ledger] = None
        self._blocks += 1
        self.lasts[ledger] = last_entry

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

    def _turn_to(self, ledger: int, entry: int, length: int) -> None:
        """Make ``ledger`` the one at hand, with room for the entry, in this offload segment or the next one."""
        if type(ledger) is not int or type(entry) is not int:
            raise InvalidArgument("ledger and entry are whole numbers", argument="ledger")
        check_entry(entry, length, self.last_added(ledger))
        if ledger < 0 or ledger >> 63:
            raise InvalidArgument(f"ledger id {ledger}", argument="ledger")
        if ledger != self._ledger or ENTRY_HEADER_BYTES + length > self.room:
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
