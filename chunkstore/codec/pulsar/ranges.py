"""Where a ledger's entries are: plain data that can be sent to processes without the codec's other needs (protobuf)."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Block", "LedgerRange"]


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
