"""Rows of appends whose bytes are in records, derived from the records' lines (protocol 3.7).

Promises: one pure function of the state and the lines, for owners, replicas, recovery and checks alike: the same lines on the same state
are the same rows. Each extent becomes a chunk after its segment's last one; the id follows from segment, epoch, lsn and the extent's
number in the record. A line that does not follow its segment's end is ``Damaged``, and nothing is derived.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from struct import Struct
from typing import Final, NamedTuple

from chunkstore.errors import Damaged
from chunkstore.metadata.codec import (
    decode_chunk,
    decode_segment,
    decode_table,
    encode_row,
    encode_segment,
    pack_chunks,
)
from chunkstore.metadata.keys import CHUNK, SEGMENT, writer_key
from chunkstore.metadata.port import Line, Lines
from chunkstore.records.names import NO_CHUNK, line_chunk_id
from chunkstore.records.segments import CLOSED, FLAG_SEALED, KIND_INLINE, ChunkRecord, SegmentRecord, TableRecord

__all__ = ["Derived", "LineFold", "WriterEvent", "decode_writer_row", "encode_writer_row", "line_extents"]

_new = tuple.__new__  # what a NamedTuple's constructor does, without its argument handling
_EVENT: Final = Struct(">BQQQI")
_EVENT_VERSION: Final = 2


class WriterEvent(NamedTuple):
    """The last event of a writer: its number, where its bytes are, and their CRC32C."""

    number: int
    offset: int
    length: int
    crc32c: int


def encode_writer_row(event: WriterEvent) -> bytes:
    """The value of a writer's table row (FORMAT.md, namespace ``!writers``)."""
    return _EVENT.pack(_EVENT_VERSION, *event)


def decode_writer_row(name: str, raw: bytes) -> WriterEvent:
    """The writer row of segment ``name``. Raises ``Damaged``."""
    value = decode_table(f"writer row of {name}", raw).value
    if len(value) != _EVENT.size or value[0] != _EVENT_VERSION:
        raise Damaged("not a writer row of a known version", object=f"writer row of {name}")
    return WriterEvent(*_EVENT.unpack(value)[1:])


def line_extents(placed: Lines) -> Iterator[tuple[bytes, Line, int, int]]:
    """The extents of a record: chunk id, first line, whole length in bytes, and CRC32C of each, in the order of their bytes."""
    lines, number, at = placed.lines, 0, 0
    while at < len(lines):
        first = lines[at]
        length, crc = first.length, first.crc32c
        at += 1
        while at < len(lines) and lines[at].joined:
            length, crc = length + lines[at].length, lines[at].crc32c
            at += 1
        yield line_chunk_id(first.segment_id, placed.epoch, placed.lsn, number), first, length, crc
        number += 1


class Derived(NamedTuple):
    """What lines change. ``rows``: key, new value and old one of each row; ``extents``: for each segment the offset and chunk id of its
    new chunks, whose rows are the first ``fresh`` ones."""

    rows: list[tuple[bytes, bytes, bytes | None]]
    fresh: int
    extents: list[tuple[int, list[tuple[int, bytes]]]]


class _Growing:
    """A segment that lines lengthen."""

    __slots__ = (
        "chunks",
        "epoch",
        "front",
        "front_raw",
        "ids",
        "last",
        "length",
        "name",
        "raw",
        "segment",
        "tail",
        "time_ms",
    )

    def __init__(self, name: bytes, raw: bytes, segment: SegmentRecord) -> None:
        self.name = name
        self.raw = raw
        self.segment = segment
        self.length: int = segment.length
        self.last: bytes = segment.last_chunk
        self.front: ChunkRecord | None = None
        """The chunk that was last, as it is stored in ``front_raw``."""
        self.front_raw = b""
        self.tail: list[object] | None = None
        """The fields of the newest chunk's record."""
        self.chunks: list[list[object]] = []
        self.ids: list[tuple[int, bytes]] = []
        self.epoch = self.time_ms = 0


