"""The jobs of the optimiser: upkeep in steps that are bounded by what a ``Step`` allows.

Promises: a step that is asked to leave off begins nothing more, and the next one goes on after it; a pass of a job that finds nothing to do
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
from chunkstore.journal import OpCode
from chunkstore.metadata.retained import pinned_lsn
from chunkstore.operations.collect import Collection, collect, collect_journal
from chunkstore.operations.container import OwnedContainer
from chunkstore.operations.inspect import list_segments
from chunkstore.operations.pending import PendingOp
from chunkstore.operations.read import ReadContext
from chunkstore.records.reports import ScrubMark, SweepReport

__all__ = ["SCRUB_INTERVAL_S", "CollectJob", "DefragJob", "Job", "RetentionJob", "ScrubJob", "Step", "SweepJob"]

_REQUESTS_MAX: Final = 512
"""Of one step, about: half a second of deletions on S3, and little enough that a limit is not overdrawn for long."""
_COMMIT_REQUESTS: Final = 2
"""A record, and a look at the fence."""
_NAMES_PAGE: Final = 256
SCRUB_INTERVAL_S: Final = 10.0
_SCRUB_S_MIN: Final = 86_400.0
_CHANGED_MAX: Final = 10_000
_SCAN_S: Final = 3600.0
"""All segments are looked at so often: for what no commit says, such as chunks that closed with their epoch."""
_ADDING: Final = frozenset((OpCode.APPEND, OpCode.ATTACH, OpCode.CONCAT, OpCode.REPLACE))
_FROM_START: Final = frozenset((OpCode.CREATE, OpCode.DELETE, OpCode.TRUNCATE))
"""Whatever else changes a list of chunks does so at its end, or replaces chunks by longer ones."""
_HORIZON_S: Final = 3600.0
"""With a horizon, time alone makes history needless: so often it is looked for."""


class Step:
    """What one step may do, and what it says that it did. ``go_on`` is asked before each piece of work but the first."""

    def __init__(self, end_s: float, stopped: Callable[[], bool], *, dry_run: bool = False) -> None:
        self.dry_run = dry_run
        """Change nothing; the whole pass is one step."""
        self.requests: int = 0
        self.moved_bytes: int = 0
        self.freed_bytes: int = 0
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
    """Some upkeep, by one thread at a time. ``name`` is for people and metrics. ``pressing``: the next pass is to begin now."""

    name: str

    @property
    def pressing(self) -> bool: ...

    def step(self, step: Step) -> bool:
        """Do a bounded piece of the present pass; whether anything of it is left. What it raises, the next step meets again."""
        ...


class CollectJob:
    """Garbage that is due, in the order of its removal, then journal and snapshots. ``snapshots``: a number that each snapshot changes."""

    name = "collect"
    pressing = False

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
        from chunkstore.operations.attach import drop_staged
        from chunkstore.operations.pins import end_expired_pins

        container = self._container
        if self._rows is None:
            end_expired_pins(container)
            drop_staged(container)
            self._rows = Collection(container, chunks_max=_REQUESTS_MAX)
        rows = self._rows
        # Rows come in the order of their removals: after one that waits, or that a pin keeps, the others do, too.
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
        step.findings += [
            f"row {key.hex()} is damaged or names another object; run check" for key in sorted(rows.refused)
        ]
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
    pressing = False

    def __init__(self, container: OwnedContainer, context: ReadContext) -> None:
        self._container = container
        self._context = context
        self._after: str | None = None

    def step(self, step: Step) -> bool:
        from chunkstore.upkeep.retention import apply_all, apply_step, plan_step

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
        step.findings += [
            f"retention by age stops in segment {name!r}: a chunk has a time after now; see 'retention apply'"
            for name in found.future
        ]
        self._after = found.position
        return self._after is not None


class SweepJob:
    """Chunks that crashes have left behind. A pass is one step, for rows are looked at after the whole listing."""

    name = "sweep"
    pressing = False

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


class _Changed:
    """Names of segments whose chunks have changed since a pass took them, at most 10,000. Thread-safe: ``note`` in callers' threads."""

    def __init__(self, many: int) -> None:
        self._many = many
        self._counts: dict[str, int] = {}
        self._from_start: dict[str, None] = {}
        self.missed = True
        """Whether there may be others."""
        self.has_many = False
        """Whether some segment has got ``many`` new chunks."""

    def note(self, op: PendingOp) -> None:
        """An operation that ``reshapes`` is committed."""
        codes = {header[0] for header in op.headers}
        for segment in op.segments:
            count = self._counts.get(segment.name)
            if count is None and len(self._counts) >= _CHANGED_MAX:
                self.missed = True
                return
            if not codes.isdisjoint(_FROM_START):
                self._from_start[segment.name] = None
            self._counts[segment.name] = count = (count or 0) + (not codes.isdisjoint(_ADDING))
            if count >= self._many:
                self.has_many = True

    def take(self) -> tuple[list[str], list[str]]:
        """The names, and those of them that may have changed anywhere, not at the end only. What comes meanwhile is for the next time."""
        self.has_many = False
        names = list(self._counts)
        for name in names:
            self._counts.pop(name)
        anywhere = list(self._from_start)
        for name in anywhere:
            self._from_start.pop(name)
        return names, anywhere


