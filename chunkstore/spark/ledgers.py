"""What reading ledgers needs from the offload layer: which blocks of which data segments hold a topic's ledgers.

Promises: nothing but the types; the offload layer is loaded where it is there. Leaves out: contexts and indexes (the
offload layer's), decoding (``batches``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from chunkstore.reading import ReadingHalf

__all__ = ["Block", "LedgerPart", "LedgerPlanner"]


class Block(NamedTuple):
    """One PIP-76 block: its first entry id, and its bytes ``[start, stop)`` (header and padding included) of the data segment."""

    first_entry: int
    start: int
    stop: int


class LedgerPart(NamedTuple):
    """The part of a ledger that one data segment holds: entries ``first_entry`` to ``last_entry``, both included.

    ``blocks`` are those of this ledger in this segment, ascending by entry and by position.
    """

    ledger: int
    first_entry: int
    last_entry: int
    segment: str
    blocks: tuple[Block, ...]


class LedgerPlanner(Protocol):
    """Finds the parts of a topic's ledgers by reading tables and index segments of one snapshot."""

    def __call__(self, replica: ReadingHalf, topic: str, ledgers: Sequence[int] | None, /) -> Sequence[LedgerPart]:
        """The parts of these ledgers (None: all of the topic's), in the order rows are wanted: by ledger, then by entry.

        No entry is in two parts. Raises a ``ChunkstoreError`` that names the topic or the ledger which is not there.
        """
