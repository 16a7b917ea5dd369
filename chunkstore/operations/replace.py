"""Replacing a run of chunks by others that hold the same bytes (protocol 3.10): what a merge of small chunks commits.

Promises: only if the list still names the very chunks, which are closed and whose ids are never used again: so what was copied from
them is what the range says, whatever happened to the segment meanwhile. Five rows and one for each further new chunk (rows
of block borders apart), however long the run is. It leaves the list as one range of garbage, linked as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import zip_longest
from typing import NamedTuple

from chunkstore.changes import NewChunk, Replace
from chunkstore.changes.sessions import SessionChunk
from chunkstore.errors import Conflict
from chunkstore.journal import OpCode
from chunkstore.metadata.keys import chunk_key
from chunkstore.operations.attach import (
    chunks_of_session,
    existence_checked,
    link_chunks,
    require_fresh,
)
from chunkstore.operations.change_set import ChangeSet, commit_changes
from chunkstore.operations.container import OwnedContainer
from chunkstore.operations.pending import ExistenceCheck
from chunkstore.records.names import NO_CHUNK, chunk_epoch, chunk_segment
from chunkstore.records.segments import CLOSED, ChunkRecord, SegmentRecord

__all__ = ["Run", "exchange", "find_run", "plan_replace", "relink", "replace"]


def replace(container: OwnedContainer, change: Replace) -> None:
    """Commit a replacement, whose arguments have been checked (``check_changes``).

    Atomic, durable. Raises ``SegmentNotFound``, ``Conflict`` and ``InvalidArgument`` as ``plan_replace``, and the errors of commits. Retry
    after ``OutcomeUnknown``: safe (``Conflict`` if it had happened, or if another epoch has begun: then with new chunks).
    """
    adds = change.stop - change.start
    with existence_checked(container, (item.id for item in change.new)) as look:
        plan = partial(plan_replace, look, change=change)
        commit_changes(container, (change.name,), plan, tables=change.session_id is not None, adds=adds)


def plan_replace(look: ExistenceCheck, changes: ChangeSet, change: Replace) -> None:
    """Plan a replacement, whose new chunks ``look`` has seen.

    Raises ``SegmentNotFound``, ``Conflict`` (the list, the session or the epoch are not what the change says), ``InvalidArgument`` (a
    new chunk is in the metadata already, is not in the storage, or has another length), ``Undecided``.
    """
    segment = changes.segment(change.name)
    run = find_run(changes, segment, change.start, change.stop, count_max=len(change.old))
    for expected, found in zip_longest(change.old, run.ids, fillvalue=NO_CHUNK):
        if expected != found:
            raise _conflict(segment, change.start, change.stop, expected.hex() or "no chunk", found.hex() or "no chunk")
    new = _new_chunks(changes, segment, change)
    require_fresh(look, changes, new, shared=change.session_id is not None)
    if change.session_id is None and changes.owned.appendable:
        # What merges and repairs write is durable by now, which a second sync finds at once; what other callers write may not be.
        changes.sync_names += [changes.owned.names.chunk(item.id) for item in new]
    exchange(changes, segment, run, new)


class Run(NamedTuple):
    """Whole, closed chunks of a segment: its bytes ``[start, stop)``. Those of the first chunk from offset ``begin`` on are dead."""

    start: int
    stop: int
    begin: int
    ids: list[bytes]
    records: list[ChunkRecord]


def find_run(changes: ChangeSet, segment: SegmentRecord, start: int, stop: int, *, count_max: int) -> Run:
    """The chunks that hold ``[start, stop)`` of a segment, and nothing else that is readable. Raises ``Conflict``; where they are more
    than ``count_max``, too."""
    first_offset = segment.start_offset - segment.first_chunk_skip
    if not first_offset <= start < stop <= segment.length:
        raise _conflict(segment, start, stop, (start, stop), (first_offset, segment.length))
    identity, begin = changes.chunk_at(segment, start)
    if start != begin and start > segment.start_offset:
        raise _conflict(segment, start, stop, start, begin)
    run = Run(start, stop, begin, [], [])
    offset = begin
    while offset < stop and identity and len(run.ids) < count_max:
        record = changes.chunk(identity)
        if record.state != CLOSED and record.epoch == changes.owned.epoch:
            raise _conflict(segment, start, stop, "closed chunks", f"{identity.hex()} is active")
        run.ids.append(identity)
        run.records.append(record)
        offset += record.length
        identity = record.next
    if offset != stop:
        raise _conflict(segment, start, stop, stop, offset)
    return run


def exchange(changes: ChangeSet, segment: SegmentRecord, run: Run, new: Sequence[NewChunk]) -> None:
    """Plan ``new``, which have as many bytes, in the place of ``run``. Raises ``Conflict``, ``InvalidArgument`` (too many chunks)."""
    skip = segment.first_chunk_skip
    if run.ids[0] == segment.first_chunk:
        skip = segment.start_offset - run.start
        if skip >= new[0].borders.at[-1]:
            expected = "a start offset in the first new chunk"
            raise _conflict(segment, run.start, run.stop, expected, segment.start_offset)
    added = link_chunks(changes, segment.id, new, run.start, run.records[0].previous, run.records[-1].next)
    after = relink(changes, segment, run, added, len(new))
    changes.put(after._replace(first_chunk_skip=skip, modified_ms=changes.now_ms))
    changes.discard(run.ids[0], run.ids[-1], len(run.ids), run.stop - run.begin)
    changes.headers.append((int(OpCode.REPLACE), segment.id, run.start, run.stop, added))
    changes.restructure(segment.id)


def relink(
    changes: ChangeSet, segment: SegmentRecord, run: Run, new: Sequence[tuple[int, bytes]], count: int
) -> SegmentRecord:
    """Have the list lead to ``new``, offsets and chunks, instead of ``run``; ``count`` chunks more. Plans the neighbours' rows.
    Returns the segment's."""
    (_, first), (last_offset, last) = new[0], new[-1]
    is_first, is_last = run.ids[0] == segment.first_chunk, run.ids[-1] == segment.last_chunk
    before, after = run.records[0].previous, run.records[-1].next
    if not is_first and before != first:
        changes.rows[chunk_key(before)] = changes.chunk(before)._replace(next=first, state=CLOSED)
    if not is_last:
        changes.rows[chunk_key(after)] = changes.chunk(after)._replace(previous=last)
    return segment._replace(
        first_chunk=first if is_first else segment.first_chunk,
        last_chunk=last if is_last else segment.last_chunk,
        last_chunk_offset=last_offset if is_last else segment.last_chunk_offset,
        chunk_count=segment.chunk_count - len(run.ids) + count,
    )


def _new_chunks(changes: ChangeSet, segment: SegmentRecord, change: Replace) -> Sequence[NewChunk]:
    """The new chunks, which this epoch may commit. Raises ``Conflict``."""
    if change.session_id is not None:
        changes.require_session(change.session_id)
        return chunks_of_session([item for item in change.new if isinstance(item, SessionChunk)])
    new = [item for item in change.new if isinstance(item, NewChunk)]
    for identity, _ in new:
        # An earlier epoch's writes may still land, and what it left is swept.
        expected, found = (segment.id, changes.owned.epoch), (chunk_segment(identity), chunk_epoch(identity))
        if found != expected:
            what = f"chunks of segment and epoch {expected}"
            raise _conflict(segment, change.start, change.stop, what, found)
    return new


def _conflict(segment: SegmentRecord, start: int, stop: int, expected: object, found: object) -> Conflict:
    where = f"chunks of segment {segment.name!r} in [{start}, {stop})"
    return Conflict(where, expected=expected, found=found)
