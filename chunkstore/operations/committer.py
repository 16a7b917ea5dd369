"""Group commit: many threads' operations become one journal record, then one metadata transaction (protocol 3.5, 3.7, A6).

Promises
* Law of the order: bytes durable -> journal durable -> fence known -> metadata -> acknowledged.
* The first waiter commits for everybody in the queue, in its own thread: no hand-over when there is no company. A leader
  with company waits briefly for the crowd of the last batch (at most a fifth of the last commit's time, 2 ms at most), since
  clients that were just answered are about to come back.
* An operation is decided exactly once. A caller whose deadline passes gets ``OutcomeUnknown`` while the commit goes on.
* When a batch fails, its segments fall back to what is committed, and everything queued behind it on them fails too.

Leaves out: planning; what to do about a broken journal (``lifecycle``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from chunkstore import runtime
from chunkstore.config import LIMITS
from chunkstore.errors import (
    ChunkstoreError,
    DeadlineExceeded,
    NotOwner,
    OutcomeUnknown,
    StorageUnavailable,
)
from chunkstore.journal import JournalBroken, RecordKind
from chunkstore.metadata.port import Commit
from chunkstore.operations.crowd import Crowd
from chunkstore.operations.pending import PendingOp, SegmentState, Waiter
from chunkstore.operations.record import RecordBuilder

if TYPE_CHECKING:
    from chunkstore.operations.core import Core

__all__ = ["Committer"]

_BACKGROUND: Final = "chunkstore-committer"
_POLL_S_MAX: Final = 0.005


class Committer:
    """The commit queue of one store. Thread-safe."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._lock = runtime.lock()
        self._queue: list[PendingOp] = []
        self._taken: Sequence[PendingOp] = ()
        """The batch taken last; its operations may be undecided still."""
        self._notes_queued = 0
        self._leading = False
        self._elsewhere = core.storage.capabilities.remote
        """Whether commits are led in the background: a caller inside a call that hangs could not keep its deadline."""
        self._crowd = Crowd(core.settings.linger_s, self._lock, lambda: len(self._queue))
        self._inflight = 0
        self._place: tuple[int, int] | None = None
        """Epoch and lsn of the record that the leader writes; None before it does."""
        self.records = RecordBuilder(core)
        self.records_committed = 0
        self.changes_committed = 0
        """Those of them that are no notes of our own: notes change nothing, and ask for nothing."""
        self.last_commit_at_s = runtime.monotonic_s()
        self.listeners: list[Callable[[], None]] = []

    # Entering and waiting

    def reserve(self) -> None:
        """Count an operation as under way before its data is written; it must end in ``enter`` or ``give_up``."""
        with self._lock:
            self._inflight += 1

    def give_up(self) -> None:
        """An operation ended before it entered the queue."""
        with self._lock:
            self._inflight -= 1

    def refuse(self, state: SegmentState, twin: SegmentState) -> bool:
        """From now on ``twin`` takes the state's place, and nothing planned on the state enters the queue. False: it has one."""
        with self._lock:
            if state.twin is None:
                state.twin = twin
            return state.twin is twin

    def unless_refused(self, state: SegmentState, call: Callable[[], object]) -> bool:
        """Do ``call`` if no twin has taken the state's place, and none takes it meanwhile. Whether it was done."""
        with self._lock:
            return state.twin is None and (call(), True)[1]

    def enter(self, op: PendingOp, *, reserve: bool = False) -> bool:
        """Put an operation into the queue, in reservation order, under its segments' locks. False: it was left behind
        (``Core.abandon``), and did not enter. Only then it is their newest operation: who is interrupted before leaves nothing undecided.

        After ``reserve``, or with ``reserve`` by who has held the segment's lock since before anything was written: whoever
        shuts the gate takes that lock, so it waits for the entering."""
        with self._lock:
            for state in op.states:
                if state.twin is not None:
                    return False
            self._queue.append(op)
            op.entered = True
            for state in op.states:
                state.last = op
            if reserve:
                self._inflight += 1
            if op.kind is not RecordKind.OPS:
                self._notes_queued += 1
            self._crowd.arrived(len(self._queue))
            if not self._leading and op.waiter is not None:
                # Another thread entered it on behalf of a caller that waits already.
                self._leading = op.leads = True
                waiter, op.waiter = op.waiter, None
                waiter.wake()
            return True

    def inflight(self) -> int:
        """Operations reserved and not decided."""
        with self._lock:
            return self._inflight

    def wait(self, op: PendingOp, deadline_s: float) -> None:
        """Wait until ``op`` is decided, leading commits when nobody else does; then raise its error, if any.

        ``deadline_s`` is a point of the monotonic clock. Raises the operation's own error, or ``OutcomeUnknown`` when the
        deadline passes first.
        """
        try:
            self._wait(op, deadline_s)
        except BaseException:
            # Also Ctrl-C: the operation stays queued, and neither it nor the lead may depend on a thread that has gone.
            self.leave(op)
            raise
        if op.leads:
            # Made leader, and failed together with its segment before we woke up: the lead must not end with us.
            self.leave(op)
        if op.error is not None:
            raise op.error.copy()

    def _wait(self, op: PendingOp, deadline_s: float) -> None:
        while not op.decided:
            with self._lock:
                if op.decided:
                    break
                lead = op.leads or (op.entered and not self._leading)
                if lead:
                    # Until somebody leads indeed, ``leave`` gives the lead back.
                    self._leading = op.leads = True
                    op.waiter = None
                if not lead or self._elsewhere:
                    waiter = op.waiter = Waiter()
            if lead and self._elsewhere:
                # Without a thread to be had, it is led here, as it is where storages are local.
                lead = runtime.spawn_if_possible(lambda: self._lead_for(op), _BACKGROUND) is None
            if lead:
                self._lead(op)
                waited = op.decided or runtime.monotonic_s() < deadline_s
            else:
                waited = waiter.wait(deadline_s - runtime.monotonic_s())
            if not waited and not op.decided:
                raise OutcomeUnknown(
                    "the deadline passed while the commit was under way; it may still happen: "
                    "retry with an expected offset or an event number"
                )

    def leave(self, op: PendingOp) -> None:
        """The caller of ``op`` goes away, or never comes to wait; whether it was to lead, and who leads now, is settled here."""
        with runtime.whole():
            with self._lock:
                op.waiter = None
                op.abandoned = True
                if op.leads:
                    self._end_lead(op)
            self._pass_leadership()

    def wait_decided(self, op: PendingOp, deadline_s: float) -> bool:
        """Wait, as somebody who depends on ``op`` without being its caller. False when the deadline passed first."""
        pause_s = 0.0002
        while not op.decided:
            if runtime.monotonic_s() > deadline_s:
                return False
            runtime.sleep_s(pause_s)
            if pause_s >= _POLL_S_MAX:
                # Its own caller drives it, unless that was interrupted.
                self._pass_leadership(forsaken=True)
            pause_s = min(_POLL_S_MAX, pause_s * 1.5)
        return True

    def notify(self) -> None:
        """Wake those who wait for changes."""
        for listener in self.listeners:
            listener()

    def _lead(self, op: PendingOp) -> None:
        with runtime.whole():
            try:
                while not op.decided:
                    self._crowd.gather()
                    if not (batch := self._take()):
                        break  # ours was failed together with its segment between two batches
                    self._commit(batch)
            finally:
                self._stop_leading(op)

    def _stop_leading(self, op: PendingOp | None) -> None:
        with self._lock:
            self._end_lead(op)
            left = bool(self._queue)
        if left:
            self._pass_leadership()

    def _end_lead(self, op: PendingOp | None) -> None:
        """With the lock held: nobody leads. What was taken and never begun, because its leader was interrupted, is queued as it was."""
        if self._place is None:
            lost = [item for item in self._taken if not item.decided and item not in self._queue]
            self._queue[:0] = lost
            self._notes_queued += sum(item.kind is not RecordKind.OPS for item in lost)
        self._leading = False
        if op is not None:
            op.leads = False

    def _pass_leadership(self, *, forsaken: bool = False) -> None:
        """Give the lead to a waiting caller, or to a background task when everyone queued has gone (``forsaken``: or seems to have)."""
        with runtime.whole():
            if self._takes_lead(forsaken):
                task = None
                try:
                    task = runtime.spawn_if_possible(self._lead_in_background, _BACKGROUND)
                finally:
                    if task is None:
                        self._lead_is_free()

    def _takes_lead(self, forsaken: bool) -> bool:
        """Whether the lead is now the background's; it may have been given to a waiting caller, or be nobody's for the moment."""
        with self._lock:
            if self._leading or not self._queue:
                return False
            for op in self._queue if not self._elsewhere else ():
                if op.waiter is not None:
                    self._leading = op.leads = True
                    waiter, op.waiter = op.waiter, None
                    waiter.wake()
                    return False
            # Its caller has not begun to wait yet, perhaps, and will lead then.
            self._leading = self._elsewhere or forsaken or all(op.abandoned for op in self._queue)
            return self._leading

    def _lead_is_free(self) -> None:
        with self._lock:
            self._leading = False
            for op in self._queue:
                # Whoever waits finds that nobody leads, and leads.
                if op.waiter is not None:
                    op.waiter.wake()
                    op.waiter = None

    def _lead_for(self, op: PendingOp) -> None:
        """Lead in the background, if the lead is still this caller's to give."""
        with self._lock:
            leads, op.leads = op.leads, False
        if leads:
            self._lead_in_background()

    def _lead_in_background(self) -> None:
        try:
            if self._elsewhere:
                self._crowd.gather()
            while batch := self._take():
                self._commit(batch)
                if self._elsewhere:
                    self._crowd.gather()
        finally:
            self._stop_leading(None)

    def _take(self) -> list[PendingOp]:
        with self._lock:
            queue = self._queue
            if not queue:
                return []
            self._place = None
            if self._notes_queued == 0 and len(queue) == 1:
                self._taken, self._queue = queue, []
                return queue
            size_bytes = count = 0
            for op in queue[: LIMITS.batch_ops_max]:
                size_bytes += op.size_bytes_estimate()
                # A note has a record of its own; an operation with more than a batch's worth goes alone.
                if count and (size_bytes > LIMITS.batch_bytes_max or op.kind is not RecordKind.OPS):
                    break
                count += 1
                if op.kind is not RecordKind.OPS:
                    self._notes_queued -= 1
                    break
            batch = self._taken = queue[:count]
            self._queue = queue[count:]
            return batch

    # One batch

    def _commit(self, batch: list[PendingOp]) -> None:
        """Commit and decide a batch. Raises nothing but what interrupts a thread, and then, too, the batch is decided."""
        try:
            self._commit_steps(batch)
        except BaseException as error:
            undecided = [op for op in batch if not op.decided]
            if undecided:
                self._end_abruptly(undecided, self._core.unexpected(error))
            if not isinstance(error, Exception):
                raise

    def _end_abruptly(self, batch: Sequence[PendingOp], error: StorageUnavailable) -> None:
        if self._place is None:
            # Nothing was written: what an earlier record came to says nothing about these.
            self.fail(batch, error)
            return
        # What happened to the record is not known, and this stream must not be used again.
        epoch, lsn = self._place
        with suppress(Exception):
            self._core.lifecycle.after_broken_journal(JournalBroken(error, happened=None), batch, epoch=epoch, lsn=lsn)

    def _commit_steps(self, batch: list[PendingOp]) -> None:
        core = self._core
        began_s = runtime.monotonic_s()
        try:
            core.check_cache_space(began_s)
            self._sync(batch)
        except ChunkstoreError as error:
            self.fail(batch, error)
            return
        except BaseException as error:
            self.fail(batch, core.unexpected(error))
            raise
        try:
            # In this order: while the journal is broken, any caller may replace it; once it is seen whole, only we may.
            error_before = core.broken
            if error_before is not None:
                raise error_before.copy()
            journal = core.journal
            batch = self._drop_outdated(batch, journal.epoch)
            if not batch:
                return
            previous = journal.head
            record, digests = self.records.build(batch, previous.lsn + 1)
            self._place = journal.epoch, previous.lsn + 1
            position = journal.append(record)
        except JournalBroken as broken:
            core.lifecycle.after_broken_journal(broken, batch, epoch=journal.epoch, lsn=previous.lsn + 1)
            return
        except OutcomeUnknown as error:
            core.lifecycle.after_fenced_commit(error, batch, previous.lsn + 1)
            return
        except ChunkstoreError as error:
            if isinstance(error, NotOwner):
                core.fence(error)
            self.fail(batch, error)
            return
        commit = Commit(position, previous.hash, record.digest, record.ops, record.rows)
        if not core.lifecycle.apply(commit, batch):
            return
        self.records.remember(digests)
        now_s = runtime.monotonic_s()
        self._crowd.last_commit_s = now_s - began_s
        self.last_commit_at_s = now_s
        self.records_committed += 1
        self.changes_committed += batch[0].kind is RecordKind.OPS
        self._decide(batch, None, position.lsn)
        if core.maintenance_due():
            core.lifecycle.maintain()

    def _drop_outdated(self, batch: list[PendingOp], epoch: int) -> list[PendingOp]:
        """Fail what was planned in a former epoch: its chunks may be swept by whoever comes after us."""
        outdated = [op for op in batch if op.epoch not in (0, epoch)]
        if not outdated:
            return batch
        self.fail(outdated, StorageUnavailable("ownership was recovered meanwhile; retry"))
        return [op for op in batch if not op.decided]

    def _sync(self, batch: Sequence[PendingOp]) -> None:
        names: Sequence[str] = batch[0].sync_names
        if len(batch) > 1:
            names = list(dict.fromkeys(name for op in batch for name in op.sync_names))
        if names:
            try:
                self._core.storage.sync(names)
            except ChunkstoreError:
                for op in batch:
                    op.poison()
                raise

    # Deciding

    def _decide(self, batch: Sequence[PendingOp], error: ChunkstoreError | None, lsn: int) -> None:
        with self._lock:
            self._crowd.last = len(batch)
            for op in batch:
                if op.decided:
                    continue
                self._inflight -= 1
                op.lsn = lsn
                op.error = error
                op.decided = True
                if (waiter := op.waiter) is not None:
                    op.waiter = None
                    waiter.wake()
        if error is None:
            for op in batch:
                if op.table_keys:
                    self._core.tables.forget(op)
            self.notify()

    def succeed(self, batch: Sequence[PendingOp], lsn: int) -> None:
        """Acknowledge a batch whose record was found in history."""
        self._decide(batch, None, lsn)

    def fail(self, batch: Sequence[PendingOp], error: ChunkstoreError) -> None:
        """Fail a batch and everything queued behind it on the same segments."""
        victims: list[PendingOp] = list(batch)
        left_s = self._core.gate.patience()
        states: dict[int, SegmentState] = {id(state): state for op in batch for state in op.states}
        grew = True
        while grew:
            grew = False
            for state in list(states.values()):
                victims += self._end_state(state, left_s())
            with self._lock:
                kept: list[PendingOp] = []
                for op in self._queue:
                    if op.kind is RecordKind.OPS and any(id(state) in states for state in op.states):
                        victims.append(op)
                        for state in op.states:
                            if id(state) not in states:
                                states[id(state)] = state
                                grew = True
                    else:
                        kept.append(op)
                self._queue = kept
                taken = self._taken
        self._step_back(states.values(), victims, taken)
        for op in victims:
            op.poison()
            if op.table_keys:
                self._core.tables.forget(op)
        self._decide(victims, error, 0)

    def _end_state(self, state: SegmentState, patience_s: float) -> list[PendingOp]:
        """The pending fields are not to be used any more; returns what was reserved. Somebody whose data write hangs is left
        behind."""
        core = self._core
        if state.twin is not None:
            return []
        if not state.lock.acquire(True, patience_s):
            core.abandon(state)
            return []
        state.dead = True
        state.writers.clear()
        reserved, state.reserved = state.reserved, []
        state.lock.release()
        return reserved

    def _step_back(
        self, states: Iterable[SegmentState], victims: Sequence[PendingOp], taken: Sequence[PendingOp]
    ) -> None:
        """Before the newest operation of a segment fails: one before it may be in the batch that is being committed, and
        nobody may plan upon the committed state until that one is decided, too."""
        failing = {id(op) for op in victims}
        for state in states:
            current = state.twin or state
            # Nobody plans on a segment before what is failing here is decided. Whoever holds its lock for long has found nothing
            # undecided there, so there is nothing to step back from; and a twin needs no lock.
            if current is state and not state.lock.acquire(True, self._core.patience_s):
                continue
            if current.last is not None and id(current.last) in failing:
                earlier = [op for op in taken if state in op.states and id(op) not in failing]
                current.last = earlier[-1] if earlier else None
            if current is state:
                state.lock.release()

    def fail_reserved(self, victims: Sequence[PendingOp], error: ChunkstoreError) -> None:
        """Fail operations that never entered. What is queued on their segments was reserved before them and goes on."""
        self._decide(victims, error, 0)

    def fail_everything(self, error: ChunkstoreError) -> None:
        """Fail all queued operations (the stream they were planned for is gone)."""
        with self._lock:
            queued, self._queue = self._queue, []
            self._notes_queued = 0
        if queued:
            self.fail(queued, error)

    def drain(self, deadline_s: float) -> None:
        """Called by the leader: commit until nothing is reserved any more. Raises ``DeadlineExceeded``."""
        while self.inflight():
            batch = self._take()
            if batch:
                self._commit(batch)
            elif runtime.monotonic_s() > deadline_s:
                raise DeadlineExceeded("draining the commit queue", deadline_s=self._core.settings.op_deadline_s)
            else:
                runtime.sleep_s(0.0005)
