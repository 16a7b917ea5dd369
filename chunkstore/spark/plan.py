"""From one metadata snapshot to partitions: which ranges of which chunks each task reads. Runs in the driver, without a JVM.

Tasks name the borders of the blocks that hold their bytes, against which these are verified."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from typing import Final, NamedTuple, TypeAlias

from chunkstore.codec.pulsar.ranges import LedgerRange
from chunkstore.engine.reading import ReadableContainer, context_of, read_view
from chunkstore.engine.replica import Replica
from chunkstore.errors import (
    BadOffset,
    Conflict,
    Damaged,
    InvalidArgument,
    SegmentNotFound,
    SegmentTruncated,
    Unsupported,
)
from chunkstore.metadata.port import MetadataView
from chunkstore.operations.inspect import borders as find_borders
from chunkstore.operations.read import plan_read as plan_slices
from chunkstore.records.blocks import Borders
from chunkstore.records.segments import LayoutChunk, SegmentInfo
from chunkstore.spark.options import EARLIEST, LATEST, Positions, ReadOptions
from chunkstore.spark.runs import (
    ROW_BYTES,
    Cut,
    LedgerRun,
    Piece,
    ReadTask,
    SegmentRun,
    TimesOfTasks,
    plan_entries,
    plan_pieces,
)

__all__ = [
    "LedgerPlanner",
    "Range",
    "chosen_ranges",
    "chosen_segments",
    "chosen_topics",
    "is_chosen",
    "plan_parts",
    "plan_ranges",
    "plan_read",
    "plan_segments",
    "position_in",
    "require_match",
    "require_named",
]

_CELLS: Final = 16
"""Equal parts that a partition is put together from, where it can be."""


LedgerPlanner: TypeAlias = Callable[..., Sequence[LedgerRange]]
"""As ``chunkstore.pulsar.plan``: the parts of a topic's ledgers, by ledger, then by entry."""
_IDS_ONLY: Final = {"topic", "ledger", "entry"}


def plan_read(replica: Replica, options: ReadOptions, ledger_planner: LedgerPlanner | None = None) -> list[ReadTask]:
    """The partitions of a read, in the order of their rows; none where there are no bytes.

    Raises ``SegmentNotFound``, ``SegmentTruncated`` or ``Damaged`` (a ledger's blocks are not in its segment), ``Unsupported``
    (chunks of a kind this version cannot read), ``Conflict`` (the replica was refreshed
    meanwhile), and what the replica and the planner raise.
    """
    lsn = replica.lsn
    if not options.reads_topics:
        ranges = chosen_ranges(replica, options)
        groups: Sequence[Sequence[SegmentRun | LedgerRun]]
        planned = _plan_cuts if options.lines else plan_segments
        groups = planned(replica, ranges, options)
    else:
        from chunkstore import pulsar  # raw segments need no codec

        planned_parts = ledger_planner or pulsar.plan
        ids_suffice = _IDS_ONLY.issuperset(options.columns)

        def needs_blocks(part: LedgerRange) -> bool:
            return not (ids_suffice and part.is_dense)

        topics = chosen_topics(replica, options)
        require_match(options.topics_pattern, topics, "topicsPattern")
        found = [part for topic in topics for part in planned_parts(replica, topic, options.ledgers, needs_blocks)]
        parts = [part if needs_blocks(part) else part._replace(blocks=()) for part in found]
        groups = plan_entries(parts, lambda name: _Stored(replica, name).pieces, options.sizing)
    if replica.lsn != lsn:
        raise Conflict("the replica that is planned from", expected=lsn, found=replica.lsn)
    return _tasks(replica, options, lsn, groups)


def plan_ranges(replica: Replica, options: ReadOptions, ranges: Sequence[Range]) -> list[ReadTask]:
    """The partitions of these ranges, whose rows are the same each time. Raises as ``plan_read``, and ``BadOffset``."""
    return _tasks(replica, options, replica.lsn, _plan_cuts(replica, ranges, options))


def plan_parts(replica: Replica, options: ReadOptions, parts: Sequence[LedgerRange]) -> list[ReadTask]:
    """The partitions of these blocks. Raises as ``plan_read``."""
    return _tasks(
        replica, options, replica.lsn, plan_entries(parts, lambda name: _Stored(replica, name).pieces, options.sizing)
    )


