"""The jobs of the optimiser: upkeep in steps that are bounded by what a ``Step`` allows.

Promises: a step that is told to leave off begins nothing more, and the next one goes on behind it; a pass of a job that finds nothing to do
asks nothing of the storage, but for journal and snapshots, which are listed when there is something new since the last time.
Leaves out: when they run and how fast (``optimiser``), what they do (``collect``, ``retention``, ``sweep``, ``defrag``, ``scrub``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from chunkstore import runtime
from chunkstore.config import DefragPolicy, Settings
from chunkstore.errors import Damaged, SegmentNotFound
from chunkstore.metadata.pins import pinned_lsn
from chunkstore.metadata.scrubbing import BEGINNING, ScrubMark, find_mark
from chunkstore.operations.collect import Collection, collect, collect_journal
from chunkstore.operations.container import OwnedContainer
from chunkstore.operations.inspect import list_segments
from chunkstore.operations.pins import end_expired_pins
from chunkstore.operations.read import ReadContext
from chunkstore.upkeep.defrag import TRIES, defrag_step, plan_all
from chunkstore.upkeep.retention import apply_all, apply_step, plan_step
from chunkstore.upkeep.scrub import SAVE_S, STEP_BYTES, save_mark, scrub_step
from chunkstore.upkeep.sweep import SweepReport

__all__ = ["SCRUB_INTERVAL_S", "CollectJob", "DefragJob", "Job", "RetentionJob", "ScrubJob", "Step", "SweepJob"]

_REQUESTS_MAX: Final = 512
"""Of one step, about: half a second of deletions on S3, and little enough that a limit is not overdrawn for long."""
_COMMIT_REQUESTS: Final = 2
"""A record, and a look at the fence."""
_NAMES_PAGE: Final = 256
SCRUB_INTERVAL_S: Final = 10.0
_SCRUB_S_MIN: Final = 86_400.0
_HORIZON_S: Final = 3600.0
"""With a horizon, time alone makes history needless: so often it is looked for."""


class Step:
    """What one step may do, and what it says that it did. ``go_on`` is asked before each piece of work but the first."""

    def __init__(self, end_s: float, stopped: Callable[[], bool], *, dry_run: bool = False) -> None:
        self.dry_run = dry_run
        """Change nothing; the whole pass is one step."""
        self.requests = self.moved_bytes = self.freed_bytes = 0
        self.done: dict[str, int] = {}
        """What was done, by names of ``metrics.UPKEEP_COUNTERS``."""
        self.findings: list[str] = []
        """What was met and left as it is, a line each."""
        self._end_s = end_s
        self._stopped = stopped

    def go_on(self) -> bool:
        """Whether something more may be begun."""
        return not self._stopped() and self.requests < _REQUESTS_MAX and runtime.monotonic_s() < self._end_s

    def count(self, **done: int) -> None:
        """Add to ``done``."""
        for name, number in done.items():
            self.done[name] = self.done.get(name, 0) + number

    def did(self, requests: int, *, moved_bytes: int = 0, freed_bytes: int = 0) -> None:
        """Count requests to the storage, about; bytes that went through us; and bytes that are given up."""
        self.requests += requests
        self.moved_bytes += moved_bytes
        self.freed_bytes += freed_bytes


class Job(Protocol):
    """Some upkeep, by one thread at a time. ``name`` is for people and metrics."""

    name: str

    def step(self, step: Step) -> bool:
        """Do a bounded piece of the present pass; whether anything of it is left. What it raises, the next step meets again."""
        ...


class CollectJob:
    """Garbage that is due, in the order of its removal, then journal and snapshots. ``snapshots``: a number that each snapshot changes."""

    name = "collect"

    def __init__(self, container: OwnedContainer, snapshots: Callable[[], int], collected: Callable[[], None]) -> None:
        self._container = container
        self._snapshots = snapshots
        self._collected = collected
        self._rows: Collection | None = None
        self._journal_was: tuple[object, ...] = ()

    def step(self, step: Step) -> bool:
        container = self._container
        if step.dry_run:
            report = collect(container, dry_run=True)
            step.did(report.chunks + report.journal_objects, freed_bytes=report.chunk_bytes + report.journal_bytes)
            return False
        if container.collecting.locked():
            return False  # somebody else collects or sweeps: the next pass will do
        return container.alone(container.collecting, "collection", partial(self._step, step))

    def _step(self, step: Step) -> bool:
        container = self._container
        if self._rows is None:
            end_expired_pins(container)
            self._rows = Collection(container, chunks_max=_REQUESTS_MAX)
        rows = self._rows
        # Rows come in the order of their removals: behind one that waits, or that a pin keeps, the others do, too.
        while not rows.waiting and not rows.pinned:
            chunks, chunk_bytes = rows.chunks, rows.chunk_bytes
            if not rows.step():
                break
            if rows.chunks > chunks:
                step.did(rows.chunks - chunks + _COMMIT_REQUESTS, freed_bytes=rows.chunk_bytes - chunk_bytes)
                step.count(chunks=rows.chunks - chunks, reclaimed_bytes=rows.chunk_bytes - chunk_bytes)
                container.observer.collected(rows.chunks - chunks, rows.chunk_bytes - chunk_bytes)
            if not step.go_on():
                return True
        step.findings += [f"row {key.hex()} is damaged or leads elsewhere: run check" for key in sorted(rows.refused)]
        if self._journal_is_whole(step):
            self._rows = None
            return False
        return True

    def _journal_is_whole(self, step: Step) -> bool:
        """Collect journal and snapshots if there may be something new; whether it was done to its end."""
        container = self._container
        present = self._journal_is(container.settings)
        if present == self._journal_was:
            return True

        def go_on() -> bool:
            step.did(1)
            return step.go_on()

        step.did(_COMMIT_REQUESTS)
        _, size_bytes = collect_journal(container, go_on=go_on)
        step.did(0, freed_bytes=size_bytes)
        step.count(reclaimed_bytes=size_bytes)
        self._collected()
        if not step.go_on():
            return False
        self._journal_was = present
        return True

    def _journal_is(self, settings: Settings) -> tuple[object, ...]:
        """What changes whenever something of journal or snapshots may have become needless."""
        container = self._container
        pinned = container.look(pinned_lsn)
        hours = int(runtime.monotonic_s() / _HORIZON_S) if settings.pitr_horizon_s else 0
        return container.current.epoch, self._snapshots(), pinned, hours


class RetentionJob:
    """Truncations that policies ask for."""

    name = "retention"

    def __init__(self, container: OwnedContainer, context: ReadContext) -> None:
        self._container = container
        self._context = context
        self._after: str | None = None

    def step(self, step: Step) -> bool:
        if step.dry_run:
            report = apply_all(partial(plan_step, self._context))
            step.did(len(report.cuts) * _COMMIT_REQUESTS, freed_bytes=report.size_bytes)
            return False
        found = apply_step(self._container, self._context, self._after, step.go_on)
        freed_bytes = sum(cut.offset - cut.start_offset for cut in found.cuts)
        step.did(len(found.cuts) * _COMMIT_REQUESTS, freed_bytes=freed_bytes)
        step.count(chunks=sum(cut.chunks for cut in found.cuts))
        step.findings += [
            f"retention leaves segment {name!r} alone, which is damaged: run check" for name in found.refused
        ]
        self._after = found.position
        return self._after is not None


class SweepJob:
    """Chunks that crashes have left behind. A pass is one step, for rows are looked at behind the whole listing."""

    name = "sweep"

    def __init__(self, sweep: Callable[[bool], SweepReport]) -> None:
        self._sweep = sweep

    def step(self, step: Step) -> bool:
        report = self._sweep(not step.dry_run)
        objects, size_bytes = (
            (report.orphans, report.orphan_bytes) if step.dry_run else (report.deleted, report.deleted_bytes)
        )
        listed = (report.orphans + report.waiting + report.strangers) // 1000 + 1
        step.did(listed + 2 * objects, freed_bytes=size_bytes)
        step.count(chunks=report.deleted, reclaimed_bytes=report.deleted_bytes)
        return False


class DefragJob:
    """Small chunks become larger ones, segment by segment, by name. A segment with a run that is damaged is left alone from then on."""

    name = "defrag"

    def __init__(self, container: OwnedContainer, context: ReadContext, policy: DefragPolicy) -> None:
        self._container = container
        self._context = context
        self._policy = policy
        self._names: list[str] = []
        """What is next, the last first."""
        self._after: str | None = None
        self._position = self._tries = 0
        self._damaged: set[str] = set()

    def step(self, step: Step) -> bool:
        if step.dry_run:
            report = plan_all(self._context, None, self._policy)
            step.did(report.requests, moved_bytes=report.bytes_moved)
            return False
        while self._names or self._next_page():
            name = self._names[-1]
            if name in self._damaged or not self._merge(name, step):
                self._names.pop()
                self._position = self._tries = 0
            if not step.go_on():
                return True
        self._after = None
        return False

    def _next_page(self) -> bool:
        found = [info.name for info in list_segments(self._context, "", self._after, _NAMES_PAGE)]
        self._names = found[::-1]
        self._after = found[-1] if found else None
        return bool(found)

    def _merge(self, name: str, step: Step) -> bool:
        """Do the next bit of a segment; whether there is more of it to be done now."""
        try:
            found = defrag_step(self._container, self._context, name, self._policy, self._position)
        except SegmentNotFound:
            return False  # deleted since, or now a part of another
        except Damaged:
            self._leave(name, step)
            return False
        moved_bytes = sum(action.size_bytes for action in found.actions)
        step.did(sum(action.requests for action in found.actions), moved_bytes=moved_bytes)
        step.count(chunks=sum(action.chunks for action in found.actions), moved_bytes=moved_bytes)
        if found.refused:
            self._leave(name, step)
            return False
        self._tries = self._tries + 1 if found.changed and not found.actions else 0
        self._position = found.position or 0
        return found.position is not None and self._tries < TRIES

    def _leave(self, name: str, step: Step) -> None:
        self._damaged.add(name)
        step.findings.append(f"merging leaves segment {name!r} alone, which is damaged: run check --deep")


class ScrubJob:
    """Every closed chunk is read and compared, over and over, at most once a day: ``bytes_pass`` in a pass. Where it is stays in a row."""

    name = "scrub"

    def __init__(self, container: OwnedContainer, context: ReadContext, bytes_pass: int) -> None:
        self._container = container
        self._context = context
        self._bytes_pass = bytes_pass
        self._mark: ScrubMark | None = None
        self._left = 0
        self._saved_s = -math.inf
        self._rests_until_s = -math.inf

    def step(self, step: Step) -> bool:
        now_s = runtime.monotonic_s()
        if step.dry_run or now_s < self._rests_until_s:
            return False
        if self._mark is None:
            self._mark = self._container.look(find_mark)
            self._saved_s = now_s
        if self._mark is None or self._mark.position == BEGINNING:
            self._mark = ScrubMark(BEGINNING, runtime.now_ms())
        if self._left <= 0:
            self._left = self._bytes_pass
        found = scrub_step(self._container, self._context, self._mark.position, min(STEP_BYTES, self._left))
        step.did(found.chunks + 1, moved_bytes=found.size_bytes)
        step.count(chunks=found.chunks, read_bytes=found.size_bytes, findings=len(found.findings))
        step.findings += [
            f"{item.object}: {item.message} (segment {item.segment!r}, [{item.start}, {item.stop}))"
            for item in found.findings
        ]
        self._mark = self._mark._replace(position=found.position)
        self._left -= max(1, found.size_bytes)
        done = found.position == BEGINNING
        if done or now_s - self._saved_s >= SAVE_S:
            save_mark(self._container, self._mark)
            self._saved_s = now_s
        if done:
            self._rests_until_s, self._left = now_s + _SCRUB_S_MIN, 0
        return self._left > 0
