"""Collecting: deleting what committed removals have made garbage (protocol 3.14.1, 2), then journal and snapshots.

Promises
* A chunk is deleted only after a committed removal and a grace period on our own monotonic clock. Objects go first, then their rows, so a
  crash in between only repeats deletions. One record forgets at most 5,000 chunks and rows of their block borders.
* What was removed after the position of a pin stays while the pin does (3.14.7); a collection ends the pins that have expired.
* A row that is refused (``names.confined``) or cannot be read stops nothing: it stays, in a range of its own, with the object it means.
  Beyond one that cannot be read only the way from the range's other end leads; what is between two such rows stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice, takewhile
from typing import Final, Literal, NamedTuple, TypeAlias

from chunkstore.config import LIMITS
from chunkstore.errors import CacheDamaged, ChunkNotFound, Damaged, InvalidArgument
from chunkstore.journal import OpCode, RecordKind
from chunkstore.metadata.codec import decode_chunk, decode_garbage
from chunkstore.metadata.keys import GARBAGE, block_range, chunk_key, writer_range
from chunkstore.metadata.port import MetadataView
from chunkstore.metadata.retained import pinned_lsn
from chunkstore.operations.attach import drop_staged
from chunkstore.operations.change_set import ChangeSet, commit_changes
from chunkstore.operations.container import OwnedContainer
from chunkstore.operations.pins import end_expired_pins
from chunkstore.records.names import NO_CHUNK, ContainerNames, confined
from chunkstore.records.reports import CollectReport
from chunkstore.records.segments import KIND_INLINE, ChunkRecord, GarbageRecord
from chunkstore.storage import ChunkStorage

__all__ = [
    "CollectReport",
    "Collection",
    "Unfolded",
    "collect",
    "collect_journal",
    "delete_objects",
    "is_removed",
    "unfold",
]

_UNFOLDED_AT_ONCE: Final = 10_000
_WRITER_ROWS_MAX: Final = 5_000
Standing: TypeAlias = Literal["damaged", "pinned", "waiting", "due"]
"""Of a garbage row: it cannot be read, a pin keeps it, it is too young, or it may go."""


class Unfolded(NamedTuple):
    """``ids`` may go, and with them the rows of their block borders, ``block_keys``; those in ``extents`` have no object of their own.
    ``refused`` may not: they are in ``kept``, as ranges of their own, or in ``rest``, what is left of the range."""

    ids: list[bytes]
    block_keys: list[bytes]
    size_bytes: int
    kept: list[GarbageRecord]
    refused: list[bytes]
    rest: GarbageRecord | None
    extents: set[bytes]


def unfold(view: MetadataView, names: ContainerNames, garbage: GarbageRecord, chunks_max: int) -> Unfolded:
    """The next chunks of a range, as long as they and their block rows are fewer than ``chunks_max``."""
    ids: list[bytes] = []
    block_keys: list[bytes] = []
    kept: list[GarbageRecord] = []
    refused: list[bytes] = []
    met: set[bytes] = set()
    extents: set[bytes] = set()
    first, last, left = garbage.first, garbage.last, garbage.count
    size_bytes = kept_bytes = 0
    backwards = next_to_kept = False
    while left and len(met) + len(block_keys) < chunks_max:
        identity = last if backwards else first
        record = _readable(view, identity) if identity not in met else None
        if record is None:
            refused.append(identity)
            if backwards or identity == last:
                break
            backwards, next_to_kept = True, False
            continue
        met.add(identity)
        left -= 1
        if _is_confined(names, identity, record):
            ids.append(identity)
            if record.kind == KIND_INLINE:
                extents.add(identity)
            block_keys += [key for key, _ in view.scan(*block_range(identity))]
            size_bytes += record.length
            next_to_kept = False
        else:
            refused.append(identity)
            kept_bytes += record.length
            grown = GarbageRecord(identity, identity, 1, record.length, 0, 0, 0)
            if next_to_kept:
                before = kept.pop()
                ends = (identity, before.last) if backwards else (before.first, identity)
                grown = GarbageRecord(*ends, before.count + 1, before.size_bytes + record.length, 0, 0, 0)
            kept.append(grown)
            next_to_kept = True
        if identity == (first if backwards else last):
            left = 0
        elif backwards:
            last = record.previous
            if last == first:
                break
        else:
            first = record.next
    rest = None
    if left:
        rest_bytes = max(0, garbage.size_bytes - size_bytes - kept_bytes)
        rest = garbage._replace(first=first, last=last, count=left, size_bytes=rest_bytes)
    return Unfolded(ids, block_keys, size_bytes, kept, refused, rest, extents)


def is_removed(view: MetadataView, names: ContainerNames, identity: bytes) -> bool:
    """Whether the rows know a chunk no more, or only as garbage. O(garbage) where there is a row of it. Raises ``Damaged``."""
    if view.get(chunk_key(identity)) is None:
        return True
    for key, raw in view.scan(GARBAGE, bytes((GARBAGE[0] + 1,))):
        garbage = decode_garbage(repr(key), raw)
        rest: GarbageRecord | None = garbage
        while rest is not None:
            found = unfold(view, names, rest, _UNFOLDED_AT_ONCE)
            if identity in found.ids or identity in found.refused:
                return True
            rest = found.rest if found.ids else None
    return False


def _readable(view: MetadataView, identity: bytes) -> ChunkRecord | None:
    raw = view.get(chunk_key(identity))
    try:
        return None if raw is None else decode_chunk("chunk row", raw)
    except Damaged:
        return None


def _is_confined(names: ContainerNames, identity: bytes, record: ChunkRecord) -> bool:
    try:
        confined(names, identity, record)
    except Damaged:
        return False
    return True


class _Work(NamedTuple):
    """What there is to do with a row that is due. ``rest``: what is left of the range, in its place."""

    found: Unfolded
    rest: GarbageRecord | None
    writer_keys: list[bytes]
    """Rows of an ended segment's writers to drop now."""
    also: list[bytes]
    """Further rows to drop, which have no chunks: what spills have left. One record forgets many."""


