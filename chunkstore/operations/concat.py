"""Concatenating: a sealed segment's chunks are spliced after another one's, in O(1) journal bytes: two changed chunk rows."""

from __future__ import annotations

from functools import partial

from chunkstore.errors import BadOffset, SegmentNotSealed, SegmentSealed, SegmentTruncated
from chunkstore.journal import OpCode
from chunkstore.metadata.keys import chunk_key, segment_key
from chunkstore.operations.change_set import ChangeSet
from chunkstore.operations.written_chunks import require_session
from chunkstore.records.segments import CLOSED
from chunkstore.sessions import staged_session

__all__ = ["plan_concat"]


def plan_concat(
    changes: ChangeSet,
    target_name: str,
    offset: int | None,
    source_name: str,
    identity: int | None = None,
    source_id: int | None = None,
) -> None:
    """Plan to splice a sealed source after the target; the source ceases to exist.

    Raises ``SegmentSealed`` (target), ``SegmentNotSealed`` (source), ``SegmentTruncated`` (source), ``BadOffset``; of a staged source also
    ``Conflict`` (its session has ended), ``Undecided``.
    That they are two segments has been checked (``check_not_itself``).
    """
    target = changes.segment(target_name, identity)
    if target.sealed:
        raise SegmentSealed(target_name)
    session_id = staged_session(source_name)
    if session_id is not None:
        require_session(changes, session_id)
    source = changes.segment(source_name, source_id)
    if not source.sealed:
        raise SegmentNotSealed(source_name)
    if source.start_offset:
        raise SegmentTruncated(source_name, start_offset=source.start_offset, offset=0)
    if offset is not None and offset != target.length:
        raise BadOffset(target_name, expected=target.length, given=offset)
    after = target._replace(modified_ms=changes.now_ms)
    if source.chunk_count:
        if target.last_chunk:
            last = changes.chunk(target.last_chunk)
            changes.rows[chunk_key(target.last_chunk)] = last._replace(next=source.first_chunk, state=CLOSED)
            first = changes.chunk(source.first_chunk)
            changes.rows[chunk_key(source.first_chunk)] = first._replace(previous=target.last_chunk)
        after = after._replace(
            length=target.length + source.length,
            first_chunk=target.first_chunk or source.first_chunk,
            last_chunk=source.last_chunk,
            last_chunk_offset=target.length + source.last_chunk_offset,
            chunk_count=target.chunk_count + source.chunk_count,
            owner_epoch=changes.owned.epoch,
        )
    changes.put(after)
    changes.rows[segment_key(source_name)] = None
    changes.end_segment(source.id)
    changes.headers.append((int(OpCode.CONCAT), target.id, target.length, source.id))
    changes.counts.append(partial(changes.owned.backlog.moved, source_name, target_name))
    changes.restructure(target.id)
    changes.restructure(source.id)
