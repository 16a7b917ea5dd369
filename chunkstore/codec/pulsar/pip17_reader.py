"""Reading the data object of a PIP-17 pair, which holds one whole ledger.

Promises: as ``windows``; entries are dense from 0 on, from block to block, up to the last one that the index's metadata names.
Leaves out: objects whose index is lost or wrong, and the ledger's id, which only the caller can know.
"""

from __future__ import annotations

from typing import ClassVar

from chunkstore.codec.pulsar.frames import (
    ENTRY_BYTES_MAX,
    LEDGER_UNKNOWN,
    PIP17,
    WINDOW_BYTES,
    BlockFormat,
    DataSource,
)
from chunkstore.codec.pulsar.pip17_index import LedgerIndex
from chunkstore.codec.pulsar.windows import BlockReader
from chunkstore.errors import Damaged

__all__ = ["LedgerObjectReader"]


class LedgerObjectReader(BlockReader):
    """Reads the entries of the ledger whose index has been read, from its data object; see ``BlockReader``.

    ``ledger`` is the id that entries get: ``ledgers`` has it as its only one.
    """

    format: ClassVar[BlockFormat] = PIP17

    def __init__(
        self,
        source: DataSource,
        index: LedgerIndex,
        *,
        ledger: int = LEDGER_UNKNOWN,
        window_bytes: int = WINDOW_BYTES,
        entry_bytes_max: int = ENTRY_BYTES_MAX,
    ) -> None:
        """Compare lengths; reads only where they differ. ``Damaged`` if the data object is not as long as the index says."""
        self.index = index
        super().__init__(
            source,
            {ledger: index.spans(ledger)},
            index.data_length,
            window_bytes=window_bytes,
            entry_bytes_max=entry_bytes_max,
        )

    def _defect(self) -> Damaged | None:
        return None
