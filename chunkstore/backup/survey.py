"""A state that can be imported: its segments, the chunks of their lists, the rows of tables that a filter chooses.

Everything is read from views of one point of history, page by page, in bounded memory, and believed as far as it adds up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol, Self, TypeVar

from chunkstore import runtime
from chunkstore.backup.copy_in import ForeignChunk
from chunkstore.backup.selection import EVERYTHING, NameFilter
from chunkstore.errors import ChunkNotFound, ChunksMissing, Damaged, InvalidArgument
from chunkstore.journal import RecordsPast
from chunkstore.metadata.codec import decode_segment, decode_table
from chunkstore.metadata.keys import (
    QUOTA_NAMESPACE,
    RETENTION_NAMESPACE,
    SEGMENT,
    TABLE,
    VISIBLE_SEGMENTS,
    chunk_key,
    segment_key,
)
from chunkstore.metadata.port import MetadataView, Position
from chunkstore.metadata.reserved import find_borders
from chunkstore.operations.owned_epoch import decode_found_chunk
from chunkstore.records.blocks import Borders, is_one_block
from chunkstore.records.names import NO_CHUNK, ContainerNames, check_segment_name
from chunkstore.records.segments import ChunkRecord, SegmentRecord
from chunkstore.storage import ChunkStorage

__all__ = [
    "FoundChunk",
    "HistoryEnd",
    "ImportReport",
    "MissingChunk",
    "Origin",
    "Row",
    "Source",
    "ViewReader",
    "chunks_of",
    "require_complete",
    "rows_after",
    "segments_after",
    "survey",
]

T = TypeVar("T")

_PAGE: Final = 1_024
_WORKERS: Final = 16
_TOGETHER: Final = 16
"""Chunks that a worker asks for in a row: what asking costs on a local storage is less than a worker."""
_ROWS: Final = 2_000
_ROW_BYTES: Final = 2 << 20
_MISSING_MAX: Final = 1_000
_OFFLOAD: Final = "offload"
_ENDS: Final = bytes((SEGMENT[0] + 1,))


class ViewReader(Protocol):
    """Something that can be asked about one point of history."""

    def __call__(self, call: Callable[[MetadataView], T], /) -> T: ...


class Origin(NamedTuple):
    """Which state of which container: its uuid, and the record that left it; ``hash`` is of that and of the filter."""

    container: bytes
    lsn: int
    hash: bytes

    @classmethod
    def of(cls, container: bytes, position: Position, chosen: NameFilter) -> Self:
        """Which state it is, and what of it: by another filter it is another one."""
        digest = chosen.digest()
        identity = blake2b(position.hash + digest, digest_size=16).digest() if digest else position.hash
        return cls(container, position.lsn, identity)


class HistoryEnd(NamedTuple):
    """Why the history of a source does not go on after the last good record, and which records follow."""

    damage: Damaged | None = None
    past: RecordsPast = RecordsPast()


class Source(NamedTuple):
    """A state, where its chunks are, and which of its segments are imported. ``look`` always shows the same rows; ``origin`` tells states
    and filters apart. Of a salvage, ``end`` is where history was left, ``copy`` has copies of chunks, and ``parts`` says what is left of a
    segment that has lost bytes."""

    origin: Origin
    look: ViewReader
    names: ContainerNames
    storage: ChunkStorage
    chosen: NameFilter = EVERYTHING
    end: HistoryEnd = HistoryEnd()
    copy: ChunkStorage | None = None
    parts: Mapping[str, Sequence[SegmentRecord]] = MappingProxyType({})


class Row(NamedTuple):
    """A row of a table; ``position``: its whole key."""

    position: bytes
    namespace: str
    key: bytes
    value: bytes


class MissingChunk(NamedTuple):
    """A chunk that is absent, or shorter than its record: bytes ``[start, stop)`` of a segment."""

    segment: str
    chunk: str
    start: int
    stop: int
    reason: str


class ImportReport(NamedTuple):
    """What a state consists of."""

    segments: int
    chunks: int
    size_bytes: int
    rows: int
    """Of tables."""
    missing: tuple[MissingChunk, ...]
    """The first thousand of them."""
    missing_chunks: int = 0


class FoundChunk(NamedTuple):
    """A chunk of a segment, which begins at segment offset ``offset``."""

    segment: SegmentRecord
    offset: int
    chunk: ForeignChunk
    identity: bytes


def survey(
    source: Source, keep: Callable[[list[FoundChunk]], object] | None = None, *, ask: bool = True
) -> ImportReport:
    """Look at the filter, count what it takes of a state, and ask the storage for each chunk, unless ``keep`` does. Reads no chunk, changes
    nothing.

    ``keep`` is given all chunks, in the order of the lists, with what is known of their CRCs. Raises ``SegmentNotFound`` (a choice that
    chooses nothing), ``Damaged``, ``StorageUnavailable``. Retry: safe.
    """
    pool = runtime.pool("chunkstore-survey", _WORKERS)
    segments = chunks = size_bytes = rows = count = 0
    missing: list[MissingChunk] = []
    place: _Place | None = _Place("", 0)
    try:
        if not source.chosen.is_everything:
            source.look(partial(_check_chosen, source.chosen))
        while place is not None:
            ended, found, place = source.look(partial(_chunks_after, source, place, keep is not None))
            calls = [
                partial(_look_at, source.storage, found[at : at + _TOGETHER])
                for at in range(0, len(found) if ask else 0, _TOGETHER)
            ]
            gone = [item for group in pool.run_all(calls) for item in group]
            missing, count = (missing + gone)[:_MISSING_MAX], count + len(gone)
            if keep is not None:
                keep(found)
            segments, chunks = segments + ended, chunks + len(found)
            size_bytes += sum(item.chunk.length for item in found)
        key = b""
        while batch := source.look(partial(rows_after, source, key)):
            rows, key = rows + len(batch), batch[-1].position
    finally:
        pool.close()
    return ImportReport(segments, chunks, size_bytes, rows, tuple(missing), count)


def _check_chosen(chosen: NameFilter, view: MetadataView) -> None:
    chosen.check(key[1:].decode("utf-8", "replace") for key, _ in view.scan(VISIBLE_SEGMENTS, _ENDS))


class _Place(NamedTuple):
    """After the segment ``after``, and in the next one at the chunk ``identity``, which begins at ``offset`` of the segment and has
    ``passed`` before it; empty: at its first one."""

    after: str
    offset: int
    identity: bytes = NO_CHUNK
    passed: int = 0


def _chunks_after(
    source: Source, place: _Place, borders: bool, view: MetadataView
) -> tuple[int, list[FoundChunk], _Place | None]:
    """The next chunks, how many segments end with them, and where to continue; None: that was all."""
    found: list[FoundChunk] = []
    after, offset, identity, count = place
    ended = 0
    for segment in segments_after(view, after, source.chosen):
        if ended == _PAGE:
            return ended, found, _Place(after, 0)
        start = offset if identity else segment.start_offset - segment.first_chunk_skip
        for item in chunks_of(view, source.names, segment, start, borders, identity):
            if len(found) == _PAGE:
                return ended, found, _Place(after, item.offset, item.identity, count)
            found.append(item)
            count += 1
        if count != segment.chunk_count:
            text = f"its list has {count} chunks, the segment {segment.chunk_count}"
            raise Damaged(text, object=f"segment {segment.name!r}")
        after, identity, count, ended = segment.name, NO_CHUNK, 0, ended + 1
    return ended, found, None


def segments_after(view: MetadataView, after: str, chosen: NameFilter) -> Iterator[SegmentRecord]:
    """The chosen segments with names above ``after``, in order. Raises ``Damaged``."""
    start = SEGMENT + after.encode() + b"\0" if after else VISIBLE_SEGMENTS
    for key, raw in view.scan(start, _ENDS):
        name = key[1:].decode("utf-8", "replace")
        if not chosen.takes(name):
            continue
        segment = decode_segment(name, raw)
        try:
            check_segment_name(segment.name)
        except InvalidArgument as error:
            raise Damaged(error.message, object=f"metadata row {key!r}") from error
        if segment.name != name:
            raise Damaged(f"the row is that of segment {segment.name!r}", object=f"metadata row {key!r}")
        if not segment.first_chunk_skip <= segment.start_offset <= segment.length:
            raise Damaged("its offsets are none of a segment", object=f"metadata row {key!r}")
        if not segment.chunk_size_bytes_max:
            raise Damaged("its chunks may hold no byte, so it would take none", object=f"metadata row {key!r}")
        yield segment


def chunks_of(
    view: MetadataView, names: ContainerNames, segment: SegmentRecord, offset: int, borders: bool, identity: bytes
) -> Iterator[FoundChunk]:
    """The chunks of a segment from ``identity`` on, or from the first one, which begins at ``offset``. Raises ``Damaged``."""
    identity = identity or segment.first_chunk
    while identity:
        record = decode_found_chunk(names, identity, view.get(chunk_key(identity)))
        if not record.length:
            raise Damaged("a chunk without bytes", object=names.chunk(identity))
        known = _borders_of(view, identity, record) if borders else None
        address = names.address(identity, record)
        if record.crc32c is None:
            raise Damaged("no CRC32C is recorded, so nothing would verify a copy", object=address.object)
        yield FoundChunk(segment, offset, ForeignChunk(address, record.length, known, record.created_ms), identity)
        offset, identity = offset + record.length, record.next
        if offset > segment.length:
            break
    if offset != segment.length:
        text = f"its list of chunks ends at {offset}, the segment at {segment.length}"
        raise Damaged(text, object=f"segment {segment.name!r}", position=offset)


def _borders_of(view: MetadataView, identity: bytes, record: ChunkRecord) -> Borders | None:
    """What is known of a chunk; of one block it is enough to know that."""
    if is_one_block(record.length) and record.crc32c is not None:
        return Borders((0, record.length), (0, record.crc32c))
    return find_borders(view, identity, record, 0, record.length)


def _look_at(storage: ChunkStorage, items: list[FoundChunk]) -> list[MissingChunk]:
    """Those that are not there in their length."""
    found = []
    for segment, offset, chunk, _ in items:
        reason = _why_missing(storage, chunk)
        if reason:
            found.append(MissingChunk(segment.name, chunk.address.object, offset, offset + chunk.length, reason))
    return found


def _why_missing(storage: ChunkStorage, chunk: ForeignChunk) -> str:
    try:
        length = max(0, storage.stat(chunk.address.object).length - chunk.address.offset)
    except ChunkNotFound:
        return "absent"
    return "" if length >= chunk.length else f"{length} of {chunk.length} bytes"


def rows_after(source: Source, after: bytes, view: MetadataView, count: int = _ROWS) -> list[Row]:
    """The next rows of tables that come along, those after the position ``after``. Raises ``Damaged``."""
    found: list[Row] = []
    size_bytes = 0
    start = max(TABLE, after + b"\0")
    while (first := next(view.scan(start, bytes((TABLE[0] + 1,))), None)) is not None:
        namespace = first[0][2 : 2 + first[0][1]].decode("utf-8", "replace")
        prefix = first[0][: 2 + first[0][1]]
        if _comes(source.chosen, namespace):
            for key, raw in view.scan(max(start, prefix), _behind(prefix)):
                value = decode_table(key, raw).value
                if _row_comes(source.chosen, namespace, key[len(prefix) :], value, view):
                    found.append(Row(key, namespace, key[len(prefix) :], value))
                    size_bytes += len(raw)
                if len(found) == count or size_bytes >= _ROW_BYTES:
                    return found
        start = _behind(prefix)
    return found


def _behind(prefix: bytes) -> bytes:
    """What is above all keys that begin so: a namespace does not end with the last of all bytes."""
    return prefix[:-1] + bytes((prefix[-1] + 1,))


def _comes(chosen: NameFilter, namespace: str) -> bool:
    """Whether rows of a table may come along. Of the reserved ones: what they say is true in the other container, too."""
    if namespace.startswith("!"):
        return namespace == RETENTION_NAMESPACE or (namespace == QUOTA_NAMESPACE and chosen.is_everything)
    return chosen.is_everything or namespace == _OFFLOAD


def _row_comes(chosen: NameFilter, namespace: str, key: bytes, value: bytes, view: MetadataView) -> bool:
    """Whether a row of a table that may come along does: of a part, what speaks of its segments alone."""
    if chosen.is_everything:
        return True
    if namespace == RETENTION_NAMESPACE:
        name = key[1:].decode("utf-8", "replace")
        return key[:1] != b"*" and chosen.takes(name) and view.get(segment_key(name)) is not None
    # Here, because ledgers load protobuf, which no other import needs.
    from chunkstore.backup.topics import named_by

    return all(chosen.takes(name) for name in named_by(key, value))


def require_complete(report: ImportReport) -> None:
    """Raise ``ChunksMissing`` unless every chunk is there."""
    if report.missing:
        missing = [item._asdict() for item in report.missing]
        raise ChunksMissing(missing, count=report.missing_chunks, chunks=report.chunks)
