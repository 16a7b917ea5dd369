"""Writing a PIP-76 offload segment as a stream: entries in, whole blocks out, the index at the end.

Promises: exact lengths and offsets; at most one block in memory; every block that another may follow ends with padding, so that
readers which look for a negative length find one. Leaves out: storing anything; a block counts only once the sink took it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

from chunkstore.codec.pulsar.block_index import BlockRef
from chunkstore.codec.pulsar.encoding import BlockEncoder, EncodedBlock, check_block_bytes
from chunkstore.codec.pulsar.frames import BLOCK_HEADER_BYTES, PADDING_PATTERN, PIP76, BlockFormat
from chunkstore.codec.pulsar.offload_metadata import LedgerInfo, encode_ledger_info
from chunkstore.codec.pulsar.pip76_index import LedgerGroup, SegmentIndex, build_index
from chunkstore.config import KIB, MIB
from chunkstore.errors import InvalidArgument

__all__ = ["BLOCK_BYTES_MAX", "SegmentEncoder"]

BLOCK_BYTES_MAX = 8 * MIB
"""Default block size. Above S3's least part (5 MiB); smaller blocks make seeking cheaper."""
_BLOCK_BYTES_LEAST = 4 * KIB
_BLOCK_BYTES_MOST = 1024 * MIB


class _Ledger:
    def __init__(self, ledger: int, info: LedgerInfo) -> None:
        self.ledger = ledger
        self.info = info
        self.last_entry = -1
        self.blocks: list[BlockRef] = []


class SegmentEncoder(BlockEncoder):
    """Encodes one offload segment. Not thread-safe. ``sink`` is called with each finished block, in order.

    A block is cut when the next entry would make it longer than ``block_bytes_max``, when a ledger begins, by ``cut``, and by
    ``finish``; an entry that is too long for any block gets one of its own, as long as it needs. Blocks shorter than
    ``block_bytes_min`` are padded up to it (Pulsar pads to 5 MiB, because a part of an S3 upload has at least that).
    Entry ids ascend within a ledger, and may leave gaps.
    """

    format: ClassVar[BlockFormat] = PIP76

    def __init__(
        self,
        sink: Callable[[EncodedBlock], object],
        *,
        block_bytes_max: int = BLOCK_BYTES_MAX,
        block_bytes_min: int = 0,
    ) -> None:
        check_block_bytes(_BLOCK_BYTES_LEAST, block_bytes_max, _BLOCK_BYTES_MOST)
        if not 0 <= block_bytes_min <= block_bytes_max:
            raise InvalidArgument(
                f"block_bytes_min is 0 to block_bytes_max, {block_bytes_min} given", argument="block_bytes_min"
            )
        super().__init__(sink, block_bytes_max - BLOCK_HEADER_BYTES - len(PADDING_PATTERN))
        self._block_min = block_bytes_min
        self._ledgers: dict[int, _Ledger] = {}
        self._ledger: _Ledger | None = None
        self._parts = 0

    def begin_ledger(self, ledger: int, info: LedgerInfo | None = None) -> None:
        """Entries that follow belong to ``ledger``; ends the block at hand. A ledger may be gone back to.

        ``info`` goes into the index; without it, or without ``entries`` in it, the ledger counts as open, and ``entries``
        is one more than the last id, as Pulsar does. ``InvalidArgument`` for a negative id or the info of another ledger.
        """
        self._check_open()
        if not 0 <= ledger < 1 << 63:
            raise InvalidArgument(f"ledger id {ledger}", argument="ledger")
        if info is not None and info.ledger != ledger:
            raise InvalidArgument(f"info of ledger {info.ledger} for ledger {ledger}", argument="info")
        if info is not None:
            encode_ledger_info(info)
        self.cut()
        self._ledger = self._ledgers.setdefault(ledger, _Ledger(ledger, LedgerInfo(ledger=ledger)))
        self._ledger.info = info or self._ledger.info
        self._last = self._ledger.last_entry

    def describe(self, info: LedgerInfo) -> None:
        """Replace what the index will say of the ledger ``info.ledger``, at any time before ``finish``.

        ``InvalidArgument`` if that ledger has not begun, or if the info cannot be written.
        """
        self._check_open()
        known = self._ledgers.get(info.ledger)
        if known is None:
            raise InvalidArgument(f"ledger {info.ledger} has not begun in this segment", argument="info")
        encode_ledger_info(info)
        known.info = info

    def adopt(self, ledger: int, first_entry: int, last_entry: int, length: int) -> None:
        """Count a block that the data object holds already, after those known so far: to go on with a segment after a crash.

        ``last_entry`` is the last id of the ledger in this block or a later one; ``length`` is the block's, in bytes, header and
        padding included. Call it for every stored block, in order, before the first ``append``.
        ``InvalidArgument`` where entries wait already, or ids do not ascend.
        """
        self._check_open()
        known = self._ledgers.setdefault(ledger, _Ledger(ledger, LedgerInfo(ledger=ledger)))
        before = known.blocks[-1].first_entry if known.blocks else -1
        if self._entries or not before < first_entry <= last_entry or length < BLOCK_HEADER_BYTES:
            raise InvalidArgument(
                f"a block of ledger {ledger} from entry {first_entry} cannot follow", argument="block"
            )
        self._parts += 1
        known.blocks.append(BlockRef(first_entry, self._parts, self._written))
        known.last_entry = last_entry
        if known is self._ledger:
            self._last = last_entry
        self._written += length

    def finish(self) -> bytes:
        """Hand out the last block and return the index object's bytes; the encoder is closed then.

        ``InvalidArgument`` if the index would be longer than 8 MiB (some 400,000 blocks).
        """
        self._check_open()
        self._emit(final=True)
        self._closed = True
        groups = []
        for ledger in self._ledgers.values():
            if ledger.blocks:
                info = ledger.info if ledger.info.entries else replace(ledger.info, entries=ledger.last_entry + 1)
                groups.append(LedgerGroup(ledger.ledger, info, encode_ledger_info(info), tuple(ledger.blocks)))
        return build_index(SegmentIndex(self._written, tuple(sorted(groups, key=lambda group: group.ledger))))

    def _check_ready(self) -> None:
        self._check_open()
        if self._ledger is None:
            raise InvalidArgument("call begin_ledger before the first entry", argument="ledger")

    def _emit(self, *, final: bool) -> None:
        if not self._entries or self._ledger is None:
            return
        used = BLOCK_HEADER_BYTES + self._content
        block = BlockRef(self._first_entry, self._parts + 1, self._written)
        self._put(self._ledger.ledger, max(self._block_min, used if final else used + len(PADDING_PATTERN)))
        self._parts += 1
        self._ledger.blocks.append(block)
        self._ledger.last_entry = self._last
