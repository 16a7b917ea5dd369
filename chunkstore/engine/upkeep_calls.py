"""The methods of an owned container that take several changes, what clients ask for, and upkeep.

Promises: as ``chunkstore.engine.store``; bytes that can be read never change; what a retention policy gives up can be read no more. Leaves
out: who calls them, and when.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext, suppress
from datetime import datetime
from functools import partial
from typing import Final, Self
from weakref import proxy

from chunkstore.changes import Append, Change, Create, EndSession, TablePut, check_changes
from chunkstore.changes.asks import Ask, AskCommit, AskJob, AskPin, AskSession, Event, Result, Stage, check_ask
from chunkstore.checksum import check_data
from chunkstore.config import DefragPolicy, OptimiserPolicy, RetentionPolicy
from chunkstore.engine.parts import ContainerParts
from chunkstore.errors import ChunkstoreError, InvalidArgument
from chunkstore.journal import SnapshotReport
from chunkstore.metadata.keys import QUOTA_NAMESPACE, RETENTION_NAMESPACE
from chunkstore.operations.append import append
from chunkstore.operations.attach import plan_find_session
from chunkstore.operations.change_set import ChangeSet, commit_changes
from chunkstore.operations.container import OwnedContainer
from chunkstore.operations.maintenance import Maintenance
from chunkstore.operations.read import ReadContext
from chunkstore.operations.spill import Spiller
from chunkstore.operations.tables import TableReader, version_put
from chunkstore.records.arguments import SegmentRef, check_flags, check_pin
from chunkstore.records.names import HEADERS_NAMESPACE, check_segment_name
from chunkstore.records.reports import (
    CollectReport,
    DefragAction,
    DefragReport,
    RetentionReport,
    ScrubReport,
    SweepReport,
)
from chunkstore.records.segments import Pin, PinRecord
from chunkstore.upkeep.jobs import CollectJob, DefragJob, Job, RetentionJob, SweepJob
from chunkstore.upkeep.optimiser import StorageOptimiser
from chunkstore.upkeep.usage import Space

__all__ = ["UpkeepCalls"]

_DAY_S: Final = 86_400.0
_ACTIONS_MAX: Final = 1_000
"""Of a merge that a client asked for, how many are reported."""


class UpkeepCalls:
    """Of ``ChunkedSegmentStorage``, which sets what is declared here.

    A retry is safe; where a call makes several changes, it goes on."""

    _container: OwnedContainer
    _context: ReadContext
    _parts: ContainerParts
    _maintenance: Maintenance
    _space: Space
    _spiller: Spiller
    optimiser: StorageOptimiser
    """Upkeep in the background: ``pause``, ``resume``, ``status``, ``figures``, ``run_once``."""

    def _make_optimiser(self, policy: OptimiserPolicy | None) -> None:
        container, snapshots, space, this = self._container, self._maintenance.snapshots, self._space, proxy(self)
        jobs: list[tuple[Job, float]] = [
            (CollectJob(container, lambda: snapshots.written_bytes, space.forget), container.settings.tuning.collect_s)
        ]
        if policy is not None and policy.retention:
            jobs.append((RetentionJob(container, self._context), policy.interval_s))
        if policy is not None and policy.sweep_s:
            jobs.append((SweepJob(lambda delete: this._sweep(delete=delete)), policy.sweep_s))  # noqa: SLF001  (our own)
        if policy is not None and policy.defrag is not None:
            job = DefragJob(container, self._context, policy.defrag, inline=policy.defrag_inline)
            jobs.append((job, policy.interval_s))
        if policy is not None and policy.scrub_bytes_s:
            from chunkstore.upkeep.scrub import SCRUB_INTERVAL_S, ScrubJob

            bytes_pass = max(1, int(policy.scrub_bytes_s * SCRUB_INTERVAL_S))
            jobs.append((ScrubJob(container, self._context, bytes_pass), SCRUB_INTERVAL_S))
        self.optimiser = StorageOptimiser(container, policy or OptimiserPolicy(), jobs)
        self._spiller = Spiller(container)
        self._maintenance.background += (self._spiller, self.optimiser)

    def commit(self, changes: Sequence[Change]) -> list[int | None]:
        """Apply several changes (``chunkstore.changes``) in one record, all or nothing; later ones see earlier ones.

        Returns, for each change, the offset of an ``Append`` or ``Attach``, else None. Durable. Raises as ``append``, and what
        its changes alone raise: ``SegmentExists``, ``SegmentNotSealed``, ``SegmentTruncated``, ``Conflict``. Retry after
        ``OutcomeUnknown``: safe with a change in it that expects something (an offset, a version, a session, chunks); without, it may
        happen twice.
        """
        from chunkstore.operations.commit import commit

        if isinstance(changes, (str, bytes)) or not isinstance(changes, Sequence):
            raise InvalidArgument("commit takes a sequence of changes", argument="changes")
        check_changes(changes)
        imports = any(type(change) is TablePut and change.namespace == HEADERS_NAMESPACE for change in changes)
        for change in changes:
            if type(change) is Create and not imports:
                self._container.fetch(change.name)
        return commit(self._container, changes)

    # As ``chunkstore.engine.owner.Owner``

    def state(self) -> Self:
        """This store, which shows what is committed. Raises nothing."""
        return self

    def is_certain(self, version: int) -> bool:
        """True: what an owner shows is durable. Raises nothing."""
        return True

    def run(self, ask: Ask, *, wait_s: float = 0.0) -> Result:
        """Do what an owner can be asked for (``chunkstore.changes.asks``). Durable. ``wait_s`` is for clients: each commit takes
        ``Settings.op_deadline_s`` at most. Raises ``InvalidArgument``, and what the calls raise. Retry: safe."""
        from chunkstore.operations.attach import stage
        from chunkstore.operations.pins import pin

        check_ask(ask)
        container = self._container
        container.check_owner()
        match ask:
            case AskCommit((Append(name, data, offset),), Event(segment_id, writer, number)):
                payload = check_data(data)
                return append(
                    container, name, segment_id, payload, expected_offset=offset, writer_id=writer, event_number=number
                )
            case AskCommit((), Stage(session_id, runs)):
                stage(container, session_id, runs)
            case AskCommit((EndSession() as change,), None):
                self.commit([change])
            case AskCommit(changes, TablePut() as once):
                return self._commit_once(changes, once)
            case AskSession(holder, ttl_ms):
                plan = partial(plan_find_session, holder=holder, ttl_s=ttl_ms / 1000)
                return commit_changes(container, (), plan, tables=True, adds=0)
            case AskPin(name, wanted):
                return self.unpin(name) if wanted is None else pin(container, name, wanted)
            case AskJob("collect"):
                return self.collect()
            case AskJob("snapshot"):
                return self.snapshot()
            case AskJob("defrag", segment):
                report = self.defrag(segment)
                reported = {name: getattr(report, name)[:_ACTIONS_MAX] for name in ("actions", "refused", "ahead")}
                return report._replace(**reported)
        return None

    def _commit_once(self, changes: Sequence[Change], once: TablePut) -> int:
        """The version of the row ``once``. It is looked up first: no other refusal may hide that it has happened, or cannot any more."""
        table = TableReader(self._context, once.namespace)
        done = version_put(table.get(once.key), once)
        if done is None:
            self.commit([once, *changes])
            done = version_put(table.get(once.key), once)
        return done or 0

    # Upkeep

    def snapshot(self) -> SnapshotReport:
        """Write, validate and publish a snapshot now. Of a large state a worker process writes it: that may take up to an hour,
        whatever ``op_deadline_s`` says, which bounds the wait for another snapshot and for the commit of the note.
        Raises as ``seal``; ``DeadlineExceeded`` also while another snapshot is written."""
        self._container.check_owner()
        return self._maintenance.snapshots.take()

    def collect(self, *, dry_run: bool = False) -> CollectReport:
        """One synchronous collection: pins that have expired, garbage chunks past their grace that no pin keeps, then journal records and
        snapshots that are not needed. On a full disk it first spills what the journal holds of segments, where all of that finds room.

        Not atomic: chunks go in steps of at most 5,000, and what a step has done stays done when a later one fails. Raises
        as ``seal``; ``DeadlineExceeded`` also while another collection is under way."""
        from chunkstore.operations.collect import collect

        check_flags(dry_run=dry_run)
        self._container.check_owner()
        if not dry_run and self._container.space.disk_low:
            self._spiller.make_way(self._maintenance.snapshots.expected_bytes)
        try:
            return collect(self._container, dry_run=dry_run)
        finally:
            if not dry_run:
                self._space.forget()
                with suppress(ChunkstoreError):
                    self._container.space.tend(self._container.current.store)  # what it gave back counts at once

    def spill(self, segments: Sequence[str] = ()) -> None:
        """Make bytes of chunks of all that these segments (none: all) have in records of the journal. It happens by itself, sooner or later
        (``Tuning.spill_bytes``, ``spill_s``); this is for those that look at chunks only.

        Atomic for each run of appends, durable. What is appended meanwhile may be stored in records again. Raises as ``seal``, and
        ``Conflict`` (it went on being changed)."""
        if isinstance(segments, str):
            raise InvalidArgument("segments is a sequence of names", argument="segments")
        for name in segments:
            check_segment_name(name, "segments")
        self._spiller.spill_these(segments)

    def pin(self, name: str, note: str = "", expires_s: float | None = None) -> Pin:
        """Keep what the metadata say now restorable, and with it every chunk that is live now, until ``unpin(name)``.

        ``name``: 1 to 255 bytes of UTF-8, the caller's own. ``expires_s``: it lasts at least so many seconds, counted anew by each owner;
        a collection ends it. Truncating, deleting and retention are not hindered. A pin is not moved: to go forward, make another one,
        then remove this.

        Atomic, durable. Raises as ``seal``, and ``Conflict`` (another pin has the name, or there are too many). Retry: safe by the same
        store; the same call returns the present pin, whose ``lsn`` and ``created_at`` say since when."""
        from chunkstore.operations.pins import pin

        check_segment_name(name, "name")
        check_pin(note, expires_s)
        lasts_ms = 0 if expires_s is None else math.ceil(expires_s * 1000)
        return pin(self._container, name, PinRecord(0, 0, lasts_ms, self._container.pin_holder, note))

    def unpin(self, name: str) -> bool:
        """Give up a pin; whether there was one. What only it kept goes with the next collection.

        Atomic, durable. Raises as ``seal``. Retry: safe (False if it had happened), unless a new pin of this name is made meanwhile."""
        from chunkstore.operations.pins import unpin

        check_segment_name(name, "name")
        return unpin(self._container, name)

    def set_retention(self, name_or_prefix: str, policy: RetentionPolicy | None) -> bool:
        """Set the policy of a segment, or of all whose names begin with a prefix (``orders-*``); None removes it. Deletes nothing. False:
        there was none to be removed.

        A segment's own policy goes before those of prefixes, the longest prefix before others; they are not combined. A name that ends
        with ``*`` is always a prefix. Segments need not be there: a policy is one of names. Atomic, durable. Raises as ``seal``."""
        from chunkstore.metadata.reserved import encode_policy, pattern_key

        key = pattern_key(name_or_prefix)
        if policy is not None and not isinstance(policy, RetentionPolicy):
            raise InvalidArgument(f"policy must be a RetentionPolicy or None, not {policy!r}", argument="policy")

        return self._put_own(RETENTION_NAMESPACE, key, None if policy is None else encode_policy(policy))

    def set_quota(self, quota_bytes: int | None) -> bool:
        """Store how many bytes of chunks (live, garbage, dead heads) the container may take; None removes the stored quota. False: there
        was none to be removed. It is in force at once, for this owner and all later ones, in place of ``Settings.quota_bytes``.

        Deletes nothing: above the quota (1 to 2^62) whatever adds is ``StorageFull``. Atomic, durable. Raises as ``seal``."""
        from chunkstore.metadata.reserved import encode_quota

        try:
            return self._put_own(QUOTA_NAMESPACE, b"", None if quota_bytes is None else encode_quota(quota_bytes))
        finally:
            self._container.space.forget_quota()

    def _put_own(self, namespace: str, key: bytes, value: bytes | None) -> bool:
        """Put a row of ours, or delete it (None): whether it was there."""
        from chunkstore.operations.tables import plan_delete_row, plan_put_row

        def plan(changes: ChangeSet) -> bool:
            if value is None:
                return plan_delete_row(changes, namespace, key, None)
            plan_put_row(changes, namespace, key, value, None)
            return True

        return commit_changes(self._container, (), plan, tables=True)

    def apply_retention(
        self, *, dry_run: bool = False, ignore_times_after: datetime | int | None = None
    ) -> RetentionReport:
        """Truncate every segment with a policy at the start of the first chunk that the policy does not give up.

        Not atomic: each truncation is atomic and durable, and what is done stays done when a later one fails. Of one segment no more than
        10,000 chunks go by age at once. A chunk with a time after now, of a wrong clock, ends truncation by age (the report's ``future``);
        ``ignore_times_after`` (a ``datetime`` with a time zone, or milliseconds since 1970; not before now): later times count as unknown,
        and times of later chunks decide. Raises as ``seal``."""
        from chunkstore.upkeep.retention import apply_all, apply_step, check_ignored, plan_step

        check_flags(dry_run=dry_run)
        ignored_ms = check_ignored(ignore_times_after)
        self._container.check_owner()
        if dry_run:
            return apply_all(partial(plan_step, self._context, ignored_after_ms=ignored_ms))
        with self._container.upkeep.run("retention") as done:
            report = apply_all(partial(apply_step, self._container, self._context, ignored_after_ms=ignored_ms))
            done["chunks"] = report.chunks
        return report

    def defrag(
        self,
        name: SegmentRef | None = None,
        *,
        policy: DefragPolicy | None = None,
        dry_run: bool = False,
        progress: Callable[[DefragAction], None] | None = None,
    ) -> DefragReport:
        """Merge small neighbouring chunks of a segment, or of all, into chunks of up to the rolling size; and write a first chunk anew
        without its dead head, where that is at least half of it and 8 MiB. What it replaces becomes garbage.

        Bytes that can be read never change; appends and reads go on. ``dry_run``: says what it would do, and what that costs.
        ``progress`` is called after each new chunk. Not atomic: each new chunk is a commit, atomic and durable, and stays when
        a later one fails. Raises as ``seal``."""
        from chunkstore.upkeep.defrag import check_policy, defrag_all, defrag_step, plan_all

        chosen = check_policy(policy)
        check_flags(dry_run=dry_run)
        container, context = self._container, self._context
        container.check_owner()
        if dry_run:
            return plan_all(context, name, chosen)
        with container.upkeep.run("defrag") as done:
            report = defrag_all(
                context,
                name,
                lambda key, position: defrag_step(container, context, key, chosen, position, wait=False),
                progress,
            )
            done.update(chunks=sum(action.chunks for action in report.actions), moved_bytes=report.bytes_moved)
        return report

    def sweep(self, *, delete: bool = False, keep_in: str | None = None, age_s_min: float = _DAY_S) -> SweepReport:
        """Look for chunks that nothing refers to, left by crashes, and with ``delete`` delete those that no one can refer to any more.

        Only chunks of epochs, and of sessions that began, strictly below the present epoch are orphans. ``age_s_min``: by the storage's
        clock; a margin, not what makes it safe. Where the storage does not tell an age they stay, unless it is 0. ``keep_in``: a folder of
        the container, such as "lost", into which a chunk is copied before it is deleted.

        Reads every row and lists every chunk. Not atomic: what was deleted stays deleted when it fails. Raises as ``seal``; ``Damaged``
        also where metadata are damaged, or a chunk of a segment is absent: then nothing was deleted."""
        from chunkstore.upkeep.sweep import check_age

        age_s = check_age(age_s_min)
        check_flags(delete=delete)
        self._container.check_owner()
        with self._container.upkeep.run("sweep") as done:
            report = self._sweep(delete=delete, keep_in=keep_in, age_s_min=age_s)
            done.update(chunks=report.deleted, reclaimed_bytes=report.deleted_bytes)
        return report

    def _sweep(self, *, delete: bool, keep_in: str | None = None, age_s_min: float = _DAY_S) -> SweepReport:
        from chunkstore.upkeep.sweep import sweep

        report = sweep(
            self._container,
            self._context,
            self._parts.sweep_unfinished,
            delete=delete,
            keep_in=keep_in,
            age_s_min=age_s_min,
        )
        self._space.found_orphans(report.orphan_bytes - report.deleted_bytes)
        return report

    def scrub(
        self,
        *,
        rate_bytes_s: float | None = None,
        repair_from: str | os.PathLike[str] | None = None,
        bytes_max: int | None = None,
        progress: Callable[[int], object] | None = None,
    ) -> ScrubReport:
        """Read every chunk that does not grow any more, and compare it with its record: there, long enough, every block with its CRC.

        Goes on where the last call, or the last owner, stood, to the end, or until ``bytes_max`` bytes are read; a damaged chunk is in
        the report, and stops nothing. ``rate_bytes_s``: read no more in a second. ``progress`` is called with the bytes of each step.
        ``repair_from``: the root of a copy of this root; looks from the beginning on, and replaces a damaged chunk by a new one of
        blocks that are sound, in this root or in the copy; where a block is in neither, the chunk stays as it is. Every replacement is
        atomic and durable.

        Raises as ``seal``, and ``Unsupported`` (a root that cannot be opened). A retry goes on where it was a minute ago at most,
        with ``repair_from`` at the beginning."""
        from chunkstore.upkeep.scrub import check_limits, scrub

        check_limits(rate_bytes_s, bytes_max)
        self._container.check_owner()
        opened = nullcontext() if repair_from is None else closing(self._parts.open_copy(repair_from))
        with opened as copy, self._container.upkeep.run("scrub") as done:
            report = scrub(
                self._container,
                self._context,
                rate_bytes_s=rate_bytes_s,
                bytes_max=bytes_max,
                copy=copy,
                progress=progress,
            )
            done.update(chunks=report.chunks, read_bytes=report.size_bytes, findings=len(report.findings))
        return report
