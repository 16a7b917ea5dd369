"""What the indexes of PIP-17 and PIP-76 share: rows of blocks, the first fields, and which bytes and entries a block has.

Promises: everything in the bytes is checked before it is believed, and a hostile index costs memory in proportion to its own
length, which is bounded. ``Block`` and ``LedgerRange`` are plain data, for processes without protobuf. Leaves out: metadata and the
order of fields (``pip17``, ``pip76``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct
from typing import NamedTuple

from chunkstore.checksum import BytesLike
from chunkstore.codec.pulsar.frames import BLOCK_HEADER_BYTES, PIP17, PIP76, BlockFormat, of_ledger
from chunkstore.config import MIB
from chunkstore.errors import Damaged, InvalidArgument

__all__ = [
    "BLOCK_ROW",
    "INDEX_BYTES_MAX",
    "Block",
    "BlockRef",
    "BlockSpan",
    "LedgerRange",
    "check_fit",
    "check_head",
    "check_spans",
    "pack_blocks",
    "pack_head",
    "read_blocks",
    "spans_of",
]

INDEX_BYTES_MAX = 8 * MIB
"""Longest index that is written or read: some 400,000 blocks."""
_HEAD = Struct(">Iiqq")
BLOCK_ROW = Struct(">qiq")
"""A block in an index: the fields of ``BlockRef``."""


class BlockRef(NamedTuple):
    """One block in the index: its first entry id, its part number, and the offset of its header in the data object."""

    first_entry: int
    part: int
    offset: int


class BlockSpan(NamedTuple):
    """A block with its bounds: bytes ``start`` to ``end`` of the data object, and entry ids below ``entry_limit``."""

    ledger: int
    first_entry: int
    entry_limit: int
    start: int
    end: int


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


def spans_of(ledgers: Iterable[tuple[int, Sequence[BlockRef], int]], data_length: int) -> list[BlockSpan]:
    """All blocks in the order of their bytes, of rows of (ledger, its blocks, the id that its entries are below).

    A block ends where the next begins, the last one at ``data_length`` bytes. Raises nothing.
    """
    begins = sorted(
        (block.offset, ledger, block.first_entry, after)
        for ledger, blocks, limit in ledgers
        for block, after in zip(blocks, [*(block.first_entry for block in blocks[1:]), limit], strict=False)
    )
    ends = [*(begin[0] for begin in begins[1:]), data_length]
    return [BlockSpan(*begin[1:], begin[0], end) for begin, end in zip(begins, ends, strict=False)]


def check_head(data: BytesLike, format: BlockFormat, length_min: int, object: str) -> int:
    """Check magic, length and block header length of an index; the length of its data object in bytes.

    Raises ``Damaged`` of ``object`` where one is wrong, or where ``data`` has less than ``length_min`` or more than
    ``INDEX_BYTES_MAX`` bytes.
    """
    if len(data) > INDEX_BYTES_MAX:
        raise Damaged(f"{len(data)} bytes; an index has at most {INDEX_BYTES_MAX}", object=object)
    if len(data) < length_min:
        text = f"an index has at least {length_min} bytes, {len(data)} are here"
        raise Damaged(text, object=object, position=len(data))
    magic, length, data_length, header_length = _HEAD.unpack_from(data)
    if magic != format.index_magic:
        other = [f"; it is an index of {known.name}" for known in (PIP17, PIP76) if known.index_magic == magic]
        text = f"not an index of {format.name}: magic 0x{magic:08X}, 0x{format.index_magic:08X} expected"
        raise Damaged(text + "".join(other), object=object)
    if length != len(data):
        raise Damaged(f"the index declares {length} bytes and has {len(data)}", object=object, position=4)
    if data_length < 0:
        raise Damaged(f"data object length {data_length}", object=object, position=8)
    if header_length != BLOCK_HEADER_BYTES:
        raise Damaged(f"block header length {header_length}, {BLOCK_HEADER_BYTES} expected", object=object, position=16)
    return int(data_length)


def pack_head(format: BlockFormat, length: int, data_length: int) -> bytes:
    """The first 24 bytes of an index object of ``length`` bytes. ``InvalidArgument`` if it would have too many."""
    if length > INDEX_BYTES_MAX:
        text = f"an index has at most {INDEX_BYTES_MAX} bytes, this one would have {length}: use larger blocks or more segments"
        raise InvalidArgument(text, argument="index")
    return _HEAD.pack(format.index_magic, length, data_length, BLOCK_HEADER_BYTES)


def pack_blocks(blocks: Iterable[BlockRef]) -> bytes:
    """The rows of these blocks, 20 bytes each."""
    return b"".join(BLOCK_ROW.pack(*block) for block in blocks)


def check_fit(count: int, metadata_length: int, left: int, *, object: str, position: int) -> None:
    """``Damaged`` unless ``count`` rows and the metadata fit the ``left`` bytes."""
    if count < 0 or metadata_length < 0 or metadata_length + count * BLOCK_ROW.size > left:
        text = f"{count} blocks and {metadata_length} bytes of metadata do not fit the {left} bytes that are left"
        raise Damaged(text, object=object, position=position)


def read_blocks(
    data: memoryview, at: int, count: int, data_length: int, object: str
) -> tuple[tuple[BlockRef, ...], int]:
    """The ``count`` rows at ``at`` of a ledger's blocks, and where they end. ``Damaged`` unless entries and offsets ascend inside the
    data object."""
    blocks: list[BlockRef] = []
    end = at + count * BLOCK_ROW.size
    entry_floor, offset_floor = 0, 0
    for first_entry, part, offset in BLOCK_ROW.iter_unpack(data[at:end]):
        if first_entry < entry_floor or not offset_floor <= offset <= data_length - BLOCK_HEADER_BYTES:
            text = f"block of entry {first_entry} at offset {offset}: entries and offsets must ascend and be inside the data object"
            position = at + len(blocks) * BLOCK_ROW.size
            raise Damaged(f"{text} of {data_length} bytes", object=object, position=position)
        blocks.append(BlockRef(first_entry, part, offset))
        entry_floor, offset_floor = first_entry + 1, offset + BLOCK_HEADER_BYTES
    return tuple(blocks), end


def check_spans(spans: Sequence[BlockSpan], data_length: int, object: str) -> None:
    """``Damaged`` where blocks overlap, the first is not at offset 0, or there are bytes and no block."""
    for span in spans:
        if span.end - span.start < BLOCK_HEADER_BYTES:
            block = f"the block of entry {span.first_entry}{of_ledger(span.ledger)} at offset {span.start}"
            raise Damaged(f"{block} overlaps the one at {span.end}", object=object)
    if spans and spans[0].start != 0:
        raise Damaged(f"the first block is at offset {spans[0].start} of the data object, 0 expected", object=object)
    if not spans and data_length:
        raise Damaged(f"{data_length} bytes of data and no block", object=object, position=8)
