"""The index object of a PIP-76 offload segment: which ledgers it holds, and where their blocks begin.

Promises: exact positions; groups sorted by ledger when written, read in any order; everything in the bytes is checked before
it is believed, and a hostile index costs memory in proportion to its own length, which is bounded. Leaves out: the data
object itself; whether positions are true is for the reader to find out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple, TypeVar

from chunkstore.checksum import BytesLike
from chunkstore.codec.pulsar.offload_metadata import LedgerInfo, decode_ledger_info
from chunkstore.codec.pulsar.pip76 import BLOCK_HEADER_BYTES, ENTRY_ID_MAX
from chunkstore.codec.pulsar.ranges import Block, LedgerRange
from chunkstore.config import MIB
from chunkstore.errors import Damaged, InvalidArgument

__all__ = [
    "INDEX_BYTES_MAX",
    "INDEX_MAGIC",
    "BlockRef",
    "BlockSpan",
    "LedgerGroup",
    "SegmentIndex",
    "build_index",
    "ranges_of",
    "read_index",
]

INDEX_MAGIC = 0x3D1FB0BC
INDEX_BYTES_MAX = 8 * MIB
"""Longest index that is written or read: some 400,000 blocks."""

_Item = TypeVar("_Item")
_HEAD = Struct(">Iiqq")
_GROUP = Struct(">qii")
_BLOCK = Struct(">qiq")


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


class LedgerGroup(NamedTuple):
    """A ledger's part of the index. ``metadata`` is the raw protobuf, ``info`` what it says, ``blocks`` ascend."""

    ledger: int
    info: LedgerInfo
    metadata: bytes
    blocks: tuple[BlockRef, ...]


@dataclass(frozen=True, slots=True)
class SegmentIndex:
    """What the index of one offload segment says: the data object's length, and its ledgers in ascending order."""

    data_length: int
    ledgers: tuple[LedgerGroup, ...]

    def group(self, ledger: int) -> LedgerGroup:
        """The group of ``ledger``; ``InvalidArgument`` if the segment holds none of it."""
        for group in self.ledgers:
            if group.ledger == ledger:
                return group
        held = ", ".join(str(group.ledger) for group in self.ledgers[:10]) or "none"
        raise InvalidArgument(f"no ledger {ledger} in this offload segment; it holds {held}", argument="ledger")

    def spans(self) -> list[BlockSpan]:
        """All blocks in the order of their bytes. A block ends where the next begins."""
        begins = sorted(
            (block.offset, group.ledger, block.first_entry, limit)
            for group in self.ledgers
            for block, limit in _with_following(
                group.blocks, [block.first_entry for block in group.blocks[1:]], 1 << 63
            )
        )
        return [
            BlockSpan(ledger, first, limit, offset, end)
            for (offset, ledger, first, limit), end in _with_following(
                begins, [begin[0] for begin in begins[1:]], self.data_length
            )
        ]


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


def _with_following(items: Sequence[_Item], following: list[int], behind: int) -> Iterator[tuple[_Item, int]]:
    """Each item with a number of the one that follows it, the last with ``behind``."""
    return zip(items, [*following, behind], strict=False)


def build_index(index: SegmentIndex) -> bytes:
    """The bytes of the index object; ``InvalidArgument`` if they would be too many."""
    parts = [b""]
    for group in sorted(index.ledgers, key=lambda item: item.ledger):
        parts.append(_GROUP.pack(group.ledger, len(group.blocks), len(group.metadata)))
        parts.append(group.metadata)
        parts.extend(_BLOCK.pack(*block) for block in group.blocks)
    length = _HEAD.size + sum(map(len, parts))
    if length > INDEX_BYTES_MAX:
        raise InvalidArgument(
            f"an index has at most {INDEX_BYTES_MAX} bytes, this one would have {length}: use larger blocks or more segments",
            argument="index",
        )
    parts[0] = _HEAD.pack(INDEX_MAGIC, length, index.data_length, BLOCK_HEADER_BYTES)
    return b"".join(parts)


