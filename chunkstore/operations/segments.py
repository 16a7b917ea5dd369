"""Creating, sealing and deleting a segment, and its attributes.

Promises: which name is free is the change set's answer. The tail chunk is closed with a sealed segment, and after an unseal bytes go to
a new chunk. The name of a deleted segment is free at once, its chunk list goes to garbage as one range. Attributes are bounded plain
values, changed on conditions.
"""

from __future__ import annotations

from collections.abc import Mapping

from chunkstore.config import RollingPolicy
from chunkstore.errors import Conflict, SegmentExists, SegmentNotSealed
from chunkstore.journal import OpCode
from chunkstore.metadata.keys import chunk_key, segment_key
from chunkstore.operations.change_set import ChangeSet
from chunkstore.records.arguments import check_attributes
from chunkstore.records.names import NO_CHUNK
from chunkstore.records.segments import ACTIVE, CLOSED, FLAG_SEALED, AttributeValue, SegmentRecord

__all__ = ["plan_attributes", "plan_create", "plan_delete", "plan_seal", "plan_unseal"]


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
