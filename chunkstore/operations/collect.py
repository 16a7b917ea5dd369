"""Collecting: deleting what committed removals have made garbage (protocol 3.14.1, 2), then journal and snapshots.

Promises: a chunk is deleted only after a committed removal and a grace period on our own monotonic clock, counted from the
later of the removal and our own take-over; foreign objects are never deleted. Objects go first, then their rows, so a crash
in between only repeats deletions. One record forgets at most 5,000 chunks and rows of their block borders, the last chunk's besides.
Leaves out: the sweep of orphans.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from itertools import islice
from typing import NamedTuple

from chunkstore import runtime
from chunkstore.config import LIMITS
from chunkstore.errors import ChunkNotFound, InvalidArgument
from chunkstore.journal import OpCode, RecordKind
from chunkstore.metadata.codec import decode_garbage
from chunkstore.metadata.keys import GARBAGE, block_range, chunk_key, writer_range
from chunkstore.metadata.port import MetadataView
from chunkstore.names import NO_CHUNK
from chunkstore.operations.change_set import ChangeSet
from chunkstore.operations.commit_changes import commit_changes
from chunkstore.operations.container import OwnedContainer
from chunkstore.operations.read import find_chunk
from chunkstore.records import KIND_FOREIGN, GarbageRecord
from chunkstore.storage import ChunkStorage

__all__ = ["CollectReport", "collect"]

_WRITER_ROWS_MAX = 5_000


class CollectReport(NamedTuple):
    """What a collection did (or, as a dry run, would do). ``waiting`` counts garbage chunks still in their grace period."""

    chunks: int
    chunk_bytes: int
    waiting: int
    journal_objects: int
    journal_bytes: int


class _Work(NamedTuple):
    key: bytes
    garbage: GarbageRecord
    ids: list[bytes]
    names: list[str]
    size_bytes: int
    next_first: bytes
    row_keys: list[bytes]
    """Rows to drop with these chunks: of their block borders, and of an ended segment's writers."""
    more_writers: bool


def collect(container: OwnedContainer, *, dry_run: bool) -> CollectReport:
    """One synchronous collection of everything that is due, one at a time.

    Raises ``DeadlineExceeded`` (another one is under way), ``NotOwner`` and what storage and commits raise.
    """
    report = container.alone(container.collecting, "collection", partial(_collect, container, dry_run=dry_run))
    if not dry_run:
        container.observer.collected(report.chunks, report.chunk_bytes)
    return report


def _collect(container: OwnedContainer, *, dry_run: bool) -> CollectReport:
    chunks = chunk_bytes = waiting = 0
    after = GARBAGE
    while True:
        container.check_owner()
        with container.current.store.view() as view:
            found = next(view.scan(after, bytes((GARBAGE[0] + 1,))), None)
            if found is None:
                break
            key, raw = found
            garbage = decode_garbage(repr(key), raw)
            if not _due(container, key, garbage):
                waiting += garbage.count
                after = key + b"\0"
                continue
            work = _plan(container, view, key, garbage)
        chunks += len(work.ids)
        chunk_bytes += work.size_bytes
        if dry_run:
            chunks += garbage.count - len(work.ids)
            chunk_bytes += garbage.size_bytes - work.size_bytes
            after = key + b"\0"
            continue
        _delete_objects(container, work.names, garbage.lsn)
        commit_changes(container, (), lambda changes, work=work: _forget(changes, work))  # type: ignore[misc]
    objects, size_bytes = _collect_journal(container, dry_run=dry_run)
    return CollectReport(chunks, chunk_bytes, waiting, objects, size_bytes)


def _collect_journal(container: OwnedContainer, *, dry_run: bool) -> tuple[int, int]:
    deadline = container.deadline()
    while True:
        owned = container.serving(deadline)
        try:
            return container.service.collect(head=owned.store.head(), epoch=owned.epoch, dry_run=dry_run)
        except InvalidArgument:
            # A take-over of our own came in between: collect as the owner of the new epoch.
            if container.current is owned and owned.end_reason is None:
                raise


def _due(container: OwnedContainer, key: bytes, garbage: GarbageRecord) -> bool:
    kept_s = max(container.settings.gc_grace_s, container.settings.pitr_horizon_s)
    if kept_s == 0:
        # Labels are coarser than the monotonic clock: no age is not to be measured with them.
        return True
    now_s = runtime.monotonic_s()
    removed_s = container.current.opened_s + max(0, garbage.time_ms - container.current.opened_ms) / 1000
    if removed_s > now_s:
        # A label of the future: the clock ran ahead when it was made. The grace counts from when that is noticed.
        removed_s = container.garbage_noticed_s.setdefault(key, now_s)
    if now_s - removed_s < kept_s:
        return False
    container.garbage_noticed_s.pop(key, None)
    return True


def _plan(container: OwnedContainer, view: MetadataView, key: bytes, garbage: GarbageRecord) -> _Work:
    ids: list[bytes] = []
    names: list[str] = []
    blocks: list[bytes] = []
    size_bytes = 0
    identity = garbage.first
    for _ in range(garbage.count):
        if len(ids) + len(blocks) >= LIMITS.garbage_unfold_chunks_max:
            break
        record = find_chunk(view, container.names, identity)
        ids.append(identity)
        blocks += [row_key for row_key, _ in view.scan(*block_range(identity))]
        if record.kind != KIND_FOREIGN:
            names.append(record.object or container.names.chunk(identity))
        size_bytes += record.length
        identity = record.next
    writers: list[bytes] = []
    if garbage.ended_segment_id:
        rows = view.scan(*writer_range(garbage.ended_segment_id))
        writers = [row_key for row_key, _ in islice(rows, _WRITER_ROWS_MAX + 1)]
    more_writers = len(writers) > _WRITER_ROWS_MAX
    return _Work(key, garbage, ids, names, size_bytes, identity, blocks + writers[:_WRITER_ROWS_MAX], more_writers)


def _delete_objects(container: OwnedContainer, names: list[str], removed_lsn: int) -> None:
    # A zombie that got this far deletes only what a committed prefix removed for ever: harmless at any delay (P10).
    if names:
        if container.current.journal.mode == "append" and container.current.queue.head.lsn == removed_lsn:
            # The last record of a file counts for others only when one stands behind it: a replica that met a claim first would show
            # what was before the removal, without its bytes, for as long as the claimant takes.
            container.note(RecordKind.HEARTBEAT, ())
        container.check_fence()
    step = container.settings.io_workers * 4
    for begin in range(0, len(names), step):
        calls = [partial(_delete, container.storage, name) for name in names[begin : begin + step]]
        with container.bounded(container.deadline()):
            container.pool.run_all(calls)


def _delete(storage: ChunkStorage, name: str) -> None:
    # Absent: deleted before, by us or by an owner before us.
    with suppress(ChunkNotFound):
        storage.delete(name)


def _forget(changes: ChangeSet, work: _Work) -> None:
    garbage = work.garbage
    for identity in work.ids:
        changes.rows[chunk_key(identity)] = None
    for row_key in work.row_keys:
        changes.rows[row_key] = None
    left = garbage.count - len(work.ids)
    changes.rows[work.key] = None
    if left or work.more_writers:
        first, last = (work.next_first, garbage.last) if left else (NO_CHUNK, NO_CHUNK)
        size_bytes = max(0, garbage.size_bytes - work.size_bytes)
        changes.rows[work.key] = garbage._replace(first=first, last=last, count=left, size_bytes=size_bytes)
    changes.headers.append((int(OpCode.COLLECT), work.key, len(work.ids)))