def collect(container: OwnedContainer, *, dry_run: bool) -> CollectReport:
    """One synchronous collection of everything that is due, one at a time.

    Raises ``DeadlineExceeded`` (another one is under way), ``NotOwner`` and what storage and commits raise.
    """
    call = partial(container.alone, container.collecting, "collection", partial(_collect, container, dry_run=dry_run))
    if dry_run:
        return call()
    with container.upkeep.run("collect") as done:
        report = call()
        done.update(chunks=report.chunks, reclaimed_bytes=report.chunk_bytes + report.journal_bytes)
    container.observer.collected(report.chunks, report.chunk_bytes)
    return report


def _collect(container: OwnedContainer, *, dry_run: bool) -> CollectReport:
    if not dry_run:
        end_expired_pins(container)
        drop_staged(container)
    rows = Collection(container, dry_run=dry_run)
    while rows.step():
        pass
    objects, size_bytes = collect_journal(container, dry_run=dry_run)
    return CollectReport(
        rows.chunks, rows.chunk_bytes, rows.waiting, objects, size_bytes, len(rows.refused), rows.pinned
    )


class Collection:
    """One pass over the garbage rows, in the order of their removals, a step at a time. ``container.collecting`` is held during a step;
    what others collect between two steps is gone. A step deletes and forgets at most ``chunks_max`` chunks. The counts are as in
    ``CollectReport``."""

    def __init__(
        self, container: OwnedContainer, *, dry_run: bool = False, chunks_max: int = LIMITS.garbage_unfold_chunks_max
    ) -> None:
        self._container = container
        self._dry_run = dry_run
        self._chunks_max = chunks_max
        self._after = GARBAGE
        self.chunks: int = 0
        self.chunk_bytes: int = 0
        self.waiting: int = 0
        self.pinned: int = 0
        self.refused: set[bytes] = set()

    def step(self) -> bool:
        """Deal with the next row, or a part of it; False: there is none any more. Raises as ``collect``. Retry: safe."""
        container = self._container
        container.check_owner()
        row = container.look(partial(_find, container, self._after, self._chunks_max))
        if row is None:
            return False
        key, garbage, standing, work = row
        if garbage is None:
            self.refused.add(key)
        elif standing == "pinned":
            self.pinned += garbage.count
        elif standing == "waiting":
            self.waiting += garbage.count
        if garbage is None or work is None:
            self._after = key + b"\0"
            return True
        found = work.found
        self.refused.update(found.refused)
        if self._dry_run or (found.refused and not found.ids and not work.writer_keys):
            self._after = key + b"\0"
        else:
            # What holds extents is the journal's to delete.
            names = [container.names.chunk(identity) for identity in found.ids if identity not in found.extents]
            for look in tuple(container.looks):
                look.collected.update(look.lengths.keys() & found.ids)
            _delete_objects(container, names, garbage.lsn)
            commit_changes(container, (), partial(_forget, key=key, work=work))
        self.chunks += len(found.ids)
        self.chunk_bytes += found.size_bytes
        if self._dry_run and work.rest is not None and not found.refused:
            self.chunks += work.rest.count
            self.chunk_bytes += work.rest.size_bytes
        return True


