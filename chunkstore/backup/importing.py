"""Making a new container of another's state: every import and restore ends here.

Promises: nothing is begun before every chunk was looked at; what is missing is listed. The new container's first OPEN carries the mark of
an import that has not ended, each record moves it on, the last one removes it: until then nobody else opens the container, and whoever
imports the same state again goes on. Ids are made anew, offsets, attributes, labels of time, writers' last events and rows of tables
stay. Garbage, sessions, pins and the position of scrubbing stay behind: they speak of the other history.
Leaves out: where the state comes from (``restore``), the copying and the record of one step (``operations.take_in``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Final, NamedTuple, Protocol, TypeVar

from chunkstore import runtime
from chunkstore.config import MIB
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import ChunkNotFound, ChunksMissing, Damaged, InvalidArgument, Unsupported
from chunkstore.metadata.blocks import find_borders
from chunkstore.metadata.codec import decode_segment, decode_table
from chunkstore.metadata.importing import ImportMark, ImportPhase, Origin, encode_import, find_import
from chunkstore.metadata.keys import (
    RETENTION_NAMESPACE,
    SEGMENT,
    TABLE,
    chunk_key,
    lazy_range,
    segment_key,
    table_prefix,
    writer_range,
)
from chunkstore.metadata.port import MetadataView
from chunkstore.names import ContainerNames, check_segment_name
from chunkstore.operations.owned_epoch import decode_found_chunk
from chunkstore.operations.take_in import Batch, ForeignChunk, Part
from chunkstore.records import SegmentRecord
from chunkstore.storage import ChunkStorage

__all__ = ["ImportReport", "Look", "MissingChunk", "Source", "import_into", "require_complete", "survey"]

T = TypeVar("T")

_CHUNKS: Final = 512
_BYTES: Final = 256 * MIB
_PARTS: Final = 512
_ROWS: Final = 2_000
_ROW_BYTES: Final = 2 * MIB
_STATS_AT_ONCE: Final = 256
_MISSING_MAX: Final = 1_000
_KEPT_NAMESPACES: Final = (RETENTION_NAMESPACE,)
"""Of the reserved ones: what they say is true in the new container, too."""


class Look(Protocol):
    """Something that can be asked about one point of history."""

    def __call__(self, call: Callable[[MetadataView], T], /) -> T: ...


class Source(NamedTuple):
    """A state, and where its chunks lie. ``look`` always shows the same rows."""

    origin: Origin
    look: Look
    names: ContainerNames
    storage: ChunkStorage


class MissingChunk(NamedTuple):
    """A chunk that is absent, or shorter than its record: bytes ``[start, stop)`` of a segment."""

    segment: str
    chunk: str
    start: int
    stop: int
    reason: str


class ImportReport(NamedTuple):
    """What a state consists of, or what an import took in by this call."""

    segments: int
    chunks: int
    size_bytes: int
    rows: int
    """Of tables."""
    missing: tuple[MissingChunk, ...]
    """The first thousand of them."""
    missing_chunks: int = 0


class _Found(NamedTuple):
    segment: SegmentRecord
    offset: int
    chunk: ForeignChunk


# ---- looking


def survey(source: Source) -> ImportReport:
    """Count what a state consists of, and ask the storage for each chunk. Reads no chunk, changes nothing.

    Raises ``Damaged``, ``Unsupported`` (a state of a version whose chunks grew without records), ``StorageUnavailable``. Retry: safe.
    """
    pool = runtime.pool("chunkstore-survey", 16)
    segments = chunks = size_bytes = rows = count = 0
    missing: list[MissingChunk] = []
    after = ""
    try:
        source.look(_require_known_lengths)
        while True:
            names, found = source.look(partial(_chunks_behind, source.names, after))
            if not names:
                break
            segments, after = segments + len(names), names[-1]
            for first in range(0, len(found), _STATS_AT_ONCE):
                group = found[first : first + _STATS_AT_ONCE]
                reasons = pool.run_all([partial(_why_missing, source.storage, item.chunk) for item in group])
                gone = [_missing(item, reason) for item, reason in zip(group, reasons, strict=True) if reason]
                missing, count = (missing + gone)[:_MISSING_MAX], count + len(gone)
                chunks, size_bytes = chunks + len(group), size_bytes + sum(item.chunk.length for item in group)
        key = b""
        while batch := source.look(partial(_rows_behind, key)):
            rows, key = rows + len(batch), batch[-1][0]
    finally:
        pool.close()
    return ImportReport(segments, chunks, size_bytes, rows, tuple(missing), count)


def _require_known_lengths(view: MetadataView) -> None:
    if next(view.scan(*lazy_range()), None) is not None:
        text = "this state is of a version whose chunks grew without records: their lengths are not in it. Take a later one"
        raise Unsupported(text, feature="lazy_lengths")


def _chunks_behind(names: ContainerNames, after: str, view: MetadataView) -> tuple[list[str], list[_Found]]:
    """The next segments behind ``after``, whole, and their chunks: about as many as are asked for at once."""
    seen: list[str] = []
    found: list[_Found] = []
    for segment in _segments(view, after):
        seen.append(segment.name)
        found += _chunks_of(view, names, segment, segment.start_offset - segment.first_chunk_skip)
        if len(found) >= _CHUNKS or len(seen) == _PARTS:
            break
    return seen, found


def _segments(view: MetadataView, after: str) -> Iterator[SegmentRecord]:
    start = SEGMENT + after.encode() + (b"\0" if after else b"")
    for key, raw in view.scan(start, bytes((SEGMENT[0] + 1,))):
        name = key[1:].decode("utf-8", "replace")
        segment = decode_segment(name, raw)
        try:
            check_segment_name(segment.name)
        except InvalidArgument as error:
            raise Damaged(error.message, object=f"metadata row {key!r}") from error
        if segment.name != name:
            raise Damaged(f"the row is that of segment {segment.name!r}", object=f"metadata row {key!r}")
        yield segment


def _chunks_of(
    view: MetadataView, names: ContainerNames, segment: SegmentRecord, offset: int, borders: bool = False
) -> Iterator[_Found]:
    """The chunks of a segment from the one that begins at ``offset`` on."""
    identity = segment.first_chunk
    if offset > segment.start_offset:
        located = view.locate(segment.id, offset) if offset < segment.length else None
        identity = located[0] if located is not None else b""
    while identity:
        record = decode_found_chunk(names, identity, view.get(chunk_key(identity)))
        known = find_borders(view, identity, record, 0, record.length) if borders else None
        yield _Found(
            segment, offset, ForeignChunk(names.object_of(identity, record), record.length, known, record.created_ms)
        )
        offset, identity = offset + record.length, record.next


def _why_missing(storage: ChunkStorage, chunk: ForeignChunk) -> str:
    try:
        length = storage.stat(chunk.name).length
    except ChunkNotFound:
        return "absent"
    return "" if length >= chunk.length else f"{length} of {chunk.length} bytes"


def _missing(item: _Found, reason: str) -> MissingChunk:
    return MissingChunk(item.segment.name, item.chunk.name, item.offset, item.offset + item.chunk.length, reason)


def _rows_behind(after: bytes, view: MetadataView) -> list[tuple[bytes, bytes]]:
    """The next rows of tables that come along: key and value."""
    found: list[tuple[bytes, bytes]] = []
    size_bytes = 0
    for key, raw in view.scan(max(TABLE, after + b"\0"), bytes((TABLE[0] + 1,))):
        namespace = key[2 : 2 + key[1]].decode()
        if namespace.startswith("!") and namespace not in _KEPT_NAMESPACES:
            continue
        found.append((key, decode_table(key, raw).value))
        size_bytes += len(raw)
        if len(found) == _ROWS or size_bytes >= _ROW_BYTES:
            break
    return found


# ---- doing


def import_into(
    store: ChunkedSegmentStorage, source: Source, progress: Callable[[int], object] | None = None
) -> ImportReport:
    """Take everything in, from where the container's mark stands, and remove the mark. ``progress`` is called with bytes that were copied.

    Each step is a record, atomic and durable. Raises ``Damaged`` (a chunk is not what its record says: nothing of its step is taken in),
    and the errors of commits. Retry: safe, with the container opened again.
    """
    segments = chunks = size_bytes = rows = 0
    while (mark := store.look(find_import)) is not None and mark.phase is ImportPhase.SEGMENTS:
        batch = source.look(partial(_next_parts, source, mark, partial(_begun, store)))
        store.take_in(source.storage, batch)
        copied = [chunk for part in batch.parts for chunk in part.chunks]
        segments += sum(part.is_last for part in batch.parts)
        chunks, size_bytes = chunks + len(copied), size_bytes + sum(chunk.length for chunk in copied)
        if progress is not None and copied:
            progress(sum(chunk.length for chunk in copied))
    while (mark := store.look(find_import)) is not None:
        batch = source.look(partial(_next_rows, mark))
        rows += len(batch.rows)
        if batch.mark is None:
            # Before the last record: behind that nothing is left that could fail.
            _require_sound(store)
            store.snapshot()
        store.take_in(source.storage, batch)
    return ImportReport(segments, chunks, size_bytes, rows, ())


def _require_sound(store: ChunkedSegmentStorage) -> None:
    """What was taken in holds together, whatever its container's rows said. Raises ``Damaged``."""
    for item in store.check("quick"):
        if item.severity == "damage":
            text = f"what was taken in does not hold together: {item.message}"
            raise Damaged(text, object=item.object, position=item.position, segment=item.segment)


