"""Take-overs from ourselves: after a fault, to decide a batch in doubt, or to roll the journal (protocol 3.9).

Promises
* A broken stream, a roll and a restart run the same code: a take-over. The batch that was in doubt is decided by what it
  adopted: found in history it is acknowledged, else it did not happen.
* A deposed owner never climbs (A1); before it reports ``OutcomeUnknown`` it tries for ``resolve_s`` to learn the outcome (A5).
* A failure of the cache never makes a committed operation "not happened" (A12): the cache is rebuilt from the journal.
* No caller meets an error because of a roll: new operations wait, the queue drains, or the roll is put off.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from chunkstore import runtime
from chunkstore.deadline import Deadline
from chunkstore.errors import ChunkstoreError, Closed, NotOwner, OutcomeUnknown, StorageFull
from chunkstore.journal import Journal, JournalBroken
from chunkstore.metadata.port import Position
from chunkstore.operations.commit_queue import FailedBatch
from chunkstore.operations.container import OwnedContainer, unexpected
from chunkstore.operations.owned_epoch import OwnedEpoch

__all__ = ["Recovery"]

_PAUSE_S_MIN: Final = 0.01
_PAUSE_S_MAX: Final = 1.0
_RESOLVE_PAUSE_S: Final = 0.02
_DRAIN_S_MAX: Final = 5.0
_DRAIN_PAUSE_S_MIN: Final = 0.0005
_DRAIN_PAUSE_S_MAX: Final = 0.01


class Recovery:
    """One per container."""

    def __init__(self, container: OwnedContainer) -> None:
        self._container = container
        self._lock = runtime.lock()
        """Held by the one take-over or roll that is under way."""
        self._ended = 0, 0
        """The last epoch of ours that has ended, and the journal bytes of all of them."""
        self.began_s: float = runtime.monotonic_s()
        """When the current epoch began."""
        container.recover = self.recover
        container.decide = self.decide

    # Deciding a batch; called by the thread that leads the commits of ``owned``.

    def decide(self, owned: OwnedEpoch, failure: FailedBatch) -> None:
        """Decide every operation of a failed batch, and end the epoch unless the failure was the batch's alone.

        The epoch ends first: once its last operation is decided, a segment's pending fields are taken for the committed ones.
        """
        try:
            self._decide(owned, failure)
        except Exception as error:  # noqa: BLE001  (a bug must leave no caller waiting)
            owned.end(unexpected(error))
        finally:
            owned.queue.decide(
                failure.batch, OutcomeUnknown("interrupted while the journal was being recovered; it may still happen")
            )
        if not isinstance(failure.error, (NotOwner, OutcomeUnknown)):  # of these the fence has reported
            self._container.observer.failed(_reason(failure.error))

    def _decide(self, owned: OwnedEpoch, failure: FailedBatch) -> None:
        container, queue, error = self._container, owned.queue, failure.error
        reason = _reason(error)
        if failure.step == "build" or (failure.step == "sync" and not isinstance(error, Exception)):
            owned.end(reason)
            queue.decide(failure.batch, reason)
        elif not isinstance(error, Exception):
            # Interrupted: callers get ``OutcomeUnknown`` now, and the next operation takes over.
            owned.in_doubt = failure
            owned.end(reason)
        elif isinstance(error, NotOwner):
            container.fence.close(error)
            owned.end(error)
            queue.decide(failure.batch, error)
        elif isinstance(error, OutcomeUnknown) and failure.step == "append":
            owned.end(container.fence.close_to_owner(owned.epoch))
            self._decide_by_successor(owned, failure, error)
        elif failure.step == "sync" or (isinstance(error, JournalBroken) and error.happened is False):
            # What was to be synced is in an unknown state for ever (protocol 2.3); a stream that failed takes no more.
            owned.end(reason)
            queue.decide(failure.batch, reason)
            with suppress(ChunkstoreError):
                # A full disk, say: still no journal then. The next change tries again and reports what it meets.
                self.recover(container.deadline())
        elif failure.step == "append" and isinstance(error, ChunkstoreError):
            queue.fail(failure.batch, error)
        else:
            owned.in_doubt = failure
            owned.end(reason)
            self._decide_by_take_over(owned, failure)

    def _decide_by_take_over(self, owned: OwnedEpoch, failure: FailedBatch) -> None:
        container = self._container
        wait_s = container.settings.tuning.undecided_s_max
        if not container.remote:
            # A caller is doing this in its own thread. What cannot be mended by its deadline the next operation mends.
            wait_s = min(wait_s, container.settings.op_deadline_s)
        deadline = Deadline(wait_s)
        pause_s = _PAUSE_S_MIN
        while True:
            try:
                self._recover(deadline, even_if_closed=True)
                return
            except NotOwner as error:
                if failure.step == "apply":
                    owned.queue.decide(failure.batch, None, failure.lsn)
                else:
                    self._decide_by_successor(owned, failure, error)
                return
            except ChunkstoreError as error:
                if container.released or deadline.left_s() == 0.0:
                    message = f"the journal failed and could not be taken over in time ({error}); it may still happen"
                    _decide_unknown(owned, failure, message, error)
                    return
                if isinstance(error, StorageFull):
                    # An append in a record meets a full disk in the journal first: what decides it needs some bytes of the reserve.
                    container.space.reserve.make_room()
                runtime.sleep_s(pause_s)
                pause_s = min(_PAUSE_S_MAX, pause_s * 2)

    def _decide_by_successor(self, owned: OwnedEpoch, failure: FailedBatch, error: ChunkstoreError) -> None:
        """There is a newer claim: only its OPEN knows whether our record counts (A5)."""
        container = self._container
        deadline = Deadline(container.settings.tuning.resolve_s)
        position = Position(failure.lsn, bytes(16), owned.epoch, 0, 0)
        while True:
            outcome = None
            with suppress(ChunkstoreError):
                outcome = container.service.resolve(position)
            if outcome is not None:
                fenced = container.fence.error or container.fence.close_to_owner(owned.epoch)
                owned.queue.decide(failure.batch, None if outcome else fenced.copy(), failure.lsn)
                return
            if deadline.left_s() == 0.0:
                break
            runtime.sleep_s(_RESOLVE_PAUSE_S)
        message = "a newer owner claimed the container while this was being committed; it may be part of history: "
        message += "open again and retry with an expected offset or an event number"
        _decide_unknown(owned, failure, message, error)

    # Taking over

    def wait(self, deadline: Deadline) -> None:
        """Wait for a take-over or roll that is under way. Raises ``DeadlineExceeded``."""
        deadline.acquire(self._lock, "recovery")
        self._lock.release()

    def recover(self, deadline: Deadline) -> None:
        """Take over from ourselves if the current epoch has ended; a take-over or a roll that is under way is waited for.

        Raises ``NotOwner`` (and the fence is closed), ``Closed``, ``DeadlineExceeded``, or why it cannot be done now.
        """
        if not self._container.remote:
            self._recover(deadline)
            return
        if not runtime.run_with_timeout(lambda: self._recover(deadline), "chunkstore-recover", deadline.left_s()):
            deadline.fail("waiting for recovery")

    def _recover(self, deadline: Deadline, *, even_if_closed: bool = False) -> None:
        container = self._container
        with runtime.defer_interrupt():
            deadline.acquire(self._lock, "recovery")
            try:
                if container.current.end_reason is None:
                    return
                if container.released or not even_if_closed:
                    container.check_owner()
                self._await_leader(container.current, deadline)
                self._take_over()
            finally:
                self._lock.release()

    @staticmethod
    def _await_leader(ended: OwnedEpoch, deadline: Deadline) -> None:
        """Wait for a commit under way in an epoch that an interrupted caller ended: its leader would take our claim for a stranger's."""
        while ended.in_doubt is None and not ended.queue.idle:
            if deadline.left_s() == 0.0:
                deadline.fail("waiting for a commit before recovery")
            runtime.sleep_s(_DRAIN_PAUSE_S_MIN)

    def _take_over(self) -> None:
        """With the lock held, the current epoch having ended: begin the next one, and decide what was in doubt."""
        container, ended = self._container, self._container.current
        try:
            ownership = container.service.take_over(own=ended.journal)
        except NotOwner as error:
            container.fence.close(error)
            raise
        except Exception as error:  # noqa: BLE001
            failure = unexpected(error)
            container.observer.failed(failure)
            raise failure from error.__cause__
        self._ended = ended.epoch, self._ended[1] + _redo_bytes(ended.journal)
        container.begin_epoch(ownership)
        container.retire(ended.store)
        ended.journal.close()
        self.began_s = runtime.monotonic_s()
        doubt = ended.in_doubt
        if doubt is not None:
            happened = ownership.adopted.lsn >= doubt.lsn
            if happened:
                ended.writer.applied(doubt.batch)
            ended.queue.decide(doubt.batch, None if happened else _reason(doubt.error), doubt.lsn)
            ended.in_doubt = None
        container.changed(0)

    def journal_bytes(self) -> int:
        """Journal bytes committed since the container was opened; bytes of extents are none of them, for a replay passes them over."""
        journal = self._container.current.journal
        # Asked second: it may have ended since.
        epoch, size_bytes = self._ended
        return size_bytes + (_redo_bytes(journal) if journal.epoch > epoch else 0)

    # The roll

    def roll(self) -> bool:
        """End the current epoch with nothing undecided, and begin the next one. False: it is put off, for something hangs."""
        container = self._container
        if not self._lock.acquire(False):
            return False
        try:
            owned = container.current
            container.draining = True
            if not self._drained(owned):
                return False
            owned.end(Closed("this epoch, which was rolled"))
            with suppress(ChunkstoreError):
                # What fails here ended the epoch, and is mended by the next operation.
                self._take_over()
            return container.current.end_reason is None
        finally:
            container.draining = container.closed
            self._lock.release()

    def _drained(self, owned: OwnedEpoch) -> bool:
        """Wait for what is on its way; whether all is decided, and nothing can enter any more."""
        container = self._container
        deadline = Deadline(min(_DRAIN_S_MAX, container.settings.op_deadline_s / 2))
        pause_s = _DRAIN_PAUSE_S_MIN
        while owned.end_reason is None and container.fence.error is None and not container.closed:
            # Nothing is led here: a batch that fails needs the lock that we hold.
            if not any(state.lock.locked() for state in owned.segments.all()) and owned.queue.end_if_idle():
                return True
            if deadline.left_s() == 0.0:
                return False
            runtime.sleep_s(pause_s)
            pause_s = min(_DRAIN_PAUSE_S_MAX, pause_s * 2)
        return False


def _decide_unknown(owned: OwnedEpoch, failure: FailedBatch, message: str, cause: ChunkstoreError) -> None:
    unknown = OutcomeUnknown(message)
    unknown.__cause__ = cause
    owned.queue.decide(failure.batch, unknown)


def _reason(error: BaseException) -> ChunkstoreError:
    """What callers hear of a failure that made their operation not happen."""
    return error.error if isinstance(error, JournalBroken) else unexpected(error)


def _redo_bytes(journal: Journal) -> int:
    return journal.bytes_written - journal.blob_bytes
