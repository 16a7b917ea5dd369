"""Short appends as lines of the next record: from the arguments to the acknowledgement (protocol 3.7; docs/architecture.md, "One append").

Promises
* Nothing is written before the record, so nothing can be left half written; lines of one segment are committed in the order they enter.
* ``append_line`` does all of an append where nothing has to be looked up, waited for or refused; else it does nothing, and ``append``
  goes the general way, which enters lines by ``enter_line``, too.
* Exactly once (protocol 3.5): the row of a writer's last event commits in the same record as the append it describes. An undecided event
  is waited for before a repetition of it is answered; the next one goes after it into the queue, and fails with it.
* What a line changes is derived when it is needed (``metadata.lines``); the segment's *tip* is all that the next line has to know.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from chunkstore import runtime
from chunkstore.checksum import BytesLike, crc32c, crc32c_of_bytes
from chunkstore.deadline import Deadline
from chunkstore.errors import Conflict
from chunkstore.metadata.keys import writer_key
from chunkstore.metadata.lines import WriterEvent, decode_writer_row, encode_writer_row
from chunkstore.operations.commit_queue import CommitQueue
from chunkstore.operations.container import SPACE_CHECK_S, OwnedContainer
from chunkstore.operations.owned_epoch import OwnedEpoch
from chunkstore.operations.pending import (
    NOT_LOADED,
    Pending,
    PendingLine,
    PendingOp,
    PendingSegment,
    Stale,
    Undecided,
    Waiter,
)
from chunkstore.records.blocks import BLOCK_BYTES
from chunkstore.records.segments import FLAG_SEALED, KIND_INLINE, SegmentRecord, TableRecord

__all__ = [
    "OFFSET_MAX",
    "AppendRequest",
    "append_line",
    "enter_line",
    "known_event",
    "load_tip",
    "remember_event",
    "require_same_event",
]

OFFSET_MAX: Final = (1 << 63) - 1
_NAME_BYTES_MAX: Final = 255
"""What a line has room for."""


class AppendRequest(NamedTuple):
    """What a caller asked for. ``identity``: of the segment, None: of any; ``writer_id`` and ``event_number``: of an append that happens
    once."""

    name: str
    identity: int | None
    data: BytesLike
    expected_offset: int | None
    writer_id: bytes | None
    event_number: int
    deadline: Deadline


def load_tip(container: OwnedContainer, owned: OwnedEpoch, state: PendingSegment) -> None:
    """With the lock held: what the next line has to know. Raises as ``OwnedEpoch.load``."""
    if state.generation != owned.queue.generation:
        owned.load(state)
    segment, tail = state.segment, state.tail
    state.segment_id = 0
    if segment is not None:
        following = tail is not None and tail.record.kind == KIND_INLINE
        fits = len(state.encoded) <= _NAME_BYTES_MAX
        longest = container.inline_bytes_after if following else container.inline_bytes
        state.segment_id, state.length = segment.id, segment.length
        state.sealed = bool(segment.flags & FLAG_SEALED)
        state.line_bytes_max = min(longest, segment.chunk_size_bytes_max) if fits else 0
        state.extent_bytes_max = min(BLOCK_BYTES, segment.chunk_size_bytes_max)
    state.tip_generation = state.generation


def enter_line(
    container: OwnedContainer, queue: CommitQueue, state: PendingSegment, request: AppendRequest, *, leads: bool
) -> tuple[PendingLine, Sequence[Pending] | Waiter | None]:
    """With the lock held and the tip loaded: put an admitted append into the queue; with ``leads`` as ``CommitQueue.enter_line``."""
    data, writer_id, event_number = request.data, request.writer_id, request.event_number
    if type(data) is not bytes:
        data = bytes(data)
    offset, length, event = state.length, len(data), None
    if writer_id is not None:
        event = writer_id, event_number, crc32c_of_bytes(data)
    op = PendingLine(state, state.segment_id, offset, data, event, state.tip_generation)
    entered = None
    if leads:
        entered = queue.enter_line(op)
    else:
        queue.enter(op)
    if event is not None:
        state.writers[event[0]] = WriterEvent(event_number, offset, length, event[2]), op
    state.length = offset + length
    # The records of segment and tail follow from the committed lines, if anything else wants them.
    state.generation = NOT_LOADED
    state.line_bytes_max = min(container.inline_bytes_after, state.extent_bytes_max)
    return op, entered


def append_line(container: OwnedContainer, request: AppendRequest) -> tuple[OwnedEpoch, PendingLine] | None:
    """Enter an append, and commit it or wait; it is decided, or the deadline has passed. None: nothing was entered."""
    name, identity, data, expected_offset, writer_id, event_number, deadline = request
    owned = container.current
    queue = owned.queue
    state = owned.segments.by_name.get(name)
    if (
        state is None
        or state.tip_generation != queue.generation
        or container.closed
        or container.fence.error is not None
        or container.space.watchful
        or deadline.end_s - container.space_checked_s > SPACE_CHECK_S
    ):
        return None
    with runtime.defer_interrupt():
        # Only where no one has to be waited for: waiting has a deadline, on the general way.
        if not state.turn.acquire(False):
            return None
        held = state.lock.acquire(False)
        state.turn.release()
        if not held:
            return None
        try:
            if (
                container.draining
                or owned.segments.by_name.get(name) is not state
                or state.tip_generation != queue.generation
                or state.sealed
                or not 0 < len(data) <= OFFSET_MAX - state.length
                or not container.backlog.takes(data, state.line_bytes_max)
                or (identity is not None and identity != state.segment_id)
                or not state.segment_id
                or (expected_offset is not None and expected_offset != state.length)
            ):
                return None
            if writer_id is not None:
                known = state.writers.get(writer_id)
                if known is None or known[0].number >= event_number or known[1].error is not None:
                    return None
            op, entered = enter_line(container, queue, state, request, leads=True)
        except Stale:
            return None
        finally:
            state.lock.release()
        if type(entered) is tuple:
            queue.lead(op, entered)
    if isinstance(entered, Waiter):
        queue.wait_decided(op, deadline, entered)
    return owned, op


# Exactly once


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
