"""Chunks that were written before the commit that takes them into a list: sessions' chunks, and those that replace others.

Promises: a chunk enters metadata once, and only if the storage has it in its length. The storage is looked at before any lock is held;
under the locks only rows are, and whether a collection has deleted one since.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

from chunkstore.changes import NewChunk
from chunkstore.errors import (
    ChunkNotFound,
    ChunkstoreError,
    Closed,
    Conflict,
    InvalidArgument,
    NotOwner,
    OutcomeUnknown,
)
from chunkstore.journal import OpCode
from chunkstore.metadata.keys import chunk_key, segment_key, session_key
from chunkstore.metadata.port import MetadataView
from chunkstore.metadata.reserved import border_rows
from chunkstore.operations.change_set import ChangeSet
from chunkstore.operations.container import OwnedContainer
from chunkstore.operations.pending import ExistenceCheck
from chunkstore.records.blocks import Borders, borders_inside
from chunkstore.records.names import NO_CHUNK
from chunkstore.records.segments import CLOSED, KIND_OBJECT, ChunkRecord, SegmentRecord
from chunkstore.sessions import SessionChunk

__all__ = [
    "chunks_of_session",
    "deleted_unless_committed",
    "existence_checked",
    "hang_chunks",
    "link_chunks",
    "require_fresh",
    "require_session",
]

_BYTES_LIKE_A_CHUNK = 150
"""So many bytes of block rows count as one chunk more in a commit."""


def require_session(changes: ChangeSet, session_id: int) -> None:
    """Check that the session is open, and keep it so until this commit is decided. Raises ``Conflict``."""
    key = session_key(session_id)
    present = changes.is_present(key)
    changes.table_keys.append(key)
    if not present:
        raise Conflict(f"session {session_id:x}", expected="open", found="ended, or never opened")


def chunks_of_session(chunks: Sequence[SessionChunk]) -> list[NewChunk]:
    """The same with the places of their borders."""
    found = []
    for item in chunks:
        inside = borders_inside(item.length) if item.border_crcs else ()
        found.append(NewChunk(item.id, Borders([0, *inside, item.length], [0, *item.border_crcs, item.crc32c])))
    return found


@contextmanager
def existence_checked(container: OwnedContainer, ids: Iterable[bytes]) -> Iterator[ExistenceCheck]:
    """Look at chunks in the storage, without a lock, for a commit that is planned and entered inside.

    Each step of the look has ``op_deadline_s``. Raises ``Closed``, ``NotOwner``, and what the storage raises.

    Why that still holds when the commit is planned: what a chunk's object can be deleted by is a sweep, which leaves alone what an open
    session has written, and whether it is open is asked then; and a collection, which says so here before it deletes, and drops rows
    after that. A collection that had said so before this look was there either had dropped the row, then the object was gone when it
    was looked at; or the row was there, and what has a row is not looked at.
    """
    look = ExistenceCheck(dict.fromkeys(ids))
    if not look.lengths:
        yield look
        return
    container.check_owner()
    container.looks.append(look)
    try:

        def without_rows(view: MetadataView) -> list[bytes]:
            return [identity for identity in look.lengths if view.get(chunk_key(identity)) is None]

        found = container.look(without_rows)
        step = container.settings.tuning.io_workers * 4
        for begin in range(0, len(found), step):
            container.check_open()  # close does not wait for all of them
            some = found[begin : begin + step]
            with container.bounded(container.deadline()):
                lengths = container.pool.run_all([partial(_stored_length, container, identity) for identity in some])
            look.lengths.update(zip(some, lengths, strict=True))
        yield look
    finally:
        container.looks.remove(look)


@contextmanager
def deleted_unless_committed(container: OwnedContainer, ids: Collection[bytes]) -> Iterator[None]:
    """Write the chunks ``ids`` and commit them inside. They are deleted where their commit certainly did not happen, and after
    ``OutcomeUnknown`` never."""
    try:
        yield
    except (OutcomeUnknown, NotOwner, Closed):
        raise  # a commit may name them, or a newer owner decides that: the sweep finds them
    except ChunkstoreError:
        for identity in ids:
            with suppress(ChunkstoreError), container.bounded(container.deadline()):
                container.storage.delete(container.names.chunk(identity))
        raise


def require_fresh(look: ExistenceCheck, changes: ChangeSet, chunks: Sequence[NewChunk], *, shared: bool) -> None:
    """Check that no chunk is in the metadata, and that the storage had every one in its length when it was looked at: one without a row
    may have been taken in, removed and collected before, and its object was deleted before its row.

    ``shared``: others than the holder of the segment's lock may take them in. Raises ``InvalidArgument``, ``Undecided``.
    """
    for position, item in enumerate(chunks):
        key = chunk_key(item.id)
        known = changes.settled(key) if shared else changes.view.get(key)
        if known is not None or key in changes.rows:
            raise InvalidArgument(f"chunk {position} is attached already", argument="chunks")
    for position, item in enumerate(chunks):
        length = look.lengths[item.id]
        if length is None or item.id in look.collected:
            raise InvalidArgument(
                f"chunk {position} is not in the storage: it was never written here, or was attached, removed and collected",
                argument="chunks",
            )
        if length != item.borders.at[-1]:
            what = f"chunk {position} has {length} bytes in the storage, not {item.borders.at[-1]}"
            raise InvalidArgument(what, argument="chunks")


def _stored_length(container: OwnedContainer, identity: bytes) -> int | None:
    try:
        return container.storage.stat(container.names.chunk(identity)).length
    except ChunkNotFound:
        return None


def link_chunks(
    changes: ChangeSet, segment_id: int, chunks: Sequence[NewChunk], offset: int, before: bytes, after: bytes
) -> tuple[tuple[int, bytes], ...]:
    """Plan the rows of ``chunks`` from ``offset`` on, between the chunks ``before`` and ``after``, whose rows are the caller's matter.

    Returns the offset and id of each. Raises ``InvalidArgument`` where they are too many for one commit.
    """
    added: list[tuple[int, bytes]] = []
    following = [*(item.id for item in chunks[1:]), after]
    for (identity, borders), follower in zip(chunks, following, strict=True):
        length = borders.at[-1]
        changes.rows[chunk_key(identity)] = ChunkRecord(
            "",
            0,
            length,
            borders.crcs[-1],
            before,
            follower,
            segment_id,
            changes.owned.epoch,
            CLOSED,
            KIND_OBJECT,
            changes.now_ms,
        )
        rows = border_rows(identity, borders)
        changes.rows.update(rows)
        changes.count_chunks(1 + sum(len(key) + len(row.value) for key, row in rows.items()) // _BYTES_LIKE_A_CHUNK)
        added.append((offset, identity))
        before, offset = identity, offset + length
    return tuple(added)


def hang_chunks(changes: ChangeSet, segment: SegmentRecord, chunks: Sequence[NewChunk], code: OpCode) -> None:
    """Plan ``chunks``, of which there is one at least, after a segment. Raises as ``link_chunks``, and ``Damaged``."""
    added = link_chunks(changes, segment.id, chunks, segment.length, segment.last_chunk, NO_CHUNK)
    if segment.last_chunk:
        last = changes.chunk(segment.last_chunk)
        changes.rows[chunk_key(segment.last_chunk)] = last._replace(next=chunks[0].id, state=CLOSED)
    length = sum(item.borders.at[-1] for item in chunks)
    changes.rows[segment_key(segment.name)] = segment._replace(
        length=segment.length + length,
        first_chunk=segment.first_chunk or chunks[0].id,
        last_chunk=chunks[-1].id,
        last_chunk_offset=added[-1][0],
        chunk_count=segment.chunk_count + len(chunks),
        owner_epoch=changes.owned.epoch,
        modified_ms=changes.now_ms,
    )
    changes.headers.append((int(code), segment.id, segment.length, length, added))
    changes.restructure(segment.id)
