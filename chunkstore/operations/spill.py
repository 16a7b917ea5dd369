"""A spill is a merge whose source is the journal: extents become bytes of chunks (protocol 3.10).

No byte and no order changes: each extent is compared with its CRC, wherever its bytes were read. A damaged one stays and ends a run.
Where the storage appends, a run is added to the chunk in front of it, if an earlier spill of this epoch made that and it has room. Else
it becomes a new chunk. The commit drops the extents' rows in the same step. A chunk whose growth failed is never written again
(protocol A2). Other changes of the segment win.
The journal's objects stay: a row of garbage without chunks names the oldest of them until no reader can hold a plan with it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import NamedTuple

from chunkstore.checksum import crc32c_of_bytes
from chunkstore.config import LIMITS
from chunkstore.copy_ranges import write_chunk
from chunkstore.errors import ChunkNotFound, ChunkstoreError, Conflict, Damaged
from chunkstore.journal import OpCode
from chunkstore.metadata.inline_index import inline_chunks
from chunkstore.metadata.keys import chunk_key
from chunkstore.metadata.port import MetadataView
from chunkstore.operations.append_plan import grow_chunk
from chunkstore.operations.change_set import ChangeSet
from chunkstore.operations.commit_changes import commit_changes
from chunkstore.operations.container import OwnedContainer
from chunkstore.operations.extents import Extent, in_runs, read_run
from chunkstore.operations.owned_epoch import OwnedEpoch, decode_found_chunk
from chunkstore.operations.read import find_segment
from chunkstore.operations.replace import find_run, relink
from chunkstore.operations.written_chunks import deleted_unless_committed
from chunkstore.records.blocks import ChunkSum
from chunkstore.records.chunks import filled
from chunkstore.records.names import NO_CHUNK, ContainerNames, journal_position
from chunkstore.records.segments import ACTIVE, CLOSED, KIND_INLINE, KIND_OBJECT, ChunkRecord, GarbageRecord

__all__ = ["Spilled", "spill"]


class Spilled(NamedTuple):
    """What one spill moved: bytes and extents; or the extents that it found damaged, and then it moved nothing."""

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
    extents: list[Extent]
    before: bytes
    front: ChunkRecord | None


def spill(
    container: OwnedContainer, name: str, *, bytes_max: int, past: Collection[bytes] = (), background: bool = False
) -> Spilled:
    """Make chunk bytes of a segment's oldest extents but those in ``past``, ``bytes_max`` of them at most; nothing where it has none.
    ``background``: no caller waits for it.

    Atomic, durable. Raises ``SegmentNotFound``, ``StorageFull`` (also where too little would be left for truncations and deletions),
    ``Conflict`` (the segment has changed meanwhile), what the storage raises, and the errors of commits. Retry: safe.
    """
    run = container.look(partial(_find_run, container.names, name, bytes_max, past))
    if run is None:
        return Spilled(0, 0, {})
    container.space.leave_room(run.stop - run.start, background=background)
    owned = container.serving(container.deadline())
    try:
        data = _read(container, name, run)
    except (ChunkNotFound, Damaged) as error:
        if damaged := _damaged(container, name, run):
            return Spilled(0, 0, damaged)
        # By now all of them can be read.
        raise _conflict(name, run) from error
    front = _front_to_grow(owned, run)
    identity = run.before if front is not None else owned.new_chunk(run.segment_id)
    with deleted_unless_committed(container, () if front is not None else (identity,)):
        total = _write(container, owned, run, front, identity, data)
        commit_changes(container, (name,), partial(_plan, owned, name, run, front, identity, total))
    if owned.appendable:
        owned.spillable[run.segment_id] = identity, total.length
        if front is None:
            owned.spilled.discard(run.before)  # it is closed
    container.tail.spilled(run.segment_id, run.stop)
    return Spilled(run.stop - run.start, len(run.ids), {})


def _damaged(container: OwnedContainer, name: str, run: _Run) -> dict[bytes, ChunkstoreError]:
    """Which extents of a run cannot be read, and why. Raises what the storage raises."""
    found: dict[bytes, ChunkstoreError] = {}
    for identity, extent in zip(run.ids, run.extents, strict=True):
        _, _, length, _, start = extent
        try:
            _read(container, name, run._replace(start=start, stop=start + length, ids=[identity], extents=[extent]))
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
    before, ids = NO_CHUNK, list[bytes]()
    extents: list[Extent] = []
    bytes_max = min(bytes_max, segment.chunk_size_bytes_max)
    while identity and len(ids) < LIMITS.spill_extents_max:
        record = decode_found_chunk(names, identity, view.get(chunk_key(identity)))
        if record.kind != KIND_INLINE or identity in past or (ids and offset + record.length - start > bytes_max):
            break
        before = before if ids else record.previous
        extents.append((*record[:3], record.crc32c or 0, offset))
        ids.append(identity)
        identity, offset = record.next, offset + record.length
    front = decode_found_chunk(names, before, view.get(chunk_key(before))) if before else None
    return _Run(segment.id, segment.chunk_size_bytes_max, start, offset, ids, extents, before, front)


def _read(container: OwnedContainer, name: str, run: _Run) -> bytes:
    """The bytes of a run, each extent compared with its CRC. Raises ``ChunkNotFound``, ``Damaged``, and what the storage raises."""
    size_bytes = run.stop - run.start
    held = container.tail.find(run.segment_id, run.start, size_bytes)
    if held is not None:
        data = b"".join(held)
        begins = (offset - run.start for *_, offset in run.extents)
        sound = (
            crc32c_of_bytes(data[begin : begin + length]) == crc
            for begin, (_, _, length, crc, _) in zip(begins, run.extents, strict=True)
        )
        if all(sound):
            return data

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

    with container.step():
        return filled(size_bytes, fill)


def _front_to_grow(owned: OwnedEpoch, run: _Run) -> ChunkRecord | None:
    """The chunk in front of a run, where the run's bytes may be added to it."""
    front = run.front
    if front is None or front.state != ACTIVE or front.length + run.stop - run.start > run.size_max:
        return None
    return front if owned.spillable.get(run.segment_id) == (run.before, front.length) else None