class LineFold:
    """``add`` the lines of commits in order, then ``take`` what they change. ``get`` reads a row as it is before the first of them."""

    def __init__(self, get: Callable[[bytes], bytes | None]) -> None:
        self._get = get
        self._segments: dict[int, _Growing] = {}
        self._events: dict[bytes, TableRecord] = {}

    def add(self, lines: Lines) -> None:
        """The lines of one record. Raises ``Damaged``; what was added before must not be taken then."""
        epoch, lsn, time_ms, place, at, items = lines
        segments = self._segments
        number, run = 0, -1
        for segment_id, offset, length, crc, joined, name, event in items:
            grown = segments.get(segment_id)
            if grown is None or grown.name != name:
                grown = self._begin(segment_id, name)
            if offset != grown.length or (joined and run != segment_id):
                raise Damaged(
                    f"the record with lsn {lsn} appends at byte {offset} of a segment that ends at byte {grown.length}",
                    object=f"segment {grown.segment.name!r}",
                    position=offset,
                )
            tail = grown.tail
            if joined and tail is not None:
                tail[2] += length  # type: ignore[operator]
                tail[3] = crc
            else:
                identity = line_chunk_id(segment_id, epoch, lsn, number)
                number += 1
                if tail is not None:
                    tail[5] = identity
                grown.tail = tail = [
                    place, at, length, crc, grown.last, NO_CHUNK, segment_id, epoch, CLOSED, KIND_INLINE, time_ms,
                ]  # fmt: skip
                grown.last, run = identity, segment_id
                grown.chunks.append(tail)
                grown.ids.append((offset, identity))
            at += length
            grown.length, grown.epoch, grown.time_ms = offset + length, epoch, time_ms
            if event is not None:
                writer_id, event_number, event_crc = event
                value = encode_writer_row(WriterEvent(event_number, offset, length, event_crc))
                self._events[writer_key(segment_id, writer_id)] = TableRecord(lsn, value)

    def _begin(self, segment_id: int, name: bytes) -> _Growing:
        key = SEGMENT + name
        raw = self._get(key)
        segment = None if raw is None else decode_segment(key, raw)
        if raw is None or segment is None or segment.id != segment_id or segment.flags & FLAG_SEALED:
            what = "does not exist" if segment is None or segment.id != segment_id else "is sealed"
            raise Damaged(f"a record appends to a segment that {what}", object=f"segment {name!r}, id {segment_id}")
        grown = self._segments[segment_id] = _Growing(name, raw, segment)
        if segment.last_chunk:
            front_key = CHUNK + segment.last_chunk
            front_raw = self._get(front_key)
            if front_raw is None:
                raise Damaged("a segment's last chunk has no row", object=f"segment {segment.name!r}")
            grown.front, grown.front_raw = decode_chunk(front_key, front_raw), front_raw
        return grown

    def take(self) -> Derived:
        """What was added since the last time."""
        rows: list[tuple[bytes, bytes, bytes | None]] = []
        extents: list[tuple[int, list[tuple[int, bytes]]]] = []
        for segment_id, grown in self._segments.items():
            values = pack_chunks(map(tuple, grown.chunks))
            rows += [(CHUNK + made[1], value, None) for made, value in zip(grown.ids, values, strict=True)]
            extents.append((segment_id, grown.ids))
        fresh = len(rows)
        for grown in self._segments.values():
            rows.append((SEGMENT + grown.name, encode_segment(self._lengthened(grown)), grown.raw))
            if grown.front is not None:
                # Whether it may grow still is not for an append to say: a spill may be filling it.
                following = grown.front.followed(grown.ids[0][1], grown.front.state)
                rows.append((CHUNK + grown.segment.last_chunk, encode_row(following), grown.front_raw))
        rows += [(key, encode_row(record), self._get(key)) for key, record in self._events.items()]
        self._segments, self._events = {}, {}
        return Derived(rows, fresh, extents)

    def _lengthened(self, grown: _Growing) -> SegmentRecord:
        (
            name, id_, flags, start_offset, _, first, _, _, skip, size_max, _, count, attributes, created_ms, _, extra,
        ) = grown.segment  # fmt: skip
        offset, last = grown.ids[-1]
        return _new(
            SegmentRecord,
            (
                name, id_, flags, start_offset, grown.length, first or grown.ids[0][1], last, offset, skip, size_max,
                grown.epoch, count + len(grown.ids), attributes, created_ms, grown.time_ms, extra,
            ),
        )  # fmt: skip
