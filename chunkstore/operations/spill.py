"""Spilling: extents, which lie in the journal, become bytes of chunks (protocol 3.10).

Promises: bytes and their order stay: all that is written is compared with the CRCs of its extents, wherever it was read. A damaged one
stays where it is, and ends a run. A run of
extents is written behind a chunk that earlier spills of this epoch made, where the storage appends and it has room, else into a new one;
only the commit makes it theirs, and drops the extents' rows in the same step. A chunk whose growth did not succeed is never written again
(protocol A2). What happens to the segment meanwhile wins.
The journal's objects stay: a row of garbage without chunks names the oldest of them until nobody can hold a plan with it any more.
Leaves out: when, and which segments (``spiller``); deleting the journal's objects (``collect``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from chunkstore import runtime
from chunkstore.buffers import filled
from chunkstore.checksum import crc32c_of_bytes
from chunkstore.config import LIMITS
from chunkstore.errors import ChunkNotFound, ChunkstoreError, Closed, Conflict, Damaged, NotOwner, OutcomeUnknown
from chunkstore.journal import OpCode
from chunkstore.metadata.inline_index import inline_chunks
from chunkstore.metadata.keys import chunk_key
from chunkstore.metadata.port import MetadataView
from chunkstore.names import NO_CHUNK, ContainerNames, journal_position
from chunkstore.operations.append_plan import grow_chunk
from chunkstore.operations.change_set import ChangeSet
from chunkstore.operations.commit_changes import commit_changes
from chunkstore.operations.container import OwnedContainer
from chunkstore.operations.extents import Extent, in_runs, read_run
from chunkstore.operations.owned_epoch import OwnedEpoch, decode_found_chunk
from chunkstore.operations.pending import RowRecord
from chunkstore.operations.read import find_segment
from chunkstore.records import ACTIVE, CLOSED, KIND_INLINE, KIND_OBJECT, ChunkRecord, GarbageRecord
from chunkstore.storage import ChunkHandle

__all__ = ["Spilled", "spill"]


class Spilled(NamedTuple):
    """What one spill moved, and how many extents that were; or the extents that it found damaged, and then it moved nothing."""

    size_bytes: int
    extents: int
    damaged: Mapping[bytes, ChunkstoreError]


class _Run(NamedTuple):
    """Consecutive extents of a segment, its bytes ``[start, stop)``, and the chunk in front of them."""

    segment_id: int
    size_max: int
    start: int
    stop: int
    ids: list[bytes]
    records: list[ChunkRecord]
    extents: list[Extent]
    before: bytes
    front: ChunkRecord | None


class _Target(NamedTuple):
    """The chunk that takes the run: a new one (``offset`` 0), or the one in front of it."""

    identity: bytes
    offset: int
    chunk: ChunkRecord
    """As it shall be, but for its neighbours."""
    rows: dict[bytes, RowRecord]
    """Of its block borders."""


def spill(
    container: OwnedContainer,
    name: str,
    *,
    bytes_max: int,
    past: Collection[bytes] = (),
    instead: Callable[[int, int], bytes] | None = None,
    beside: bool = False,
) -> Spilled:
    """Make chunk bytes of a segment's oldest extents but those in ``past``, ``bytes_max`` of them at most; nothing where it has none.
    ``instead`` gives the bytes of a range of the segment whose extents cannot be read. ``beside``: nobody waits for it.

    Atomic, durable. Raises ``SegmentNotFound``, ``StorageFull`` (also where too little would be left for truncations and deletions),
    ``Damaged`` (what ``instead`` gave, or memory), ``Conflict`` (the segment has changed meanwhile), what the storage raises, and the
    errors of commits. Retry: safe.
    """
    run = container.look(partial(_find_run, container.names, name, bytes_max, past))
    if run is None:
        return Spilled(0, 0, {})
    container.space.leave_room(run.stop - run.start, beside=beside)
    owned = container.serving(container.deadline())
    try:
        data = _read(container, name, run)
    except (ChunkNotFound, Damaged) as error:
        if instead is not None:
            data = instead(run.start, run.stop)
        elif damaged := _damaged(container, name, run):
            return Spilled(0, 0, damaged)
        else:  # by now all of them can be read
            where = f"extents of segment {name!r} in [{run.start}, {run.stop})"
            raise Conflict(where, expected="bytes as recorded", found=error.message) from error
    target = _plan_target(owned, run, data)
    try:
        _write(container, owned, run.segment_id, target, data)
        commit_changes(container, (name,), partial(_plan, owned, name, run, target))
    except (OutcomeUnknown, NotOwner, Closed):
        raise  # it may be wanted, or somebody else may decide that: the sweep finds it
    except ChunkstoreError:
        if not target.offset:
            owned.spilled.discard(target.identity)
            with suppress(ChunkstoreError), container.bounded(container.deadline()):
                container.storage.delete(container.names.chunk(target.identity))
        raise
    if owned.appendable:
        owned.spillable[run.segment_id] = target.identity, target.chunk.length
        if not target.offset:
            owned.spilled.discard(run.before)  # it is closed
    container.tail.spilled(run.segment_id, run.stop)
    return Spilled(run.stop - run.start, len(run.ids), {})


def _damaged(container: OwnedContainer, name: str, run: _Run) -> dict[bytes, ChunkstoreError]:
    """Which extents of a run cannot be read, and why. Raises what the storage raises."""
    found: dict[bytes, ChunkstoreError] = {}
    for identity, record, extent in zip(run.ids, run.records, run.extents, strict=True):
        start, stop = extent[4], extent[4] + record.length
        alone = run._replace(start=start, stop=stop, ids=[identity], records=[record], extents=[extent])
        try:
            _read(container, name, alone)
        except Damaged as error:
            found[identity] = error
        except ChunkNotFound as error:
            found[identity] = Damaged("a record that holds extents is missing", object=error.chunk, segment=name)
    return found


def _find_run(
    names: ContainerNames, name: str, bytes_max: int, past: Collection[bytes], view: MetadataView
) -> _Run | None:
    segment = find_segment(view, name, None)
    found = next((item for item in inline_chunks(view, segment) if item[1] not in past), None)
    if found is None:
        return None
    offset, identity = start, _ = found
    ids: list[bytes] = []
    records: list[ChunkRecord] = []
    extents: list[Extent] = []
    bytes_max = min(bytes_max, segment.chunk_size_bytes_max)
    while identity and len(ids) < LIMITS.spill_extents_max:
        record = decode_found_chunk(names, identity, view.get(chunk_key(identity)))
        if record.kind != KIND_INLINE or identity in past or (ids and offset + record.length - start > bytes_max):
            break
        extents.append((*record[:3], record.crc32c or 0, offset))
        ids.append(identity)
        records.append(record)
        identity, offset = record.next, offset + record.length
    before = records[0].previous
    front = decode_found_chunk(names, before, view.get(chunk_key(before))) if before else None
    return _Run(segment.id, segment.chunk_size_bytes_max, start, offset, ids, records, extents, before, front)


def _read(container: OwnedContainer, name: str, run: _Run) -> bytes:
    size_bytes = run.stop - run.start
    held = container.tail.find(run.segment_id, run.start, size_bytes)
    if held is not None:
        return b"".join(held)

    def fill(target: memoryview) -> int:
        calls = [
            partial(read_run, container.storage, name, item, run.start, target, verify=True)
            for item in in_runs(container.names, run.extents, remote=container.remote)
        ]
        if container.remote:
            container.pool.run_all(calls)
        else:
            for call in calls:
                call()
        return size_bytes

    with container.bounded(container.deadline()):
        return filled(size_bytes, fill)


def _plan_target(owned: OwnedEpoch, run: _Run, data: bytes) -> _Target:
    """Raises ``Damaged`` where bytes do not have the CRC of their extent."""
    front = run.front
    if (
        front is not None
        and front.state == ACTIVE
        and owned.spillable.get(run.segment_id) == (run.before, front.length)
        and front.length + len(data) <= run.size_max
    ):
        identity, chunk = run.before, front
    else:
        identity = owned.new_chunk(run.segment_id)
        state = ACTIVE if owned.appendable else CLOSED
        chunk = ChunkRecord(
            "", 0, 0, 0, run.before, NO_CHUNK, run.segment_id, owned.epoch, state, KIND_OBJECT, runtime.now_ms()
        )
    for place, at, length, crc, offset in run.extents:
        # Wherever they come from, memory included.
        if crc32c_of_bytes(data[offset - run.start : offset - run.start + length]) != crc:
            where = owned.names.place(place)
            raise Damaged(
                "an extent does not have the CRC32C that was recorded", object=where, position=at, start=offset
            )
    rows: dict[bytes, RowRecord] = {}
    grown, _ = grow_chunk(owned, identity, chunk, b"", data, rows)
    del rows[chunk_key(identity)]
    return _Target(identity, chunk.length, grown, rows)


def _write(container: OwnedContainer, owned: OwnedEpoch, segment_id: int, target: _Target, data: bytes) -> None:
    name = container.names.chunk(target.identity)
    with container.bounded(container.deadline()):
        if target.offset:
            # Until this is committed nobody else who has planned the same, or an older length, may write.
            if owned.spillable.pop(segment_id, None) != (target.identity, target.offset):
                raise Conflict(
                    f"chunk {name}", expected=f"{target.offset} bytes, and nobody writes", found="another spill"
                )
            container.storage.write(ChunkHandle(name, True), target.offset, data)
        else:
            if owned.appendable:
                owned.spilled.add(target.identity)
            container.storage.create(name, data)


def _plan(owned: OwnedEpoch, name: str, run: _Run, target: _Target, changes: ChangeSet) -> None:
    """Raises ``Conflict`` where the epoch, the run or the chunk in front of it are not what was read."""
    segment = changes.segment(name, run.segment_id)
    same = changes.owned is owned and run.start >= segment.start_offset - segment.first_chunk_skip
    same = same and changes.chunk_at(segment, run.start) == (run.ids[0], run.start)
    records = [changes.chunk(identity) for identity in run.ids] if same else []
    same = same and all(new[:5] == old[:5] for new, old in zip(records, run.records, strict=True))
    same = same and all(record.next == following for record, following in zip(records, run.ids[1:], strict=False))
    if target.offset and same:
        same = changes.chunk(target.identity) == run.front
    if not same:
        where = f"extents of segment {name!r} in [{run.start}, {run.stop})"
        raise Conflict(where, expected="what was read", found="something else")
    after = records[-1].next
    following = changes.chunk(after) if after else None
    grows = owned.appendable and not segment.sealed and (following is None or following.kind == KIND_INLINE)
    chunk = target.chunk._replace(next=after, state=ACTIVE if grows else CLOSED)
    changes.rows.update(target.rows)
    changes.rows[chunk_key(target.identity)] = chunk
    if not target.offset and run.before:
        front = changes.chunk(run.before)
        changes.rows[chunk_key(run.before)] = front._replace(next=target.identity, state=CLOSED)
    if following is not None:
        changes.rows[chunk_key(after)] = following._replace(previous=target.identity)
    for identity in run.ids:
        changes.rows[chunk_key(identity)] = None
    is_last = run.ids[-1] == segment.last_chunk
    changes.put(
        segment._replace(
            first_chunk=target.identity if run.ids[0] == segment.first_chunk else segment.first_chunk,
            last_chunk=target.identity if is_last else segment.last_chunk,
            last_chunk_offset=run.start - target.offset if is_last else segment.last_chunk_offset,
            chunk_count=segment.chunk_count - len(run.ids) + (not target.offset),
        )
    )
    added = () if target.offset else ((run.start, target.identity),)
    changes.headers.append((int(OpCode.SPILL), segment.id, run.start, run.stop, added))
    oldest = min(journal_position(record) for record in run.records)
    changes.garbage.append(GarbageRecord(NO_CHUNK, NO_CHUNK, 0, 0, 0, 0, 0, oldest))
    changes.restructure(segment.id)
    if owned.appendable:
        changes.sync_names.append(owned.names.chunk(target.identity))
