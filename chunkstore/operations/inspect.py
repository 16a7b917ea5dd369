"""Looking at segments without reading their bytes: info, listing, layout, offset by time.

Promises: each answer comes from one consistent view; nothing is written. Leaves out: checks (``check``).
"""

from __future__ import annotations

from collections.abc import Iterator

from chunkstore.errors import InvalidArgument
from chunkstore.metadata.codec import decode_segment
from chunkstore.metadata.index import walk
from chunkstore.metadata.keys import SEGMENT
from chunkstore.metadata.port import MetadataView
from chunkstore.names import ContainerNames, utf8_bytes
from chunkstore.operations.pending import caught_up
from chunkstore.operations.read import ReadContext, find_acknowledged, find_segment
from chunkstore.records import (
    ACTIVE,
    KIND_FOREIGN,
    KIND_INLINE,
    KIND_OBJECT,
    LAZY,
    ChunkRecord,
    LayoutChunk,
    SegmentInfo,
    SegmentRecord,
)

__all__ = ["check_listing", "info_of", "layout", "list_segments", "offset_at", "walk_chunks"]

_PAGE = 1000
_KINDS = {KIND_OBJECT: "object", KIND_INLINE: "inline", KIND_FOREIGN: "foreign"}


def info_of(segment: SegmentRecord) -> SegmentInfo:
    """The public face of a segment record."""
    return SegmentInfo(
        name=segment.name,
        id=segment.id,
        start_offset=segment.start_offset,
        length=segment.length,
        sealed=segment.sealed,
        chunk_count=segment.chunk_count,
        owner_epoch=segment.owner_epoch,
        attributes=dict(segment.attributes),
        created_at=segment.created_ms,
        modified_at=segment.modified_ms,
    )


def check_listing(prefix: object, after: object, limit: object) -> None:
    """Raise ``InvalidArgument`` unless these are two texts (or no ``after``) and a count (or no ``limit``)."""
    for value, argument in ((prefix, "prefix"), ("" if after is None else after, "after")):
        if not isinstance(value, str) or utf8_bytes(value) < 0:
            raise InvalidArgument(f"{argument} must be a str of valid UTF-8, not {value!r}", argument=argument)
    if limit is not None and (type(limit) is not int or limit < 0):
        raise InvalidArgument(f"limit must be a whole number from 0 on, not {limit!r}", argument="limit")


def list_segments(context: ReadContext, prefix: str, after: str | None, limit: int | None) -> Iterator[SegmentInfo]:
    """Segments in name order (UTF-8 bytes), page by page: each page is consistent, and no view stays open between them."""
    base = SEGMENT + prefix.encode()
    stop = base + b"\xff\xff\xff\xff\xff"
    start = base if after is None else max(base, SEGMENT + after.encode() + b"\0")
    left = limit
    while left is None or left > 0:
        page: list[SegmentInfo] = []
        want = _PAGE if left is None else min(_PAGE, left)
        ahead = dict(context.ahead)
        with context.store().view() as view:
            for key, raw in view.scan(start, stop):
                segment = decode_segment(key[1:].decode("utf-8", "replace"), raw)
                newer = caught_up(segment, ahead.get(segment.name)) if ahead else None
                page.append(info_of(newer.segment if newer is not None else segment))
                start = key + b"\0"
                if len(page) >= want:
                    break
        context.check()
        yield from page
        if len(page) < want:
            return
        if left is not None:
            left -= len(page)


def walk_chunks(
    view: MetadataView, names: ContainerNames, segment: SegmentRecord, epoch: int, tail: ChunkRecord | None = None
) -> Iterator[LayoutChunk]:
    """The chunks of a segment in order; the last one as ``tail``, if given. Raises ``Damaged`` where the list is broken."""
    for offset, identity, found in walk(view.get, segment):
        record = tail if tail is not None and identity == segment.last_chunk else found
        growing = record.state in (ACTIVE, LAZY) and record.epoch == epoch and identity == segment.last_chunk
        yield LayoutChunk(
            name=record.object or names.chunk(identity),
            offset=offset,
            length=record.length,
            crc32c=record.crc32c,
            epoch=record.epoch,
            state="active" if growing else "closed",
            kind=_KINDS.get(record.kind, str(record.kind)),
        )


def layout(context: ReadContext, name: str, identity: int | None, epoch: int) -> Iterator[LayoutChunk]:
    """The chunks of a segment, from one view that stays open while the iterator is used."""
    ahead = context.ahead.get(name)
    with context.store().view() as view:
        try:
            segment, tail = find_acknowledged(view, name, identity, ahead)
        finally:
            context.check()
        yield from walk_chunks(view, context.names, segment, epoch, tail)


def offset_at(context: ReadContext, name: str, identity: int | None, time_ms: int) -> int:
    """The start of the last chunk before the first one created after ``time_ms``: no chunk below it is younger than that.

    Chunk-granular, from commit times, which are labels of the owners' clocks. Before the first chunk: the start offset;
    for a time after the last append, the last chunk's start. A walk of the list up to the answer: concat may put older
    chunks behind younger ones, and clocks may run back, so times along the list are not sorted and cannot be searched.
    """
    with context.store().view() as view:
        try:
            segment = find_segment(view, name, identity)
        finally:
            context.check()
        best = segment.start_offset
        for offset, _, record in walk(view.get, segment):
            if record.created_ms > time_ms:
                break
            best = max(segment.start_offset, offset)
        return best
