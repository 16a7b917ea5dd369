"""Collecting: deleting what committed removals have made garbage (protocol 3.14.1, 2), then journal and snapshots.

Promises: a chunk is deleted only after a committed removal and a grace period on our own monotonic clock, counted from the
later of the removal and our own take-over; foreign objects are never deleted. Objects go first, then their rows, so a crash
in between only repeats deletions. One record forgets at most 5,000 chunks.
Leaves out: pins, policies and the sweep of orphans ("Upkeep and backup").
"""

from __future__ import annotations

from typing import NamedTuple

from chunkstore import runtime
from chunkstore.config import LIMITS
from chunkstore.deadline import until
from chunkstore.errors import ChunkNotFound, InvalidArgument
from chunkstore.journal import OpCode, RecordKind
from chunkstore.metadata.codec import decode_garbage
from chunkstore.metadata.keys import GARBAGE, chunk_key, writer_range
from chunkstore.metadata.port import MetadataView
from chunkstore.operations.core import Core
from chunkstore.operations.draft import Draft
from chunkstore.operations.read import find_chunk
from chunkstore.operations.transact import transact
from chunkstore.records import KIND_FOREIGN, GarbageRecord

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
    writer_keys: list[bytes]
    """Rows of an ended segment's writers to drop now."""
    more_writers: bool


def collect(core: Core, *, dry_run: bool) -> CollectReport:
    """One synchronous collection of everything that is due, one at a time.

    Raises ``DeadlineExceeded`` (another one is under way), ``NotOwner`` and what storage and commits raise.
    """
    holding = runtime.Holding(core.collecting)
    try:
        if not holding.wait(core.settings.op_deadline_s):
            core.raise_deadline("waiting for another collection")
        return _collect(core, dry_run=dry_run)
    finally:
        if holding.got:
            holding.lock.release()


def _collect(core: Core, *, dry_run: bool) -> CollectReport:
    chunks = chunk_bytes = waiting = 0
    after = GARBAGE
    while True:
        core.check_owner()
        with core.store.view() as view:
            found = next(view.scan(after, bytes((GARBAGE[0] + 1,))), None)
            if found is None:
                break
            key, raw = found
            garbage = decode_garbage(repr(key), raw)
            if not _due(core, key, garbage):
                waiting += garbage.count
                after = key + b"\0"
                continue
            work = _plan(core, view, key, garbage)
        chunks += len(work.ids)
        chunk_bytes += work.size_bytes
        if dry_run:
            chunks += garbage.count - len(work.ids)
            chunk_bytes += garbage.size_bytes - work.size_bytes
            after = key + b"\0"
            continue
        _delete_objects(core, work.names, garbage.lsn)
        transact(core, (), lambda draft, work=work: _forget(draft, work))  # type: ignore[misc]
    objects, size_bytes = _collect_journal(core, dry_run=dry_run)
    return CollectReport(chunks, chunk_bytes, waiting, objects, size_bytes)


def _collect_journal(core: Core, *, dry_run: bool) -> tuple[int, int]:
    deadline_s = core.deadline_s()
    while True:
        core.pass_gate(deadline_s)
        epoch = core.epoch
        try:
            return core.service.collect(head=core.store.head(), epoch=epoch, dry_run=dry_run)
        except InvalidArgument:
            # A take-over of our own came in between: collect as the owner of the new epoch.
            if core.epoch == epoch and core.gate.is_open():
                raise


def _due(core: Core, key: bytes, garbage: GarbageRecord) -> bool:
    kept_s = max(core.settings.gc_grace_s, core.settings.pitr_horizon_s)
    if kept_s == 0:
        # Labels are coarser than the monotonic clock: no age is not to be measured with them.
        return True
    now_s = runtime.monotonic_s()
    removed_s = core.opened_s + max(0, garbage.time_ms - core.opened_ms) / 1000
    if removed_s > now_s:
        # A label of the future: the clock ran ahead when it was made. The grace counts from when that is noticed.
        removed_s = core.garbage_noticed_s.setdefault(key, now_s)
    if now_s - removed_s < kept_s:
        return False
    core.garbage_noticed_s.pop(key, None)
    return True


def _plan(core: Core, view: MetadataView, key: bytes, garbage: GarbageRecord) -> _Work:
    ids: list[bytes] = []
    names: list[str] = []
    size_bytes = 0
    identity = garbage.first
    for _ in range(min(garbage.count, LIMITS.garbage_unfold_chunks_max)):
        record = find_chunk(view, core.names, identity)
        ids.append(identity)
        if record.kind != KIND_FOREIGN:
            names.append(record.object or core.names.chunk(identity))
        size_bytes += record.length
        identity = record.next
    writer_keys: list[bytes] = []
    more_writers = False
    if garbage.ended_segment_id:
        for row_key, _ in view.scan(*writer_range(garbage.ended_segment_id)):
            if len(writer_keys) >= _WRITER_ROWS_MAX:
                more_writers = True
                break
            writer_keys.append(row_key)
    return _Work(key, garbage, ids, names, size_bytes, identity, writer_keys, more_writers)


def _delete_objects(core: Core, names: list[str], removed_lsn: int) -> None:
    # A zombie that got this far deletes only what a committed prefix removed for ever: harmless at any delay (P10).
    if names:
        if core.journal.mode == "append" and core.journal.head.lsn == removed_lsn:
            # The last record of a file counts for others only when one stands behind it: a replica that met a claim first would show
            # what was before the removal, without its bytes, for as long as the claimant takes.
            core.lifecycle.note(RecordKind.HEARTBEAT, ())
        core.check_fence()
    step = core.settings.io_workers * 4
    for begin in range(0, len(names), step):
        calls = [_Delete(core, name) for name in names[begin : begin + step]]
        if not core.remote:
            core.pool.run_all(calls)
            continue
        with until(core.deadline_s()):
            core.pool.run_all(calls)


class _Delete:
    __slots__ = ("core", "name")

    def __init__(self, core: Core, name: str) -> None:
        self.core = core
        self.name = name

    def __call__(self) -> None:
        try:
            self.core.storage.delete(self.name)
        except ChunkNotFound:
            # Deleted before, by us or by an owner before us.
            return


def _forget(draft: Draft, work: _Work) -> None:
    garbage = work.garbage
    for identity in work.ids:
        draft.rows[chunk_key(identity)] = None
    for row_key in work.writer_keys:
        draft.rows[row_key] = None
    left = garbage.count - len(work.ids)
    if left or work.more_writers:
        first = work.next_first if left else b""
        last = garbage.last if left else b""
        draft.rows[work.key] = garbage._replace(
            first=first, last=last, count=left, size_bytes=max(0, garbage.size_bytes - work.size_bytes)
        )
    else:
        draft.rows[work.key] = None
    draft.headers.append((int(OpCode.COLLECT), work.key, len(work.ids)))
