"""Sessions at the owner (protocol A9): opening and ending them, and attaching the chunks they wrote to a segment.

Promises: a session is a committed record; attaching and ending are one record, so they are ordered by history, and an attach
that names an ended session is refused. Leaves out: expiry by itself (the owner ends a session; ``expires_ms`` is a label),
writing (``chunkstore.sessions``).
"""

from __future__ import annotations

from functools import partial

from chunkstore.blocks import borders_inside
from chunkstore.errors import ChunkNotFound, Conflict, InvalidArgument
from chunkstore.journal import OpCode
from chunkstore.metadata.blocks import add_borders
from chunkstore.metadata.keys import chunk_key, segment_key, session_key
from chunkstore.names import NO_CHUNK
from chunkstore.operations.change_set import ChangeSet
from chunkstore.operations.container import OwnedContainer
from chunkstore.records import CLOSED, KIND_OBJECT, ChunkRecord, SessionRecord
from chunkstore.sessions import SessionChunk

__all__ = ["plan_attach", "plan_end_session", "plan_open_session"]


def plan_open_session(changes: ChangeSet, holder: str, ttl_s: float) -> int:
    """Plan the record of a new session; returns its id."""
    session_id, now_ms = changes.owned.new_id(), changes.now_ms
    changes.rows[session_key(session_id)] = SessionRecord(holder, now_ms, now_ms + int(ttl_s * 1000))
    changes.headers.append((int(OpCode.SESSION_OPEN), session_id))
    return session_id


def _require_session(changes: ChangeSet, session_id: int) -> None:
    """Check that the session is open, and keep it so until this commit is decided. Raises ``Conflict``."""
    key = session_key(session_id)
    present = changes.is_present(key)
    changes.table_keys.append(key)
    if not present:
        raise Conflict(f"session {session_id:x}", expected="open", found="ended, or never opened")


def plan_end_session(changes: ChangeSet, session_id: int) -> None:
    """Plan the end of a session. Raises ``Conflict`` when it is not open."""
    _require_session(changes, session_id)
    changes.rows[session_key(session_id)] = None
    changes.headers.append((int(OpCode.SESSION_END), session_id))


def _require_stored(container: OwnedContainer, chunks: tuple[SessionChunk, ...]) -> None:
    """Check that every chunk is there in its length: one without a row may have been attached, removed and collected before,
    and its object was deleted before its row."""
    found = container.pool.run_all([partial(_stored_length, container, item) for item in chunks])
    for position, (item, length) in enumerate(zip(chunks, found, strict=True)):
        if length is None:
            raise InvalidArgument(
                f"chunk {position} is not in the storage: it was never written here, or was attached, removed and collected",
                argument="chunks",
            )
        if length != item.length:
            what = f"chunk {position} has {length} bytes in the storage, not {item.length}"
            raise InvalidArgument(what, argument="chunks")


def _stored_length(container: OwnedContainer, item: SessionChunk) -> int | None:
    try:
        return container.storage.stat(container.names.chunk(item.id)).length
    except ChunkNotFound:
        return None


def plan_attach(
    container: OwnedContainer,
    changes: ChangeSet,
    name: str,
    session_id: int,
    chunks: tuple[SessionChunk, ...],
    *,
    expected_offset: int | None,
    identity: int | None = None,
) -> int:
    """Plan appending chunks that a session wrote; returns their offset in the segment.

    Raises ``Conflict`` (session not open), ``SegmentSealed``, ``BadOffset``, ``InvalidArgument`` (a chunk is attached already, is
    not there, or has another length), and what the storage raises. ``check_session_chunks`` has seen them.
    """
    segment = changes.open_segment(name, expected_offset, identity)
    _require_session(changes, session_id)
    if not chunks:
        return segment.length
    added: list[tuple[int, bytes]] = []
    offset = segment.length
    for position, item in enumerate(chunks):
        key = chunk_key(item.id)
        if key in changes.rows or changes.settled(key) is not None:
            raise InvalidArgument(f"chunk {position} is attached already", argument="chunks")
    _require_stored(container, chunks)
    for position, item in enumerate(chunks):
        before = chunks[position - 1].id if position else segment.last_chunk
        after = chunks[position + 1].id if position + 1 < len(chunks) else NO_CHUNK
        changes.rows[chunk_key(item.id)] = ChunkRecord(
            "",
            0,
            item.length,
            item.crc32c,
            before,
            after,
            segment.id,
            changes.owned.epoch,
            CLOSED,
            KIND_OBJECT,
            changes.now_ms,
        )
        borders = zip(borders_inside(item.length), item.border_crcs, strict=bool(item.border_crcs))
        changes.rows.update(add_borders(item.id, b"", borders))
        added.append((offset, item.id))
        offset += item.length
    if segment.last_chunk:
        last = changes.chunk(segment.last_chunk)
        changes.rows[chunk_key(segment.last_chunk)] = last._replace(next=chunks[0].id, state=CLOSED)
    changes.rows[segment_key(name)] = segment._replace(
        length=offset,
        first_chunk=segment.first_chunk or chunks[0].id,
        last_chunk=chunks[-1].id,
        last_chunk_offset=offset - chunks[-1].length,
        chunk_count=segment.chunk_count + len(chunks),
        owner_epoch=changes.owned.epoch,
        modified_ms=changes.now_ms,
    )
    changes.headers.append((int(OpCode.ATTACH), segment.id, segment.length, offset - segment.length, tuple(added)))
    changes.restructure(segment.id)
    return segment.length
