"""``Replica``: follows the journal read-only, or shows a state of the past. Never claims, never writes to the container (protocol 3.13).

Promises: what it shows is always a prefix of history; it may be one batch behind, or ahead of, what its owner has answered.
``refresh`` catches up; ``wait`` does so by itself. Callers wait for that for ``op_deadline_s`` at most; over a network the
catching up itself continues in the background, because it may take longer. In a forked child it is closed: the
threads and the locks are its parent's. Leaves out: changing anything.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from typing import Final

from chunkstore import processes, runtime
from chunkstore.config import DefragPolicy
from chunkstore.deadline import paced_s
from chunkstore.engine.parts import ContainerParts
from chunkstore.engine.reading import ReadableContainer, read_view
from chunkstore.errors import CacheDamaged, ChunkstoreError, Closed, DeadlineExceeded, Unsupported
from chunkstore.journal import JournalFollower
from chunkstore.metadata.port import MetadataStore, Position
from chunkstore.metadata.tail_cache import TailCache
from chunkstore.operations.read import ReadContext
from chunkstore.records.arguments import SegmentRef
from chunkstore.records.invariants import ORPHANED, CheckLevel, Finding
from chunkstore.records.reports import DefragReport, RetentionReport, SweepReport, SweptKind
from chunkstore.upkeep.usage import Space

__all__ = ["Replica"]


_POLL_S: Final = 0.05
_POLL_LOCAL_S: Final = 0.004
_LOCAL_QUIET_S: Final = (
    50.0  # after so long without news a local follower polls every ``_POLL_S``, before that proportionally faster
)


class _ReplicaReads(ReadContext):
    """Reads of a replica, which no fence concerns."""

    def __init__(self, replica: Replica, tail: TailCache | None) -> None:
        super().__init__(replica.storage, replica._names, replica._pool, replica.settings, tail)
        self._replica = replica

    def store(self) -> MetadataStore:
        return self._replica._follower.store

    def rebuild(self, damage: CacheDamaged) -> None:
        self._replica._refresh()

    def check_open(self) -> None:
        self._replica._check_open()

    def check(self) -> None:
        self._replica._check_open()

    def recheck(self) -> None:
        self._replica._refresh()

    def why_absent(self, chunk: str) -> ChunkstoreError | None:
        parts = self._replica._parts
        return parts.why_absent(chunk) if parts.is_past else None


class Replica(ReadableContainer):
    """A read-only follower; see the module. Made by ``chunkstore.open_replica``; a context manager that closes."""

    def __init__(
        self,
        parts: ContainerParts,
        follower: JournalFollower,
        *,
        tail: TailCache | None = None,
        passes: Callable[[Position, int, int], bool] | None = None,
    ) -> None:
        """``tail``: what the follower keeps of what was appended last. ``passes``: of the journal's streams; None: there are none."""
        storage, names, settings = parts.storage, parts.names, parts.settings
        self._parts = parts
        self._names = names
        self._follower = follower
        self._pool = runtime.pool("chunkstore-replica", settings.tuning.io_workers)
        self.uuid = parts.uuid
        self.storage = storage
        """Where its chunks are, for those who read them themselves. Closed with the replica, unless it is the caller's own."""
        self._passes = passes
        self._is_past = parts.is_past
        self._space = Space(parts.stored_sizes, None)
        self._closed = False
        self._inherited = False
        self._released = False
        self._lock = runtime.lock()
        """Held while catching up, and while releasing."""
        self._remote = storage.capabilities.remote
        self._looked_s = self._news_s = runtime.monotonic_s()
        """When it last looked for news, and when there was some."""
        self.settings = settings
        self._context = _ReplicaReads(self, tail)
        try:
            # Without a limit: no other caller waits, and there is nothing to show before.
            self._seen_lsn = follower.catch_up().position.lsn
        except BaseException:
            follower.close()
            self._pool.close()
            raise
        processes.tell_in_child(self)
        self._made_in = runtime.active()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "past" if self._is_past else "open"
        return f"<Replica {self.storage.url} container={self._names.container!r} lsn={self._seen_lsn} {state}>"

    @property
    def epoch(self) -> int:
        """The epoch of the stream the replica has reached."""
        return self._context.look(lambda view: view.head).position.epoch

    @property
    def lsn(self) -> int:
        """The point of history the replica shows."""
        return self._context.look(lambda view: view.head).position.lsn

    @property
    def unopened_epoch(self) -> int | None:
        """The newest epoch, where it was claimed and is not open yet: until an owner opens the container, the last acknowledged record may
        be missing here (``why_short`` says it). None: nothing is missing but what is committed just now."""
        return self._follower.unopened_epoch

    @property
    def why_short(self) -> str:
        """What to tell of ``unopened_epoch``; empty: nothing."""
        epoch = self.unopened_epoch
        if epoch is None:
            return ""
        return (
            f"epoch {epoch} was claimed and is not open yet, so the last acknowledged record may be missing here: wait for its owner, or "
            "open the container once as owner"
        )

    def refresh(self) -> int:
        """Apply everything committed by now; returns the lsn reached. A state of the past stays where it is.

        Raises ``Damaged``; ``RolledBack`` (what was shown here is not in the journal any more: lost records, old answers, or an older state
        in the root's place, which others may have gone on with; once that is put right a retry succeeds, and a replica that is opened anew
        shows what is there); ``StorageUnavailable``, ``StorageFull`` (cache disk), ``Closed``, ``DeadlineExceeded`` (it goes on in the
        background, or in another thread). Retry: safe.
        """
        self._check_open()
        lsn = self._follow(self.settings.op_deadline_s)
        if lsn is None:
            raise DeadlineExceeded("following the journal", deadline_s=self.settings.op_deadline_s)
        return lsn

    def passes(self, epoch: int, lsn: int) -> bool:
        """Whether the history shown here goes, or went, through record ``lsn`` in the stream of ``epoch``.

        False: it has not come so far yet (``refresh`` first), or an accepted rollback has left that out. Raises ``Damaged``,
        ``StorageUnavailable``, ``Closed``, and ``Unsupported`` of a backup. Retry: safe.
        """
        self._check_open()
        if self._passes is None:
            raise Unsupported("no journal is available here", feature="passes")
        return self._passes(self._context.look(lambda view: view.head).position, epoch, lsn)

    def orphans(self, *, age_s_min: float = 86_400.0) -> SweepReport:
        """What the sweep of a caller that claims next would delete now (``Store.sweep``). Lists every chunk; changes nothing.

        Raises ``InvalidArgument`` (age), ``Unsupported`` at a state of the past, which knows nothing of what is wanted now, and as ``info``
        but for ``SegmentNotFound``. Retry: safe.
        """
        from chunkstore.upkeep.sweep import check_age, find_orphans

        if self._is_past:
            raise Unsupported(
                "a past state cannot show what a sweep would delete now; use the present one", feature="orphans"
            )
        age_s = check_age(age_s_min)
        self._check_open()
        return find_orphans(self._context, self.epoch + 1, age_s).report()

    def garbage(self) -> SweptKind:
        """Removed chunks that a collection deletes after their grace, not those that pins keep; and bytes. Raises as ``pins``."""
        from chunkstore.upkeep.sweep import count_garbage

        return read_view(self, count_garbage)

    def due_retention(self, *, ignore_times_after: datetime | int | None = None) -> RetentionReport:
        """What ``Store.apply_retention`` would truncate now. Raises as ``info``; ``Damaged``: a policy. Retry: safe."""
        from chunkstore.upkeep.retention import apply_all, check_ignored, plan_step

        ignored_ms = check_ignored(ignore_times_after)
        self._check_open()
        report = apply_all(partial(plan_step, self._context, ignored_after_ms=ignored_ms))
        self._check_open()
        return report

    def due_defrag(self, name: SegmentRef | None = None, *, policy: DefragPolicy | None = None) -> DefragReport:
        """What ``Store.defrag`` would do now, and what that costs. Raises as ``info`` (``SegmentNotFound`` of ``name``). Retry: safe."""
        from chunkstore.upkeep.defrag import check_policy, plan_all

        chosen = check_policy(policy)
        self._check_open()
        report = plan_all(self._context, name, chosen)
        self._check_open()
        return report

    def check(self, level: CheckLevel = "quick", *, progress: Callable[[int], None] | None = None) -> list[Finding]:
        """Raises as ``ReadableContainer.check``. At a state of the past chunks that were collected are findings, orphans not."""
        found = super().check(level, progress=progress)
        if text := self.why_short:
            found.append(Finding(0, "warning", "", "", self._names.journal_prefix(), 0, text))
        return [item for item in found if not (self._is_past and item.invariant == ORPHANED)]

    def close(self) -> None:
        """Release everything. Raises nothing. Safe to repeat. Waits ``op_deadline_s`` at most for a thread that is catching up;
        one that hangs longer releases everything at its end."""
        self._made_in = None
        self._closed = True
        if self._inherited or self._released:
            return
        held = runtime.interruptible_lock(self._lock)
        try:
            if held.wait(self.settings.op_deadline_s):
                self._release()
        finally:
            if held.got:
                held.lock.release()

    def _leave_to_parent(self) -> None:
        super()._leave_to_parent()
        self._closed = self._inherited = True

    def _release(self) -> None:
        """With the lock held."""
        if self._released:
            return
        self._follower.close()
        self._pool.close()
        self._parts.close()
        # Last: an interrupted release is repeated.
        self._released = True

    def _check_open(self) -> None:
        if self._closed:
            name = f"the replica of container {self._names.container!r}"
            raise Closed(f"{name}, opened before this process was forked," if self._inherited else name)

    def _follow(self, most_s: float) -> int | None:
        """Catch up; the lsn reached, or None after ``most_s``, when it goes on in the background or in another thread."""
        if not self._remote:
            return self._catch_up(most_s)
        return next(iter(runtime.run_with_timeout(lambda: self._catch_up(most_s), "chunkstore-follow", most_s)), None)

    def _catch_up(self, most_s: float) -> int | None:
        """In this thread, as long as it takes; None if another thread was at it for ``most_s``."""
        held = runtime.interruptible_lock(self._lock)
        try:
            if not held.wait(most_s):
                return None
            try:
                self._check_open()
                before = self._seen_lsn
                self._looked_s = runtime.monotonic_s()
                lsn = self._seen_lsn = self._follower.catch_up().position.lsn
                self._looked_s = runtime.monotonic_s()
                if lsn != before:
                    self._news_s = self._looked_s
                return lsn
            finally:
                if self._closed:
                    self._release()  # close may have stopped waiting
        finally:
            if held.got:
                held.lock.release()

    def _poll_s(self, *, at_once: bool) -> float:
        if at_once:
            return 0.0
        now_s = runtime.monotonic_s()
        if not self._remote:
            return max(_POLL_LOCAL_S, _POLL_S * min(1.0, (now_s - self._news_s) / _LOCAL_QUIET_S))
        pace_s = paced_s(now_s - self._news_s, _POLL_S, self.settings.tuning.follow_s_max)
        return max(0.0, self._looked_s + pace_s - now_s)

    def _present_epoch(self) -> int:
        return self.epoch

    def _refresh(self, most_s: float | None = None) -> None:
        self._check_open()
        if most_s is None or most_s >= self.settings.op_deadline_s:
            self.refresh()
        else:
            self._follow(most_s)  # what is not finished by then is there for the next call
