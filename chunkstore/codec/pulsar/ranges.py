"""Where a ledger's entries lie: plain data that can be sent to processes without the codec's other needs (protobuf)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from chunkstore.codec.pulsar.pip76 import ENTRY_ID_MAX

if TYPE_CHECKING:
    from chunkstore.codec.pulsar.pip76_index import BlockSpan

__all__ = ["Block", "LedgerRange", "ranges_of"]


class Block(NamedTuple):
    """One PIP-76 block: its first entry id, and its bytes ``[start, stop)`` (header and padding included) of the data segment."""

    first_entry: int
    start: int
    stop: int


class LedgerRange(NamedTuple):
    """The part of a ledger that one data segment holds: entries ``first_entry`` to ``last_entry``, both included.

    ``blocks`` are those of this ledger in this segment, ascending by entry and by position. ``complete``: nothing can be added
    to this part any more. ``entries``: how many there are; 0: not known.
    """

    topic: str
    ledger: int
    first_entry: int
    last_entry: int
    segment: str
    blocks: tuple[Block, ...]
    complete: bool
    entries: int = 0

    @property
    def is_dense(self) -> bool:
        """Whether every id from the first to the last is that of an entry: then ids are known without reading a byte."""
        return self.entries == self.ids

    @property
    def ids(self) -> int:
        """How many ids there are from the first to the last entry."""
        return self.last_entry - self.first_entry + 1

    @property
    def size_bytes(self) -> int:
        """Bytes of the blocks, headers and padding included."""
        return sum(block.stop - block.start for block in self.blocks)


def ranges_of(topic: str, segment: str, spans: Iterable[BlockSpan]) -> list[LedgerRange]:
    """The parts of ledgers in some blocks of a data segment (or data object), by their order there. Of what blocks alone do not say
    ``last_entry`` is a bound, and ``complete`` false."""
    rows: dict[int, list[Block]] = {}
    for span in spans:
        rows.setdefault(span.ledger, []).append(Block(span.first_entry, span.start, span.end))
    return [
        LedgerRange(topic, ledger, row[0].first_entry, ENTRY_ID_MAX, segment, tuple(row), complete=False)
        for ledger, row in rows.items()
    ]
