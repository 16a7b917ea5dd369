"""A state that can be copied: its segments with the chunks of their lists, and the rows of tables that a filter takes.

Everything is read from one view, a page at a time, and believed as far as it adds up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import partial
from hashlib import blake2b
from typing import Final, NamedTuple

from chunkstore import runtime
from chunkstore.backup.selection import NameFilter, after_all
from chunkstore.errors import ChunkNotFound, ChunksMissing, Damaged, InvalidArgument
from chunkstore.journal import RecordsPast
from chunkstore.metadata.codec import decode_segment, decode_table
from chunkstore.metadata.index import walk
from chunkstore.metadata.keys import SEGMENT, TABLE, VISIBLE_SEGMENTS
from chunkstore.metadata.port import MetadataView
from chunkstore.metadata.reserved import find_borders
from chunkstore.records.blocks import Borders, is_one_block
from chunkstore.records.names import Address, ContainerNames, check_segment_name, confined
from chunkstore.records.segments import SegmentRecord
from chunkstore.storage import ChunkStorage

__all__ = [
    "FoundChunk",
    "ImportReport",
    "MissingChunk",
    "Source",
    "Stretch",
    "require_complete",
    "stretches",
    "survey",
    "table_rows",
]

_PAGE: Final = 1_024
_WORKERS: Final = 16
_TOGETHER: Final = 16
"""Chunks that a worker asks for in a row: what asking costs on a local storage is less than a worker."""
_MISSING_MAX: Final = 1_000


class Source(NamedTuple):
    """The state that ``view`` shows, where its chunks are, and which of its segments are copied. Of a salvage, ``damage`` and ``past`` say
    why history ends there and which records follow, and ``copy`` has copies of chunks."""

    view: MetadataView
    names: ContainerNames
    storage: ChunkStorage
    chosen: NameFilter
    damage: Damaged | None = None
    past: RecordsPast = RecordsPast()
    copy: ChunkStorage | None = None

    def fingerprint(self) -> int:
        """Four bytes that tell states apart, and what is chosen of them."""
        identity, digest = self.view.head.position.hash, self.chosen.digest()
        if digest:
            identity = blake2b(identity + digest, digest_size=16).digest()
        return int.from_bytes(identity[:4], "big")


class FoundChunk(NamedTuple):
    """A chunk, or a part of one, that begins at segment offset ``offset``, and is read at ``address`` of ``storage``."""

    offset: int
    length: int
    storage: ChunkStorage
    address: Address
    borders: Borders
    created_ms: int
    identity: bytes


class Stretch(NamedTuple):
    """Consecutive chunks of a segment, in order. ``is_last``: no more follow, and the segment's record is final."""

    segment: SegmentRecord
    chunks: list[FoundChunk]
    is_last: bool


class MissingChunk(NamedTuple):
    """A chunk that is absent, or shorter than its record: bytes ``[start, stop)`` of a segment."""

    segment: str
    chunk: str
    start: int
    stop: int
    reason: str


class ImportReport(NamedTuple):
    """What a state consists of; ``rows``: of tables. ``missing``: the first thousand of ``missing_chunks``."""

    segments: int
    chunks: int
    size_bytes: int
    rows: int
    missing: tuple[MissingChunk, ...]
    missing_chunks: int


def survey(source: Source, *, ask: bool) -> ImportReport:
    """Check the filter and the rows, count what the filter takes, and ``ask`` the storage for each chunk. Reads no chunk, changes nothing.

    Raises ``SegmentNotFound`` (a choice that chooses nothing), ``Damaged``, ``StorageUnavailable``. Retry: safe.
    """
    source.chosen.check(name for name, _ in _segment_rows(source.view))
    segments = chunks = size_bytes = count = 0
    missing: list[MissingChunk] = []
    with closing(runtime.pool("chunkstore-survey", _WORKERS)) as pool:
        for page in stretches(source):
            found = [(stretch.segment.name, chunk) for stretch in page for chunk in stretch.chunks]
            groups = [found[at : at + _TOGETHER] for at in range(0, len(found) if ask else 0, _TOGETHER)]
            gone = [item for group in pool.run_all([partial(_missing, group) for group in groups]) for item in group]
            missing, count = (missing + gone)[:_MISSING_MAX], count + len(gone)
            segments, chunks = segments + sum(stretch.is_last for stretch in page), chunks + len(found)
            size_bytes += sum(chunk.length for _, chunk in found)
    rows = sum(1 for _ in table_rows(source))
    return ImportReport(segments, chunks, size_bytes, rows, tuple(missing), count)


