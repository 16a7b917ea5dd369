"""Writing a PIP-76 offload segment as a stream: entries in, whole blocks out, the index at the end.

Promises: exact lengths and offsets; at most one block in memory; every block that another may follow ends with padding, so that
readers which look for a negative length find one. Leaves out: storing anything; a block counts only once the sink took it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from chunkstore.checksum import BytesLike
from chunkstore.codec.pulsar.offload_metadata import LedgerInfo, encode_ledger_info
from chunkstore.codec.pulsar.pip76 import (
    BLOCK_HEADER_BYTES,
    ENTRY_HEADER_BYTES,
    PADDING_PATTERN,
    BlockHeader,
    check_entry,
    frame_header,
    pack_block_header,
    padding,
)
from chunkstore.codec.pulsar.pip76_index import BlockRef, LedgerGroup, SegmentIndex, build_index
from chunkstore.config import KIB, MIB
from chunkstore.errors import Closed, InvalidArgument

__all__ = ["BLOCK_BYTES_MAX", "EncodedBlock", "SegmentEncoder"]

BLOCK_BYTES_MAX = 8 * MIB
"""Default block size. Above S3's least part (5 MiB); smaller blocks make seeking cheaper."""
_BLOCK_BYTES_LEAST = 4 * KIB
_BLOCK_BYTES_MOST = 1024 * MIB
_PIECE_BYTES = 256 * KIB


class EncodedBlock(NamedTuple):
    """A finished block: where it begins in the data object, its length, what it holds, and its bytes in pieces."""

    offset: int
    length: int
    ledger: int
    first_entry: int
    last_entry: int
    entries: int
    buffers: tuple[BytesLike, ...]


class _Ledger:
    def __init__(self, ledger: int, info: LedgerInfo) -> None:
        self.ledger = ledger
        self.info = info
        self.last_entry = -1
        self.blocks: list[BlockRef] = []


class SegmentEncoder:
    """Encodes one offload segment. Not thread-safe. ``sink`` is called with each finished block, in order.

    A block is cut when the next entry would make it longer than ``block_bytes_max``, when a ledger begins, by ``cut``, and by
    ``finish``; an entry that is too long for any block gets one of its own, as long as it needs. Blocks shorter than
    ``block_bytes_min`` are padded up to it (Pulsar pads to 5 MiB, because a part of an S3 upload has at least that).
    If the sink raises, its error passes through and the encoder is closed: begin a new segment.
    """

    def __init__(
        self,
        sink: Callable[[EncodedBlock], object],
        *,
        block_bytes_max: int = BLOCK_BYTES_MAX,
        block_bytes_min: int = 0,
    ) -> None:
        if not _BLOCK_BYTES_LEAST <= block_bytes_max <= _BLOCK_BYTES_MOST:
            raise InvalidArgument(
                f"block_bytes_max is {_BLOCK_BYTES_LEAST} to {_BLOCK_BYTES_MOST}, {block_bytes_max} given",
                argument="block_bytes_max",
            )
        if not 0 <= block_bytes_min <= block_bytes_max:
            raise InvalidArgument(
                f"block_bytes_min is 0 to block_bytes_max, {block_bytes_min} given", argument="block_bytes_min"
            )
        self._sink = sink
        self._block_max = block_bytes_max
        self._block_min = block_bytes_min
        self._ledgers: dict[int, _Ledger] = {}
        self._ledger: _Ledger | None = None
        self._written = 0
        self._parts = 0
        self._closed = False
        self._reset()

    def _reset(self) -> None:
        self._pieces: list[BytesLike] = []
        self._loose: list[bytes] = []
        self._loose_bytes = 0
        self._content = 0
        self._entries = 0
        self._first_entry = -1

    @property
    def length(self) -> int:
        """Bytes of the data object that the sink has taken."""
        return self._written

    @property
    def pending_bytes(self) -> int:
        """Bytes of entries that wait for their block to be cut."""
        return self._content

    @property
    def room(self) -> int:
        """Bytes of framed entries that still fit the block at hand; a new block, if none is."""
        return self._block_max - BLOCK_HEADER_BYTES - len(PADDING_PATTERN) - self._content

    @property
    def last_entry(self) -> int:
        """The last entry id of the ledger at hand; -1 before its first entry in this segment."""
        return self._current().last_entry

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
        """Count a block that the data object holds already, behind those known so far: to go on with a segment after a crash.

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
        self._written += length

    def append(self, entry: int, payload: BytesLike) -> None:
        """Add one entry; may hand a block to the sink. Ids ascend, and may leave gaps.

        ``InvalidArgument`` for an id that does not follow, a payload over 128 MiB, or where no ledger has begun; nothing
        changes then. A payload that is not ``bytes`` is copied.
        """
        ledger = self._current()
        check_entry(entry, len(payload), ledger.last_entry)
        size = ENTRY_HEADER_BYTES + len(payload)
        if self._entries and size > self.room:
            self.cut()
        self._loose.append(frame_header(entry, len(payload)))
        self._loose.append(payload if type(payload) is bytes else bytes(payload))
        self._loose_bytes += size
        self._account(ledger, entry, entry, 1, size)
        if self._loose_bytes >= _PIECE_BYTES:
            self._gather()

    def append_framed(self, first: int, last: int, entries: int, framed: BytesLike) -> None:
        """Add ``entries`` entries (at least one) with ids ``first`` to ``last`` that are framed already, as one piece.

        For encoders of whole arrays, which check what ``append`` checks. More bytes than ``room`` are taken only at the
        beginning of a block (an entry that is too long for any). The buffer is kept until the block is cut.
        """
        ledger = self._current()
        if first <= ledger.last_entry or (self._entries and len(framed) > self.room):
            raise InvalidArgument(
                f"entries {first} to {last} do not follow {ledger.last_entry} here", argument="framed"
            )
        self._gather()
        self._pieces.append(framed)
        self._account(ledger, first, last, entries, len(framed))

    def cut(self) -> None:
        """End the block at hand, if it holds anything, and hand it to the sink. Another block may follow it."""
        self._check_open()
        self._emit(final=False)

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

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("this segment encoder")

    def _current(self) -> _Ledger:
        self._check_open()
        if self._ledger is None:
            raise InvalidArgument("begin_ledger comes before the first entry", argument="ledger")
        return self._ledger

    def _account(self, ledger: _Ledger, first: int, last: int, entries: int, size: int) -> None:
        if not self._entries:
            self._first_entry = first
        self._entries += entries
        self._content += size
        ledger.last_entry = last

    def _gather(self) -> None:
        if self._loose:
            self._pieces.append(b"".join(self._loose))
            self._loose = []
            self._loose_bytes = 0

    def _emit(self, *, final: bool) -> None:
        if not self._entries or self._ledger is None:
            return
        self._gather()
        used = BLOCK_HEADER_BYTES + self._content
        length = max(self._block_min, used if final else used + len(PADDING_PATTERN))
        header = pack_block_header(BlockHeader(length, self._first_entry, self._ledger.ledger))
        block = EncodedBlock(
            offset=self._written,
            length=length,
            ledger=self._ledger.ledger,
            first_entry=self._first_entry,
            last_entry=self._ledger.last_entry,
            entries=self._entries,
            buffers=(header, *self._pieces, *([padding(length - used)] if length > used else [])),
        )
        self._closed = True  # for good, should the sink raise: what it has stored is then unknown
        self._sink(block)
        self._closed = False
        self._parts += 1
        self._ledger.blocks.append(BlockRef(self._first_entry, self._parts, self._written))
        self._written += length
        self._reset()
