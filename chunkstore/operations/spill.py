"""Spilling: a merge whose source is the journal. Extents become bytes of chunks (protocol 3.10), and the keeper's task that decides when.

Promises
* No byte and no order changes: each extent is compared with its CRC, wherever its bytes were read. A damaged one stays, ends a run, and
  holds up no other one. Other changes of the segment win.
* Where the storage appends, a run extends the chunk in front of it, if an earlier spill of this epoch made that and it has room; else it
  becomes a new chunk. The commit drops the extents' rows. A chunk whose growth failed is never written again (A2).
* The journal's objects stay: a garbage row without chunks names the oldest of them until no reader can hold a plan with it.
* No append waits for it. A segment is due when it has ``spill_bytes``, or has had any for ``spill_s``. The oldest go first while the
  container has more than ``inline_rows_max``, or nearly more than memory holds. Extents of earlier owners are looked up once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from chunkstore import runtime
from chunkstore.checksum import crc32c_of_bytes
from chunkstore.config import LIMITS, MIB
from chunkstore.errors import ChunkNotFound, ChunkstoreError, Conflict, Damaged, SegmentNotFound, StorageFull
from chunkstore.journal import OpCode
from chunkstore.metadata.codec import decode_segment
from chunkstore.metadata.keys import SEGMENT, chunk_key
from chunkstore.metadata.port import MetadataView
from chunkstore.metadata.retained import inline_chunks, inline_runs, runs_of, size_of_extents
from chunkstore.operations.append_plan import grow_chunk
from chunkstore.operations.attach import deleted_unless_committed
from chunkstore.operations.change_set import ChangeSet, commit_changes
from chunkstore.operations.container import OwnedContainer, unexpected
from chunkstore.operations.copy_ranges import write_chunk
from chunkstore.operations.maintenance import BackgroundJob
from chunkstore.operations.owned_epoch import BUSY, OwnedEpoch, decode_found_chunk
from chunkstore.operations.read import find_segment
from chunkstore.operations.read_slices import Extent, in_runs, read_run
from chunkstore.operations.replace import find_run, relink
from chunkstore.records.blocks import ChunkSum
from chunkstore.records.chunks import filled
from chunkstore.records.names import NO_CHUNK, ContainerNames, chunk_segment, journal_position
from chunkstore.records.segments import ACTIVE, CLOSED, KIND_INLINE, KIND_OBJECT, ChunkRecord, GarbageRecord

__all__ = ["Spilled", "Spiller", "spill"]

_BYTES: Final = 1 * MIB
_REMOTE_BYTES: Final = 8 * MIB
_AGE_S: Final = 60.0
_REMOTE_AGE_S: Final = 300.0
_EXTENT_BYTES: Final = 128
"""About what keeping one in memory takes, besides its bytes."""
_NO_MEMORY: Final = 1 << 62
_TRIES: Final = 5
_PAUSE_S: Final = 5.0
"""After an error, before the next try."""


class Spilled(NamedTuple):
    """What one spill moved: bytes and extents; or the extents that it found damaged, and then it moved nothing."""

    size_bytes: int
    extents: int
    damaged: Mapping[bytes, ChunkstoreError]


class _Run(NamedTuple):
    """Consecutive extents of segment ``name``, its bytes ``[start, stop)``, and the chunk in front of them."""

    name: str
    segment_id: int
    size_max: int
    start: int
    stop: int
    ids: list[bytes]
    extents: list[Extent]
    before: bytes
    front: ChunkRecord | None

    def conflict(self) -> Conflict:
        where = f"extents of segment {self.name!r} in [{self.start}, {self.stop})"
        return Conflict(where, expected="what was read", found="something else")


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
        data = _read(container, run)
    except (ChunkNotFound, Damaged) as error:
        if damaged := _damaged(container, run):
            return Spilled(0, 0, damaged)
        # By now all of them can be read.
        raise run.conflict() from error
    if not _may_grow(owned, run):
        run = run._replace(front=None)
    identity = owned.new_chunk(run.segment_id) if run.front is None else run.before
    with deleted_unless_committed(container, (identity,) if run.front is None else ()):
        total = _write(container, owned, run, identity, data)
        commit_changes(container, (name,), partial(_plan, owned, run, identity, total))
    if owned.appendable:
        owned.spilled[identity] = total.length
        if run.front is None:
            owned.spilled.pop(run.before, None)  # it is closed
    container.tail.spilled(run.segment_id, run.stop)
    return Spilled(run.stop - run.start, len(run.ids), {})


def _damaged(container: OwnedContainer, run: _Run) -> dict[bytes, ChunkstoreError]:
    """Which extents of a run cannot be read, and why. Raises what the storage raises."""
    found: dict[bytes, ChunkstoreError] = {}
    for identity, extent in zip(run.ids, run.extents, strict=True):
        _, _, length, _, start = extent
        try:
            _read(container, run._replace(start=start, stop=start + length, extents=[extent]))
        except Damaged as error:
            found[identity] = error
        except ChunkNotFound as error:
            found[identity] = Damaged("a record that holds extents is missing", object=error.chunk, segment=run.name)
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
    size_max = segment.chunk_size_bytes_max
    while identity and len(ids) < LIMITS.spill_extents_max:
        record = decode_found_chunk(names, identity, view.get(chunk_key(identity)))
        too_long = offset + record.length - start > min(bytes_max, size_max)
        if record.kind != KIND_INLINE or identity in past or (ids and too_long):
            break
        before = before if ids else record.previous
        extents.append((*record[:3], record.crc32c or 0, offset))
        ids.append(identity)
        identity, offset = record.next, offset + record.length
    front = decode_found_chunk(names, before, view.get(chunk_key(before))) if before else None
    return _Run(name, segment.id, size_max, start, offset, ids, extents, before, front)


def _read(container: OwnedContainer, run: _Run) -> bytes:
    """The bytes of a run, each extent compared with its CRC. Raises ``ChunkNotFound``, ``Damaged``, and what the storage raises."""
    size_bytes = run.stop - run.start
    held = container.tail.find(run.segment_id, run.start, size_bytes)
    if held is not None:
        data = b"".join(held)
        sound = (
            crc32c_of_bytes(data[offset - run.start : offset - run.start + length]) == crc
            for _, _, length, crc, offset in run.extents
        )
        if all(sound):
            return data

    def fill(target: memoryview) -> int:
        calls = [
            partial(read_run, container.storage, run.name, item, run.start, target, verify=True)
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


def _may_grow(owned: OwnedEpoch, run: _Run) -> bool:
    """Whether the run's bytes may be added to the chunk in front of it."""
    front = run.front
    return (
        front is not None
        and front.state == ACTIVE
        and front.length + run.stop - run.start <= run.size_max
        and chunk_segment(run.before) == run.segment_id
        and owned.spilled.get(run.before) == front.length
    )


