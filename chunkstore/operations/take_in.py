"""Taking in what another container holds: its chunks are copied, its rows are made anew (an import's one step).

Promises: one record for a batch, all or nothing: segments with their offsets, labels of time, attributes and writers' last events, their
names at last, and rows of tables; ids are ours. Chunks are copied before, and durable before the record (protocol C1).
Leaves out: how chunks get here (``bring_chunks``), which batches, and how an interrupted import goes on (``chunkstore.backup.importing``).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final, NamedTuple

from chunkstore.changes import ADDS_NOTHING, NewChunk
from chunkstore.errors import Conflict, SegmentExists, SegmentNotFound
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
from chunkstore.names import NO_CHUNK
from chunkstore.operations.adopt import make_foreign
from chunkstore.operations.bring_chunks import Brought, ForeignChunk, bring_chunks
from chunkstore.operations.change_set import ChangeSet
from chunkstore.operations.commit_changes import commit_changes
from chunkstore.operations.container import OwnedContainer
from chunkstore.operations.read import find_segment
from chunkstore.operations.segments import plan_delete
from chunkstore.operations.tables import plan_delete_row, plan_put_row
from chunkstore.operations.written_chunks import link_chunks
from chunkstore.records import ChunkRecord, SegmentRecord, TableRecord
from chunkstore.storage import ChunkStorage

__all__ = ["Batch", "Part", "take_in"]

_TRIES: Final = 5
"""Each new epoch of ours wants chunks of its own."""


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

    ``key``: of the mark's row, the id of the merge. The mark is still that of ``version`` (0: there is none), or nothing happens; no row
    that is there is changed.
    """

    parts: tuple[Part, ...]
    rows: tuple[tuple[str, bytes, bytes], ...]
    """Of tables: namespace, key and value."""
    mark: bytes | None
    key: bytes
    version: int
    names: tuple[tuple[str, str], ...] = ()
    """Of segments that were taken in: what they are called, and shall be."""
    dropped: tuple[str, ...] = ()
    """Of segments that were taken in, and go again."""


def take_in(container: OwnedContainer, source: ChunkStorage, batch: Batch) -> None:
    """Copy the chunks of a batch from ``source`` and commit it.

    Atomic, durable. Raises ``Damaged`` (a chunk is not what its container says of it), ``ChunkNotFound``, ``SegmentExists`` (a name),
    ``Conflict`` (the mark, or a row that is there), and the errors of commits. Retry after ``OutcomeUnknown``: not before looking at the
    mark.
    """
    names = [part.segment.name for part in batch.parts]
    others = [*(name for pair in batch.names for name in pair), *batch.dropped]
    staying = frozenset(part.segment.name for part in batch.parts if part.root is not None)
    copied_bytes = sum(chunk.length for part in batch.parts if part.root is None for chunk in part.chunks)
    adds = ADDS_NOTHING if batch.dropped else copied_bytes
    for tries_left in range(_TRIES, -1, -1):
        owned = container.serving(container.deadline())
        begun = {name: found for name in names if (found := _id_of(container, name))}
        ids = {name: begun.get(name) or owned.new_id() for name in names}
        chunks = [(part.segment.name, chunk) for part in batch.parts for chunk in part.chunks]
        brought = bring_chunks(container, owned, source, chunks, ids, staying)
        copied = {part.segment.name: [next(brought) for _ in part.chunks] for part in batch.parts}
        plan = partial(_plan, batch, owned.epoch, ids, copied, frozenset(begun))
        try:
            commit_changes(container, names + others, plan, tables=True, adds=adds)
            return
        except Conflict:
            # Another epoch of ours has begun: what an earlier one has written, it does not commit (protocol 3.10).
            if not tries_left or container.current.epoch == owned.epoch:
                raise


def _id_of(container: OwnedContainer, name: str) -> int:
    """The id of a segment that has been begun; 0: it has not."""
    try:
        return container.look(lambda view: find_segment(view, name, None)).id
    except SegmentNotFound:
        return 0


def _plan(
    batch: Batch,
    epoch: int,
    ids: Mapping[str, int],
    copied: Mapping[str, list[Brought]],
    begun: frozenset[str],
    changes: ChangeSet,
) -> None:
    if changes.owned.epoch != epoch:
        raise Conflict("the epoch that has copied", expected=epoch, found=changes.owned.epoch)
    for part in batch.parts:
        name = part.segment.name
        if name in begun and changes.find(name) is None:
            # Its id is that of a segment with a name by now, or of one that was deleted.
            raise Conflict("this import", expected="to go on alone", found="somebody else who has ended or dropped it")
        _plan_part(changes, part, ids[name], copied[name])
    for old, new in batch.names:
        _plan_name(changes, old, new)
    for name in batch.dropped:
        plan_delete(changes, name)
    for namespace, key, value in batch.rows:
        if not _is_there(changes, namespace, key, value):
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


def _plan_part(changes: ChangeSet, part: Part, segment_id: int, copied: list[Brought]) -> None:
    segment = _begun(changes, part, segment_id)
    new = [(chunk, item) for item in copied for chunk in item.chunks]
    while not segment.chunk_count and new and new[0][0].borders.at[-1] <= segment.first_chunk_skip:
        # One of several that a chunk became, and all of it was truncated.
        dead = new.pop(0)[0].borders.at[-1]
        skip = segment.first_chunk_skip - dead
        segment = segment._replace(first_chunk_skip=skip, length=segment.length + dead)
    if new:
        segment = _appended(changes, segment, new, part.root)
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
    changes: ChangeSet, segment: SegmentRecord, new: list[tuple[NewChunk, Brought]], root: int | None
) -> SegmentRecord:
    # Written and synced by this very call, which was told of each that it is there: nobody knows their ids.
    chunks = [chunk for chunk, _ in new]
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
