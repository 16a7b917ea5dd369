"""PIP-76: an offload segment of one or more ledgers as a data object and its index. FORMAT.md, sections 1 to 5, has the bytes.

Promises: exact lengths and offsets; groups sorted by ledger when written, read in any order; reading checks everything before it is
believed, and a hostile index costs memory in proportion to its own length, which is bounded. Entries that are missing (gaps) are simply
not there. Every block that another may follow ends with padding, so that readers which look for a negative length find one. Objects of
Pulsar's own writer, whose positions leave out each block's first entry, are recognised (W1). Leaves out: storing anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from struct import Struct
from typing import ClassVar, NamedTuple

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
from chunkstore.codec.pulsar.encoding import BlockEncoder, EncodedBlock
from chunkstore.codec.pulsar.frames import (
    BLOCK_HEADER_BYTES,
    ENTRY_BYTES_MAX,
    ENTRY_HEADER_BYTES,
    PADDING_PATTERN,
    PIP76,
    WINDOW_BYTES,
    DataSource,
    entry_id_at,
    scan_entries,
    signed_length_at,
)
from chunkstore.codec.pulsar.offload_metadata import LedgerInfo, decode_metadata, encode_metadata
from chunkstore.codec.pulsar.windows import BlockReader
from chunkstore.config import KIB, MIB
from chunkstore.errors import ChunkstoreError, Damaged, InvalidArgument

__all__ = [
    "BLOCK_BYTES_MAX",
    "LedgerGroup",
    "SegmentEncoder",
    "SegmentIndex",
    "SegmentReader",
    "build_index",
    "read_index",
]

BLOCK_BYTES_MAX = 8 * MIB
"""Default block size. Above S3's least part (5 MiB); smaller blocks make seeking cheaper."""
_HEAD_BYTES = 24
_GROUP = Struct(">qii")
_PROOF_BLOCKS_MAX = 64
"""Blocks that are looked at to find out what is wrong with an object: the first full one shows it."""


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


def _read_group(data: memoryview, begin: int, data_length: int, object: str) -> tuple[LedgerGroup, int]:
    """A group, and where it ends."""
    at = begin + _GROUP.size
    if len(data) < at:
        text = f"{len(data) - begin} bytes are left, a ledger's head has {_GROUP.size}"
        raise Damaged(text, object=object, position=begin)
    ledger, count, metadata_length = _GROUP.unpack_from(data, begin)
    if ledger < 0:
        raise Damaged(f"ledger id {ledger}", object=object, position=begin)
    check_fit(count, metadata_length, len(data) - at, object=object, position=begin + 8)
    metadata = bytes(data[at : at + metadata_length])
    info = decode_metadata(LedgerInfo, metadata, object=object, position=at)
    if info.ledger != ledger:
        raise Damaged(f"metadata of ledger {info.ledger} in the group of ledger {ledger}", object=object, position=at)
    blocks, after = read_blocks(data, at + metadata_length, count, data_length, object)
    return LedgerGroup(ledger, info, metadata, blocks), after


