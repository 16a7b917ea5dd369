"""What happens next to operations: the lease, heartbeats, rolls, audits of the cache, snapshots when due, and closing.

Promises: one background task, the keeper, which outlives every epoch; nothing of it runs on the commit path, and none of its failures
reaches a caller. ``close`` can be called again. One snapshot at a time (protocol 3.11, A8): its note is committed after it was read back,
and LATEST points to it after that. What is due is taken in a task of its own; after a failure ever longer pauses are made.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from chunkstore import runtime
from chunkstore.deadline import Deadline
from chunkstore.errors import CacheDamaged, ChunkstoreError, Closed, Damaged, DeadlineExceeded
from chunkstore.journal import RecordKind, SnapshotReport
from chunkstore.metadata.retained import oldest_inline_record
from chunkstore.operations.container import OwnedContainer, unexpected
from chunkstore.operations.recovery import Recovery

__all__ = ["BackgroundJob", "Maintenance", "Snapshots"]

_SMALL_STATE_BYTES: Final = 1 << 20
_TIMED_SNAPSHOT_S: Final = 300.0
_BYTES_PER_SLOT: Final = 15_000
"""A hundredth of a state's rows at about 150 bytes each: more slots than that since the last snapshot are worth a new one."""
_BYTES_PER_ENTRY: Final = 75
"""Of a snapshot, for each of the store's rows and index entries: what a state's size is taken for before it was written."""
_PAUSE_S_MIN: Final = 1.0
_PAUSE_S_MAX: Final = 600.0
"""After a failure, doubling from the one to the other, before a snapshot that is due is tried again."""


