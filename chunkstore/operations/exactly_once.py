"""Exactly-once appends: what each writer's last committed event was (protocol 3.5, "Retries by clients").

Row value (metadata FORMAT.md, namespace ``!writers``): version u8 = 1, event number u64be, offset u64be, length u64be.

Promises: the row commits in the same record as the append it describes, so both exist or neither; an event that is still
undecided is waited for before a repetition of it is answered; the next one goes behind it into the queue, and fails with it.
Leaves out: forgetting writers (rows go when their segment ends, through the collector).
"""

from __future__ import annotations

from struct import Struct

from chunkstore.errors import Damaged
from chunkstore.metadata.codec import decode_table
from chunkstore.metadata.keys import writer_key
from chunkstore.operations.owned_epoch import OwnedEpoch
from chunkstore.operations.pending import PendingOp, PendingSegment, Stale, Undecided
from chunkstore.records import SegmentRecord, TableRecord

__all__ = ["decode_writer_row", "known_event", "remember_event"]

_ROW = Struct(">BQQQ")
_VERSION = 1


def decode_writer_row(name: str, raw: bytes) -> tuple[int, int]:
    """Event number and offset of a writer row of segment ``name``. Raises ``Damaged``."""
    value = decode_table(f"writer row of {name}", raw).value
    if len(value) != _ROW.size or value[0] != _VERSION:
        raise Damaged("not a writer row of a known version", object=f"writer row of {name}")
    _, number, offset, _ = _ROW.unpack(value)
    return number, offset


def known_event(
    owned: OwnedEpoch, state: PendingSegment, segment: SegmentRecord, writer_id: bytes, event_number: int
) -> tuple[int, int] | None:
    """The writer's last event number and its offset; None for a new writer. ``event_number`` is what is about to be appended.

    Called with ``state.lock`` held. Raises ``Undecided`` (that event has to be decided first), ``Stale``, ``Damaged``.
    """
    pending = state.writers.get(writer_id)
    if pending is None:
        raw = owned.store.get(writer_key(segment.id, writer_id))
        return None if raw is None else decode_writer_row(state.name, raw)
    number, offset, op = pending
    if not op.decided and event_number <= number:
        raise Undecided(op)
    if op.error is not None:
        # Its batch failed a moment ago, and this state with it.
        raise Stale
    return number, offset


def remember_event(
    state: PendingSegment, op: PendingOp, segment: SegmentRecord, writer_id: bytes, event_number: int, length: int
) -> None:
    """Add the writer's row to the operation that appends ``length`` bytes at ``segment.length``."""
    value = _ROW.pack(_VERSION, event_number, segment.length, length)
    op.rows[writer_key(segment.id, writer_id)] = TableRecord(0, value)
    state.writers[writer_id] = (event_number, segment.length, op)
