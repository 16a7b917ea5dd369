"""Group commit: many threads' operations become one journal record, then one cache transaction (protocol 3.5, 3.7, A6).

Promises
* Law of the order: bytes durable -> journal durable -> fence known -> cache -> acknowledged.
* Operations of one segment are committed in the order they entered; one still being written holds up those after it there.
* The first waiter commits all that is queued; with remote storages a background thread does, for a caller inside a call
  that hangs could not keep its deadline. Any waiter may lead.
* An operation is decided exactly once. A caller whose deadline passes gets ``OutcomeUnknown`` while the commit goes on.
* A queue belongs to one epoch. Once it has ended, nothing enters it and nothing of it is committed.
* A batch that fails fails everything queued after it; a failed data write fails its segment only.
* A commit waits for company at most ``linger_s``, or where that is 0 a fifth of the last commit's time and 20 ms; not after a batch of one,
  and seldom where it waited in vain. Else two halves of a crowd would take turns: each is in the queue while the other is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple, TypeAlias

from chunkstore import runtime
from chunkstore.config import LIMITS
from chunkstore.deadline import Deadline
from chunkstore.errors import ChunkstoreError, Closed, NotOwner, OutcomeUnknown, StorageFull, StorageUnavailable
from chunkstore.journal import RecordKind
from chunkstore.metadata.port import Commit, Position
from chunkstore.operations.pending import Pending, PendingLine, PendingOp, PendingSegment, Stale, Waiter
from chunkstore.operations.record_builder import BatchWriter

__all__ = ["CommitQueue", "FailedBatch"]

_GATHER_SHARE: Final = 0.2
_GATHER_S_MAX: Final = 0.02
_COMPANY_SHARE: Final = 0.95
_PASSED_OVER_MAX: Final = 8
"""Commits without a wait after one that was in vain."""


def _next_batch(queue: Sequence[Pending]) -> list[Pending]:
    """The next batch of what is queued; nothing where all of it is held up."""
    batch, size_bytes = list[Pending](), 0
    held_up: set[PendingSegment] = set()
    lines = False
    for op in queue:
        other = bool(batch) and lines is not (type(op) is PendingLine)
        note = op.kind is not RecordKind.OPS
        if not op.written or (other and not note) or (held_up and not held_up.isdisjoint(op.segments)):
            held_up.update(op.segments)
            continue
        size_bytes += op.size_bytes_estimate()
        if batch and (note or size_bytes > LIMITS.batch_bytes_max or len(batch) == LIMITS.batch_ops_max):
            break
        lines = type(op) is PendingLine
        batch.append(op)
        if note:
            break
    return batch


_BACKGROUND: Final = "chunkstore-committer"
_ENDED: Final = -1
_make = tuple.__new__  # what a NamedTuple's constructor does, without its argument handling
CommitStep: TypeAlias = Literal["sync", "build", "append", "apply"]


class FailedBatch(NamedTuple):
    """A batch that met ``error`` at ``step``; its record would be, or is, ``lsn``. Every operation of it is undecided."""

    batch: Sequence[Pending]
    lsn: int
    step: CommitStep
    error: BaseException


class CommitQueue:
    """The commit queue of one epoch. Thread-safe. ``head``: the last committed position. ``failed`` decides every operation of a failed
    batch; ``committed`` is called with each committed lsn, after the acknowledgement. Neither may raise."""

    def __init__(
        self,
        writer: BatchWriter,
        head: Position,
        *,
        background: bool,
        linger_s: float,
        failed: Callable[[FailedBatch], None],
        committed: Callable[[int], None],
    ) -> None:
        self.writer = writer
        self._background = background
        self._linger_s = linger_s
        self._failed = failed
        self._committed = committed
        self._lock = runtime.lock()
        self._queue: list[Pending] = []
        self._taken: Sequence[Pending] = ()
        """The batch taken last; its operations may be undecided still."""
        self._plain = True
        """Whether all that is queued is written, and no note."""
        self._leading = False
        self._gathers = linger_s > 0.0
        self._gathering: Waiter | None = None
        """Set while a leader waits for company, until ``_company`` operations are in the queue."""
        self._company = 1
        """Operations of the last batch, and those that were queued when it was decided."""
        self._last_commit_s = 0.0
        self._pass_over = self._passed_over = 0
        self.generation: int = 1
        """Operations that were planned in an earlier one are refused; raised by every batch that fails."""
        self.head: Position = head
        self.last_commit_at_s: float = runtime.monotonic_s()

    @property
    def ended(self) -> bool:
        """Whether nothing can enter any more."""
        return self.generation == _ENDED

    def enter(self, op: Pending) -> None:
        """Put an operation into the queue, under the locks of its segments. Raises ``Stale``: it is not in the queue."""
        try:
            with self._lock:
                if op.generation != self.generation or self.generation == _ENDED:
                    raise Stale
                for state in op.segments:
                    state.last = op
                if not op.written or op.kind is not RecordKind.OPS:
                    self._plain = False
                self._queue.append(op)
                if self._gathering is not None:
                    self._arrived()
        except BaseException as error:
            if not isinstance(error, Stale):
                self._interrupted((op,), error)  # it may be in the queue, and its segments may not know
            raise

    def enter_line(self, op: PendingLine) -> Sequence[Pending] | Waiter | None:
        """As ``enter``, of a line whose caller goes on with it at once: it leads, with the batch returned, or waits with its waiter; or,
        with None, it ``wait``s."""
        try:
            with self._lock:
                if op.generation != self.generation:
                    raise Stale
                op.segments[0].last = op
                queue = self._queue
                if self._leading or self._background:
                    queue.append(op)
                    if self._gathering is not None:
                        self._arrived()
                    if not self._leading:
                        return None
                    waiter = Waiter()
                    op.waiters = (waiter,)
                    return waiter
                self._leading = True
                if queue or self._gathers:
                    queue.append(op)
                    return ()
                self._taken = batch = (op,)
                return batch
        except BaseException as error:
            if not isinstance(error, Stale):
                self._interrupted((op,), error)
            raise

    def enter_last(self, op: Pending) -> None:
        """After ``end_if_idle``: put in the operation after which nothing ever enters."""
        with self._lock:
            self._plain = False
            self._queue.append(op)

    def written(self, op: PendingOp) -> None:
        """The data of an operation that entered before it was written is in the storage now."""
        with self._lock:
            op.written = True

    def not_written(self, op: Pending, error: ChunkstoreError) -> None:
        """With the lock of its one segment held: its data could not be written. It fails, and all after it on its segment."""
        (state,) = op.segments
        with self._lock:
            if op not in self._queue:
                return  # never entered, or failed with others
            following = [item for item in self._queue if state in item.segments]
            victims = following[following.index(op) :]
            self._queue[:] = [item for item in self._queue if item not in victims]
            # What was reserved before these is still undecided: the committed state is not the pending one yet.
            before = [item for item in (*self._taken, *following) if state in item.segments and item not in victims]
            state.last = before[-1] if before else None
            self._decide(victims, error, 0)
            self._hand_over()  # one of them may have been woken to lead
        state.unload()

    # Waiting

    def wait(self, op: Pending, deadline: Deadline) -> None:
        """Wait until ``op`` is decided, committing what is queued while no other thread does. Raises its error, or ``OutcomeUnknown``
        when the deadline passes first."""
        if not op.decided and not self.wait_decided(op, deadline):
            message = "the deadline passed during the commit; it may still happen"
            raise OutcomeUnknown(f"{message}: retry with an expected offset or an event number")
        if op.error is not None:
            raise op.error.copy()

    def wait_decided(self, op: Pending, deadline: Deadline, waiter: Waiter | None = None) -> bool:
        """As ``wait``, but does not raise the operation's error. False when the deadline passed first. ``waiter``: one that the operation
        has."""
        while not op.decided or waiter is not None:
            waiter = waiter or self._lead_or_wait(op)
            if waiter is None:
                continue
            in_time = False
            try:
                in_time = waiter.wait(deadline.left_s())
            finally:
                if not in_time:
                    # Also after Ctrl-C: a waiter that was woken to lead, and leaves, wakes another one.
                    with runtime.defer_interrupt(), self._lock:
                        op.waiters = tuple(item for item in op.waiters if item is not waiter)
                        self._hand_over()
            if not in_time:
                return op.decided
            waiter = None
        return True

    def lead_if_forsaken(self) -> None:
        """Commit a batch if no thread leads or waits: callers may have been interrupted before they waited."""
        with runtime.defer_interrupt():
            with self._lock:
                self._hand_over()
                lead = not self._leading and self._has_ready() and not any(op.waiters for op in self._queue)
                last = _next_batch(self._queue)[-1] if lead else None
                self._leading = self._leading or lead
            if last is not None:
                self.lead(last)

    def _lead_or_wait(self, op: Pending) -> Waiter | None:
        """Commit in this thread until ``op`` is decided, or return what its caller has to wait for."""
        waiter = None
        with runtime.defer_interrupt():
            try:
                with self._lock:
                    lead = not self._leading and bool((self._plain and self._queue) or self._has_ready())
                    self._leading = self._leading or lead
                    if not op.decided and (self._background or not lead):
                        waiter = Waiter()
                        op.waiters = (*op.waiters, waiter)
                # Without a thread to be had, it is led here, as it is where storages are local.
                if lead and (not self._background or runtime.spawn_if_possible(self.lead, _BACKGROUND) is None):
                    self.lead(op)
            except BaseException as error:
                self._interrupted((), error)  # whether there is a leader is not certain
                raise
        return waiter

    def _hand_over(self) -> None:
        """With the lock held: wake a waiter, which will lead, if no thread leads."""
        if self._leading or not self._has_ready():
            return
        if op := next((op for op in self._queue if op.waiters), None):
            op.waiters[0].wake()
            op.waiters = op.waiters[1:]

    def lead(self, op: Pending | None = None, batch: Sequence[Pending] = ()) -> None:
        """As the one leader, commit batch after batch: until ``op`` is decided, or nothing is ready. ``batch``: what is taken already."""
        try:
            while op is None or not op.decided:
                if not batch:
                    if self._gathers:
                        self._gather()
                    batch = self._take()
                    if not batch:
                        return
                self._commit(batch)
                batch = ()
        except BaseException as error:
            self._interrupted(self._taken, error)
            raise
        finally:
            with self._lock:
                self._leading = False
                if self._queue:
                    self._hand_over()

    def _interrupted(self, batch: Sequence[Pending], error: BaseException) -> None:
        """Between two steps that belong together: the epoch ends, if it has not, and with it what is queued and ``batch``."""
        if not self.ended:
            self._failed(FailedBatch(batch, self.head.lsn + 1, "build", error))

    # One batch

    def _target(self) -> int:
        target = int(self._company * _COMPANY_SHARE)
        return target if self._linger_s == 0.0 else max(2, target)

    def _arrived(self) -> None:
        """With the lock held: one more is in the queue."""
        if self._gathering is not None and len(self._queue) >= self._target():
            self._gathering.wake()
            self._gathering = None

    def _gather(self) -> None:
        """Wait for more operations, without the lock."""
        with self._lock:
            if len(self._queue) >= self._target():
                return
            if self._pass_over and self._linger_s == 0.0:
                self._pass_over -= 1
                return
            waiter = self._gathering = Waiter()
        waiter.wait(self._linger_s or min(_GATHER_S_MAX, _GATHER_SHARE * self._last_commit_s))
        with self._lock:
            in_vain = self._gathering is waiter
            if in_vain:
                self._gathering = None
            self._passed_over = min(_PASSED_OVER_MAX, 2 * self._passed_over + 1) if in_vain else 0
            self._pass_over = self._passed_over

    def _has_ready(self) -> bool:
        return bool(self._queue) and (self._plain or bool(_next_batch(self._queue)))

    def _take(self) -> Sequence[Pending]:
        with self._lock:
            queue = self._queue
            if self._plain and len(queue) == 1:
                batch = self._taken = (queue.pop(),)
                return batch
            chosen = self._taken = _next_batch(queue)
            if len(chosen) == len(queue):
                queue.clear()
            else:
                taken = set(chosen)
                queue[:] = [op for op in queue if op not in taken]
            self._plain = all(op.written and op.kind is RecordKind.OPS for op in queue)
            return chosen

    def _commit(self, batch: Sequence[Pending]) -> None:
        """Commit and decide a batch. Raises nothing but what interrupts a thread, and then, too, the batch is decided."""
        writer, previous = self.writer, self.head
        began_s = runtime.monotonic_s()
        step: CommitStep = "sync"
        try:
            if type(batch[0]) is PendingLine:
                step = "append"
                position, lines = writer.append_lines(batch, began_s)  # type: ignore[arg-type]  # the first says what all are
                commit = _make(Commit, (position, previous.hash, None, (), (), lines))
            else:
                ops: Sequence[PendingOp] = batch  # type: ignore[assignment]
                names = ops[0].sync_names
                if len(ops) > 1 or len(names) > 1:
                    names = list(dict.fromkeys(name for op in ops for name in op.sync_names))
                if names:
                    writer.sync(names)
                step = "build"
                record = writer.build(ops, previous.lsn + 1)
                step = "append"
                position = writer.append(record)
                commit = Commit(position, previous.hash, record.digest, record.ops, record.rows)
            step = "apply"
            if not writer.apply((commit,)):
                raise StorageUnavailable("the metadata cache does not match the journal; it is rebuilt")
            writer.applied(batch)
            self.head = position
            with self._lock:
                self._decide(batch, None, position.lsn)
        except BaseException as error:
            self._failed(FailedBatch(batch, previous.lsn + 1, step, error))
            if not isinstance(error, Exception):
                raise
            return
        self.last_commit_at_s = runtime.monotonic_s()
        self._last_commit_s = self.last_commit_at_s - began_s
        self._company = len(batch) + len(self._queue)
        self._gathers = len(batch) > 1 or self._linger_s > 0.0
        self._committed(position.lsn)

    # Deciding

    @staticmethod
    def _decide(batch: Sequence[Pending], error: ChunkstoreError | None, lsn: int) -> None:
        """With the lock held."""
        for op in batch:
            if op.decided:
                continue
            op.lsn, op.error, op.decided = lsn, error, True
            if op.waiters:
                waiters, op.waiters = op.waiters, ()
                for waiter in waiters:
                    waiter.wake()

    def decide(self, batch: Sequence[Pending], error: ChunkstoreError | None, lsn: int = 0) -> None:
        """Decide what is not decided yet: committed as part of record ``lsn``, or failed with ``error``."""
        with self._lock:
            self._decide(batch, error, lsn)

    def fail(self, batch: Sequence[Pending], error: ChunkstoreError) -> None:
        """A batch did not happen, and the epoch goes on: it fails, and all that is queued after it."""
        with self._lock:
            if self.generation != _ENDED:
                self.generation += 1
            self._fail_queued(error)
            self._decide(batch, error, 0)

    def end(self, error: ChunkstoreError) -> None:
        """Refuse every operation from now on. What is queued did not happen; a batch under way is decided by its leader."""
        with self._lock:
            self.generation = _ENDED
            self._fail_queued(error)

    def end_if_idle(self) -> bool:
        """End if nothing is undecided; whether that is so."""
        with self._lock:
            if idle := self._is_idle():
                self.generation = _ENDED
            return idle

    @property
    def idle(self) -> bool:
        """Whether nothing is undecided."""
        with self._lock:
            return self._is_idle()

    def _is_idle(self) -> bool:
        return not self._queue and all(op.decided for op in self._taken)

    def _fail_queued(self, error: ChunkstoreError) -> None:
        if not isinstance(error, (StorageUnavailable, StorageFull, NotOwner, Closed)):
            # What was wrong with one operation is not what was wrong with those after it.
            reason = StorageUnavailable(f"not committed, because the commit before it failed ({error}); retry")
            reason.__cause__ = error
            error = reason
        self._decide(self._queue, error, 0)
        self._queue.clear()
        self._plain = True