def _write(container: OwnedContainer, owned: OwnedEpoch, run: _Run, identity: bytes, data: bytes) -> ChunkSum:
    name, before, front = container.names.chunk(identity), None, run.front
    if front is not None:
        # Until this is committed no other spill, which has planned the same or an older length, may write.
        if not owned.begin_growth(identity, front.length):
            raise Conflict(f"chunk {name}", expected=f"{front.length} bytes, and no writer", found="another spill")
        before = front.length, front.crc32c or 0
    elif owned.appendable:
        owned.spilled[identity] = BUSY
    return write_chunk(container.storage, name, (data,), before=before, bounded=container.step)


def _plan(owned: OwnedEpoch, run: _Run, identity: bytes, total: ChunkSum, changes: ChangeSet) -> None:
    """Raises ``Conflict`` where the epoch, the run or the chunk in front of it are not what was read."""
    segment = changes.segment(run.name, run.segment_id)
    found = find_run(changes, segment, run.start, run.stop, count_max=len(run.ids))
    before, after, front = found.records[0].previous, found.records[-1].next, run.front
    is_same = changes.owned is owned and found.ids == run.ids
    if not is_same or (front is not None and (before != identity or changes.chunk(identity) != front)):
        raise run.conflict()
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


class Spiller(BackgroundJob):
    """When to spill. One per container; the keeper calls ``tick``."""

    def __init__(self, container: OwnedContainer) -> None:
        super().__init__()
        tuning, remote = container.settings.tuning, container.remote
        self._container = container
        self._backlog = container.backlog
        self._bytes = tuning.spill_bytes if tuning.spill_bytes is not None else _REMOTE_BYTES if remote else _BYTES
        self._age_s = tuning.spill_s if tuning.spill_s is not None else _REMOTE_AGE_S if remote else _AGE_S
        if not container.inline_bytes:
            self._age_s = 0.0  # it was switched off: what is left goes at once
        self._rows_max = tuning.inline_rows_max
        self._memory_bytes = container.tail.room_bytes or _NO_MEMORY
        self._knows_all = False
        self._not_before_s = 0.0

    def tick(self, now_s: float) -> None:
        """Begin the task where something is due. Raises nothing of ours."""
        if now_s >= self._not_before_s and (not self._knows_all or self._due(now_s)):
            self.begin(self._run, "chunkstore-spiller")

    def spill_all(self, name: str, *, background: bool = False) -> None:
        """Spill all that a segment has now, in the caller's thread: what comes meanwhile may stay. Raises as ``spill``, and after all else
        ``Damaged`` for extents that stay where they are."""
        with self._container.upkeep.run("spill") as counts:
            mark, damaged = self._backlog.mark(name), dict[bytes, ChunkstoreError]()
            try:
                self._spill_found(name, counts, damaged, background=background)
            except SegmentNotFound:
                self._backlog.settle(name, mark)
                raise
            self._backlog.settle(name, mark)
            if damaged:
                self._backlog.came(name, 0, len(damaged))  # for the next try
                raise next(iter(damaged.values()))

    def _spill_found(
        self, name: str, counts: dict[str, int], damaged: dict[bytes, ChunkstoreError], *, background: bool
    ) -> None:
        tries, left = 0, self._container.look(partial(_count, name))
        while left > 0:
            try:
                done = spill(self._container, name, bytes_max=self._bytes, past=damaged, background=background)
            except Conflict:
                still = self._container.look(partial(_count, name))
                tries = tries + 1 if still >= left else 0  # another spill that succeeds leaves less
                if tries == _TRIES:
                    raise
                left = min(left, still)
                continue
            counts["chunks"] = counts.get("chunks", 0) + done.extents
            counts["moved_bytes"] = counts.get("moved_bytes", 0) + done.size_bytes
            damaged.update(done.damaged)
            found = done.extents + len(done.damaged)
            left = left - found if found else 0

    def spill_these(self, names: Sequence[str] = ()) -> None:
        """Spill all that these segments have (none: all that have any); those that are not there have nothing. Raises as ``spill_all``."""
        damages: list[Damaged] = []
        for name in names or [name for name, *_ in self._container.look(_waiting_extents)]:
            try:
                with suppress(SegmentNotFound):
                    self.spill_all(name)
            except Damaged as damage:
                damages.append(damage)
        if damages:
            raise damages[0]

    def make_way(self, needed_bytes: int) -> None:
        """On a full disk, for a collection: spill all that the journal holds of segments, so that it may go, where that and
        ``needed_bytes`` find room; a part would take room and give none back. Raises nothing of ours."""
        container = self._container
        with suppress(ChunkstoreError):
            if held := container.look(_waiting_extents):
                size_bytes = sum(size_bytes for _, size_bytes, _ in held)
                container.space.leave_room(size_bytes + needed_bytes, background=False)
                self.spill_these([name for name, *_ in held])

    def sealed(self, name: str) -> None:
        """Spill what a segment has that was just sealed. Raises nothing of ours: what fails is tried again, in the background."""
        if not self._knows_all or self._backlog.mark(name) is not None:
            with suppress(ChunkstoreError):
                self.spill_all(name)

    def _due(self, now_s: float) -> list[str]:
        """The segments that are due, those first whose extents are oldest."""
        held = self._backlog.held()
        over = self._backlog.extents - self._rows_max
        over_bytes = sum(item.size_bytes + item.extents * _EXTENT_BYTES for item in held.values()) - self._memory_bytes
        due: list[str] = []
        for name, item in sorted(held.items(), key=lambda pair: pair[1].since_s):
            if over > 0 or over_bytes > 0 or item.size_bytes >= self._bytes or now_s - item.since_s >= self._age_s:
                due.append(name)
                over -= item.extents
                over_bytes -= item.size_bytes + item.extents * _EXTENT_BYTES
        return due

    def _run(self) -> None:
        container = self._container
        try:
            if not self._knows_all:
                for name, size_bytes, extents in container.look(_waiting_extents):
                    self._backlog.came(name, size_bytes, extents)
                self._knows_all = True
            for name in self._due(runtime.monotonic_s()):
                if self.stopping.is_set() or container.closed or container.fence.error is not None:
                    return
                try:
                    with suppress(SegmentNotFound):
                        self.spill_all(name, background=True)
                except StorageFull as error:
                    if not container.space.disk_low:  # else safe mode has said so
                        self._failed(error)
                    self._not_before_s = runtime.monotonic_s() + _PAUSE_S
                    return
                except (Damaged, Conflict) as error:  # this segment's alone
                    self._failed(error)
        except Exception as error:  # noqa: BLE001  (a bug of a binding must not end it)
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        self._not_before_s = runtime.monotonic_s() + _PAUSE_S
        if not isinstance(error, ChunkstoreError) or not self._container.closed:
            self._container.observer.failed(unexpected(error))


def _count(name: str, view: MetadataView) -> int:
    """How many extents a segment has. Raises ``SegmentNotFound``, ``Damaged``."""
    return sum(1 for _ in inline_chunks(view, find_segment(view, name, None)))


def _waiting_extents(view: MetadataView) -> list[tuple[str, int, int]]:
    """The segments that have extents, with their bytes and number."""
    runs = set(inline_runs(view))
    if not runs:
        return []
    holding = runs_of(view, runs)
    found: list[tuple[str, int, int]] = []
    for key, raw in view.scan(SEGMENT, bytes((SEGMENT[0] + 1,))):
        segment = decode_segment(key[1:].decode("utf-8", "replace"), raw)
        if segment.id in holding:
            extents, size_bytes = size_of_extents(view, (identity for _, identity in inline_chunks(view, segment)))
            if extents:
                found.append((segment.name, size_bytes, extents))
    return found
