"""Taking in what another container holds: its chunks are copied, its rows are made anew (an import's one step).

Promises: one record for a batch, all or nothing: segments with their offsets, labels of time, attributes and writers' last events, their
names at last, and rows of tables; ids are ours. On the way bytes are compared with the CRCs that their own container knows, and they are
durable before the record (protocol C1). What was copied and not committed is an orphan. Memory is bounded: chunks are copied in pieces.
Leaves out: which batches, and how an interrupted import goes on (``chunkstore.backup.importing``).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final, NamedTuple

from chunkstore.blocks import Borders, BordersSoFar, first_bad
from chunkstore.changes import ADDS_NOTHING, AdoptedChunk, NewChunk
from chunkstore.checksum import crc32c_extend
from chunkstore.config import MIB
from chunkstore.errors import Conflict, Damaged, SegmentExists, SegmentNotFound
from chunkstore.journal import OpCode
from chunkstore.metadata.codec import decode_table
from chunkstore.metadata.keys import (
    IMPORT_NAMESPACE,
    RETENTION_NAMESPACE,
    chunk_key,
    segment_key,
    table_key,
    writer_key,
)
from chunkstore.names import NO_CHUNK, parse_routed
from chunkstore.operations.adopt import borders_of, make_foreign
from chunkstore.operations.change_set import ChangeSet
from chunkstore.operations.commit_changes import commit_changes
from chunkstore.operations.container import OwnedContainer
from chunkstore.operations.delete import plan_delete
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
    """A chunk of another container, that is read under ``name``. ``borders`` None: its CRC is not known there."""

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
    root: int | None = None
    """Where the chunks stay (``operations.adopt``), but for those that are foreign there, too; None: all are copied."""


class Batch(NamedTuple):
    """What one record takes in. ``mark``: how far the import is then; None: at its end.

    ``key``: of the mark's row, without one in a container that is being made; else the id of a merge. A merge's mark is still that of
    ``version`` (0: there is none), or nothing happens, and a merge changes no row that is there.
    """

    parts: tuple[Part, ...]
    rows: tuple[tuple[str, bytes, bytes], ...]
    """Of tables: namespace, key and value."""
    mark: bytes | None
    names: tuple[tuple[str, str], ...] = ()
    """Of segments that were taken in: what they are called, and shall be."""
    dropped: tuple[str, ...] = ()
    """Of segments that were taken in, and go again."""
    key: bytes = b""
    version: int | None = None


class _Copied(NamedTuple):
    """Of what a chunk there became: the new chunks, and how old they are. ``stays``: it was not copied."""

    chunks: list[NewChunk]
    created_ms: int
    stays: AdoptedChunk | None = None


def take_in(container: OwnedContainer, source: ChunkStorage, batch: Batch) -> None:
    """Copy the chunks of a batch from ``source`` and commit it.

    Atomic, durable. Raises ``Damaged`` (a chunk is not what its container says of it), ``ChunkNotFound``, ``SegmentExists`` (a name),
    ``Conflict`` (the mark, or a row that is there), and the errors of commits. Retry after ``OutcomeUnknown``: not before looking at the
    mark.
    """
    names = [part.segment.name for part in batch.parts]
    others = [*(name for pair in batch.names for name in pair), *batch.dropped]
    copied_bytes = sum(chunk.length for part in batch.parts if part.root is None for chunk in part.chunks)
    adds = ADDS_NOTHING if batch.dropped else copied_bytes
    for tries_left in range(_TRIES, -1, -1):
        owned = container.serving(container.deadline())
        ids = {name: _id_of(container, owned, name) for name in names}
        copied = _copy_all(container, owned, source, batch, ids)
        plan = partial(_plan, container, batch, owned.epoch, ids, copied)
        try:
            commit_changes(container, names + others, plan, tables=True, adds=adds)
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
        if part.root is None or parse_routed(chunk.name) is not None
        else partial(_leave, owned, ids[part.segment.name], chunk)
        for part in batch.parts
        for chunk in part.chunks
    ]
    found: list[_Copied] = []
    for first in range(0, len(calls), _COPIED_AT_ONCE):
        found += container.pool.run_all(calls[first : first + _COPIED_AT_ONCE])
    copied = iter(found)
    return {part.segment.name: [next(copied) for _ in part.chunks] for part in batch.parts}


def _copy(
    container: OwnedContainer,
    owned: OwnedEpoch,
    source: ChunkStorage,
    segment: str,
    segment_id: int,
    chunk: ForeignChunk,
) -> _Copied:
    windows = _windows(container, source, segment, chunk)
    storage, made = container.storage, list[NewChunk]()
    if owned.appendable:
        identity, total = owned.new_chunk(segment_id), BordersSoFar()
        handle = ChunkHandle(container.names.chunk(identity), True)
        storage.create(handle.name)
        for data in windows:
            with container.bounded(container.deadline()):
                storage.write(handle, total.length, data)
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


def _leave(owned: OwnedEpoch, segment_id: int, chunk: ForeignChunk) -> _Copied:
    """A chunk that stays where it is."""
    stays = AdoptedChunk(chunk.name, chunk.length, chunk.borders, 0, chunk.created_ms)
    return _Copied([NewChunk(owned.new_chunk(segment_id), borders_of(stays))], chunk.created_ms, stays)


def _create(container: OwnedContainer, owned: OwnedEpoch, segment_id: int, data: bytes) -> NewChunk:
    identity, total = owned.new_chunk(segment_id), BordersSoFar()
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
    for old, new in batch.names:
        _plan_name(changes, old, new)
    for name in batch.dropped:
        plan_delete(changes, name)
    for namespace, key, value in batch.rows:
        if batch.version is None or not _is_there(changes, namespace, key, value):
            plan_put_row(changes, namespace, key, value, None)
    if batch.mark is not None:
        plan_put_row(changes, IMPORT_NAMESPACE, batch.key, batch.mark, batch.version)
    else:
        plan_delete_row(changes, IMPORT_NAMESPACE, batch.key, batch.version)


def _plan_name(changes: ChangeSet, old: str, new: str) -> None:
    """Plan another name for a segment, which stays the same one. Raises ``SegmentExists``, ``SegmentNotFound``."""
    segment = changes.segment(old)
    if changes.find(new) is not None:
        raise SegmentExists(new)
    changes.rows[segment_key(old)] = None
    changes.put(segment._replace(name=new))
    changes.headers.append((int(OpCode.CREATE), segment.id, new))


def _is_there(changes: ChangeSet, namespace: str, key: bytes, value: bytes) -> bool:
    """Whether there is a row already, which a merge leaves alone. Raises ``Conflict`` where it says something else, and no policy."""
    raw = changes.settled(table_key(namespace, key))
    if raw is None:
        return False
    record = decode_table(f"table {namespace}", raw)
    if record.value != value and namespace != RETENTION_NAMESPACE:
        raise Conflict(
            f"table {namespace!r}, key {key!r}",
            expected="no row, or the same",
            found=f"another one, of lsn {record.version}",
        )
    return True


def _plan_part(
    container: OwnedContainer, changes: ChangeSet, part: Part, segment_id: int, copied: list[_Copied]
) -> None:
    segment = _begun(changes, part, segment_id)
    new = [(chunk, item) for item in copied for chunk in item.chunks]
    while not segment.chunk_count and new and new[0][0].borders.at[-1] <= segment.first_chunk_skip:
        # One of several that a chunk became, and all of it was truncated.
        dead = new.pop(0)[0].borders.at[-1]
        skip = segment.first_chunk_skip - dead
        segment = segment._replace(first_chunk_skip=skip, length=segment.length + dead)
    if new:
        segment = _appended(container, changes, segment, new, part.root)
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
    container: OwnedContainer,
    changes: ChangeSet,
    segment: SegmentRecord,
    new: list[tuple[NewChunk, _Copied]],
    root: int | None,
) -> SegmentRecord:
    # Written by this very call, which was told of each that it is there: nobody knows their ids.
    chunks = [chunk for chunk, _ in new]
    copied = [chunk for chunk, item in new if item.stays is None]
    if changes.owned.appendable:
        changes.sync_names += [container.names.chunk(chunk.id) for chunk in copied]
    added = link_chunks(changes, segment.id, chunks, segment.length, segment.last_chunk, NO_CHUNK)
    for chunk, item in new:
        row = changes.rows[chunk_key(chunk.id)]
        assert isinstance(row, ChunkRecord)
        changes.rows[chunk_key(chunk.id)] = row._replace(created_ms=item.created_ms)
    staying = [(chunk, item.stays) for chunk, item in new if item.stays is not None]
    if staying and root is not None:
        make_foreign(changes, root, [chunk for chunk, _ in staying], [item for _, item in staying])
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
