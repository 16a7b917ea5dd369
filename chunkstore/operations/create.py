"""Creating a segment; which name is free is the change set's answer."""

from __future__ import annotations

from collections.abc import Mapping

from chunkstore.config import RollingPolicy
from chunkstore.errors import SegmentExists
from chunkstore.journal import OpCode
from chunkstore.names import NO_CHUNK
from chunkstore.operations.change_set import ChangeSet
from chunkstore.records import AttributeValue, SegmentRecord

__all__ = ["plan_create"]


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
