"""What happens next to operations: the lease, heartbeats, rolls, audits of the cache, snapshots when due, and closing.

Promises: one background task, the keeper, which outlives every epoch; nothing of it runs on the commit path, and none of its
failures reaches a caller. ``close`` can be called again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol

from chunkstore import runtime
from chunkstore.deadline import Deadline
from chunkstore.errors import CacheDamaged, ChunkstoreError, Closed, DeadlineExceeded
from chunkstore.journal import RecordKind
from chunkstore.metadata.inline_index import oldest_inline_record
from chunkstore.operations.container import OwnedContainer, unexpected
from chunkstore.operations.recovery import Recovery
from chunkstore.operations.snapshots import Snapshots

__all__ = ["BackgroundJob", "Maintenance"]

_TICK_S: Final = 0.5
_HEARTBEAT_S: Final = 1.0
_AUDIT_S: Final = 600.0
_AUDIT_SHARE: Final = 100
"""Auditing the cache takes at most a hundredth of the time: 2,000,000 rows take about four seconds."""


class BackgroundJob(Protocol):
    """Work in tasks of its own, which the keeper begins and ``close`` ends."""

    def tick(self, now_s: float) -> None: ...
    def stop(self) -> None: ...
    def join(self, wait_s: float) -> None: ...


class Maintenance:
    """One per container. ``start`` begins the keeper; ``close`` ends everything."""

    def __init__(self, container: OwnedContainer, recovery: Recovery) -> None:
        self._container = container
        self._recovery = recovery
        self.snapshots: Snapshots = Snapshots(container, recovery.journal_bytes)
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