class DefragJob:
    """Small chunks become larger ones, segment by segment. A pass looks at the segments whose chunks have changed since the last one, from
    where something may be merged with what came; after opening, and once an hour, at all, by name. ``inline``: a pass is pressing when a
    segment has got as many new chunks as make a merge. A segment with a run that is damaged is left alone from then on."""

    name = "defrag"

    def __init__(
        self, container: OwnedContainer, context: ReadContext, policy: DefragPolicy, *, inline: bool = False
    ) -> None:
        self._container = container
        self._context = context
        self._policy = policy
        self._inline = inline
        self._changed = _Changed(policy.fanout)
        container.reshaped.append(self._changed.note)
        self._scans_at_s = -math.inf
        self._scanning = False
        """Whether names of this pass are still to be listed, those above ``_after``."""
        self._after: str | None = None
        self._names: list[str] = []
        """What is next, the last first."""
        self._young: dict[str, float] = {}
        """What has changed, and when that is old enough for the policy."""
        self._settled: dict[str, int] = {}
        """By segment, from which offset on it is to be looked at, if not from the start."""
        self._position: int | None = None
        self._tries = 0
        self._damaged: set[str] = set()
        self._told_clock = False

    @property
    def pressing(self) -> bool:
        return self._inline and self._changed.has_many

    def step(self, step: Step) -> bool:
        from chunkstore.upkeep.defrag import plan_all

        if step.dry_run:
            report = plan_all(self._context, None, self._policy)
            step.did(report.requests, moved_bytes=report.bytes_moved)
            return False
        if not self._names and not self._scanning:
            self._begin()
        while self._names or self._next_page():
            name = self._names[-1]
            if name in self._damaged or not self._merge(name, step):
                self._names.pop()
                self._position, self._tries = None, 0
            if not step.go_on():
                return bool(self._names) or self._scanning
        return False

    def _begin(self) -> None:
        """Begin a pass."""
        now_s = runtime.monotonic_s()
        self._scanning = self._changed.missed or now_s >= self._scans_at_s
        self._changed.missed = False
        names, anywhere = self._changed.take()
        for name in anywhere:
            self._settled.pop(name, None)
        if self._policy.age_s_min:
            self._young.update(dict.fromkeys(names, now_s + self._policy.age_s_min))
            names = [name for name, end_s in self._young.items() if end_s <= now_s]
            for name in names:
                self._young.pop(name)
            if len(self._young) > _CHANGED_MAX:
                self._young.clear()
                self._changed.missed = True
        if self._scanning or len(self._settled) > _CHANGED_MAX:
            self._settled.clear()
        if self._scanning:
            self._scans_at_s, self._after, self._told_clock = now_s + _SCAN_S, None, False
        else:
            self._names = sorted(names, reverse=True)

    def _next_page(self) -> bool:
        if not self._scanning:
            return False
        found = [info.name for info in list_segments(self._context, "", self._after, _NAMES_PAGE)]
        self._names = found[::-1]
        self._after = found[-1] if found else None
        self._scanning = bool(found)
        return self._scanning

    def _merge(self, name: str, step: Step) -> bool:
        """Do the next bit of a segment; whether there is more of it to be done now."""
        from chunkstore.upkeep.defrag import TRIES, defrag_step

        begins = self._position is None
        position = self._settled.pop(name, 0) if self._position is None else self._position
        try:
            found = defrag_step(self._container, self._context, name, self._policy, position)
        except SegmentNotFound:
            return False  # deleted since, or now a part of another
        except Damaged:
            self._leave(name, step)
            return False
        moved_bytes = sum(action.size_bytes for action in found.actions)
        step.did(sum(action.requests for action in found.actions), moved_bytes=moved_bytes)
        step.count(chunks=sum(action.chunks for action in found.actions), moved_bytes=moved_bytes)
        if found.ahead and not self._told_clock:
            self._told_clock = True
            step.findings.append(
                f"merging leaves chunks alone that were made later than it is by this machine's clock, of segment {name!r} for one: "
                "set the clock right"
            )
        if found.refused:
            self._leave(name, step)
            return False
        if found.position is None and begins and not self._policy.age_s_min:
            self._settled[name] = found.settled
        self._tries = self._tries + 1 if found.changed and not found.actions else 0
        self._position = found.position
        return found.position is not None and self._tries < TRIES

    def _leave(self, name: str, step: Step) -> None:
        self._damaged.add(name)
        step.findings.append(f"merging leaves segment {name!r} alone, which is damaged: run check --deep")


class ScrubJob:
    """Every closed chunk is read and compared, over and over, at most once a day: ``bytes_pass`` in a pass. Where it is stays in a row."""

    name = "scrub"
    pressing = False

    def __init__(self, container: OwnedContainer, context: ReadContext, bytes_pass: int) -> None:
        self._container = container
        self._context = context
        self._bytes_pass = bytes_pass
        self._mark: ScrubMark | None = None
        self._left = 0
        self._saved_s = -math.inf
        self._rests_until_s = -math.inf

    def step(self, step: Step) -> bool:
        from chunkstore.metadata.reserved import BEGINNING, find_mark
        from chunkstore.upkeep.scrub import SAVE_S, STEP_BYTES, save_mark, scrub_step

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
