"""Filling blocks with entries, PIP-17's and PIP-76's alike: entries in, whole blocks out.

Promises: at most one block in memory; a block that another may follow is cut before an entry that does not fit; an entry too long
for any block gets one of its own. Leaves out: how long a block is and what the index says (``pip17_writer``, ``pip76_writer``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, NamedTuple

from chunkstore.checksum import BytesLike
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
from chunkstore.config import KIB
from chunkstore.errors import Closed, InvalidArgument

__all__ = ["BlockEncoder", "EncodedBlock", "check_block_bytes"]

_PIECE_BYTES = 256 * KIB


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


def check_block_bytes(least: int, given: int, most: int) -> None:
    """``InvalidArgument`` unless ``block_bytes_max`` is inside these bounds, in bytes."""
    if not least <= given <= most:
        raise InvalidArgument(f"block_bytes_max is {least} to {most}, {given} given", argument="block_bytes_max")


class BlockEncoder(ABC):
    """Encodes one data object. Not thread-safe. ``sink`` is called with each finished block, in order.

    If the sink raises, its error passes through and the encoder is closed: begin a new object.
    """

    format: ClassVar[BlockFormat]

    def __init__(self, sink: Callable[[EncodedBlock], object], content_max: int) -> None:
        """``content_max``: bytes of framed entries that a block holds."""
        self._sink = sink
        self._content_max = content_max
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

    @property
    def last_entry(self) -> int:
        """The last entry id of the ledger at hand; -1 before its first entry in this object. Raises as ``append``."""
        self._check_ready()
        return self._last

    @property
    def dense(self) -> bool:
        """Whether entries follow each other without gaps."""
        return self.format.dense

    @abstractmethod
    def _emit(self, *, final: bool) -> None:
        """Hand the block at hand to the sink, if it holds anything; ``final``: no other follows."""

    def append(self, entry: int, payload: BytesLike) -> None:
        """Add one entry; may hand a block to the sink.

        ``InvalidArgument`` for an id that does not follow, a payload over 128 MiB, or where no ledger has begun; ``Unsupported``
        for a gap, where the format has none; nothing changes then. A payload that is not ``bytes`` is copied.
        """
        self._check_ready()
        check_entry(entry, len(payload), self._last)
        if self.format.dense:
            check_dense(entry, self._last)
        size = ENTRY_HEADER_BYTES + len(payload)
        if self._entries and self._content + size > self._content_max:
            self.cut()
        self._loose.append(frame_header(entry, len(payload)))
        self._loose.append(payload if type(payload) is bytes else bytes(payload))
        self._loose_bytes += size
        self._account(entry, entry, 1, size)
        if self._loose_bytes >= _PIECE_BYTES:
            self._gather()

    def append_framed(self, first: int, last: int, entries: int, framed: BytesLike) -> None:
        """Add ``entries`` entries (at least one) with ids ``first`` to ``last`` that are framed already, as one piece.

        For encoders of whole arrays, which check what ``append`` checks. More bytes than ``room`` are taken only at the
        beginning of a block (an entry that is too long for any). The buffer is kept until the block is cut.
        """
        self._check_ready()
        if first <= self._last or (self._entries and len(framed) > self.room):
            raise InvalidArgument(f"entries {first} to {last} do not follow {self._last} here", argument="framed")
        self._gather()
        self._pieces.append(framed)
        self._account(first, last, entries, len(framed))

    def cut(self) -> None:
        """End the block at hand, if it holds anything, and hand it to the sink. Another block may follow it."""
        self._check_open()
        self._emit(final=False)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"this encoder of {self.format.name}")

    def _check_ready(self) -> None:
        """Raise unless an entry may be added."""
        self._check_open()

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

    def _put(self, ledger: int, length: int) -> None:
        """Hand out the block at hand with ``length`` bytes, padding included, and begin a new one."""
        self._gather()
        used = BLOCK_HEADER_BYTES + self._content
        header = self.format.pack(BlockHeader(length, self._first_entry, ledger))
        block = EncodedBlock(
            offset=self._written,
            length=length,
            ledger=ledger,
            first_entry=self._first_entry,
            last_entry=self._last,
            entries=self._entries,
            payload_bytes=self._content - ENTRY_HEADER_BYTES * self._entries,
            buffers=(header, *self._pieces, *([padding(length - used)] if length > used else [])),
        )
        self._closed = True  # for good, should the sink raise: what it has stored is then unknown
        self._sink(block)
        self._closed = False
        self._written += length
        self._reset()
