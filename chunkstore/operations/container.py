"""An owned container: its parts, the epoch of ours that serves it, and the entry that every operation passes.

Promises: ``current`` changes only when a take-over or a roll has ended the epoch before. Order of checks in every operation:
argument, closed, not owner, then the segment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Final, TypeVar

from chunkstore import processes, runtime
from chunkstore.changes import ADDS_NOTHING
from chunkstore.checksum import BytesLike
from chunkstore.config import Settings
from chunkstore.deadline import Deadline, until
from chunkstore.errors import (
    CacheDamaged,
    ChunkstoreError,
    Closed,
    Damaged,
    InvalidArgument,
    NotOwner,
    OutcomeUnknown,
    StorageUnavailable,
)
from chunkstore.journal import JournalService, Ownership, RecordKind
from chunkstore.metadata.port import MetadataStore
from chunkstore.metadata.retained import pin_holder
from chunkstore.metadata.tail_cache import TailCache
from chunkstore.observer import GuardedObserver, LoggingObserver, Observer, UpkeepRuns
from chunkstore.operations.backlog import Backlog, inline_limits
from chunkstore.operations.commit_queue import FailedBatch
from chunkstore.operations.fence import Fence
from chunkstore.operations.looking import RowSource
from chunkstore.operations.owned_epoch import EpochStart, OwnedEpoch
from chunkstore.operations.pending import ExistenceCheck, Pending, PendingOp, Stale, Tail, Undecided
from chunkstore.operations.space import SpaceGuard
from chunkstore.records.names import ContainerNames
from chunkstore.records.segments import KIND_INLINE, SegmentRecord
from chunkstore.storage import ChunkStorage

__all__ = ["SPACE_CHECK_S", "OwnedContainer", "unexpected"]

T = TypeVar("T")
SPACE_CHECK_S: Final = 0.05
"""So old may be what the disks have left when something is added. What adds nothing asks."""
_RETIRED_MAX: Final = 16
_STARTS_MAX: Final = 1024


class OwnedContainer(RowSource):
    """See the module. ``recover`` and ``decide`` are set by ``recovery`` before the first epoch is begun."""

    recover: Callable[[Deadline], None]
    """Take over from ourselves when the current epoch has ended; or wait for the thread that does, or for a roll."""
    decide: Callable[[OwnedEpoch, FailedBatch], None]

    def __init__(
        self,
        *,
        storage: ChunkStorage,
        names: ContainerNames,
        settings: Settings,
        service: JournalService,
        observer: Observer | None,
        changed: Callable[[int], None],
    ) -> None:
        self.storage = storage
        self.names = names
        self.settings = settings
        self.service = service
        logs = observer if isinstance(observer, LoggingObserver) else LoggingObserver(storage.url, names.container)
        logs.lsn = lambda: self.current.queue.head.lsn
        self.observer: Observer = GuardedObserver(logs, *(() if observer in (None, logs) else (observer,)))
        self._tells_commits = observer is not None or logs.notes_commits
        self.upkeep: UpkeepRuns = UpkeepRuns(self.observer)
        self.space: SpaceGuard = SpaceGuard(storage, names, settings, self.observer)
        self.changed = changed  # called with the lsn of each commit, and with 0 when it is closed, deposed or recovered
        self.reshaped: list[Callable[[PendingOp], None]] = []
        """Called with each committed operation that ``reshapes``, by its caller's thread; also with one that no one waits for any more."""
        self.importer: Callable[[str], bool] | None = None
        """Called without locks for a segment that is not there: as ``fetch``."""
        self.remote: bool = storage.capabilities.remote
        self._by_stat = storage.capabilities.fence_by_stat
        self.inline_bytes: int
        self.inline_bytes_after: int
        self.inline_bytes, self.inline_bytes_after = inline_limits(settings, storage.capabilities)
        self.pace_bytes_s: float = 0.0  # of what writers commit (``AppendWindow``)
        self.backlog: Backlog = Backlog(settings)
        self.tail: TailCache = self.backlog.tail
        self.pool: runtime.Pool = runtime.pool("chunkstore-io", settings.tuning.io_workers)
        self.fence: Fence = Fence(service, self._deposed)
        self.collecting: runtime.Lock = runtime.lock()  # held by the one collection that is under way
        self.looks: list[ExistenceCheck] = []  # of commits under way (``attach``)
        self.starts: deque[EpochStart] = deque(maxlen=_STARTS_MAX)  # of our epochs; no stranger was in between
        self.pin_holder: str = pin_holder()
        self.noticed_s: dict[bytes, float] = {}
        """When garbage and pins with a label of the future were first seen here, by the keys that ``is_older`` is given."""
        self.draining = False
        """A roll or ``close`` waits for what has been let in: new operations wait for its end."""
        self.closed: bool = False
        self.released = False  # whether all resources are: what hung until then must not take over
        self.inherited: bool = False
        """Whether this is a forked child's copy: the container, the threads and the locks are its parent's."""
        self.space_checked_s = -1.0
        self._retired: deque[tuple[float, MetadataStore]] = deque()  # stores of ended epochs, and when they ended
        processes.tell_in_child(self)

    def begin_epoch(self, ownership: Ownership) -> None:
        """Serve with a fresh ownership."""
        self.current: OwnedEpoch = OwnedEpoch(
            ownership,
            self.names,
            self.storage,
            self.settings,
            self.backlog,
            failed=self.decide,
            committed=self._committed if self._tells_commits else self.changed,
        )
        self.fence.current = self.current
        self.space.forget_quota()
        self.starts.append(
            EpochStart(self.current.queue.head.lsn, self.current.writer.opened_s, self.current.writer.opened_ms)
        )
        self.observer.took_over(ownership.report)

    def _leave_to_parent(self) -> None:
        """Two processes with one claim would write to the same places of the same stream: no fence tells them apart."""
        self.closed = self.inherited = True

    def _deposed(self, error: NotOwner) -> None:
        self.changed(0)
        self.observer.failed(error)

    def _committed(self, lsn: int) -> None:
        self.changed(lsn)
        self.observer.committed(lsn)

    def retire(self, store: MetadataStore) -> None:
        """Keep an ended epoch's store open for readers that still hold it: until their operation has ended for certain."""
        now_s = runtime.monotonic_s()
        self._retired.append((now_s, store))
        while len(self._retired) > _RETIRED_MAX and now_s - self._retired[0][0] > self.settings.op_deadline_s:
            _, outlived = self._retired.popleft()
            if outlived is not self.current.store:
                outlived.close(clean=False)

    def close_stores(self) -> None:
        """Close all stores: the last user of what they share says that it was left clean."""
        for _, store in self._retired:
            if store is not self.current.store:
                store.close(clean=False)
        self.current.store.close(clean=True)

    def takes_inline(self, segment: SegmentRecord, tail: Tail | None, data: BytesLike) -> bool:
        """Whether bytes that are appended after ``tail`` go into the record: few, and spilling keeps up."""
        following = tail is not None and tail.record.kind == KIND_INLINE
        length_max = self.inline_bytes_after if following else self.inline_bytes
        return self.backlog.takes(data, min(length_max, segment.chunk_size_bytes_max))

    # Entering

    def is_older(self, key: bytes, lsn: int, time_ms: int, age_s: float) -> bool:
        """Whether ``age_s`` have passed since the record ``lsn``, with the label ``time_ms``. ``key`` names what it committed.

        The age counts on our monotonic clock, from the later of the label and our own first OPEN (A14).
        """
        now_s = runtime.monotonic_s()
        # A label of ours counts by the clocks of its own epoch: wall clocks are set, and only these two were read together.
        start = next((start for start in reversed(self.starts) if start.lsn < lsn), self.starts[0])
        began_s = start.at_s + max(0, time_ms - start.at_ms) / 1000
        if began_s > now_s:
            # A label of the future: the clock ran ahead when it was made. The age counts from when that is noticed.
            began_s = self.noticed_s.setdefault(key, now_s)
        if now_s - began_s < age_s:
            return False
        self.noticed_s.pop(key, None)
        return True

    def deadline(self) -> Deadline:
        """The end of an operation that begins now."""
        return Deadline(self.settings.op_deadline_s)

    def bounded(self, deadline: Deadline) -> AbstractContextManager[None]:
        """Within this, calls to a remote storage end by the deadline."""
        return until(deadline.end_s) if self.remote else nullcontext()

    def step(self) -> AbstractContextManager[None]:
        """Within this, calls to a remote storage end by the deadline of an operation that begins now."""
        return self.bounded(self.deadline())

    def alone(self, lock: runtime.Lock, what: str, call: Callable[[], T]) -> T:
        """Call with ``lock`` held. Raises ``DeadlineExceeded`` when another ``what`` does not end in time."""
        held = runtime.interruptible_lock(lock)
        try:
            deadline = self.deadline()
            if not held.wait(deadline.limit_s):
                deadline.fail(f"waiting for another {what}")
            return call()
        finally:
            if held.got:
                held.lock.release()

    def check_open(self) -> None:
        """Raise ``Closed`` after ``close``, and in a forked child."""
        if self.closed:
            name = f"container {self.names.container!r}"
            raise Closed(f"{name}, opened before this process was forked," if self.inherited else name)

    def check_owner(self) -> None:
        """Raise ``Closed``, or ``NotOwner`` once a newer owner has been seen."""
        if self.closed:
            self.check_open()
        if self.fence.error is not None:
            raise self.fence.error.copy()

    def check_fence(self) -> None:
        """Ask the storage whether a newer owner exists; on a remote storage by the operation's deadline. Raises ``Closed``, ``NotOwner``,
        ``DeadlineExceeded``, ``StorageUnavailable``, and ``StorageFull`` where a stat may be stale."""
        if self.closed:
            self.check_open()
        if self._by_stat:
            if self.remote:
                with until(self.deadline().end_s):
                    self.fence.check()
            else:
                self.fence.check()
            if self.closed:
                self.check_open()
            return
        # A13: only a commit of our own proves that we still own the container, and a broken journal is mended for it.
        try:
            with self.step():
                self.note(RecordKind.HEARTBEAT, ())
        except OutcomeUnknown:
            # A reader changed nothing: whether the heartbeat becomes history does not matter to it.
            self.deadline().fail("asking whether a newer owner exists")

    def serving(self, deadline: Deadline, adds: int = ADDS_NOTHING) -> OwnedEpoch:
        """The epoch to plan in, once no roll or take-over is under way, and there is room for what ``adds`` so many bytes of chunks.

        Raises ``Closed``, ``NotOwner``, ``DeadlineExceeded``, ``StorageFull``, and why a broken journal cannot be mended now.
        """
        if self.closed or self.fence.error is not None:
            self.check_owner()
        space = self.space
        while self.draining or self.current.end_reason is not None:
            if adds < 0:
                space.reserve.make_room()
            else:
                space.refuse()
            self.recover(deadline)
            self.check_owner()
        if adds < 0 or deadline.end_s - self.space_checked_s > SPACE_CHECK_S:
            space.look(self.current.store, adds)
            self.space_checked_s = deadline.end_s
        if adds >= 0 and space.watchful:
            space.admit(self.current.store, adds)
        return self.current

    def store(self) -> MetadataStore:
        return self.current.store

    def fetch(self, name: str) -> bool:
        return self.importer is not None and self.importer(name)

    def rebuild(self, damage: CacheDamaged) -> None:
        """End the epoch that plans on a damaged cache; the next one has a cache made anew. Raises as ``serving``."""
        owned = self.current
        if owned.end_reason is None:
            try:
                owned.store.head()
            except CacheDamaged:
                owned.end(damage)
                self.observer.failed(damage)
        self.serving(self.deadline())

    def run(
        self,
        attempt: Callable[[OwnedEpoch], tuple[Pending | None, T]],
        deadline: Deadline,
        adds: int = ADDS_NOTHING,
        entered: tuple[OwnedEpoch, Pending | None, T] | None = None,
    ) -> T:
        """``enter``, unless the first attempt has ``entered``, and wait, if there was anything to do; return the result."""
        while True:
            owned, op, result = entered or self.enter(attempt, deadline, adds)
            entered = None
            if op is None:
                # An answer about the present state: a deposed owner must not give it.
                self.check_fence()
                return result
            try:
                self.wait(owned, op, deadline)
            except CacheDamaged as damage:
                # It did not happen: its record was not built, or the batch before it failed.
                self._rebuild_in_time(damage, deadline)
            else:
                return result

    def wait(self, owned: OwnedEpoch, op: Pending, deadline: Deadline) -> None:
        """Wait until what has entered is decided. Raises the errors of commits; after ``CacheDamaged`` it can be planned anew."""
        try:
            owned.queue.wait(op, deadline)
            if isinstance(op, PendingOp) and op.reshapes:
                self._reshaped(op)
        except OutcomeUnknown:
            if isinstance(op, PendingOp) and op.reshapes:
                self._reshaped(op)
            raise

    def enter(
        self, attempt: Callable[[OwnedEpoch], tuple[Pending | None, T]], deadline: Deadline, adds: int
    ) -> tuple[OwnedEpoch, Pending | None, T]:
        """Let ``attempt`` plan and enter an operation, again while what it meets is undecided or gone. ``adds``: bytes of chunks, as
        ``serving``."""
        while True:
            owned = self.serving(deadline, adds)
            try:
                with runtime.defer_interrupt():
                    return (owned, *attempt(owned))
            except Stale:
                if deadline.left_s() == 0.0:
                    deadline.fail("planning again after a recovery")
            except Undecided as earlier:
                if not owned.queue.wait_decided(earlier.op, deadline):
                    deadline.fail("waiting for an earlier operation")
            except CacheDamaged as damage:
                self._rebuild_in_time(damage, deadline)
            except Damaged as damage:
                try:
                    owned.store.audit()
                except CacheDamaged as rot:
                    self._rebuild_in_time(rot, deadline)
                else:
                    self.fence.explain(owned, damage)
            except InvalidArgument:
                # Of a chunk that is not there: a successor may have swept it.
                self.check_fence()
                raise

    def _reshaped(self, op: PendingOp) -> None:
        for call in self.reshaped:
            call(op)

    def _rebuild_in_time(self, damage: CacheDamaged, deadline: Deadline) -> None:
        if deadline.left_s() == 0.0:
            raise damage
        self.rebuild(damage)

    def note(self, kind: RecordKind, notes: tuple[object, ...]) -> int:
        """Commit a record without operations; returns its lsn. Raises as ``serving``, and the errors of commits."""

        def enter(owned: OwnedEpoch) -> tuple[PendingOp, PendingOp]:
            op = owned.note(kind, notes)
            return op, op

        return self.run(enter, self.deadline()).lsn


def unexpected(error: BaseException) -> ChunkstoreError:
    """The error itself, or what no part should have raised, wrapped, so that foreign exceptions do not reach callers."""
    if isinstance(error, ChunkstoreError):
        return error
    wrapped = StorageUnavailable(f"unexpected {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped
