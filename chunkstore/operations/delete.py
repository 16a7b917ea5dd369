"""Deleting a segment: its name is free at once, its chunk list goes to garbage as one range."""

from __future__ import annotations

from chunkstore.journal import OpCode
from chunkstore.metadata.keys import segment_key
from chunkstore.operations.change_set import ChangeSet

__all__ = ["plan_delete"]


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
