"""Filling blocks with entries, PIP-17's and PIP-76's alike: entries in, whole blocks out.

Promises: at most one block in memory; a block that another may follow is cut before an entry that does not fit; an entry too long
for any block gets one of its own. Leaves out: how long a block is and what the index says (``pip17``, ``pip76``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, NamedTuple

from chunkstore.checksum import BytesLike
from chunkstore.codec.pulsar.block_index import BlockRef
from chunkstore.codec.pulsar.frames import (
    BLOCK_HEADER_BYTES,
    ENTRY_HEADER_BYTES,
    BlockFormat,
    BlockHeader,
    check_dense,
    check_entry,
    frame_header,
    padding,
)
from chunkstore.config import KIB, MIB
from chunkstore.errors import Closed, InvalidArgument

__all__ = ["BlockEncoder", "EncodedBlock"]

_PIECE_BYTES = 256 * KIB
_BLOCK_BYTES_MOST = 1024 * MIB


class EncodedBlock(NamedTuple):
    """A finished block: where it begins in the data object, its length, what it holds, and its bytes in pieces. Lengths are in bytes;
    ``payload_bytes`` is that of all payloads."""

    offset: int
    length: int
    ledger: int
    first_entry: int
    last_entry: int
    entries: int
    payload_bytes: int
    buffers: tuple[BytesLike, ...]


class BlockEncoder(ABC):
    """Encodes one data object. Not thread-safe. ``sink`` is called with each finished block, in order.

    If the sink raises, its error passes through and the encoder is closed: begin a new object.
    """

    format: ClassVar[BlockFormat]
    block_bytes_least: ClassVar[int]
    reserved_bytes: ClassVar[int] = 0
    """Of a block that another may follow, bytes that hold no entries, besides the header."""

    def __init__(self, sink: Callable[[EncodedBlock], object], block_bytes_max: int) -> None:
        if not self.block_bytes_least <= block_bytes_max <= _BLOCK_BYTES_MOST:
            text = f"block_bytes_max is {self.block_bytes_least} to {_BLOCK_BYTES_MOST}, {block_bytes_max} given"
            raise InvalidArgument(text, argument="block_bytes_max")
        self._sink = sink
        self._content_max = block_bytes_max - BLOCK_HEADER_BYTES - self.reserved_bytes
        self._ledger: int | None = None
        self._blocks: list[BlockRef] = []
        """Those of the ledger at hand."""
        self._parts = 0
        self._last = -1
        self._written = 0
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
        return self._content_max - self._content

    def append(self, entry: int, payload: BytesLike) -> None:
        """Add one entry; may hand a block to the sink.

        ``InvalidArgument`` for an id that does not follow, a payload over 128 MiB, or where no ledger has begun; ``Unsupported``
        for a gap, where the format has none; nothing changes then. A payload that is not ``bytes`` is copied.
        """
        self.check_follows(entry, entry, len(payload))
        size = ENTRY_HEADER_BYTES + len(payload)
        if self._entries and size > self.room:
            self.cut()
        self._loose.append(frame_header(entry, len(payload)))
        self._loose.append(payload if type(payload) is bytes else bytes(payload))
        self._loose_bytes += size
        self._account(entry, entry, 1, size)
        if self._loose_bytes >= _PIECE_BYTES:
            self._gather()

    def append_framed(self, first: int, last: int, entries: int, framed: BytesLike) -> None:
        """Add ``entries`` entries (at least one) with ids ``first`` to ``last`` that are framed already, as one piece.

        For arrays, whose entries were checked by ``check_follows``. More bytes than ``room`` are taken only at the beginning of a
        block (an entry that is too long for any). The buffer is kept until the block is cut.
        """
        self._check_open()
        if first <= self._last or (self._entries and len(framed) > self.room):
            raise InvalidArgument(f"entries {first} to {last} do not follow {self._last} here", argument="framed")
        self._gather()
        self._pieces.append(framed)
        self._account(first, last, entries, len(framed))

    def check_follows(self, first: int, last: int, longest: int) -> None:
        """Raise as ``append`` unless the entries ``first`` to ``last``, with payloads of at most ``longest`` bytes, may be added."""
        self._check_open()
        if self._ledger is None:
            raise InvalidArgument("call begin_ledger before the first entry", argument="ledger")
        if last != first:
            check_entry(last, longest, first - 1)
        check_entry(first, longest, self._last)
        if self.format.dense:
            check_dense(first, self._last)

    def cut(self) -> None:
        """End the block at hand, if it holds anything, and hand it to the sink. Another block may follow it."""
        self._check_open()
        self._emit(final=False)

    @abstractmethod
    def _block_length(self, used: int, *, final: bool) -> int:
        """How long a block of ``used`` bytes is with its padding; ``final``: no other follows."""

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"this encoder of {self.format.name}")

    def _account(self, first: int, last: int, entries: int, size: int) -> None:
        if not self._entries:
            self._first_entry = first
        self._entries += entries
        self._content += size
        self._last = last

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
        length = self._block_length(used, final=final)
        header = self.format.pack(BlockHeader(length, self._first_entry, self._ledger))
        block = EncodedBlock(
            offset=self._written,
            length=length,
            ledger=self._ledger,
            first_entry=self._first_entry,
            last_entry=self._last,
            entries=self._entries,
            payload_bytes=self._content - ENTRY_HEADER_BYTES * self._entries,
            buffers=(header, *self._pieces, *([padding(length - used)] if length > used else [])),
        )
        self._closed = True  # for good, should the sink raise: what it has stored is then unknown
        self._sink(block)
        self._closed = False
        self._parts += 1
        self._blocks.append(BlockRef(block.first_entry, self._parts, block.offset))
        self._written += length
        self._reset()
