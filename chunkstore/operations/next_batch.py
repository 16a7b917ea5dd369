"""Which of the queued operations are committed together, in one record (protocol 3.7).

Promises: the order in which they entered stays, for each segment; a note has a record of its own; an operation with more than a batch's
worth goes alone; what is in one extent is in one record. Leaves out: the queue (``commit_queue``).
"""

from __future__ import annotations

from collections.abc import Sequence

from chunkstore.config import LIMITS
from chunkstore.journal import RecordKind
from chunkstore.operations.pending import PendingOp, PendingSegment

__all__ = ["next_batch"]


def next_batch(queue: Sequence[PendingOp]) -> list[PendingOp]:
    """The next batch of what is queued; nothing where all of it is held up."""
    batch, size_bytes = list[PendingOp](), 0
    held_up: set[PendingSegment] = set()
    for number, op in enumerate(queue):
        if not op.written or (held_up and not held_up.isdisjoint(op.segments)):
            held_up.update(op.segments)
            continue
        size_bytes += op.size_bytes_estimate()
        note = op.kind is not RecordKind.OPS
        if batch and (note or size_bytes > LIMITS.batch_bytes_max or len(batch) == LIMITS.batch_ops_max):
            chosen = set(batch)
            for later in queue[number:]:
                if later.extends in chosen:
                    chosen.add(later)
                    batch.append(later)
            break
        batch.append(op)
        if note:
            break
    return batch