def require_complete(report: ImportReport) -> None:
    """Raise ``ChunksMissing`` unless every chunk is there."""
    if report.missing:
        missing = [item._asdict() for item in report.missing]
        raise ChunksMissing(missing, count=report.missing_chunks, chunks=report.chunks)


def _missing(items: Iterable[tuple[str, FoundChunk]]) -> list[MissingChunk]:
    """Those that are not there in their length."""
    found = []
    for segment, chunk in items:
        name, begin = chunk.address
        try:
            length = max(0, chunk.storage.stat(name).length - begin)
            reason = "" if length >= chunk.length else f"{length} of {chunk.length} bytes"
        except ChunkNotFound:
            reason = "absent"
        if reason:
            found.append(MissingChunk(segment, name, chunk.offset, chunk.offset + chunk.length, reason))
    return found


def stretches(source: Source) -> Iterator[list[Stretch]]:
    """All chosen segments and their chunks, in order, about so many at a time. Raises ``Damaged``."""
    page: list[Stretch] = []
    room = _PAGE
    for segment in _chosen_segments(source):
        chunks: list[FoundChunk] = []
        for chunk in _chunks_of(source, segment):
            if room <= 0:
                yield [*page, Stretch(segment, chunks, is_last=False)]
                page, chunks, room = [], [], _PAGE
            chunks.append(chunk)
            room -= 1
        page.append(Stretch(segment, chunks, is_last=True))
        room -= 1
        if room <= 0:
            yield page
            page, room = [], _PAGE
    if page:
        yield page


def _segment_rows(view: MetadataView) -> Iterator[tuple[str, bytes]]:
    for key, raw in view.scan(VISIBLE_SEGMENTS, after_all(SEGMENT)):
        yield key[1:].decode("utf-8", "replace"), raw


def _chosen_segments(source: Source) -> Iterator[SegmentRecord]:
    for name, raw in _segment_rows(source.view):
        if not source.chosen.takes(name):
            continue
        segment = decode_segment(name, raw)
        place = f"metadata row {name!r}"
        try:
            check_segment_name(segment.name)
        except InvalidArgument as error:
            raise Damaged(error.message, object=place) from error
        if segment.name != name:
            raise Damaged(f"the row is that of segment {segment.name!r}", object=place)
        if not segment.first_chunk_skip <= segment.start_offset <= segment.length:
            raise Damaged("its offsets are none of a segment", object=place)
        if not segment.chunk_size_bytes_max:
            raise Damaged("its chunks may hold no byte, so it would take none", object=place)
        yield segment


def _chunks_of(source: Source, segment: SegmentRecord) -> Iterator[FoundChunk]:
    end = segment.start_offset - segment.first_chunk_skip
    for offset, identity, row in walk(source.view.get, segment):
        record = confined(source.names, identity, row)
        address = source.names.address(identity, record)
        if not record.length:
            raise Damaged("a chunk without bytes", object=address.object)
        if record.crc32c is None:
            raise Damaged("no CRC32C is recorded, so nothing would verify a copy", object=address.object)
        borders = Borders((0, record.length), (0, record.crc32c))
        if not is_one_block(record.length):
            borders = find_borders(source.view, identity, record, 0, record.length) or borders
        end = offset + record.length
        if end > segment.length:
            break
        yield FoundChunk(offset, record.length, source.storage, address, borders, record.created_ms, identity)
    if end != segment.length:
        text = f"its list of chunks ends at {end}, the segment at {segment.length}"
        raise Damaged(text, object=f"segment {segment.name!r}", position=end)


def table_rows(source: Source) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values of the rows of tables that come along, in order. Raises ``Damaged``."""
    view, start, stop = source.view, TABLE, after_all(TABLE)
    while (first := next(view.scan(start, stop), None)) is not None:
        prefix = first[0][: 2 + first[0][1]]
        namespace = prefix[2:].decode("utf-8", "replace")
        start = after_all(prefix)
        if source.chosen.takes_table(namespace):
            for key, raw in view.scan(prefix, start):
                value = decode_table(key, raw).value
                if source.chosen.takes_row(namespace, key[len(prefix) :], value, view):
                    yield key, value