class SegmentReader(BlockReader):
    """Reads the entries of one offload segment, whose index has been read, from its data object; see ``BlockReader``."""

    format = PIP76

    def __init__(
        self,
        source: DataSource,
        index: SegmentIndex,
        *,
        window_bytes: int = WINDOW_BYTES,
        entry_bytes_max: int = ENTRY_BYTES_MAX,
    ) -> None:
        """Compare lengths; reads only where they differ. ``Damaged`` if the data object is not as long as the index says."""
        self.index = index
        ledgers = [group.ledger for group in index.ledgers]
        super().__init__(source, index.spans(), index.data_length, ledgers, window_bytes, entry_bytes_max)

    def _defect(self) -> Damaged | None:
        """The first-entry defect: Pulsar's own writer leaves the first entry of a full block out of the block's length, and so out of all
        later offsets and the data length. A block that goes on beyond its declared end, by no more than its first entry is long, up to the
        very block that the index has next (or the object's end), is the proof."""
        spans = self.index.spans()
        try:
            for span, follower in zip(spans[:_PROOF_BLOCKS_MAX], [*spans[1:], None], strict=False):
                head = self._read(span.start, BLOCK_HEADER_BYTES + ENTRY_HEADER_BYTES)
                header = PIP76.parse(head, object=self.source.name, position=span.start)
                first_length = signed_length_at(head, BLOCK_HEADER_BYTES)
                surplus = self._surplus(span, header.length, first_length, follower)
                if header[1:] != (span.first_entry, span.ledger) or surplus is None:
                    return None
                if surplus:
                    lost = "" if surplus == first_length else ", except those at a block's end that were never written"
                    return Damaged(
                        "written by Pulsar's streaming offloader with wrong offsets (W1), the first-entry defect of Pulsar's own "
                        "PIP-76 writer: block lengths, index offsets and the data length leave out the first entry of each full "
                        f"block (the block at {span.start} says {header.length} bytes and has {header.length + surplus}); the "
                        f"entries are there{lost}: offload the ledgers again",
                        object=self.source.name,
                        position=span.start + header.length,
                    )
        except ChunkstoreError:
            return None
        return None

    def _surplus(self, span: BlockSpan, length: int, most: int, follower: BlockSpan | None) -> int | None:
        """How far after its declared ``length``, 0 to ``most`` bytes, the block ends: where ``follower`` begins, or the object ends."""
        position = span.start + length
        left = self.source.length - position
        if not 0 <= most <= self._entry_bytes_max:
            return None
        if follower is None:
            return left if 0 <= left <= most and (not left or self._entries_reach_the_end(span.start)) else None
        if left < BLOCK_HEADER_BYTES:
            return None
        data = bytes(self._read(position, min(most + BLOCK_HEADER_BYTES, left)))
        found = data.find(PIP76.begin)
        while 0 <= found <= len(data) - BLOCK_HEADER_BYTES:
            header = PIP76.parse(data[found:], object=self.source.name, position=position + found)
            if header[1:] == (follower.first_entry, follower.ledger):
                return found
            found = data.find(PIP76.begin, found + 1)
        return None

    def _entries_reach_the_end(self, start: int) -> bool:
        """Whether the block at ``start`` is nothing but entries with ascending ids, the last of which ends the object."""
        position, previous = start + BLOCK_HEADER_BYTES, -1
        while position < self.source.length:
            length = min(self._window_bytes, self.source.length - position)
            data = self._read(position, length)
            marks = scan_entries(data, 0, length)
            for mark in marks[:-1]:
                entry = entry_id_at(data, mark)
                if entry <= previous:
                    return False
                previous = entry
            if len(marks) > 1:
                position += marks[-1]
            elif length < ENTRY_HEADER_BYTES or signed_length_at(data, 0) < 0:
                return False
            else:
                position += ENTRY_HEADER_BYTES + signed_length_at(data, 0)
        return position == self.source.length


class _Ledger:
    def __init__(self, ledger: int) -> None:
        self.info = LedgerInfo(ledger=ledger)
        self.last_entry = -1
        self.blocks: list[BlockRef] = []


