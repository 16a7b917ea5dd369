"""Exactly-once appends: what each writer's last committed event was (protocol 3.5, "Retries by clients").

Promises: the row commits in the same record as the append it describes, so both exist or neither; an event that is still
undecided is waited for before a repetition of it is answered; the next one goes behind it into the queue, and fails with it.
Leaves out: forgetting writers (rows go when their segment ends, through the collector).
"""

from __future__ import annotations

from chunkstore.checksum import BytesLike, crc32c
from chunkstore.errors import Conflict
from chunkstore.metadata.keys import writer_key
from chunkstore.metadata.lines import WriterEvent, decode_writer_row, encode_writer_row
from chunkstore.operations.owned_epoch import OwnedEpoch
from chunkstore.operations.pending import PendingOp, PendingSegment, Stale, Undecided
from chunkstore.records import SegmentRecord, TableRecord

__all__ = ["known_event", "remember_event", "require_same_event"]


def known_event(owned: OwnedEpoch, state: PendingSegment, writer_id: bytes, event_number: int) -> WriterEvent | None:
    """The writer's last event; None for a new writer. ``event_number`` is what is about to be appended.

    Called with ``state.lock`` held, its tip loaded. Raises ``Undecided`` (that event has to be decided first), ``Stale``, ``Damaged``.
    """
    pending = state.writers.get(writer_id)
    if pending is None:
        raw = owned.store.get(writer_key(state.segment_id, writer_id))
        return None if raw is None else decode_writer_row(state.name, raw)
    event, op = pending
    if not op.decided and event_number <= event.number:
        raise Undecided(op)
    if op.error is not None:
        # Its batch failed a moment ago, and this state with it.
        raise Stale
    return event


def require_same_event(name: str, event: WriterEvent, event_number: int, data: BytesLike) -> None:
    """Raise ``Conflict`` if event ``event_number`` of segment ``name`` had other bytes.

    Of lower numbers the row does not say it, nor of fewer bytes: these may be the last event of a batch (``writer``)."""
    if event_number < event.number or len(data) < event.length:
        return
    if (len(data), crc32c(data)) != (event.length, event.crc32c):
        what = f"event {event_number} of a writer of segment {name!r} is stored with other bytes; length and CRC32C"
        raise Conflict(
            what,
            expected=f"{event.length}, {event.crc32c:08x}",
            found=f"{len(data)}, {crc32c(data):08x}",
            remedy="number new events from last_event_number + 1 on, or use another writer_id",
        )


def remember_event(
    state: PendingSegment, op: PendingOp, segment: SegmentRecord, writer_id: bytes, event_number: int, data: BytesLike
) -> None:
    """Add the writer's row to the operation that appends ``data`` at ``segment.length``."""
    event = WriterEvent(event_number, segment.length, len(data), crc32c(data))
    op.rows[writer_key(segment.id, writer_id)] = TableRecord(0, encode_writer_row(event))
    state.writers[writer_id] = (event, op)