def _tasks(
    replica: Replica, options: ReadOptions, lsn: int, groups: Sequence[Sequence[SegmentRun | LedgerRun]]
) -> list[ReadTask]:
    times = TimesOfTasks(replica) if "timestamp" in options.columns else None
    return [
        ReadTask(
            options.path,
            options.container,
            lsn,
            tuple(group),
            replica.uuid,
            tuple(times.of(run.segment, *_extent(run)) for run in group) if times is not None else (),
        )
        for group in groups
    ]


def _extent(run: SegmentRun | LedgerRun) -> tuple[int, int]:
    """The bytes of a segment that a run is about."""
    if isinstance(run, LedgerRun):
        return run.blocks[0].start, run.blocks[-1].stop
    last = run.pieces[-1]
    return run.pieces[0].offset, last.offset + last.stop - last.start


def plan_segments(replica: ReadableContainer, ranges: Iterable[Range], options: ReadOptions) -> list[list[SegmentRun]]:
    """Partitions over raw segments, in the order given. Raises as ``plan_read``."""
    pieces = [(name, piece) for name, _, start, stop in ranges for piece in _Stored(replica, name).pieces(start, stop)]
    return plan_pieces(pieces, options.sizing)


def _plan_cuts(replica: ReadableContainer, ranges: Sequence[Range], options: ReadOptions) -> list[list[SegmentRun]]:
    """Partitions over ranges, in the order given, cut at multiples of ``ROW_BYTES`` of the segments wherever their chunks end."""
    sizes = [max(0, item.stop - item.start) for item in ranges]
    parts = options.sizing.parts(sizes)
    step = max(1, sum(sizes) // (_CELLS * parts * ROW_BYTES)) * ROW_BYTES
    cells = [
        (item, max(item.start, low), min(item.stop, low + step))
        for item in ranges
        for low in range(item.start // step * step, item.stop, step)
        if item.start < item.stop
    ]
    groups: list[list[tuple[Range, int, int]]] = []
    for begin, end in options.sizing.groups([high - low for _, low, high in cells]):
        group: list[tuple[Range, int, int]] = []
        for item, low, high in cells[begin:end]:
            if group and group[-1][0] is item:
                low = group.pop()[1]
            group.append((item, low, high))
        groups.append(group)
    limit = options.line_bytes_max

    def planned(view: MetadataView) -> list[list[SegmentRun]]:
        return [[_cut_run(replica, view, *cell, limit) for cell in group] for group in groups]

    return read_view(replica, planned)


def _cut_run(
    replica: ReadableContainer, view: MetadataView, whole: Range, start: int, stop: int, limit: int
) -> SegmentRun:
    joined = limit > 0 and start > whole.start
    low, high = start - joined, min(whole.stop, stop + limit + 1) if limit else stop
    name = whole.segment
    context = copy(context_of(replica))
    context.verify, context.tail = True, None
    slices = plan_slices(context, view, (name, whole.identity, low, high - low), gather=False)
    if slices.length < high - low:
        raise BadOffset(name, expected=low + slices.length, given=high)
    pieces = tuple(
        Piece(
            item.address.object,
            item.offset,
            item.offset + item.length,
            item.offset + item.length,
            low + item.start,
            item.borders,
            item.address.offset,
        )
        for item in slices.slices
    )
    return SegmentRun(name, pieces, Cut(start, stop, whole.stop, limit, joined))


class _Stored:
    """A segment and its chunks, as the snapshot has them."""

    def __init__(self, replica: ReadableContainer, name: str) -> None:
        self.info: SegmentInfo = replica.info(name)
        stored = zip(replica.layout(name), find_borders(context_of(replica), name, self.info.id), strict=True)
        self._chunks: list[tuple[LayoutChunk, Borders | None]] = [
            (chunk, borders and Borders(array("Q", borders.at), array("I", borders.crcs)))
            for chunk, borders in stored
            if chunk.length
        ]
        self._offsets = [chunk.offset for chunk, _ in self._chunks]
        for chunk, _ in self._chunks:
            if chunk.kind not in ("object", "inline"):
                raise Unsupported(
                    f"chunk {chunk.name} of segment {name!r} is of kind {chunk.kind!r}; executors do not read those",
                    feature=f"chunks of kind {chunk.kind}",
                )

    def pieces(self, start: int, stop: int) -> list[Piece]:
        """The pieces that hold bytes ``[start, stop)``, with all borders of their chunks. Raises ``SegmentTruncated``, ``Damaged``."""
        if start < self.info.start_offset:
            raise SegmentTruncated(self.info.name, start_offset=self.info.start_offset, offset=start)
        if stop > self.info.length:
            raise Damaged(
                f"a block ends at {stop}, but the segment has {self.info.length} bytes",
                object=f"segment {self.info.name}",
                position=start,
            )
        found: list[Piece] = []
        at = max(0, bisect_right(self._offsets, start) - 1)
        for chunk, borders in self._chunks[at:]:
            if chunk.offset >= stop:
                break
            low, high = max(start - chunk.offset, 0), min(stop - chunk.offset, chunk.length)
            if low < high:
                begin = chunk.offset + low
                found.append(Piece(chunk.name, low, high, chunk.length, begin, borders, chunk.object_offset))
        return found


class Range(NamedTuple):
    """Bytes ``[start, stop)`` of a segment."""

    segment: str
    identity: int
    start: int
    stop: int


def is_chosen(options: ReadOptions, name: str) -> bool:
    """Whether a read is about a segment of this name."""
    if options.segments_pattern is None:
        return name in options.segments
    return re.fullmatch(options.segments_pattern, name) is not None


def chosen_segments(replica: ReadableContainer, options: ReadOptions) -> dict[str, SegmentInfo]:
    """The segments that are there. Raises as ``ReadableContainer.segments``."""
    if options.segments_pattern is not None:
        matches = re.compile(options.segments_pattern).fullmatch
        return {info.name: info for info in replica.segments() if matches(info.name)}
    found: dict[str, SegmentInfo] = {}
    for name in options.segments:
        if replica.exists(name):
            found[name] = replica.info(name)
    return found


def is_chosen_topic(options: ReadOptions, topic: str) -> bool:
    """Whether a read is about this topic."""
    if options.topics_pattern is None:
        return topic == options.topic
    return re.fullmatch(options.topics_pattern, topic) is not None


def chosen_topics(replica: Replica, options: ReadOptions) -> list[str]:
    """The topic that is named, whether it is there or not; or those that are there and match. Raises as ``ReadableContainer.table``."""
    if options.topics_pattern is None:
        return [options.topic] if options.topic is not None else []
    from chunkstore.pulsar.contexts import iter_topics  # raw segments need no codec

    matches = re.compile(options.topics_pattern).fullmatch
    return [topic for topic in iter_topics(replica) if matches(topic)]


def chosen_ranges(replica: Replica, options: ReadOptions) -> list[Range]:
    """What a batch reads. Raises ``SegmentNotFound``, ``SegmentTruncated``, ``BadOffset``, ``InvalidArgument``."""
    segments = chosen_segments(replica, options)
    require_match(options.segments_pattern, segments, "segmentsPattern")
    require_named(options, segments)
    ranges: list[Range] = []
    for name, info in segments.items():
        clip = not options.fail_on_data_loss
        start = position_in(info, options.starting, "startingOffsets", EARLIEST, clip=clip)
        stop = position_in(info, options.ending, "endingOffsets", LATEST, clip=clip)
        if stop < start:
            raise InvalidArgument(
                f"segment {name!r} would be read from {start} to {stop}, which is before that",
                argument="endingOffsets",
            )
        ranges.append(Range(name, info.id, start, stop))
    return ranges


def require_named(options: ReadOptions, there: Mapping[str, object]) -> None:
    """Raise ``SegmentNotFound`` unless all segments that are named, by whatever option, are ``there``."""
    for positions in (options.segments, options.starting, options.ending):
        for name in () if isinstance(positions, int) else positions:
            if name not in there:
                raise SegmentNotFound(name)


def require_match(pattern: str | None, found: Collection[object], option: str) -> None:
    """Raise ``InvalidArgument`` for a pattern without a match, which a batch cannot wait for."""
    if pattern is not None and not found:
        text = f"option {option!r}: {pattern!r} matches none that is there; a pattern matches whole names, and a stream waits for one"
        raise InvalidArgument(text, argument=option)


def position_in(info: SegmentInfo, positions: Positions, option: str, default: int, *, clip: bool) -> int:
    """The offset in this segment; ``default`` is that of segments which are not named. ``clip``: what was truncated away is passed over.

    Raises ``SegmentTruncated`` and ``BadOffset`` that name the option.
    """
    at = positions if isinstance(positions, int) else positions.get(info.name, default)
    if at == EARLIEST:
        return info.start_offset
    if at == LATEST:
        return info.length
    error: SegmentTruncated | BadOffset
    if at < info.start_offset:
        if clip:
            return info.start_offset
        error = SegmentTruncated(info.name, start_offset=info.start_offset, offset=at)
    elif at > info.length:
        error = BadOffset(info.name, expected=info.length, given=at)
    else:
        return at
    error.add_note(f"Option {option!r} is set so.")
    raise error
