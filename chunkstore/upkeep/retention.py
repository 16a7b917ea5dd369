"""Retention: which segments are to be truncated, and where, by the policies of their names.

Promises: a cut is an ordinary truncation at the start of a chunk (or, of a sealed segment, at its end): never below the start
offset, never beyond the last chunk of a segment that may grow. What a policy does not give up
stays: at least ``size_bytes_max`` bytes, and every byte that is not proven to be older than ``age_s_max``. Planning changes nothing;
a policy that was acknowledged before the truncation is committed counts, whatever was planned before it.
A step looks at 256 segments at most, reads 10,000 chunk rows of each at most, and ends after the one with which it has read so
many. A segment that is damaged stays as it is, and stops nothing; a policy of a prefix that is damaged stops everything.

Age: chunks carry the label of when they were made, and no label of when they were last written. So a chunk is old when a chunk
after it, made when all before it was written, is old: one that the segment itself made, or one of a later epoch than all before
(others came by a concat, and may be older than what they follow). Everything is old when the segment has not changed since.
A label of the future makes its chunk, and all after it, young, and is reported; with ``ignored_after_ms`` a later label says nothing.
Clocks are believed otherwise.
Leaves out: when to apply (the caller), deleting chunks (the collector).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from itertools import islice
from typing import NamedTuple

from chunkstore import runtime
from chunkstore.config import LIMITS, RetentionPolicy
from chunkstore.errors import Damaged, InvalidArgument, SegmentNotFound
from chunkstore.metadata.codec import decode_segment
from chunkstore.metadata.index import walk
from chunkstore.metadata.keys import SEGMENT
from chunkstore.metadata.port import MetadataView
from chunkstore.metadata.reserved import Policies, keys_of
from chunkstore.operations.change_set import ChangeSet, commit_changes
from chunkstore.operations.container import OwnedContainer
from chunkstore.operations.read import ReadContext
from chunkstore.operations.segments import plan_truncate
from chunkstore.records.arguments import check_moment, moment_text
from chunkstore.records.invariants import FUTURE_MS
from chunkstore.records.reports import RetentionCut, RetentionReport
from chunkstore.records.segments import SegmentRecord

__all__ = [
    "ChunkLabel",
    "RetentionCut",
    "RetentionReport",
    "RetentionStep",
    "apply_all",
    "apply_cut",
    "apply_step",
    "check_ignored",
    "plan_cut",
    "plan_step",
]


class ChunkLabel(NamedTuple):
    """One chunk of a list: the segment offset of its first byte, when it was made, and whether all before it was written then."""

    offset: int
    created_ms: int
    proves: bool


class RetentionStep(NamedTuple):
    """What one step found. ``policies``: the one of each cut. ``looked``: segments with a policy that it came to, of which ``refused`` are
    damaged, or their policy is. ``position``: the last name it came to; None: no more are after it. ``future``: as in the report."""

    cuts: tuple[RetentionCut, ...]
    policies: tuple[RetentionPolicy, ...]
    looked: int
    refused: tuple[str, ...]
    position: str | None
    future: tuple[str, ...] = ()


def plan_cut(
    segment: SegmentRecord,
    policy: RetentionPolicy,
    *,
    now_ms: int,
    chunk_start: Callable[[int], int],
    labels: Iterable[ChunkLabel],
) -> int | None:
    """Where to truncate a segment, or None. Pure.

    ``chunk_start``: where the chunk begins that holds an offset of the segment. ``labels``: of its chunks in order, as far as they are to
    be looked at; asked for only where ages count.
    """
    start, length = segment.start_offset, segment.length
    if not segment.chunk_count:
        return None
    offset = start
    if policy.size_bytes_max is not None and length - policy.size_bytes_max > start:
        offset = chunk_start(length - policy.size_bytes_max)
    if policy.age_ms_max is not None:
        offset = max(offset, _aged(segment, now_ms - policy.age_ms_max, labels))
    if not segment.sealed:
        offset = min(offset, segment.last_chunk_offset)
    return offset if offset > start else None


def _aged(segment: SegmentRecord, time_ms: int, labels: Iterable[ChunkLabel]) -> int:
    """The greatest offset below which everything was written at ``time_ms`` or before, as far as is proven."""
    offset = segment.start_offset
    count = 0
    for label in labels:
        if label.created_ms > time_ms:
            return offset
        if label.proves:
            offset = max(offset, label.offset)
        count += 1
    return segment.length if count == segment.chunk_count and segment.modified_ms <= time_ms else offset


def plan_step(context: ReadContext, after: str | None, ignored_after_ms: int | None = None) -> RetentionStep:
    """Plan the cuts of the next segments, by name, above ``after``. Raises what looking raises; ``Damaged``: a policy, or a list."""
    now_ms = runtime.now_ms()
    return context.look(lambda view: _step(view, None if after is None else after.encode(), now_ms, ignored_after_ms))


def check_ignored(ignore_times_after: datetime | int | None) -> int | None:
    """It, in milliseconds since 1970. Raises ``InvalidArgument``: also for the past, whose times may be right."""
    time_ms = check_moment(None, ignore_times_after)[1]
    if time_ms is not None and time_ms < runtime.now_ms() - FUTURE_MS:
        text = f"times up to now may be right: ignore_times_after must not be before now, but is {moment_text(time_ms)}"
        raise InvalidArgument(text, argument="ignore_times_after")
    return time_ms


def _step(view: MetadataView, after: bytes | None, now_ms: int, ignored_after_ms: int | None) -> RetentionStep:
    policies = Policies(view)
    cuts: list[RetentionCut] = []
    applied: list[RetentionPolicy] = []
    refused: list[str] = []
    future: list[str] = []
    looked = names = read = 0
    for name in policies.names(after):
        if names == LIMITS.retention_names_max or read >= LIMITS.retention_chunks_max:
            assert after is not None
            return RetentionStep(tuple(cuts), tuple(applied), looked, tuple(refused), after.decode(), tuple(future))
        names += 1
        after = name
        raw = view.get(SEGMENT + name)
        if raw is None:
            continue
        looked += 1
        text = name.decode()
        try:
            segment = decode_segment(text, raw)
            labels, policy = _Labels(view, segment, ignored_after_ms), policies.of(name)
            offset = plan_cut(
                segment,
                policy,
                now_ms=now_ms,
                chunk_start=_chunk_starts(view, segment),
                labels=labels,
            )
            read += labels.read
            if labels.latest_ms > now_ms + FUTURE_MS:
                future.append(text)
            if offset is not None:
                dropped = view.count_chunks(segment.id, segment.start_offset - segment.first_chunk_skip, offset)
                read += dropped
                cuts.append(RetentionCut(text, segment.id, segment.start_offset, offset, dropped))
                applied.append(policy)
        except Damaged:
            refused.append(text)
    return RetentionStep(tuple(cuts), tuple(applied), looked, tuple(refused), None, tuple(future))


def apply_step(
    container: OwnedContainer,
    context: ReadContext,
    after: str | None,
    go_on: Callable[[], bool] = lambda: True,
    ignored_after_ms: int | None = None,
) -> RetentionStep:
    """Plan a step and truncate, segment by segment: each is atomic and durable, and none needs another. ``go_on`` is asked between two
    truncations; False ends the step there. Raises as ``plan_step``, and what commits raise. Retry: safe."""
    step = plan_step(context, after, ignored_after_ms)
    cuts: list[RetentionCut] = []
    for number, (cut, policy) in enumerate(zip(step.cuts, step.policies, strict=True)):
        if number and not go_on():
            return step._replace(cuts=tuple(cuts), position=step.cuts[number - 1].segment)
        if apply_cut(container, cut, policy):
            cuts.append(cut)
    return step._replace(cuts=tuple(cuts))


def apply_cut(container: OwnedContainer, cut: RetentionCut, policy: RetentionPolicy) -> bool:
    """Truncate, unless the segment is gone, or its policy is another one by now; whether it was done.

    Atomic, durable. Raises what commits raise. Retry: safe."""

    def plan(changes: ChangeSet) -> bool:
        for key in keys_of(cut.segment):
            changes.owned.tables.check(key)
        with changes.owned.store.view() as view:
            return Policies(view).find(cut.segment.encode()) == policy and plan_truncate(
                changes, cut.segment, cut.offset, cut.segment_id
            )

    try:
        return commit_changes(container, (cut.segment,), plan, tables=True)
    except SegmentNotFound:
        return False  # deleted since, or now a part of another


def _chunk_starts(view: MetadataView, segment: SegmentRecord) -> Callable[[int], int]:
    def chunk_start(offset: int) -> int:
        if offset >= segment.last_chunk_offset:
            return segment.last_chunk_offset
        found = view.locate(segment.id, offset)
        if found is None:
            what = "the offset index has no entry; run check"
            raise Damaged(what, object=f"segment {segment.name}", position=offset)
        return found[1]

    return chunk_start


class _Labels:
    """The labels of a segment's first chunks, read as they are asked for."""

    def __init__(self, view: MetadataView, segment: SegmentRecord, ignored_after_ms: int | None) -> None:
        self._view = view
        self._segment = segment
        self._ignored_after_ms = ignored_after_ms
        self.read = self.latest_ms = 0

    def __iter__(self) -> Iterator[ChunkLabel]:
        epoch = 0
        for offset, _, record in islice(walk(self._view.get, self._segment), LIMITS.retention_chunks_max):
            self.read += 1
            own = record.segment_id == self._segment.id
            if self._ignored_after_ms is not None and record.created_ms > self._ignored_after_ms:
                yield ChunkLabel(offset, 0, proves=False)
            else:
                self.latest_ms = max(self.latest_ms, record.created_ms)
                yield ChunkLabel(offset, record.created_ms, own or record.epoch > epoch)
            epoch = max(epoch, record.epoch)
        modified_ms = self._segment.modified_ms
        if self.read == self._segment.chunk_count and modified_ms <= (self._ignored_after_ms or modified_ms):
            self.latest_ms = max(self.latest_ms, modified_ms)


def apply_all(step: Callable[[str | None], RetentionStep]) -> RetentionReport:
    """Do steps, each after the former one's position, to the end."""
    cuts: list[RetentionCut] = []
    refused: list[str] = []
    future: list[str] = []
    segments = 0
    after: str | None = None
    while True:
        found = step(after)
        cuts += found.cuts
        refused += found.refused
        future += found.future
        segments += found.looked
        after = found.position
        if after is None:
            return RetentionReport(tuple(cuts), segments, tuple(refused), tuple(future))
