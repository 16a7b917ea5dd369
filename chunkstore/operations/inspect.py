"""Looking at segments without reading their bytes: info, listing, layout, offset by time.

Promises: each answer comes from one consistent view; nothing is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from sys import maxsize

from chunkstore.metadata.codec import decode_segment
from chunkstore.metadata.index import walk
from chunkstore.metadata.keys import SEGMENT, VISIBLE_SEGMENTS
from chunkstore.metadata.port import MetadataView
from chunkstore.operations.read import ReadContext, find_segment
from chunkstore.records.names import ContainerNames, confined
from chunkstore.records.segments import CLOSED, KIND_INLINE, KIND_OBJECT, LayoutChunk, SegmentInfo, SegmentRecord

__all__ = ["info_of", "layout", "list_segments", "offset_at", "walk_chunks"]

_PAGE = 1000
_KINDS = {KIND_OBJECT: "object", KIND_INLINE: "inline"}


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


def list_segments(context: ReadContext, prefix: str, after: str | None, limit: int | None) -> Iterator[SegmentInfo]:
    """Segments in name order (UTF-8 bytes), page by page: each page is consistent, and no view stays open between them."""
    base = SEGMENT + prefix.encode()
    stop = base + b"\xff\xff\xff\xff\xff"
    start = max(base, VISIBLE_SEGMENTS, b"" if after is None else SEGMENT + after.encode() + b"\0")
    left = maxsize if limit is None else limit
    while left > 0:
        want = min(_PAGE, left)
        rows = context.look(lambda view, start=start, want=want: list(islice(view.scan(start, stop), want)))  # type: ignore[misc]
        page = [info_of(decode_segment(key[1:].decode("utf-8", "replace"), raw)) for key, raw in rows]
        context.check()
        yield from page
        start = rows[-1][0] + b"\0" if rows else stop
        left = left - want if len(page) == want else 0


def walk_chunks(view: MetadataView, names: ContainerNames, segment: SegmentRecord, epoch: int) -> Iterator[LayoutChunk]:
    """The chunks of a segment in order. Raises ``Damaged`` where the list is broken, or a row leads elsewhere."""
    for offset, identity, record in walk(view.get, segment):
        confined(names, identity, record)
        growing = record.state != CLOSED and record.epoch == epoch and identity == segment.last_chunk
        address = names.address(identity, record)
        yield LayoutChunk(
            name=address.object,
            offset=offset,
            length=record.length,
            crc32c=record.crc32c,
            epoch=record.epoch,
            state="active" if growing else "closed",
            kind=_KINDS[record.kind] if names.has_journal else "object",
            object_offset=address.offset,
        )


def layout(context: ReadContext, name: str, identity: int | None, epoch: int) -> Iterator[LayoutChunk]:
    """The chunks of a segment, from one view that stays open while the iterator is used."""

    def walked(view: MetadataView) -> Iterator[LayoutChunk]:
        try:
            segment = find_segment(view, name, identity)
        finally:
            context.check()
        yield from walk_chunks(view, context.names, segment, epoch)

    return context.iterate_view(walked)


def offset_at(context: ReadContext, name: str, identity: int | None, time_ms: int) -> int:
    """The start of the last chunk before the first one created after ``time_ms``: no chunk below it is younger than that.

    Before the first chunk: the start offset; for a time after the last append, the last chunk's start. A walk of the list up
    to the answer: concat may put older chunks after younger ones, and clocks may run back, so the times are not sorted.
    """

    def answer(view: MetadataView) -> int:
        segment = find_segment(view, name, identity)
        best = segment.start_offset
        for offset, _, record in walk(view.get, segment):
            if record.created_ms > time_ms:
                break
            best = max(segment.start_offset, offset)
        return best

    try:
        return context.look(answer)
    finally:
        context.check()
