"""Creating, sealing and deleting a segment, and its attributes.

Promises: which name is free is the change set's answer. The tail chunk is closed with a sealed segment, and after an unseal bytes go to
a new chunk. The name of a deleted segment is free at once, its chunk list goes to garbage as one range. Attributes are bounded plain
values, changed on conditions.
"""

from __future__ import annotations

from collections.abc import Mapping

from chunkstore.changes.sessions import staged_session
from chunkstore.config import RollingPolicy
from chunkstore.errors import BadOffset, Conflict, SegmentExists, SegmentNotSealed, SegmentSealed, SegmentTruncated
from chunkstore.journal import OpCode
from chunkstore.metadata.keys import chunk_key, segment_key
from chunkstore.operations.backlog import Arrival
from chunkstore.operations.change_set import ChangeSet
from chunkstore.records.arguments import check_attributes
from chunkstore.records.names import NO_CHUNK
from chunkstore.records.segments import ACTIVE, CLOSED, FLAG_SEALED, AttributeValue, SegmentRecord

__all__ = ["plan_attributes", "plan_concat", "plan_create", "plan_delete", "plan_seal", "plan_truncate", "plan_unseal"]


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
        changes.require_session(session_id)
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
    changes.counts.append(Arrival(target_name, source=source_name))
    changes.restructure(target.id)
    changes.restructure(source.id)


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


def plan_create(
    changes: ChangeSet,
    name: str,
    rolling: RollingPolicy,
    attributes: Mapping[str, AttributeValue],
    start_offset: int = 0,
) -> SegmentRecord:
    """Plan a new, empty segment with attributes that have been checked; from ``start_offset`` on it is one that was truncated at its end.

    Raises ``SegmentExists``."""
    if changes.find(name) is not None:
        raise SegmentExists(name)
    segment = SegmentRecord(
        name=name,
        id=changes.owned.new_id(),
        flags=0,
        start_offset=start_offset,
        length=start_offset,
        first_chunk=NO_CHUNK,
        last_chunk=NO_CHUNK,
        last_chunk_offset=start_offset,
        first_chunk_skip=0,
        chunk_size_bytes_max=rolling.chunk_size_bytes_max,
        owner_epoch=changes.owned.epoch,
        chunk_count=0,
        attributes=attributes,
        created_ms=changes.now_ms,
        modified_ms=changes.now_ms,
    )
    changes.put(segment)
    changes.headers.append((int(OpCode.CREATE), segment.id, name))
    if start_offset:
        changes.headers.append((int(OpCode.TRUNCATE), segment.id, start_offset))
    return segment


def plan_seal(changes: ChangeSet, name: str, identity: int | None = None) -> bool:
    """Plan to seal; returns whether anything changed."""
    segment = changes.segment(name, identity)
    if segment.sealed:
        return False
    if segment.last_chunk:
        last = changes.chunk(segment.last_chunk)
        if last.state == ACTIVE:
            changes.rows[chunk_key(segment.last_chunk)] = last._replace(state=CLOSED)
    changes.put(segment._replace(flags=segment.flags | FLAG_SEALED, modified_ms=changes.now_ms))
    changes.headers.append((int(OpCode.SEAL), segment.id))
    return True


def plan_unseal(changes: ChangeSet, name: str, identity: int | None = None) -> None:
    """Plan to make a sealed segment writable again. Raises ``SegmentNotSealed``."""
    segment = changes.segment(name, identity)
    if not segment.sealed:
        raise SegmentNotSealed(name, f"segment {name!r} is not sealed: there is nothing to undo")
    changes.put(segment._replace(flags=segment.flags & ~FLAG_SEALED, modified_ms=changes.now_ms))
    changes.headers.append((int(OpCode.UNSEAL), segment.id))


def plan_delete(changes: ChangeSet, name: str, identity: int | None = None) -> None:
    """Plan to remove a segment; its chunks become garbage."""
    segment = changes.segment(name, identity)
    changes.rows[segment_key(name)] = None
    if segment.chunk_count:
        size_bytes = segment.length - segment.start_offset + segment.first_chunk_skip
        first, last, count = segment.first_chunk, segment.last_chunk, segment.chunk_count
        changes.discard(first, last, count, size_bytes, ended_segment_id=segment.id)
    else:
        changes.end_segment(segment.id)
    changes.headers.append((int(OpCode.DELETE), segment.id))
    changes.restructure(segment.id)


def plan_attributes(
    changes: ChangeSet,
    name: str,
    updates: Mapping[str, AttributeValue | None],
    expected: Mapping[str, AttributeValue | None],
    identity: int | None = None,
) -> None:
    """Plan to set (or, with None, remove) attributes if every expected one has its value (None: absent). Raises ``Conflict``."""
    segment = changes.segment(name, identity)
    for key, value in expected.items():
        found = segment.attributes.get(key)
        if found != value or type(found) is not type(value):
            raise Conflict(f"attribute {key!r} of segment {name!r}", expected=value, found=found)
    merged: dict[str, AttributeValue] = dict(segment.attributes)
    for key, value in updates.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = value
    changes.put(segment._replace(attributes=check_attributes(merged, "changes"), modified_ms=changes.now_ms))
    changes.headers.append((int(OpCode.ATTRIBUTES), segment.id))
