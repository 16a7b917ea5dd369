"""What happens between operations: faults, self-take-overs, rolls, snapshots, heartbeats, the lease, closing.

Promises
* Everything is a take-over (protocol 3.9): a broken stream, a roll and a restart run the same code. A self-take-over resolves
  its undecided batch: what is found in history is acknowledged, the rest did not happen.
* A deposed owner never climbs (A1); before it reports ``OutcomeUnknown`` it tries for ``resolve_s`` to learn the outcome (A5).
* A failure of the metadata cache never makes a committed operation "not happened" (A12): the cache is rebuilt from the journal.
* Maintenance runs off the commit path, except the roll, which needs the commit queue to be empty.

Leaves out: policies and pins ("Upkeep"), deletion of garbage (``collect``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from chunkstore import runtime
from chunkstore.errors import (
    ChunkstoreError,
    DeadlineExceeded,
    NotOwner,
    OutcomeUnknown,
    StorageFull,
    StorageUnavailable,
)
from chunkstore.journal import JournalBroken, RecordKind, SnapshotReport
from chunkstore.metadata.port import Commit, Position
from chunkstore.operations.core import Core
from chunkstore.operations.lazy import reconcile, settle
from chunkstore.operations.pending import PendingOp, SegmentState
from chunkstore.operations.snapshots import Snapshots

__all__ = ["Lifecycle"]

_TICK_S: Final = 0.5
_HEARTBEAT_S: Final = 1.0


class Lifecycle:
    """One per core. ``start`` begins the keeper (a background task); ``close`` ends everything."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._rolled_s = runtime.monotonic_s()
        self._stopping = runtime.event()
        self._keeper: runtime.Task | None = None
        self._last: dict[str, runtime.LastStep] = {}
        """The steps of ``close`` that have begun."""
        self._recovery_lock = runtime.lock()
        self._snapshots = Snapshots(core, self.note)
        self._heartbeat_lsn = core.journal.head.lsn
        self._looked_lsn = core.journal.head.lsn

    # Faults on the commit path; always called by the thread that leads the committer.

    def after_broken_journal(self, broken: JournalBroken, batch: Sequence[PendingOp], *, epoch: int, lsn: int) -> None:
        """The stream is unusable: take over from ourselves, and decide the batch (record ``lsn`` of ``epoch``) by what
        history says. The batch is decided in any case, also when this is interrupted."""
        core = self._core
        if broken.happened is False:
            core.broken = broken.error
            core.committer.fail(batch, broken.error)
            with suppress(ChunkstoreError):
                # A full disk, say: still no journal then. The next change tries again and reports what it meets.
                self.mend(core.deadline_s())
            return
        try:
            with self._recovery_lock:
                # Held until the batch is decided, and nobody else knows before that there is something to mend: a
                # take-over by somebody else in between would hide what became of it.
                if core.journal.epoch == epoch:
                    core.broken = broken.error
                    self._resolve(broken, batch, lsn)
                else:
                    self._decide_by_history(broken, batch, epoch, lsn)
        finally:
            undecided = [op for op in batch if not op.decided]
            if undecided:
                core.committer.fail(
                    undecided, OutcomeUnknown("interrupted while the journal was being recovered; it may still happen")
                )

    def _decide_by_history(self, broken: JournalBroken, batch: Sequence[PendingOp], epoch: int, lsn: int) -> None:
        """The stream has been taken over already: its successor's OPEN knows."""
        core = self._core
        if core.service.resolve(Position(lsn, bytes(16), epoch, 0, 0)):
            core.committer.succeed(batch, lsn)
        else:
            core.committer.fail(batch, broken.error)

    def _resolve(self, broken: JournalBroken, batch: Sequence[PendingOp], lsn: int) -> None:
        core = self._core
        wait_s = core.settings.undecided_s_max
        if not core.remote:
            # A caller is doing this in its own thread. What cannot be mended by its deadline the next operation mends.
            wait_s = min(wait_s, core.settings.op_deadline_s)
        deadline_s = runtime.monotonic_s() + wait_s
        pause_s = 0.01
        while True:
            try:
                adopted = self._recover(batch)
            except NotOwner as error:
                self._decide_by_successor(batch, lsn, error)
                return
            except ChunkstoreError as error:
                if core.ended or runtime.monotonic_s() > deadline_s:
                    unknown = OutcomeUnknown(
                        "the journal failed and could not be taken over in time; it may still happen"
                    )
                    unknown.__cause__ = error
                    core.committer.fail(batch, unknown)
                    return
                runtime.sleep_s(pause_s)
                pause_s = min(1.0, pause_s * 2)
                continue
            if adopted.lsn >= lsn:
                core.committer.succeed(batch, lsn)
            else:
                core.committer.fail(batch, broken.error)
            return

    def after_fenced_commit(self, error: OutcomeUnknown, batch: Sequence[PendingOp], lsn: int) -> None:
        """A newer claim was seen after our record was written: only the successor's OPEN knows whether it counts."""
        core = self._core
        core.fence(NotOwner(epoch=core.epoch, owner=core.epoch + 1))
        self._decide_by_successor(batch, lsn, error)

    def _decide_by_successor(self, batch: Sequence[PendingOp], lsn: int, error: ChunkstoreError) -> None:
        core = self._core
        fenced = error if isinstance(error, NotOwner) else NotOwner(epoch=core.epoch, owner=core.epoch + 1)
        core.fence(fenced)
        position = Position(lsn, bytes(16), core.epoch, 0, 0)
        deadline_s = runtime.monotonic_s() + core.settings.resolve_s
        while True:
            try:
                outcome = core.service.resolve(position)
            except ChunkstoreError:
                outcome = None
            if outcome is True:
                core.committer.succeed(batch, lsn)
                return
            if outcome is False:
                core.committer.fail(batch, fenced)
                return
            if runtime.monotonic_s() >= deadline_s:
                break
            runtime.sleep_s(0.02)
        unknown = OutcomeUnknown(
            "a newer owner claimed the container while this was being committed; it may be part of history: "
            "open again and retry with an expected offset or an event number"
        )
        unknown.__cause__ = error
        core.committer.fail(batch, unknown)

    def apply(self, commit: Commit, batch: Sequence[PendingOp]) -> bool:
        """Apply a committed record to the metadata. Returns False when the batch has been decided otherwise."""
        core = self._core
        try:
            applied = core.store.apply([commit], owner_epoch=core.epoch, verify=False)
        except Exception as error:  # noqa: BLE001  (what is committed must not be lost to a bug)
            # Committed is committed: rebuild the cache from the journal, by a take-over from ourselves.
            known = error if isinstance(error, ChunkstoreError) else core.unexpected(error)
            self._rebuild_after(known, batch, commit.position.lsn)
            return False
        if not applied:
            # A newer owner on this host has the cache. The record was decided before it came: acknowledge, then stop.
            core.fence(NotOwner(epoch=core.epoch, owner=core.epoch + 1))
            core.committer.succeed(batch, commit.position.lsn)
            return False
        core.digest = commit.digest
        return True

    def _rebuild_after(self, error: ChunkstoreError, batch: Sequence[PendingOp], lsn: int) -> None:
        core = self._core
        try:
            with self._recovery_lock:
                core.broken = error
                adopted = self._recover(batch)
        except NotOwner as fenced:
            core.fence(fenced)
            core.committer.succeed(batch, lsn)
            return
        except ChunkstoreError as second:
            unknown = OutcomeUnknown("committed, but the metadata cache failed and could not be rebuilt; open again")
            unknown.__cause__ = second
            core.committer.fail(batch, unknown)
            return
        if adopted.lsn >= lsn:
            core.committer.succeed(batch, lsn)
        else:
            core.committer.fail(batch, error)

    def mend(self, deadline_s: float) -> None:
        """Take over from ourselves if the journal is still broken.

        Raises ``NotOwner`` (fenced; the core knows), ``DeadlineExceeded``, or why it cannot be done now.
        """
        if not self._core.remote:
            self._mend(deadline_s)
            return
        # Elsewhere: whoever is inside a call that hangs cannot keep his deadline.
        failures: list[Exception] = []

        def mend() -> None:
            try:
                self._mend(deadline_s)
            except Exception as error:  # noqa: BLE001  (handed to the waiting thread)
                failures.append(error)

        task = runtime.spawn_if_possible(mend, "chunkstore-mend")
        if task is None:
            # Perhaps it does not hang.
            self._mend(deadline_s)
            return
        task.join(max(0.0, deadline_s - runtime.monotonic_s()))
        if task.is_alive():
            self._core.raise_deadline("waiting for recovery")
        if failures:
            raise failures[0]

    def _mend(self, deadline_s: float) -> None:
        with runtime.whole():
            self._mend_whole(deadline_s)

    def _mend_whole(self, deadline_s: float) -> None:
        core = self._core
        if not self._recovery_lock.acquire(True, max(0.0, deadline_s - runtime.monotonic_s())):
            core.raise_deadline("waiting for recovery")
        try:
            if core.broken is not None:
                self._recover(())
            if core.broken is not None:
                raise core.broken.copy()
        finally:
            self._recovery_lock.release()

    def _recover(self, keep: Sequence[PendingOp]) -> Position:
        """With the recovery lock held: take over; returns the last record of our former stream that counts.

        Everything reserved (but ``keep``) fails: its data lies in chunks of the former epoch.
        """
        core = self._core
        if core.ended:
            core.check_open()
        try:
            for state in core.gate.shut("recovery"):
                core.abandon(state)
            reason = core.broken or StorageUnavailable("the journal was taken over; retry")
            told = isinstance(reason, (StorageUnavailable, StorageFull))
            lost = reason if told else StorageUnavailable(f"not committed: {reason}")
            if lost is not reason:
                lost.__cause__ = reason
            core.committer.fail_everything(lost)
            for state in core.states.all():
                # Behind the gate nobody writes under a lock any more, and who was left behind has nothing reserved.
                with state.lock:
                    victims = [op for op in state.reserved if op not in keep]
                    state.reserved.clear()
                if victims:
                    core.committer.fail_reserved(victims, lost)
            return self._take_over()
        finally:
            core.gate.open("recovery")

    def _take_over(self) -> Position:
        core = self._core
        try:
            ownership = core.service.take_over(own=core.journal)
        except NotOwner as error:
            core.fence(error)
            raise
        except ChunkstoreError:
            raise
        except Exception as error:
            raise core.unexpected(error) from error
        interrupted: BaseException | None = None
        old = core.journal
        try:
            self._snapshots.former_bytes += old.bytes_written
            core.retire(core.store)
            # Before the journal counts as mended: the state may have moved on by the record that was in doubt.
            core.committer.records.forget()
            failure = reconcile(core.storage, core.names, ownership)
        except BaseException as error:  # noqa: BLE001  (our claim stands: not adopted, it would be taken for a stranger's)
            failure, interrupted = core.unexpected(error), error
        # What was on its way is decided by what was adopted; but nobody is served before the lengths are settled.
        core.adopt(ownership, broken=failure)
        if isinstance(failure, NotOwner):
            core.fence(failure)
        old.close()
        self._rolled_s = runtime.monotonic_s()
        self._heartbeat_lsn = core.journal.head.lsn
        if interrupted is not None and not isinstance(interrupted, Exception):
            raise interrupted
        return ownership.adopted

    # The roll

    def roll_due(self) -> bool:
        """Whether the stream is long enough, and the last roll long enough ago (protocol A11)."""
        journal = self._core.journal
        settings = self._core.settings
        if journal.bytes_written <= settings.log_roll_bytes and (
            journal.mode == "append" or journal.records_written <= settings.slot_roll_records
        ):
            return False
        return runtime.monotonic_s() - self._rolled_s >= settings.roll_interval_s_min

    def maintain(self) -> None:
        """Called by the leader between two batches: roll the journal with nothing reserved."""
        core = self._core
        core.maintaining = True
        epoch = core.epoch
        held: list[SegmentState] = []
        try:
            held = core.gate.shut("roll")
            if held:
                # Somebody hangs in a data write: the stream may grow on for a while.
                self._rolled_s = runtime.monotonic_s()
                return
            try:
                core.committer.drain(core.deadline_s())
            except DeadlineExceeded:
                # Something reserved hangs in its data write.
                self._rolled_s = runtime.monotonic_s()
            with self._recovery_lock:
                # A commit on the way may have recovered already: that was a roll, too.
                if (
                    core.epoch == epoch
                    and core.fenced is None
                    and core.broken is None
                    and not core.committer.inflight()
                ):
                    self._roll()
        finally:
            try:
                core.gate.open("roll", held)
            finally:
                core.maintaining = False

    def _roll(self) -> None:
        core = self._core
        try:
            self._take_over()
        except NotOwner:
            return  # the core knows
        except BaseException as error:
            # The stream was ended: the next change mends it.
            core.broken = error if isinstance(error, ChunkstoreError) else core.unexpected(error)
            if not isinstance(error, ChunkstoreError):
                raise

    def snapshot(self) -> SnapshotReport:
        """Write, validate, note and publish a snapshot of the present state; see ``Snapshots.take``."""
        return self._snapshots.take()

    def snapshot_failure(self) -> str:
        """Why the last snapshot failed; empty after one that succeeded, and before the first."""
        return self._snapshots.failure

    # Notes

    def note(self, kind: RecordKind, notes: tuple[object, ...]) -> int:
        """Commit a record without operations (snapshot and collection notes, heartbeat, close); returns its lsn."""
        core = self._core
        core.pass_gate(core.deadline_s())
        return self._note(kind, notes)

    def _note(self, kind: RecordKind, notes: tuple[object, ...]) -> int:
        core = self._core
        op = PendingOp([], {}, (), (), 0)
        op.kind = kind
        op.notes = notes
        with runtime.whole():
            core.committer.enter(op, reserve=True)
        core.committer.wait(op, core.deadline_s())
        return op.lsn

    # The keeper

    def start(self) -> None:
        """Show the lease, then begin the background task: lease, heartbeat, snapshots when due."""
        if self._core.settings.lease_s:
            # At once: until the first renewal a polite claimant would take us for gone.
            self._core.service.renew_lease(self._core.epoch, released=False)
        self._keeper = runtime.spawn(self._keep, "chunkstore-keeper")

    def _keep(self) -> None:
        core = self._core
        leased_s = runtime.monotonic_s()
        while not self._stopping.wait(_TICK_S):
            if core.fenced is not None or core.closed:
                return
            now_s = runtime.monotonic_s()
            if core.settings.lease_s and now_s - leased_s >= core.settings.lease_s:
                leased_s = now_s
                with suppress(Exception):
                    core.service.renew_lease(core.epoch, released=False)
            try:
                self._look_up()
                settle(core)
                self._heartbeat(now_s)
                if core.gate.is_open() and core.broken is None:
                    self._snapshots.take_due()
            except Exception:  # noqa: BLE001, S112  (a bug of a binding must not end it)
                # Nobody waits for these; the next tick tries again, and operations report their own errors.
                continue

    def _look_up(self) -> None:
        """While we write slots, look for a newer claim: its maker needs several requests for each slot that we take with one,
        and would lose the race for the next one for ever (protocol 3.4)."""
        core = self._core
        head = core.journal.head.lsn
        if core.journal.mode == "slot" and head != self._looked_lsn:
            self._looked_lsn = head
            core.give_way()

    def _heartbeat(self, now_s: float) -> None:
        """One empty record a second after the last one, so that replicas need not wait for the next commit (A15)."""
        core = self._core
        head = core.journal.head.lsn
        if (
            core.journal.mode == "append"
            and core.broken is None
            and head != self._heartbeat_lsn
            and now_s - core.committer.last_commit_at_s >= _HEARTBEAT_S
            and core.committer.inflight() == 0
        ):
            self._heartbeat_lsn = self.note(RecordKind.HEARTBEAT, ())

    def close(self, after: Sequence[Callable[[], None]]) -> None:
        """Finish what is under way, write CLOSE, release the lease and all resources, then call ``after``. Raises nothing but
        what interrupts a thread: it can be called again then, and begins nothing twice.

        Takes a few times ``op_deadline_s`` at most: what hangs then is left to itself, and can change nothing any more.
        """
        core = self._core
        if core.lazy:
            self._finish("settle", lambda: settle(core, closing=True))
        core.closed = True
        self._stopping.set()
        # From here on an operation is either reserved, and waited for below, or refused.
        for state in core.gate.shut("close"):
            core.abandon(state)
        core.committer.notify()
        deadline_s = core.deadline_s()
        if self._keeper is not None:
            self._keeper.join(timeout=core.settings.op_deadline_s)
        self._snapshots.join(max(0.0, deadline_s - runtime.monotonic_s()))
        while core.committer.inflight() and runtime.monotonic_s() < deadline_s:
            # Callers that were let in before finish by themselves.
            runtime.sleep_s(0.001)
        if not core.ended and core.fenced is None and core.broken is None:
            self._finish("goodbye", self._say_goodbye)
        core.journal.close()
        core.ended = True
        self._finish("stores", core.close_stores)
        self._finish("pool", core.pool.close)
        core.gate.open("close")
        for number, call in enumerate(after):
            self._finish(f"after {number}", call)

    def _finish(self, name: str, call: Callable[[], None]) -> None:
        step = self._last.get(name)
        if step is None:
            step = self._last[name] = runtime.LastStep(call)
        step.wait(self._core.settings.op_deadline_s)

    def _say_goodbye(self) -> None:
        core = self._core
        self._note(RecordKind.CLOSE, ())
        if core.settings.lease_s:
            core.service.renew_lease(core.epoch, released=True)