class SegmentEncoder(BlockEncoder):
    """Encodes one offload segment. Not thread-safe. ``sink`` is called with each finished block, in order.

    A block is cut when the next entry would make it longer than ``block_bytes_max``, when a ledger begins, by ``cut``, and by
    ``finish``; an entry that is too long for any block gets one of its own, as long as it needs. Blocks shorter than
    ``block_bytes_min`` are padded up to it (Pulsar pads to 5 MiB, because a part of an S3 upload has at least that).
    Entry ids ascend within a ledger, and may leave gaps.
    """

    format = PIP76
    block_bytes_least: ClassVar[int] = 4 * KIB
    reserved_bytes: ClassVar[int] = len(PADDING_PATTERN)

    def __init__(
        self,
        sink: Callable[[EncodedBlock], object],
        *,
        block_bytes_max: int = BLOCK_BYTES_MAX,
        block_bytes_min: int = 0,
    ) -> None:
        super().__init__(sink, block_bytes_max)
        if not 0 <= block_bytes_min <= block_bytes_max:
            text = f"block_bytes_min is 0 to block_bytes_max, {block_bytes_min} given"
            raise InvalidArgument(text, argument="block_bytes_min")
        self._block_min = block_bytes_min
        self._ledgers: dict[int, _Ledger] = {}

    def begin_ledger(self, ledger: int, info: LedgerInfo | None = None) -> None:
        """Entries that follow belong to ``ledger``; ends the block at hand. A ledger may be gone back to.

        ``info`` goes into the index, as by ``describe``; without it, or without ``entries`` in it, the ledger counts as open, and
        ``entries`` is one more than the last id, as Pulsar does. ``InvalidArgument`` for a negative id or the info of another ledger.
        """
        if not 0 <= ledger < 1 << 63:
            raise InvalidArgument(f"ledger id {ledger}", argument="ledger")
        if info is not None and info.ledger != ledger:
            raise InvalidArgument(f"info of ledger {info.ledger} for ledger {ledger}", argument="info")
        if info is not None:
            encode_metadata(info)  # raises while nothing has changed
        self.cut()
        known = self._ledgers.setdefault(ledger, _Ledger(ledger))
        known.info = info or known.info
        self._ledger, self._blocks, self._last = ledger, known.blocks, known.last_entry

    def describe(self, info: LedgerInfo) -> None:
        """Replace what the index will say of the ledger ``info.ledger``, at any time before ``finish``.

        ``InvalidArgument`` if that ledger has not begun, or if the info cannot be written.
        """
        self._check_open()
        known = self._ledgers.get(info.ledger)
        if known is None:
            raise InvalidArgument(f"ledger {info.ledger} has not begun in this segment", argument="info")
        encode_metadata(info)
        known.info = info

    def adopt(self, span: BlockSpan, last_entry: int) -> None:
        """Count a block that the data object holds already, after those known so far: to go on with a segment after a crash.

        ``last_entry`` is the last id of the ledger in this block or a later one. Call it for every stored block, in order, before
        ``begin_ledger``. ``InvalidArgument`` where entries were added already, or ids do not ascend.
        """
        self._check_open()
        known = self._ledgers.setdefault(span.ledger, _Ledger(span.ledger))
        before = known.blocks[-1].first_entry if known.blocks else -1
        follows = span.start == self._written and before < span.first_entry <= last_entry
        if self._ledger is not None or not follows or span.end - span.start < BLOCK_HEADER_BYTES:
            text = f"a block of ledger {span.ledger} from entry {span.first_entry} cannot follow"
            raise InvalidArgument(text, argument="span")
        self._parts += 1
        known.blocks.append(BlockRef(span.first_entry, self._parts, span.start))
        known.last_entry = last_entry
        self._written = span.end

    def finish(self) -> bytes:
        """Hand out the last block and return the index object's bytes; the encoder is closed then.

        ``InvalidArgument`` if the index would be longer than 8 MiB (some 400,000 blocks).
        """
        self._check_open()
        self._emit(final=True)
        self._closed = True
        groups = []
        for ledger, known in sorted(self._ledgers.items()):
            if known.blocks:
                info = known.info if known.info.entries else replace(known.info, entries=known.last_entry + 1)
                groups.append(LedgerGroup(ledger, info, encode_metadata(info), tuple(known.blocks)))
        return build_index(SegmentIndex(self._written, tuple(groups)))

    def _emit(self, *, final: bool) -> None:
        super()._emit(final=final)
        if self._ledger is not None:
            self._ledgers[self._ledger].last_entry = self._last

    def _block_length(self, used: int, *, final: bool) -> int:
        return max(self._block_min, used if final else used + self.reserved_bytes)
