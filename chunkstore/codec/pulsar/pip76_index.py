"""The index object of a PIP-76 offload segment: which ledgers it holds, and where their blocks begin.

Promises: exact positions; groups sorted by ledger when written, read in any order; everything in the bytes is checked before
it is believed, and a hostile index costs memory in proportion to its own length, which is bounded. Leaves out: the data
object itself; whether positions are true is for the reader to find out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

from chunkstore.checksum import BytesLike
from chunkstore.codec.pulsar.block_index import (
    BlockRef,
    BlockSpan,
    check_fit,
    check_head,
    check_spans,
    pack_blocks,
    pack_head,
    read_blocks,
    spans_of,
)
from chunkstore.codec.pulsar.frames import ENTRY_ID_MAX, PIP76
from chunkstore.codec.pulsar.offload_metadata import LedgerInfo, decode_ledger_info
from chunkstore.codec.pulsar.ranges import Block, LedgerRange
from chunkstore.errors import Damaged, InvalidArgument

__all__ = ["LedgerGroup", "SegmentIndex", "build_index", "ranges_of", "read_index"]

_HEAD_BYTES = 24
_GROUP = Struct(">qii")


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
        return spans_of(((group.ledger, group.blocks, 1 << 63) for group in self.ledgers), self.data_length)


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


def build_index(index: SegmentIndex) -> bytes:
    """The bytes of the index object; ``InvalidArgument`` if they would be too many."""
    parts = [b""]
    for group in sorted(index.ledgers, key=lambda item: item.ledger):
        parts.append(_GROUP.pack(group.ledger, len(group.blocks), len(group.metadata)))
        parts.append(group.metadata)
        parts.append(pack_blocks(group.blocks))
    parts[0] = pack_head(PIP76, _HEAD_BYTES + sum(map(len, parts)), index.data_length)
    return b"".join(parts)


def read_index(data: BytesLike, *, object: str = "index") -> SegmentIndex:
    """What the index object ``data`` says; ``object`` names it in errors.

    Raises ``Damaged`` with the position of the first thing that is wrong: magic, lengths, counts that do not fit the bytes,
    metadata that is none, ids or offsets that do not ascend, blocks that overlap or lie outside the data object.
    """
    data_length = check_head(data, PIP76, _HEAD_BYTES, object)
    groups: dict[int, LedgerGroup] = {}
    at = _HEAD_BYTES
    while at < len(data):
        group, after = _read_group(memoryview(data), at, data_length, object)
        if group.ledger in groups:
            raise Damaged(f"ledger {group.ledger} is listed twice", object=object, position=at)
        groups[group.ledger] = group
        at = after
    index = SegmentIndex(data_length, tuple(groups[ledger] for ledger in sorted(groups)))
    check_spans(index.spans(), data_length, object)
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
    check_fit(count, metadata_length, left, object=object, position=begin + 8)
    metadata = bytes(data[at : at + metadata_length])
    info = decode_ledger_info(metadata, object=object, position=at)
    if info.ledger != ledger:
        raise Damaged(f"metadata of ledger {info.ledger} in the group of ledger {ledger}", object=object, position=at)
    at += metadata_length
    blocks, after = read_blocks(data, at, count, data_length, object)
    return LedgerGroup(ledger, info, metadata, blocks), after