def _write(
    container: OwnedContainer, owned: OwnedEpoch, run: _Run, front: ChunkRecord | None, identity: bytes, data: bytes
) -> ChunkSum:
    name, before = container.names.chunk(identity), None
    if front is not None:
        # Until this is committed no other spill, which has planned the same or an older length, may write.
        if owned.spillable.pop(run.segment_id, None) != (identity, front.length):
            raise Conflict(f"chunk {name}", expected=f"{front.length} bytes, and no writer", found="another spill")
        before = front.length, front.crc32c or 0
    elif owned.appendable:
        owned.spilled.add(identity)
    return write_chunk(container.storage, name, (data,), before=before, bounded=container.step)


def _plan(
    owned: OwnedEpoch,
    name: str,
    run: _Run,
    front: ChunkRecord | None,
    identity: bytes,
    total: ChunkSum,
    changes: ChangeSet,
) -> None:
    """Raises ``Conflict`` where the epoch, the run or the chunk in front of it are not what was read."""
    segment = changes.segment(name, run.segment_id)
    found = find_run(changes, segment, run.start, run.stop, count_max=len(run.ids))
    same = changes.owned is owned and found.ids == run.ids
    before, after = found.records[0].previous, found.records[-1].next
    if not same or (front is not None and (before != identity or changes.chunk(identity) != front)):
        raise _conflict(name, run)
    chunk = front or ChunkRecord(
        "", 0, 0, 0, before, NO_CHUNK, run.segment_id, owned.epoch, ACTIVE, KIND_OBJECT, changes.now_ms
    )
    grown, _ = grow_chunk(owned, identity, chunk, b"", total, changes.rows)
    grows = owned.appendable and not segment.sealed and (not after or changes.chunk(after).kind == KIND_INLINE)
    changes.rows[chunk_key(identity)] = grown._replace(next=after, state=ACTIVE if grows else CLOSED)
    new = (run.start - chunk.length, identity)
    changes.put(relink(changes, segment, found, (new,), front is None))
    for extent in run.ids:
        changes.rows[chunk_key(extent)] = None
    added = () if front is not None else (new,)
    changes.headers.append((int(OpCode.SPILL), segment.id, run.start, run.stop, added))
    # Earlier readers may still read the journal.
    oldest = min(map(journal_position, found.records))
    changes.garbage.append(GarbageRecord(NO_CHUNK, NO_CHUNK, 0, 0, 0, 0, 0, oldest))
    changes.restructure(segment.id)


def _conflict(name: str, run: _Run) -> Conflict:
    where = f"extents of segment {name!r} in [{run.start}, {run.stop})"
    return Conflict(where, expected="what was read", found="something else")