def _find(
    container: OwnedContainer, after: bytes, chunks_max: int, view: MetadataView
) -> tuple[bytes, GarbageRecord | None, Standing, _Work | None] | None:
    """The first garbage row from ``after`` on: what it says, unless it is damaged, and what there is to do if it is due."""
    rows = _rows(container, view, after)
    key, garbage, standing = next(rows, (b"", None, "damaged"))
    if not key:
        return None
    if garbage is None or standing != "due":
        return key, garbage, standing, None
    found = unfold(view, container.names, garbage, chunks_max)
    rest, writers = found.rest, list[bytes]()
    if garbage.ended_segment_id:
        scanned = view.scan(*writer_range(garbage.ended_segment_id))
        writers = [row_key for row_key, _ in islice(scanned, _WRITER_ROWS_MAX + 1)]
        if len(writers) > _WRITER_ROWS_MAX and rest is None:
            rest = garbage._replace(first=NO_CHUNK, last=NO_CHUNK, count=0, size_bytes=0)
    also: list[bytes] = []
    if _has_nothing(garbage):
        following = takewhile(lambda row: row[2] == "due" and _has_nothing(row[1]), rows)
        also = [row_key for row_key, _, _ in islice(following, chunks_max)]
    return key, garbage, standing, _Work(found, rest, writers[:_WRITER_ROWS_MAX], also)


def _has_nothing(garbage: GarbageRecord | None) -> bool:
    return garbage is not None and not garbage.first and not garbage.ended_segment_id


def _rows(
    container: OwnedContainer, view: MetadataView, after: bytes
) -> Iterator[tuple[bytes, GarbageRecord | None, Standing]]:
    """The garbage rows from ``after`` on."""
    # Pins are read in the view that shows the garbage, and no others matter: a pin that is committed after this view has a higher lsn
    # than everything in it, so what goes now was removed below that pin and is no part of what it keeps. The same holds for a zombie
    # that deletes at any later time: its view is a prefix of history (P7), and its successor's pins are after it.
    lowest = pinned_lsn(view)
    settings = container.settings
    grace_s, emergency_s = settings.gc_grace_s, settings.gc_grace_emergency_s
    if emergency_s is not None and container.space.reason:
        grace_s = min(grace_s, emergency_s)
    kept_s = max(grace_s, settings.pitr_horizon_s)
    for key, raw in view.scan(after, bytes((GARBAGE[0] + 1,))):
        try:
            garbage = decode_garbage(repr(key), raw)
        except Damaged:
            yield key, None, "damaged"
            continue
        if lowest is not None and garbage.lsn > lowest:
            yield key, garbage, "pinned"
        # Labels are coarser than the monotonic clock: no age is not to be measured with them.
        elif kept_s == 0 or container.is_older(key, garbage.lsn, garbage.time_ms, kept_s):
            yield key, garbage, "due"
        else:
            yield key, garbage, "waiting"


def collect_journal(
    container: OwnedContainer, *, dry_run: bool = False, go_on: Callable[[], bool] = lambda: True
) -> tuple[int, int]:
    """Delete journal objects and snapshots that are not needed, with ``container.collecting`` held: (objects, bytes). ``go_on`` is asked
    before each; False ends it there. Raises as ``collect``. Retry: safe."""
    deadline, is_low = container.deadline(), container.space.disk_low
    if is_low and not dry_run:
        container.space.shed()
    while True:
        owned, collect = container.serving(deadline), container.service.collect
        try:
            return collect(head=owned.store.head(), epoch=owned.epoch, dry_run=dry_run, go_on=go_on, least=is_low)
        except CacheDamaged as damage:
            container.rebuild(damage)
        except InvalidArgument:
            # A take-over of our own came in between: collect as the owner of the new epoch.
            if container.current is owned and owned.end_reason is None:
                raise


def _delete_objects(container: OwnedContainer, names: list[str], removed_lsn: int) -> None:
    # A zombie that got this far deletes only what a committed prefix removed for ever: harmless at any delay (P10).
    if names:
        if container.current.journal.mode == "append" and container.current.queue.head.lsn == removed_lsn:
            # The last record of a file counts for others only when one follows it: a replica that met a claim first would show
            # what was before the removal, without its bytes, for as long as the claimant takes.
            container.note(RecordKind.HEARTBEAT, ())
        container.check_fence()
    delete_objects(container, names)


def delete_objects(container: OwnedContainer, names: list[str]) -> None:
    """Delete what is there of ``names``. The caller has looked at the fence. Raises ``Closed``, and what the storage does. Retry: safe."""
    step = container.settings.tuning.io_workers * 4
    for begin in range(0, len(names), step):
        container.check_open()  # close does not wait for all of them
        calls = [partial(_delete, container.storage, name) for name in names[begin : begin + step]]
        with container.bounded(container.deadline()):
            container.pool.run_all(calls)


def _delete(storage: ChunkStorage, name: str) -> None:
    # Absent: deleted before, by us or by an owner before us.
    with suppress(ChunkNotFound):
        storage.delete(name)


def _forget(changes: ChangeSet, *, key: bytes, work: _Work) -> None:
    for identity in work.found.ids:
        changes.rows[chunk_key(identity)] = None
    for row_key in (*work.found.block_keys, *work.writer_keys):
        changes.rows[row_key] = None
    changes.rows[key] = work.rest
    changes.garbage += work.found.kept
    changes.headers.append((int(OpCode.COLLECT), key, len(work.found.ids)))
    for row_key in work.also:
        changes.rows[row_key] = None
        changes.headers.append((int(OpCode.COLLECT), row_key, 0))
