"""``StorageOptimiser``: upkeep in the background of an owner, in bounded steps that stand back for its work.

Promises: one step at a time. None begins while commits are queued, but for one in five seconds, so that a busy owner is kept up, too; nor
before what the last ones spent is paid for by the policy's limits. A job that fails is reported to the observer and in ``status``, and
tried again after ever longer pauses; nothing of it reaches a caller. Idle, it has no thread, and costs the keeper a comparison each tick.
Leaves out: what the jobs do (``jobs``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from chunkstore import runtime
from chunkstore.config import OptimiserPolicy
from chunkstore.errors import ChunkstoreError, Closed, Damaged, NotOwner
from chunkstore.operations.container import OwnedContainer, unexpected
from chunkstore.operations.maintenance import BackgroundJob
from chunkstore.records.arguments import check_flags
from chunkstore.upkeep.jobs import Job, Step

__all__ = ["JobStatus", "OptimiserReport", "OptimiserStatus", "StorageOptimiser"]

_PAUSE_S_MIN: Final = 1.0
_PAUSE_S_MAX: Final = 600.0
"""After a failure, doubling from the one to the other."""
_STAND_BACK_S_MAX: Final = 5.0
_LOOK_S: Final = 0.02
_FINDINGS_MAX: Final = 16


class JobStatus(NamedTuple):
    """What a job did since the store was opened. ``passes`` that came to their end; ``errors``: failed steps, the last one ``error``,
    which stays until a pass succeeds. ``findings``: the last 16 things that it met and left as they are. ``next_s``: seconds until
    it goes on; None: only ``run_once`` runs it. ``freed_bytes`` are deleted, or given up by a retention policy."""

    name: str
    passes: int
    steps: int
    requests: int
    moved_bytes: int
    freed_bytes: int
    errors: int
    error: ChunkstoreError | None
    findings: tuple[str, ...]
    next_s: float | None


class OptimiserStatus(NamedTuple):
    """``running``: the name of the job whose step is under way."""

    paused: bool
    running: str | None
    jobs: tuple[JobStatus, ...]


class OptimiserReport(NamedTuple):
    """What ``run_once`` did, or would do: by job, the requests it took, about, bytes moved and bytes freed."""

    requests: dict[str, int]
    moved_bytes: dict[str, int]
    freed_bytes: dict[str, int]


class _Entry:
    """A job and what is known of it."""

    def __init__(self, job: Job, interval_s: float, now_s: float) -> None:
        self.job = job
        self.interval_s = interval_s
        self.next_s = now_s + interval_s
        self.pause_s = _PAUSE_S_MIN
        self.passes = self.steps = self.errors = 0
        self.requests = self.moved_bytes = self.freed_bytes = 0
        self.error: ChunkstoreError | None = None
        self.findings: tuple[str, ...] = ()

    def due_s(self, now_s: float) -> float:
        """When the next step begins; that of a pass that is pressing now, but for the pause after an error."""
        if self.job.pressing and self.error is None:
            self.next_s = min(self.next_s, now_s)
        return self.next_s

    def note(self, step: Step, error: ChunkstoreError | None, *, more: bool) -> None:
        """A step has ended."""
        self.steps += 1
        self.requests += step.requests
        self.moved_bytes += step.moved_bytes
        self.freed_bytes += step.freed_bytes
        now_s = runtime.monotonic_s()
        found = dict.fromkeys((*step.findings, str(error)) if isinstance(error, Damaged) else step.findings)
        self.findings = (*(text for text in self.findings if text not in found), *found)[-_FINDINGS_MAX:]
        if error is not None:
            self.errors += 1
            self.error = error
            self.next_s = now_s + self.pause_s
            self.pause_s = min(_PAUSE_S_MAX, self.pause_s * 2)
            return
        self.pause_s = _PAUSE_S_MIN
        self.next_s = now_s if more else now_s + self.interval_s
        if not more:
            self.passes += 1
            self.error = None

    def status(self, now_s: float) -> JobStatus:
        next_s = None if math.isinf(self.next_s) else max(0.0, self.next_s - now_s)
        return JobStatus(
            self.job.name,
            self.passes,
            self.steps,
            self.requests,
            self.moved_bytes,
            self.freed_bytes,
            self.errors,
            self.error,
            self.findings,
            next_s,
        )


class StorageOptimiser(BackgroundJob):
    """See the module; ``store.optimiser``. Thread-safe. ``jobs``: each with the seconds between its passes, 0 for none by itself."""

    def __init__(self, container: OwnedContainer, policy: OptimiserPolicy, jobs: Sequence[tuple[Job, float]]) -> None:
        super().__init__()
        self._container = container
        self._policy = policy
        now_s = runtime.monotonic_s()
        self._entries = [_Entry(job, interval_s or math.inf, now_s) for job, interval_s in jobs]
        self._lock = runtime.lock()
        """Held during a step."""
        self._running: str | None = None
        self._paused = False
        self._paid_s = now_s
        """When what was spent is paid for."""

    def pause(self) -> None:
        """Begin no further step until ``resume``; one that is under way ends within its deadline. Raises nothing. Retry: safe."""
        self._paused = True

    def resume(self) -> None:
        """Go on; what has become due meanwhile is due now. Raises nothing. Retry: safe."""
        self._paused = False

    def status(self) -> OptimiserStatus:
        """What it does and did. Changes nothing, asks nothing of the storage, raises nothing."""
        now_s = runtime.monotonic_s()
        return OptimiserStatus(self._paused, self._running, tuple(entry.status(now_s) for entry in self._entries))

    def figures(self) -> dict[str, dict[str, float]]:
        """What upkeep has done since this owner opened, and what there is to do: by the names of ``metrics.UPKEEP_COUNTERS`` and
        ``UPKEEP_GAUGES``, then by part ("" where a figure has none). Figures in bytes, seconds or numbers, as their names say.

        For ``metrics.upkeep_collector``; no request to the storage, no scan. Raises ``Closed``, and what reading the cache raises.
        Retry: safe.
        """
        from chunkstore.upkeep.figures import figures

        self._container.check_open()
        return {**self._container.upkeep.counts(), **figures(self._container)}

    def run_once(self, *, dry_run: bool = False) -> OptimiserReport:
        """Let each job make a whole pass now, in this thread, paused or not, within the policy's limits. ``dry_run``: change nothing, say
        what it would do.

        Not atomic: what a step has done stays done when a later one fails. Raises ``InvalidArgument``, ``Closed``, ``NotOwner``,
        ``DeadlineExceeded`` (another one is under way, too), ``OutcomeUnknown`` (of a commit), ``StorageFull``, ``StorageUnavailable``,
        ``Damaged``. Retry: safe.
        """
        check_flags(dry_run=dry_run)
        self._container.check_owner()
        return self._container.alone(self._lock, "step of the optimiser", partial(self._run_once, dry_run=dry_run))

    def _run_once(self, *, dry_run: bool) -> OptimiserReport:
        done: dict[str, tuple[int, int, int]] = {}
        for entry in self._entries:
            name, more = entry.job.name, True
            before = (0, 0, 0) if dry_run else (entry.requests, entry.moved_bytes, entry.freed_bytes)
            while more:
                self._container.check_owner()
                if dry_run:
                    step = Step(math.inf, self.stopping.is_set, dry_run=True)
                    more = entry.job.step(step)
                    done[name] = (step.requests, step.moved_bytes, step.freed_bytes)
                    continue
                self._wait_turn()
                more, error = self._step(entry)
                if error is not None:
                    raise error
                done[name] = (
                    entry.requests - before[0],
                    entry.moved_bytes - before[1],
                    entry.freed_bytes - before[2],
                )
        return OptimiserReport(*({name: numbers[place] for name, numbers in done.items()} for place in range(3)))

    # In the background

    def tick(self, now_s: float) -> None:
        """Called by the keeper: begin working if anything is due. Asks nothing of clocks or of the storage unless it is."""
        if not self._paused and any(now_s >= entry.due_s(now_s) for entry in self._entries):
            self.begin(self._work, "chunkstore-optimiser")

    def _work(self) -> None:
        while True:
            self._wait_turn()
            if self._paused or self.stopping.is_set():
                return
            with self._lock:
                now_s = runtime.monotonic_s()
                entry = min(self._entries, key=lambda entry: entry.due_s(now_s))
                if entry.next_s > now_s:
                    return
                _, error = self._step(entry)
            if isinstance(error, (Closed, NotOwner)):
                return

    def _wait_turn(self) -> None:
        """Until what was spent is paid for, and no commits are queued, for some seconds at most."""
        if (owed_s := self._paid_s - runtime.monotonic_s()) > 0:
            self.stopping.wait(owed_s)
        end_s = runtime.monotonic_s() + _STAND_BACK_S_MAX
        while not self._container.current.queue.idle and runtime.monotonic_s() < end_s:
            if self.stopping.wait(_LOOK_S):
                return

    def _step(self, entry: _Entry) -> tuple[bool, ChunkstoreError | None]:
        """One step, with the lock held; whether the pass goes on, and why the step failed."""
        step = Step(runtime.monotonic_s() + self._policy.step_deadline_s, self.stopping.is_set)
        self._running = entry.job.name
        more, error = True, None
        try:
            more = entry.job.step(step)
        except Exception as caught:  # noqa: BLE001  (no job ends the others)
            error = unexpected(caught)
        finally:
            self._running = None
        entry.note(step, error, more=more)
        self._pay(step)
        if not isinstance(error, (Closed, NotOwner)):
            self._container.upkeep.ended(entry.job.name, step.done, error)
            if error is not None:
                self._container.observer.failed(error)
        return more, error

    def _pay(self, step: Step) -> None:
        policy = self._policy
        requests_s = step.requests / policy.requests_s if policy.requests_s else 0.0
        bytes_s = step.moved_bytes / policy.bytes_s if policy.bytes_s else 0.0
        self._paid_s = max(self._paid_s, runtime.monotonic_s()) + max(requests_s, bytes_s)