class _Begun(NamedTuple):
    """How much of a segment has been taken in: its length, and its last writer."""

    length: int
    writer: bytes


def _begun(store: ChunkedSegmentStorage, name: str) -> _Begun | None:
    def look(view: MetadataView) -> _Begun | None:
        raw = view.get(segment_key(name))
        if raw is None:
            return None
        segment = decode_segment(name, raw)
        start, stop = writer_range(segment.id)
        last = b""
        for key, _ in view.scan(start, stop):
            last = key[len(start) :]
        return _Begun(segment.length, last)

    return store.look(look)


def _next_parts(source: Source, mark: ImportMark, begun: Callable[[str], _Begun | None], view: MetadataView) -> Batch:
    parts: list[Part] = []
    chunks = size_bytes = row_bytes = 0
    after = mark.after
    for segment in _segments(view, mark.after.decode()):
        # Only the first can have been begun: the mark stands behind all that are whole.
        there = begun(segment.name) if not parts else None
        offset, writer = there or (segment.start_offset - segment.first_chunk_skip, b"")
        taken: list[ForeignChunk] = []
        is_last = True
        for item in _chunks_of(view, source.names, segment, offset, borders=True):
            if chunks == _CHUNKS or (chunks and size_bytes + item.chunk.length > _BYTES):
                is_last = False
                break
            taken.append(item.chunk)
            chunks, size_bytes = chunks + 1, size_bytes + item.chunk.length
        writers = _writers_of(view, segment, writer) if is_last else ()
        is_last = is_last and len(writers) < _ROWS
        row_bytes += sum(len(value) for value in segment.attributes.values() if isinstance(value, str | bytes))
        row_bytes += 100 * len(writers)
        if is_last or taken or writers:
            parts.append(Part(segment, offset, tuple(taken), writers, is_last))
        if not is_last:
            break
        after = segment.name.encode()
        if len(parts) == _PARTS or chunks == _CHUNKS or size_bytes >= _BYTES or row_bytes >= _ROW_BYTES:
            break
    phase = ImportPhase.SEGMENTS if parts else ImportPhase.TABLES
    return Batch(tuple(parts), (), encode_import(ImportMark(mark.origin, phase, after if parts else b"")))


def _writers_of(view: MetadataView, segment: SegmentRecord, after: bytes) -> tuple[tuple[bytes, bytes], ...]:
    """The next rows of a segment's writers behind ``after``: fewer than are asked for are all."""
    start, stop = writer_range(segment.id)
    rows = islice(view.scan(start + after + b"\0" if after else start, stop), _ROWS)
    return tuple((key[len(start) :], decode_table(key, raw).value) for key, raw in rows)


def _next_rows(mark: ImportMark, view: MetadataView) -> Batch:
    found = _rows_behind(mark.after, view)
    if not found:
        return Batch((), (), None)
    rows = []
    for key, value in found:
        namespace = key[2 : 2 + key[1]].decode()
        rows.append((namespace, key[len(table_prefix(namespace)) :], value))
    return Batch((), tuple(rows), encode_import(mark._replace(after=found[-1][0])))


def require_complete(report: ImportReport) -> None:
    """Raise ``ChunksMissing`` unless every chunk is there."""
    if report.missing:
        missing = [item._asdict() for item in report.missing]
        raise ChunksMissing(missing, count=report.missing_chunks, chunks=report.chunks)
