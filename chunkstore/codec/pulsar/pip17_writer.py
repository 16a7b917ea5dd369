"""Writing a PIP-17 pair as a stream: entries in, whole blocks out (each a part of a multipart upload), the index at the end.

Promises: the data object is byte for byte what Pulsar's own offloader writes; where that one loses entries, after one that is longer
than a block, the block is longer instead, which Pulsar's readers take. At most one block in memory. Leaves out: storing anything; a
block counts only once the sink took it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar, Final

from chunkstore.codec.pulsar.block_index import BlockRef
from chunkstore.codec.pulsar.encoding import BlockEncoder, EncodedBlock, check_block_bytes
from chunkstore.codec.pulsar.frames import (
    BLOCK_HEADER_BYTES,
    ENTRY_HEADER_BYTES,
    LEDGER_UNKNOWN,
    PIP17,
    BlockFormat,
)
from chunkstore.codec.pulsar.offload_metadata import LedgerMetadata, encode_ledger_metadata
from chunkstore.codec.pulsar.pip17_index import LedgerIndex, build_ledger_index
from chunkstore.config import MIB
from chunkstore.errors import InvalidArgument

__all__ = ["BLOCK_BYTES_MAX", "LedgerEncoder"]

BLOCK_BYTES_MAX = 64 * MIB
"""Default block size, which is Pulsar's. S3 wants parts of at least 5 MiB, and at most 10,000 of them."""
_BLOCK_BYTES_LEAST: Final = 256
_BLOCK_BYTES_MOST: Final = 1024 * MIB


class LedgerEncoder(BlockEncoder):
    """Encodes one ledger, whose entries begin with 0 and have no gaps. Not thread-safe. ``sink`` is called with each finished
    block, in order: part 1, 2, and so on.

    Every block but the last is padded up to ``block_bytes_max``. An entry that is too long for any block gets one of its own,
    as long as it needs. ``metadata`` goes into the index; its ``length`` and ``last_entry`` are filled in where they are ``None``,
    and must be right where they are not. ``ledger`` is for ``EncodedBlock`` alone: the objects do not hold it.
    """

    format: ClassVar[BlockFormat] = PIP17

    def __init__(
        self,
        sink: Callable[[EncodedBlock], object],
        metadata: LedgerMetadata,
        *,
        ledger: int = LEDGER_UNKNOWN,
        block_bytes_max: int = BLOCK_BYTES_MAX,
    ) -> None:
        """``InvalidArgument`` for a block size out of bounds, or metadata that cannot be written."""
        check_block_bytes(_BLOCK_BYTES_LEAST, block_bytes_max, _BLOCK_BYTES_MOST)
        encode_ledger_metadata(replace(metadata, length=metadata.length or 0))
        super().__init__(sink, block_bytes_max - BLOCK_HEADER_BYTES)
        self._metadata = metadata
        self._ledger = ledger
        self._block_max = block_bytes_max
        self._payload_bytes = 0
        self._blocks: list[BlockRef] = []

    def finish(self) -> bytes:
        """Hand out the last block and return the index object's bytes; the encoder is closed then.

        ``InvalidArgument`` if there is no entry, if the metadata's ``length`` or ``last_entry`` is another one than that of
        the entries (the last block is handed out all the same), or if the index would be longer than 8 MiB.
        """
        self._check_open()
        if self._last < 0:
            raise InvalidArgument("an empty ledger is never offloaded", argument="entries")
        self._emit(final=True)
        self._closed = True
        given = self._metadata
        found = replace(given, length=self._payload_bytes, last_entry=self._last)
        if given.length not in (None, found.length) or given.last_entry not in (None, found.last_entry):
            raise InvalidArgument(
                f"the metadata has {given.length} bytes up to entry {given.last_entry}, the entries {found.length} up to "
                f"{found.last_entry}",
                argument="metadata",
            )
        raw = encode_ledger_metadata(found)
        return build_ledger_index(LedgerIndex(self._written, found, raw, tuple(self._blocks)))

    def _emit(self, *, final: bool) -> None:
        if not self._entries:
            return
        used = BLOCK_HEADER_BYTES + self._content
        block = BlockRef(self._first_entry, len(self._blocks) + 1, self._written)
        payload_bytes = self._content - ENTRY_HEADER_BYTES * self._entries
        self._put(self._ledger, used if final else max(used, self._block_max))
        self._payload_bytes += payload_bytes
        self._blocks.append(block)
