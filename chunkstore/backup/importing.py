"""Merging a state into a container that works.

Promises: each step is a record, and moves a mark on, so that whoever takes in the same state again, by the same plan, goes on. What is
merged lies in segments that nobody sees, until a record gives them their names, as many as fit, and with the last of them come the rows
that speak of them: a segment appears whole or not at all, and mostly everything at once. Ids are made anew; offsets, attributes, seals,
labels of time, writers' last events and rows of tables stay. Garbage, sessions, pins and the position of scrubbing stay behind: they speak
of the other history. Leaves out: what is looked at before (``survey``, ``merging``), the copying and the record of one step
(``operations.take_in``), new containers (``founding``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

from chunkstore.backup.survey import ImportReport, Row, Source, chunks_of, rows_behind, segments_behind
from chunkstore.config import MIB
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import Conflict
from chunkstore.metadata.codec import decode_segment, decode_table
from chunkstore.metadata.importing import (
    ImportMark,
    ImportPhase,
    Origin,
    encode_import,
    find_merge,
    hidden_name,
    hidden_prefix,
)
from chunkstore.metadata.keys import segment_key, writer_range
from chunkstore.metadata.port import MetadataView
from chunkstore.operations.bring_chunks import ForeignChunk
from chunkstore.operations.take_in import Batch, Part, take_in
from chunkstore.records import SegmentRecord

__all__ = ["drop_merge", "merge_into"]

_CHUNKS: Final = 1_024
_BYTES: Final = 256 * MIB
_PARTS: Final = 512
_ROWS: Final = 2_000
_ROW_BYTES: Final = 2 * MIB
_NAMES: Final = 1_000
"""Segments that one record gives their names, or drops."""


def merge_into(
    store: ChunkedSegmentStorage, source: Source, identity: bytes, progress: Callable[[int], object] | None = None
) -> ImportReport:
    """Take everything into a container that works, from where the mark of this merge stands, and remove the mark.

    Each step is a record, atomic and durable; ``progress`` is called with bytes that were copied. Raises ``Damaged`` (a chunk is not what
    its record says: nothing of its step is taken in), ``SegmentExists`` (a name was taken meanwhile), ``Conflict`` (somebody else goes on
    with the same merge, or has dropped it; a row of a table was made meanwhile), and the errors of commits. Retry: safe, goes on where it
    was.
    """
    steps = _Steps(store, source, identity, progress)
    mark, version = ImportMark(source.origin, ImportPhase.SEGMENTS, b""), 0
    found = store.look(partial(find_merge, identity=identity))
    while True:
        if found is not None:
            mark, version = found
        if mark.phase is ImportPhase.DROPPED:
            raise _not_alone()
        if mark.phase is ImportPhase.TABLES:
            is_over = steps.take_rows(mark, version)
        else:
            takes = mark.phase is ImportPhase.SEGMENTS and steps.take_segments(mark, version)
            is_over = not takes and steps.give_names(mark, version)
        if is_over:
            return steps.report()
        found = store.look(partial(find_merge, identity=identity))
        if found is None:
            raise _not_alone()


def drop_merge(store: ChunkedSegmentStorage, identity: bytes) -> bool:
    """Give a merge up: what has no name yet is deleted, then the mark. Whether there was one. Raises ``Conflict`` (it goes on just now),
    and the errors of commits. Retry: safe."""
    there = False
    while True:
        found = store.look(partial(find_merge, identity=identity))
        names = store.look(partial(_hidden_names, identity))
        if found is None and not names:
            return there
        there = True
        mark, version = found or (ImportMark(Origin(bytes(16), 0, bytes(16)), ImportPhase.SEGMENTS, b""), 0)
        # The first record says so and no more: from then on nobody goes on with it.
        is_said = mark.phase is ImportPhase.DROPPED
        value = encode_import(mark._replace(phase=ImportPhase.DROPPED, after=b"")) if names or not is_said else None
        dropped = tuple(names) if is_said else ()
        batch = Batch((), (), value, identity, version, dropped=dropped)
        take_in(store.owned, store.read_context.storage, batch)


def _hidden_names(identity: bytes, view: MetadataView) -> list[str]:
    start = segment_key(hidden_prefix(identity))
    return [key[1:].decode() for key, _ in islice(view.scan(start, start + b"\xff"), _NAMES)]


class _Begun(NamedTuple):
    """How much of a segment has been taken in: its length, and its last writer."""

    length: int
    writer: bytes


class _Steps:
    """The steps of one import, and what they have done so far. ``version``: of the mark's row, in a merge."""

    def __init__(
        self,
        store: ChunkedSegmentStorage,
        source: Source,
        identity: bytes,
        progress: Callable[[int], object] | None,
    ) -> None:
        self._store = store
        self._source = source
        self._identity = identity
        self._progress = progress or (lambda _: None)
        self._segments = self._chunks = self._bytes = self._rows = 0
        self._named = ""
        """Up to here segments have their names. Not in the mark: a repair may bring hidden ones back, and whoever goes on finds all."""

    def report(self) -> ImportReport:
        """What these steps took in."""
        return ImportReport(self._segments, self._chunks, self._bytes, self._rows, ())

    def take_segments(self, mark: ImportMark, version: int) -> bool:
        """As many chunks, and what goes with their segments, as make a record; whether there was anything left."""
        parts, after = self._source.look(partial(self._next_parts, mark))
        if not parts:
            return False
        self._commit(mark._replace(after=after), version, parts=tuple(parts))
        copied = [chunk for part in parts for chunk in part.chunks]
        size_bytes = sum(chunk.length for chunk in copied)
        self._segments += sum(part.is_last for part in parts)
        self._chunks, self._bytes = self._chunks + len(copied), self._bytes + size_bytes
        if copied:
            self._progress(size_bytes)
        return True

    def give_names(self, mark: ImportMark, version: int) -> bool:
        """Names for as many segments as make a record: those that have none, whatever the mark says. With the last of them come the rows,
        if they fit, and that is all: then it is True."""
        names, self._named = self._source.look(lambda view: self._store.look(partial(self._next_names, view)))
        if self._named:
            self._commit(mark._replace(phase=ImportPhase.NAMES, after=b""), version, names=tuple(names))
            return False
        rows = self._rows_behind(b"")
        if rows and self._rows_behind(rows[-1].position):
            self._commit(mark._replace(phase=ImportPhase.TABLES, after=b""), version, names=tuple(names))
            return False
        self._commit(None, version, names=tuple(names), rows=rows)
        return True

    def take_rows(self, mark: ImportMark, version: int) -> bool:
        """As many rows as make a record; whether it was the last one of all, which removes the mark."""
        rows = self._rows_behind(mark.after)
        after = mark._replace(phase=ImportPhase.TABLES, after=rows[-1].position) if rows else None
        self._commit(after, version, rows=rows)
        return not rows

    def _rows_behind(self, after: bytes) -> list[Row]:
        return self._source.look(partial(rows_behind, self._source, after, count=_ROWS))

    def _commit(
        self,
        mark: ImportMark | None,
        version: int,
        *,
        parts: tuple[Part, ...] = (),
        rows: Sequence[Row] = (),
        names: tuple[tuple[str, str], ...] = (),
    ) -> None:
        value = None if mark is None else encode_import(mark)
        self._rows += len(rows)
        pairs = tuple((row.namespace, row.key, row.value) for row in rows)
        try:
            batch = Batch(parts, pairs, value, self._identity, version, names)
            take_in(self._store.owned, self._source.storage, batch)
        except Conflict as error:
            found = self._store.look(partial(find_merge, identity=self._identity))
            if (0 if found is None else found[1]) == version:
                raise
            raise _not_alone() from error

    def _name(self, name: str) -> str:
        """What a segment is called while it is taken in."""
        return hidden_name(self._identity, name)

    def _next_parts(self, mark: ImportMark, view: MetadataView) -> tuple[list[Part], bytes]:
        """The next parts, and the last segment that is whole with them."""
        parts: list[Part] = []
        chunks = size_bytes = row_bytes = 0
        after = mark.after
        for segment in segments_behind(view, mark.after.decode(), self._source.plan):
            # Only the first can have been begun: the mark stands behind all that are whole.
            there = self._begun(segment.name) if not parts else None
            offset, writer = there or (segment.start_offset - segment.first_chunk_skip, b"")
            taken: list[ForeignChunk] = []
            is_last = True
            for item in chunks_of(view, self._source.names, segment, offset, borders=True):
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
                record = segment._replace(name=self._name(segment.name))
                parts.append(Part(record, offset, tuple(taken), writers, is_last, self._source.root))
            if not is_last:
                break
            after = segment.name.encode()
            if len(parts) == _PARTS or chunks == _CHUNKS or size_bytes >= _BYTES or row_bytes >= _ROW_BYTES:
                break
        return parts, after

    def _begun(self, name: str) -> _Begun | None:
        def look(view: MetadataView) -> _Begun | None:
            raw = view.get(segment_key(self._name(name)))
            if raw is None:
                return None
            segment = decode_segment(name, raw)
            start, stop = writer_range(segment.id)
            last = b""
            for key, _ in view.scan(start, stop):
                last = key[len(start) :]
            return _Begun(segment.length, last)

        return self._store.look(look)

    def _next_names(self, there: MetadataView, here: MetadataView) -> tuple[list[tuple[str, str]], str]:
        """The next hidden segments and their names, and the last one of them; empty at the end."""
        found: list[tuple[str, str]] = []
        size_bytes = 0
        for segment in segments_behind(there, self._named, self._source.plan):
            hidden = self._name(segment.name)
            raw = here.get(segment_key(hidden))
            if raw is not None:
                found.append((hidden, self._source.plan.target(segment.name)))
                size_bytes += len(raw)
                if len(found) == _NAMES or size_bytes >= _ROW_BYTES:
                    return found, segment.name
        return found, ""


def _not_alone() -> Conflict:
    return Conflict(
        "this import", expected="to go on alone", found="somebody else who goes on with it, ends it or drops it"
    )


def _writers_of(view: MetadataView, segment: SegmentRecord, after: bytes) -> tuple[tuple[bytes, bytes], ...]:
    """The next rows of a segment's writers behind ``after``: fewer than are asked for are all."""
    start, stop = writer_range(segment.id)
    rows = islice(view.scan(start + after + b"\0" if after else start, stop), _ROWS)
    return tuple((key[len(start) :], decode_table(key, raw).value) for key, raw in rows)
