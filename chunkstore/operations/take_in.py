"""Taking in what another container holds: its chunks are copied, its rows are made anew (an import's one step).

Promises: one record for a batch, all or nothing: segments with their offsets, labels of time, attributes and writers' last events, and
rows of tables; ids are ours. On the way bytes are compared with the CRCs that their own container knows, and they are durable before the
record (protocol C1). What was copied and not committed is an orphan. Memory is bounded: chunks are copied in pieces.
Leaves out: which batches, and how an interrupted import goes on (``chunkstore.backup.importing``).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final, NamedTuple

from chunkstore.blocks import Borders, crc_at_borders, first_bad
from chunkstore.changes import NewChunk
from chunkstore.checksum import crc32c_extend
from chunkstore.config import MIB
from chunkstore.errors import Conflict, Damaged, SegmentNotFound
from chunkstore.journal import OpCode
from chunkstore.metadata.keys import IMPORT_NAMESPACE, chunk_key, writer_key
from chunkstore.names import NO_CHUNK
from chunkstore.operations.change_set import ChangeSet
from chunkstore.operations.commit_changes import commit_changes
from chunkstore.operations.container import OwnedContainer
from chunkstore.operations.owned_epoch import OwnedEpoch
from chunkstore.operations.read import find_segment
from chunkstore.operations.tables import plan_delete_row, plan_put_row
from chunkstore.operations.written_chunks import link_chunks
from chunkstore.records import ChunkRecord, SegmentRecord, TableRecord
from chunkstore.storage import ChunkHandle, ChunkStorage

__all__ = ["Batch", "ForeignChunk", "Part", "take_in"]

_WINDOW_BYTES: Final = 4 * MIB
_HELD_BYTES: Final = 64 * MIB
"""Of a chunk, where nothing appends: a longer one becomes several."""
_COPIED_AT_ONCE: Final = 64
_TRIES: Final = 5
"""Each new epoch of ours wants chunks of its own."""


class ForeignChunk(NamedTuple):
    """A chunk of another container. ``borders`` None: its CRC is not known there."""

    name: str
    length: int
    borders: Borders | None
    created_ms: int


class Part(NamedTuple):
    """The next chunks of a segment, from segment offset ``offset`` on. ``segment``: its row there, of which ids and chunks are left out."""

    segment: SegmentRecord
    offset: int
    chunks: tuple[ForeignChunk, ...]
    writers: tuple[tuple[bytes, bytes], ...]
    """The rows of its writers, by their ids."""
    is_last: bool


class Batch(NamedTuple):
    """What one record takes in. ``mark``: how far the import is then; None: at its end."""

    parts: tuple[Part, ...]
    rows: tuple[tuple[str, bytes, bytes], ...]
    """Of tables: namespace, key and value."""
    mark: bytes | None


class _Copied(NamedTuple):
    """Of what a chunk there became: the new chunks, and how old they are."""

    chunks: list[NewChunk]
    created_ms: int


def take_in(container: OwnedContainer, source: ChunkStorage, batch: Batch) -> None:
    """Copy the chunks of a batch from ``source`` and commit it.

    Atomic, durable. Raises ``Damaged`` (a chunk is not what its container says of it), ``ChunkNotFound``, and the errors of commits. Retry
    after ``OutcomeUnknown``: not before looking at the mark.
    """
    names = [part.segment.name for part in batch.parts]
    adds = sum(chunk.length for part in batch.parts for chunk in part.chunks)
    for tries_left in range(_TRIES, -1, -1):
        owned = container.serving(container.deadline())
        ids = {name: _id_of(container, owned, name) for name in names}
        copied = _copy_all(container, owned, source, batch, ids)
        plan = partial(_plan, container, batch, owned.epoch, ids, copied)
        try:
            commit_changes(container, names, plan, tables=True, adds=adds)
            return
        except Conflict:
            # Another epoch of ours has begun: what an earlier one has written, it does not commit (protocol 3.10).
            if not tries_left or container.current.epoch == owned.epoch:
                raise


def _id_of(container: OwnedContainer, owned: OwnedEpoch, name: str) -> int:
    try:
        return container.look(lambda view: find_segment(view, name, None)).id
    except SegmentNotFound:
        return owned.new_id()


def _copy_all(
    container: OwnedContainer, owned: OwnedEpoch, source: ChunkStorage, batch: Batch, ids: Mapping[str, int]
) -> dict[str, list[_Copied]]:
    """By segment, in order."""
    calls = [
        partial(_copy, container, owned, source, part.segment.name, ids[part.segment.name], chunk)
        for part in batch.parts
        for chunk in part.chunks
    ]
    found: list[_Copied] = []
    for first in range(0, len(calls), _COPIED_AT_ONCE):
        found += container.pool.run_all(calls[first : first + _COPIED_AT_ONCE])
    copied = iter(found)
    return {part.segment.name: [next(copied) for _ in part.chunks] for part in batch.parts}


class _Sum:
    """The borders of a new chunk, as its bytes come."""

    def __init__(self) -> None:
        self.length = self.crc = 0
        self._passed: list[tuple[int, int]] = []

    def add(self, data: bytes) -> None:
        self.crc, passed = crc_at_borders(self.crc, self.length, data)
        self._passed += passed
        self.length += len(data)

    def borders(self) -> Borders:
        return Borders(
            [0, *(at for at, _ in self._passed), self.length], [0, *(crc for _, crc in self._passed), self.crc]
        )


def _copy(
    container: OwnedContainer,
    owned: OwnedEpoch,
    source: ChunkStorage,
    segment: str,
    segment_id: int,
    chunk: ForeignChunk,
) -> _Copied:
    if not chunk.length:
        return _Copied([], chunk.created_ms)
    windows = _windows(container, source, segment, chunk)
    storage, made = container.storage, list[NewChunk]()
    if owned.appendable:
        identity, total = owned.new_chunk(segment_id), _Sum()
        handle = ChunkHandle(container.names.chunk(identity), True)
        for data in windows:
            with container.bounded(container.deadline()):
                if total.length:
                    storage.write(handle, total.length, data)
                else:
                    storage.create(handle.name, data)
            total.add(data)
        return _Copied([NewChunk(identity, total.borders())], chunk.created_ms)
    held = list[bytes]()
    for data in windows:
        held.append(data)
        if sum(map(len, held)) >= _HELD_BYTES:
            made.append(_create(container, owned, segment_id, b"".join(held)))
            held = []
    if held:
        made.append(_create(container, owned, segment_id, b"".join(held)))
    return _Copied(made, chunk.created_ms)


def _create(container: OwnedContainer, owned: OwnedEpoch, segment_id: int, data: bytes) -> NewChunk:
    identity, total = owned.new_chunk(segment_id), _Sum()
    with container.bounded(container.deadline()):
        container.storage.create(container.names.chunk(identity), data)
    total.add(data)
    return NewChunk(identity, total.borders())


def _windows(container: OwnedContainer, source: ChunkStorage, segment: str, chunk: ForeignChunk) -> Iterator[bytes]:
    """The bytes of a chunk, compared with what is known of them. Raises ``Damaged``, and what the storage raises."""
    position = crc = 0
    while position < chunk.length:
        wanted = min(_WINDOW_BYTES, chunk.length - position)
        with container.bounded(container.deadline()):
            data = source.read(ChunkHandle(chunk.name, False), position, wanted)
        if len(data) != wanted:
            text = f"a chunk of segment {segment!r} is shorter than its record"
            raise Damaged(text, object=chunk.name, position=position + len(data))
        if chunk.borders is not None:
            at, crcs = chunk.borders
            first = bisect_right(at, position)
            if first_bad(position, crc, data, zip(at[first:], crcs[first:], strict=True)) is not None:
                text = f"bytes of segment {segment!r} do not have the CRC32C that its container has recorded"
                raise Damaged(text, object=chunk.name, position=position)
            crc = crc32c_extend(crc, data)
        yield data
        position += wanted


def _plan(
    container: OwnedContainer,
    batch: Batch,
    epoch: int,
    ids: Mapping[str, int],
    copied: Mapping[str, list[_Copied]],
    changes: ChangeSet,
) -> None:
    if changes.owned.epoch != epoch:
        raise Conflict("the epoch that has copied", expected=epoch, found=changes.owned.epoch)
    for part in batch.parts:
        name = part.segment.name
        _plan_part(container, changes, part, ids[name], copied[name])
    for namespace, key, value in batch.rows:
        plan_put_row(changes, namespace, key, value, None)
    if batch.mark is not None:
        plan_put_row(changes, IMPORT_NAMESPACE, b"", batch.mark, None)
    else:
        plan_delete_row(changes, IMPORT_NAMESPACE, b"", None)


def _plan_part(
    container: OwnedContainer, changes: ChangeSet, part: Part, segment_id: int, copied: list[_Copied]
) -> None:
    segment = _begun(changes, part, segment_id)
    new = [(chunk, item.created_ms) for item in copied for chunk in item.chunks]
    while not segment.chunk_count and new and new[0][0].borders.at[-1] <= segment.first_chunk_skip:
        # One of several that a chunk became, and all of it was truncated.
        dead = new.pop(0)[0].borders.at[-1]
        skip = segment.first_chunk_skip - dead
        segment = segment._replace(first_chunk_skip=skip, length=segment.length + dead)
    if new:
        segment = _appended(container, changes, segment, new)
    for writer, value in part.writers:
        changes.rows[writer_key(segment_id, writer)] = TableRecord(0, value)
    if part.is_last:
        whole = part.segment
        if segment.length != whole.length:
            raise Conflict(f"length of segment {segment.name!r}", expected=whole.length, found=segment.length)
        segment = segment._replace(flags=whole.flags)
    changes.put(segment)
    changes.restructure(segment_id)


def _begun(changes: ChangeSet, part: Part, segment_id: int) -> SegmentRecord:
    """The segment as far as it is there. Raises ``Conflict``."""
    there, present = part.segment, changes.find(part.segment.name)
    if present is None:
        changes.headers.append((int(OpCode.CREATE), segment_id, there.name))
        present = there._replace(
            id=segment_id,
            flags=0,
            length=there.start_offset - there.first_chunk_skip,
            first_chunk=NO_CHUNK,
            last_chunk=NO_CHUNK,
            last_chunk_offset=there.start_offset - there.first_chunk_skip,
            owner_epoch=changes.owned.epoch,
            chunk_count=0,
        )
    if (present.id, present.length) != (segment_id, part.offset):
        expected, found = (segment_id, part.offset), (present.id, present.length)
        raise Conflict(f"id and length of segment {there.name!r}", expected=expected, found=found)
    return present


def _appended(
    container: OwnedContainer, changes: ChangeSet, segment: SegmentRecord, new: list[tuple[NewChunk, int]]
) -> SegmentRecord:
    # Their ids were made for this batch: nobody else knows them.
    chunks = [chunk for chunk, _ in new]
    if changes.owned.appendable:
        changes.sync_names += [container.names.chunk(chunk.id) for chunk in chunks]
    added = link_chunks(changes, segment.id, chunks, segment.length, segment.last_chunk, NO_CHUNK)
    for chunk, created_ms in new:
        row = changes.rows[chunk_key(chunk.id)]
        assert isinstance(row, ChunkRecord)
        changes.rows[chunk_key(chunk.id)] = row._replace(created_ms=created_ms)
    if segment.last_chunk:
        last = changes.chunk(segment.last_chunk)
        changes.rows[chunk_key(segment.last_chunk)] = last._replace(next=chunks[0].id)
    length = sum(chunk.borders.at[-1] for chunk in chunks)
    changes.headers.append((int(OpCode.APPEND), segment.id, segment.length, length, added))
    return segment._replace(
        length=segment.length + length,
        first_chunk=segment.first_chunk or chunks[0].id,
        last_chunk=chunks[-1].id,
        last_chunk_offset=added[-1][0],
        owner_epoch=changes.owned.epoch,
        chunk_count=segment.chunk_count + len(chunks),
    )
