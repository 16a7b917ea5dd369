"""Sealing and unsealing a segment: the tail chunk is closed with it, and after an unseal bytes go to a new chunk."""

from __future__ import annotations

from chunkstore.errors import SegmentNotSealed
from chunkstore.journal import OpCode
from chunkstore.metadata.keys import chunk_key
from chunkstore.operations.change_set import ChangeSet
from chunkstore.records import ACTIVE, CLOSED, FLAG_SEALED

__all__ = ["plan_seal", "plan_unseal"]


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