def read_index(data: BytesLike, *, object: str = "index") -> SegmentIndex:
    """What the index object ``data`` says; ``object`` names it in errors.

    Raises ``Damaged`` with the position of the first thing that is wrong: magic, lengths, counts that do not fit the bytes,
    metadata that is none, ids or offsets that do not ascend, blocks that overlap or lie outside the data object.
    """
    if len(data) > INDEX_BYTES_MAX:
        raise Damaged(f"{len(data)} bytes; an index has at most {INDEX_BYTES_MAX}", object=object)
    if len(data) < _HEAD.size:
        raise Damaged(
            f"an index has at least {_HEAD.size} bytes, {len(data)} are here", object=object, position=len(data)
        )
    magic, length, data_length, header_length = _HEAD.unpack_from(data)
    if magic != INDEX_MAGIC:
        raise Damaged(f"not a PIP-76 index: magic 0x{magic:08X}, 0x{INDEX_MAGIC:08X} expected", object=object)
    if length != len(data):
        raise Damaged(f"the index says it has {length} bytes, it has {len(data)}", object=object, position=4)
    if data_length < 0:
        raise Damaged(f"data object length {data_length}", object=object, position=8)
    if header_length != BLOCK_HEADER_BYTES:
        raise Damaged(f"block header length {header_length}, {BLOCK_HEADER_BYTES} expected", object=object, position=16)
    groups: dict[int, LedgerGroup] = {}
    at = _HEAD.size
    while at < length:
        group, after = _read_group(memoryview(data), at, data_length, object)
        if group.ledger in groups:
            raise Damaged(f"ledger {group.ledger} stands here a second time", object=object, position=at)
        groups[group.ledger] = group
        at = after
    index = SegmentIndex(data_length, tuple(groups[ledger] for ledger in sorted(groups)))
    _check_spans(index, object)
    return index


def _read_group(data: memoryview, at: int, data_length: int, object: str) -> tuple[LedgerGroup, int]:
    begin = at
    if len(data) - at < _GROUP.size:
        raise Damaged(f"{len(data) - at} bytes are left, a ledger's head has {_GROUP.size}", object=object, position=at)
    ledger, count, metadata_length = _GROUP.unpack_from(data, at)
    at += _GROUP.size
    left = len(data) - at
    if ledger < 0:
        raise Damaged(f"ledger id {ledger}", object=object, position=begin)
    if count < 0 or metadata_length < 0 or metadata_length + count * _BLOCK.size > left:
        raise Damaged(
            f"{count} blocks and {metadata_length} bytes of metadata do not fit the {left} bytes that are left",
            object=object,
            position=begin + 8,
        )
    metadata = bytes(data[at : at + metadata_length])
    info = decode_ledger_info(metadata, object=object, position=at)
    if info.ledger != ledger:
        raise Damaged(f"metadata of ledger {info.ledger} in the group of ledger {ledger}", object=object, position=at)
    at += metadata_length
    blocks: list[BlockRef] = []
    entry_floor, offset_floor = 0, 0
    for first_entry, part, offset in _BLOCK.iter_unpack(data[at : at + count * _BLOCK.size]):
        if first_entry < entry_floor or not offset_floor <= offset <= data_length - BLOCK_HEADER_BYTES:
            raise Damaged(
                f"block of entry {first_entry} at offset {offset}: entries and offsets ascend, and lie inside the data object "
                f"of {data_length} bytes",
                object=object,
                position=at + len(blocks) * _BLOCK.size,
            )
        blocks.append(BlockRef(first_entry, part, offset))
        entry_floor, offset_floor = first_entry + 1, offset + BLOCK_HEADER_BYTES
    return LedgerGroup(ledger, info, metadata, tuple(blocks)), at + count * _BLOCK.size


def _check_spans(index: SegmentIndex, object: str) -> None:
    spans = index.spans()
    for span in spans:
        if span.end - span.start < BLOCK_HEADER_BYTES:
            raise Damaged(
                f"the block of ledger {span.ledger} at offset {span.start} overlaps the one at {span.end}",
                object=object,
            )
    if spans and spans[0].start != 0:
        raise Damaged(f"the first block is at offset {spans[0].start} of the data object, 0 expected", object=object)
    if not spans and index.data_length:
        raise Damaged(f"{index.data_length} bytes of data and no block", object=object, position=8)
