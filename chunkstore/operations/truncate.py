"""Truncating a segment at its head.

Promises: one changed chunk row, and what leaves the list goes to garbage as one range: O(1) journal bytes. Counting what is
dropped costs a scan of the offset index over exactly those chunks.
"""

from __future__ import annotations

from chunkstore.errors import BadOffset
from chunkstore.journal import OpCode
from chunkstore.metadata.keys import chunk_key
from chunkstore.operations.change_set import ChangeSet
from chunkstore.records.names import NO_CHUNK

__all__ = ["plan_truncate"]


def plan_truncate(changes: ChangeSet, name: str, offset: int, identity: int | None = None) -> bool:
    """Plan to move the start offset up; returns whether anything changed. Raises ``BadOffset`` beyond the length."""
    segment = changes.segment(name, identity)
    if offset > segment.length:
        raise BadOffset(name, expected=segment.length, given=offset)
    if offset <= segment.start_offset:
        return False
    first_offset = segment.start_offset - segment.first_chunk_skip
    if offset == segment.length:
        after = segment._replace(
            start_offset=offset,
            first_chunk=NO_CHUNK,
            last_chunk=NO_CHUNK,
            last_chunk_offset=offset,
            first_chunk_skip=0,
            chunk_count=0,
            modified_ms=changes.now_ms,
        )
        if segment.chunk_count:
            changes.discard(segment.first_chunk, segment.last_chunk, segment.chunk_count, offset - first_offset)
    else:
        identity_at, chunk_offset, dropped = changes.locate(segment, offset)
        after = segment._replace(
            start_offset=offset,
            first_chunk=identity_at,
            first_chunk_skip=offset - chunk_offset,
            chunk_count=segment.chunk_count - dropped,
            modified_ms=changes.now_ms,
        )
        if dropped:
            kept = changes.chunk(identity_at)
            changes.discard(segment.first_chunk, kept.previous, dropped, chunk_offset - first_offset)
            changes.rows[chunk_key(identity_at)] = kept._replace(previous=NO_CHUNK)
    changes.put(after)
    changes.headers.append((int(OpCode.TRUNCATE), segment.id, offset))
    changes.restructure(segment.id)
    return True
