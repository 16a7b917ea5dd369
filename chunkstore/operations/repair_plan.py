"""What a repair makes of one segment, and of one row of a table: plans of ``cut_off``, carried out by ``regain`` (protocol 3.15)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from chunkstore.errors import Damaged
from chunkstore.metadata.codec import decode_chunk
from chunkstore.metadata.keys import CHUNK
from chunkstore.metadata.port import Op
from chunkstore.names import NO_CHUNK
from chunkstore.records import AttributeValue, ChunkRecord, SegmentRecord

__all__ = ["ChunkLink", "SegmentPlan", "Source", "TablePlan", "followers_in"]


class ChunkLink(NamedTuple):
    """A chunk to take on: the segment offset of its first byte, and its record as the cut-off part left it.

    ``copied``: it cannot be taken on where it lies, but its bytes are good: they are copied. ``skip``: so many of them, in front, belong to
    what lies below ``offset``."""

    offset: int
    identity: bytes
    record: ChunkRecord
    copied: bool = False
    skip: int = 0

    @property
    def stop(self) -> int:
        """The segment offset behind it."""
        return self.offset + self.record.length - self.skip


class Source(NamedTuple):
    """A segment of the cut that was spliced into another one behind it: the links that are its chunks, by number."""

    segment: SegmentRecord
    first: int
    last: int


@dataclass(slots=True)
class SegmentPlan:
    """What to do with one segment. ``base``: as it is at the cut; None: it is to be made, as ``final`` says.

    ``links`` follow on what ``base`` holds (the first one may be its last chunk, grown), or on nothing where ``base`` has no chunks
    and everything below ``links[0].offset`` was truncated away. ``acknowledged``: behind every byte that an append was told of.
    """

    id: int
    name: str
    base: SegmentRecord | None
    final: SegmentRecord | None
    raw: bytes | None = None
    """The row of ``base``."""
    links: list[ChunkLink] = field(default_factory=list)
    tail: bytes = NO_CHUNK
    """The chunk that ``links`` go on from, or grow."""
    borders: set[int] = field(default_factory=set)
    """Where appends are known to begin and end: an append is kept whole or not at all."""
    sources: list[Source] = field(default_factory=list)
    ended: list[tuple[SegmentRecord, int]] = field(default_factory=list)
    """Segments of the cut whose bytes are among those of ``links``, though not their chunks as they are at the cut; and where they end."""
    spilled: list[ChunkLink] | None = None
    """Not None: extents of the cut were spilled behind it; these hold their bytes, too, as far as that is known."""
    replaced: list[tuple[int, int, list[ChunkLink]]] = field(default_factory=list)
    """Ranges of the base whose chunks are garbage behind the cut, with those that hold the bytes instead, in the order of the records."""
    acknowledged: int = 0
    delete: bool = False
    truncate: int = 0
    sealed: bool | None = None
    attributes: Mapping[str, AttributeValue] | None = None
    writers: list[tuple[bytes, bytes]] = field(default_factory=list)
    """Rows that remember the last events of exactly-once writers."""
    obstacle: str = ""
    """Why nothing of it can be kept."""

    @property
    def length(self) -> int:
        """The length at the cut."""
        return self.base.length if self.base is not None else 0

    @property
    def kept_stop(self) -> int:
        """Behind the last byte that can be kept; of a segment that is to be made and holds none, its length."""
        if self.base is None and self.final is not None and not self.final.chunk_count and not self.obstacle:
            return self.final.length
        return self.links[-1].stop if self.links and not self.obstacle else self.length

    def behind(self, link: ChunkLink) -> ChunkLink:
        """What a link holds that the segment does not hold at the cut: all of it, but of one that stands for what lies on both sides."""
        base, skip = self.base, self.length - link.offset
        if base is None or skip <= 0 or link.identity == base.last_chunk:
            return link
        return link._replace(offset=self.length, copied=True, skip=skip)


class TablePlan(NamedTuple):
    """A table row or session that changed: its present value at the cut, and what it became. ``header``: the operation that did it."""

    key: bytes
    before: bytes | None
    after: bytes | None
    header: Op
    lsn: int


def followers_in(rows: Mapping[bytes, bytes | None]) -> dict[bytes, bytes]:
    """What follows a chunk, as the next one's row says: the row of the chunk itself may be in a record that is unreadable."""
    found = {}
    for key, raw in rows.items():
        if key[:1] == CHUNK and raw is not None:
            with suppress(Damaged):
                found[decode_chunk(key, raw).previous] = key[1:]
    found.pop(NO_CHUNK, None)
    return found