class Snapshots:
    """The snapshots of one container."""

    def __init__(self, container: OwnedContainer, recovery: Recovery) -> None:
        self._container = container
        self._journal_bytes = recovery.journal_bytes
        self._lock = runtime.lock()
        self._taken_s = runtime.monotonic_s()
        self._size_bytes = 0
        self.written_bytes: int = 0
        """Of all snapshots that were taken since this store was opened."""
        self._lsn_at_last = container.current.queue.head.lsn
        self._digest_at_last = container.current.store.head().digest
        self._bytes_at_last = 0
        self._wanted = self._replayed_much()
        self.failure: str = ""
        """Why the last one failed; empty after one that succeeded."""
        self._pause_s = _PAUSE_S_MIN
        self._not_before_s = self._taken_s
        self._task: runtime.Task | None = None

    def take_due(self) -> None:
        """Begin one in the background if it is due, none is under way, and the last failure is long enough ago."""
        under_way = self._lock.locked() or (self._task is not None and self._task.is_alive())
        if under_way or runtime.monotonic_s() < self._not_before_s or not self.due():
            return
        try:
            self._task = runtime.spawn(self._take_in_background, "chunkstore-snapshot")
        except Exception as error:
            self._failed(error)
            raise

    def _take_in_background(self) -> None:
        # No caller waits for it; ``failure`` says why it failed.
        with suppress(Exception):
            self.take()

    def join(self, wait_s: float) -> None:
        """Wait for the one in the background, no longer than that."""
        if self._task is not None:
            self._task.join(wait_s)

    def _failed(self, error: BaseException) -> None:
        self.failure = f"{type(error).__name__}: {error}"
        self._not_before_s = runtime.monotonic_s() + self._pause_s
        self._pause_s = min(_PAUSE_S_MAX, self._pause_s * 2)

    def take(self) -> SnapshotReport:
        """Write, validate, note and publish a snapshot of the present state. One at a time; may run next to commits.

        Raises ``DeadlineExceeded`` when another one does not end in time, and what storage and commits raise.
        """
        return self._container.alone(self._lock, "snapshot", self._take)

    def _take(self) -> SnapshotReport:
        container = self._container
        size_bytes = self._journal_bytes()
        try:
            report = self._write()
            container.note(RecordKind.SNAPSHOT_NOTE, report.note)
            container.service.publish_latest(report, epoch=container.current.epoch)
        except Exception as error:
            self._failed(error)
            raise
        # Its own note follows it, and is no reason for another one.
        self._lsn_at_last = report.position.lsn + 1
        self._digest_at_last = report.digest
        self._bytes_at_last = size_bytes
        self._size_bytes = report.size_bytes
        self.written_bytes += report.size_bytes
        self._taken_s = runtime.monotonic_s()
        self._wanted = False
        self.failure = ""
        self._pause_s = _PAUSE_S_MIN
        container.observer.snapshot_taken(report)
        return report

    @property
    def expected_bytes(self) -> int:
        """What one takes, about."""
        return self._size_bytes or self._container.current.store.entry_count() * _BYTES_PER_ENTRY

    def due(self) -> bool:
        """Protocol A8: by slots, whatever is in them; after changes by journal bytes, and by time while the state is small."""
        current, settings = self._container.current, self._container.settings
        if self._wanted:
            return True
        size_bytes = self.expected_bytes
        if current.journal.mode == "slot" and current.queue.head.lsn - self._lsn_at_last >= max(
            settings.tuning.snapshot_slots_min, size_bytes // _BYTES_PER_SLOT
        ):
            return True
        if current.store.head().digest == self._digest_at_last:
            return False
        if self._journal_bytes() - self._bytes_at_last > max(settings.tuning.snapshot_bytes_min, size_bytes // 2):
            return True
        return size_bytes < _SMALL_STATE_BYTES and runtime.monotonic_s() - self._taken_s > _TIMED_SNAPSHOT_S

    def _replayed_much(self) -> bool:
        """Whether the take-over replayed more than a tenth of what triggers a snapshot (protocol A8)."""
        current, settings = self._container.current, self._container.settings
        if current.journal.mode == "slot":
            return current.report.replayed_records > settings.tuning.snapshot_slots_min / 10
        return current.report.replayed_bytes > settings.tuning.snapshot_bytes_min / 10

    def _write(self) -> SnapshotReport:
        container = self._container
        while True:
            current = container.current
            try:
                try:
                    return container.service.write_snapshot(current.store, epoch=current.epoch)
                except Damaged:
                    current.store.audit()  # what does not add up may be the cache's
                    raise
            except CacheDamaged as damage:
                container.rebuild(damage)


_TICK_S: Final = 0.5
_HEARTBEAT_S: Final = 1.0
_AUDIT_S: Final = 600.0
_AUDIT_SHARE: Final = 100
"""Auditing the cache takes at most a hundredth of the time: 2,000,000 rows take about four seconds."""


class BackgroundJob:
    """Work in a task of its own, which the keeper begins and ``close`` ends."""

    def __init__(self) -> None:
        self.stopping: runtime.Event = runtime.event()
        self._task: runtime.Task | None = None

    def tick(self, now_s: float) -> None:
        """Called by the keeper now and then: ``begin`` what is due."""
        raise NotImplementedError

    def begin(self, work: Callable[[], None], name: str) -> None:
        """Do ``work`` in the task, unless it is at work or stopped."""
        if not self.stopping.is_set() and (self._task is None or not self._task.is_alive()):
            self._task = runtime.spawn_if_possible(work, name)

    def stop(self) -> None:
        """Begin nothing more. Does not wait."""
        self.stopping.set()

    def join(self, wait_s: float) -> None:
        """Wait for the end of what is under way, no longer than that."""
        if self._task is not None:
            self._task.join(wait_s)


class Maintenance:
    """One per container. ``start`` begins the keeper; ``close`` ends everything."""

    def __init__(self, container: OwnedContainer, recovery: Recovery) -> None:
        self._container = container
        self._recovery = recovery
        self.snapshots: Snapshots = Snapshots(container, recovery)
        self.background: list[BackgroundJob] = []
        self.stopping: runtime.Event = runtime.event()
        self._keeper: runtime.Task | None = None
        self._last_steps: dict[str, runtime.LastStep] = {}
        """The steps of ``close`` that have begun."""
        self._roll_not_before_s = 0.0
        self._has_shed = False
        container.space.shed = self._shed
        self._audit_not_before_s = runtime.monotonic_s() + _AUDIT_S
        self._heartbeat_lsn = self._looked_lsn = container.current.queue.head.lsn
        self._leased_s = 0.0
        """When the lease was written last."""
        self._lease_period_s = container.settings.lease_period_s(remote=container.remote)

    def start(self) -> None:
        """Show the lease, then begin the keeper."""
        self._container.space.reserve.keep()
        self._renew_lease(released=False)  # at once: without a lease a polite claimant takes the owner for gone
        self._keeper = runtime.spawn(self._keep, "chunkstore-keeper")

    def _keep(self) -> None:
        container = self._container
        for background in self.background:
            background.tick(self._leased_s)
        while not self.stopping.wait(_TICK_S):
            if container.fence.error is not None or container.closed:
                return
            now_s = runtime.monotonic_s()
            if now_s - self._leased_s >= self._lease_period_s:
                with suppress(Exception):
                    self._renew_lease(released=False)
            try:
                self._check_newer_claim()
                container.current.queue.lead_if_forsaken()
                self._heartbeat(now_s)
                # What a full disk has left is for what frees space.
                if not container.space.disk_low:
                    self._roll(now_s)
                if container.current.end_reason is None:
                    self._audit(now_s)
                    if not container.space.disk_low:
                        self.snapshots.take_due()
                    container.space.tend(container.current.store)
                    for background in self.background:
                        background.tick(now_s)
            except Exception as error:  # noqa: BLE001  (a bug of a binding must not end it)
                # No caller waits for these; the next tick tries again, and operations report their own errors.
                container.observer.failed(unexpected(error))

    def _audit(self, now_s: float) -> None:
        """Now and then, read the whole cache: what rot hides from look-ups is found no later than that (protocol 3.8)."""
        if now_s < self._audit_not_before_s:
            return
        container = self._container
        try:
            container.current.store.audit()
        except CacheDamaged as damage:
            container.rebuild(damage)
        took_s = runtime.monotonic_s() - now_s
        self._audit_not_before_s = now_s + max(_AUDIT_S, _AUDIT_SHARE * took_s)

    def _check_newer_claim(self) -> None:
        """While we write slots, look for a newer claim: its maker needs several requests for each slot that we take with one,
        and would lose the race for the next one for ever (protocol 3.4)."""
        container = self._container
        head = container.current.queue.head.lsn
        if container.current.journal.mode == "slot" and head != self._looked_lsn:
            self._looked_lsn = head
            container.fence.give_way()

    def _heartbeat(self, now_s: float) -> None:
        """One empty record a second after the last one, so that replicas need not wait for the next commit (A15)."""
        container, current = self._container, self._container.current
        if (
            current.journal.mode == "append"
            and current.end_reason is None
            and current.queue.head.lsn != self._heartbeat_lsn
            and now_s - current.queue.last_commit_at_s >= _HEARTBEAT_S
            and current.queue.idle
            and not container.space.reserve.is_needed()
        ):
            self._heartbeat_lsn = container.note(RecordKind.HEARTBEAT, ())

    def _roll(self, now_s: float) -> None:
        """Begin a new stream when this one is long enough, and the last roll long enough ago (protocol A11)."""
        container, settings = self._container, self._container.settings
        current = container.current
        journal = current.journal
        due = journal.bytes_written > settings.tuning.log_roll_bytes or (
            journal.mode == "slot" and journal.records_written > settings.tuning.slot_roll_records
        )
        interval_s = settings.tuning.roll_interval_s_min
        may = now_s >= max(self._roll_not_before_s, self._recovery.began_s + interval_s)
        if due and may and current.end_reason is None and not self._recovery.roll():
            # Something hangs: the stream may grow on for a while.
            self._roll_not_before_s = runtime.monotonic_s() + interval_s

    def _shed(self) -> None:
        """On a full disk: begin new streams, after a snapshot, so that a collection may delete those before."""
        container = self._container
        if self._has_shed and container.current.journal.bytes_written < container.settings.free_bytes_min:
            return
        with suppress(ChunkstoreError):
            if container.look(oldest_inline_record) is None:
                # An owner whose next OPEN finds no room can free nothing any more.
                container.space.leave_room(self.snapshots.expected_bytes, background=False)
                self._has_shed = True
                # The OPEN of the first has seen no newer snapshot, and its successors start from the one that it names.
                if self._recovery.roll():
                    self.snapshots.take()
                    self._recovery.roll()

    def close(self, after: Callable[[], None]) -> None:
        """Finish what is under way, write CLOSE, release the lease and all resources, then call ``after``. Begins nothing twice.

        Raises only what interrupts a thread. What hangs longer than a few times ``op_deadline_s`` is abandoned.
        """
        container = self._container
        container.closed = container.draining = True
        self.stopping.set()
        for background in self.background:
            background.stop()
        container.changed(0)
        deadline = container.deadline()
        if self._keeper is not None:
            self._keeper.join(timeout=container.settings.op_deadline_s)
        self.snapshots.join(deadline.left_s())
        for background in self.background:
            background.join(deadline.left_s() / 2)  # where it hangs, there is time left to close cleanly
        serves = self._drain(deadline) and container.fence.error is None and container.current.end_reason is None
        if serves and not container.released:
            self._finish("goodbye", self._say_goodbye)
        container.current.end(Closed(f"container {container.names.container!r}"))
        container.current.journal.close()
        container.released = True
        self._finish("stores", container.close_stores)
        self._finish("pool", container.pool.close)
        self._finish("after", after)

    def _drain(self, deadline: Deadline) -> bool:
        """Wait until nothing is undecided and nothing can enter any more; False when the deadline passed first."""
        container = self._container
        while deadline.left_s() > 0.0:
            current = container.current
            current.queue.lead_if_forsaken()  # what an interrupted caller left
            if not any(state.lock.locked() for state in current.segments.all()) and current.queue.end_if_idle():
                with suppress(DeadlineExceeded):
                    self._recovery.wait(deadline)
                    if container.current is current:
                        return True
            runtime.sleep_s(0.001)
        return False

    def _finish(self, name: str, call: Callable[[], None]) -> None:
        step = self._last_steps.get(name)
        if step is None:
            step = self._last_steps[name] = runtime.LastStep(call)
        step.wait(self._container.settings.op_deadline_s)

    def _say_goodbye(self) -> None:
        self._container.space.reserve.make_room()
        self._container.current.last_note(RecordKind.CLOSE, self._container.deadline())
        self._renew_lease(released=True)

    def _renew_lease(self, *, released: bool) -> None:
        container = self._container
        self._leased_s = runtime.monotonic_s()
        if released or container.settings.lease_s:
            container.service.renew_lease(container.current.epoch, released=released)
