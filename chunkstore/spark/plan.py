"""From one metadata snapshot to partitions: which ranges of which chunks each task reads. Runs in the driver, without a JVM.

Tasks name the borders of the blocks that hold their bytes, against which these are verified."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from typing import Final, NamedTuple

from chunkstore.codec.pulsar.block_index import Block, LedgerRange
from chunkstore.engine.reading import ReadableContainer, context_of, read_view
from chunkstore.engine.replica import Replica
from chunkstore.errors import BadOffset, Conflict, Damaged, InvalidArgument, SegmentNotFound, SegmentTruncated
from chunkstore.metadata.index import walk
from chunkstore.metadata.port import MetadataView
from chunkstore.operations.read import find_segment
from chunkstore.operations.read import plan_read as plan_slices
from chunkstore.records.blocks import is_one_block
from chunkstore.records.layout import ReadSlice
from chunkstore.records.segments import SegmentInfo
from chunkstore.spark.options import EARLIEST, LATEST, Positions, ReadOptions
from chunkstore.spark.runs import (
    ROW_BYTES,
    ChunkTimes,
    Cut,
    LedgerRun,
    Piece,
    ReadTask,
    SegmentRun,
    partition_count,
    share,
    share_entries,
)

__all__ = [
    "Range",
    "chosen_ranges",
    "chosen_segments",
    "chosen_topics",
    "is_chosen",
    "plan_parts",
    "plan_ranges",
    "plan_read",
    "position_in",
    "require_lsn",
    "require_match",
    "require_named",
]

_CELLS: Final = 16
"""Equal parts that a partition is put together from, where it can be."""
_IDS_ONLY: Final = {"topic", "ledger", "entry"}


def plan_read(replica: Replica, options: ReadOptions) -> list[ReadTask]:
    """The partitions of a read, in the order of their rows; none where there are no bytes.

    Raises ``SegmentNotFound``, ``SegmentTruncated`` or ``Damaged`` (a ledger's blocks are not in its segment), ``InvalidArgument`` (a
    pattern without a match), ``Conflict`` (the replica was refreshed meanwhile), and what the replica raises.
    """
    lsn = replica.lsn
    tasks = _plan_topics(replica, options) if options.reads_topics else _plan_segments(replica, options)
    require_lsn(replica, lsn)
    return tasks


def require_lsn(replica: Replica, lsn: int) -> None:
    """Raise ``Conflict`` unless the replica is still where it was: a batch shows one point of history."""
    if replica.lsn != lsn:
        raise Conflict("the replica that is planned from", expected=lsn, found=replica.lsn)


def _plan_segments(replica: Replica, options: ReadOptions) -> list[ReadTask]:
    return _plan_bytes(replica, options, chosen_ranges(replica, options), repeatable=False)


def _plan_topics(replica: Replica, options: ReadOptions) -> list[ReadTask]:
    from chunkstore import pulsar  # raw segments need no codec

    ids_suffice = _IDS_ONLY.issuperset(options.columns)

    def needs_blocks(part: LedgerRange) -> bool:
        return not (ids_suffice and part.is_dense)

    topics = chosen_topics(replica, options)
    require_match(options.topics_pattern, topics, "topicsPattern")
    found = [part for topic in topics for part in pulsar.plan(replica, topic, options.ledgers, needs_blocks)]
    return plan_parts(replica, options, [part if needs_blocks(part) else part._replace(blocks=()) for part in found])


def plan_ranges(replica: Replica, options: ReadOptions, ranges: Sequence[Range]) -> list[ReadTask]:
    """The partitions of these ranges, whose rows are the same each time. Raises as ``plan_read``, and ``BadOffset``."""
    return _plan_bytes(replica, options, ranges, repeatable=True)


def plan_parts(replica: Replica, options: ReadOptions, parts: Sequence[LedgerRange]) -> list[ReadTask]:
    """The partitions of these blocks. Raises as ``plan_read``."""
    groups = share_entries(parts, options.min_partitions)

    def planned(view: MetadataView) -> list[list[LedgerRun]]:
        return [[_ledger_run(replica, view, *row) for row in group] for group in groups]

    return _tasks(replica, options, read_view(replica, planned))


def _ledger_run(replica: Replica, view: MetadataView, part: LedgerRange, blocks: list[Block]) -> LedgerRun:
    if not blocks:
        return LedgerRun(*part[:5], (), ())
    segment = find_segment(view, part.segment, None)
    start, stop = blocks[0].start, blocks[-1].stop
    if stop > segment.length:
        raise Damaged(
            f"a block ends at {stop}, but the segment has {segment.length} bytes",
            object=f"segment {part.segment}",
            position=start,
        )
    pieces = _pieces(replica, view, Range(part.segment, segment.id, start, stop), segment.length)
    return LedgerRun(*part[:5], tuple(blocks), pieces)


def _tasks(
    replica: Replica, options: ReadOptions, groups: Sequence[Sequence[SegmentRun | LedgerRun]]
) -> list[ReadTask]:
    if "timestamp" in options.columns:
        times = {name: _chunk_times(replica, name) for name in {run.segment for group in groups for run in group}}
        groups = [[run._replace(times=times[run.segment].between(*_extent(run))) for run in group] for group in groups]
    return [ReadTask(options.path, options.container, replica.lsn, tuple(group), replica.uuid) for group in groups]


def _extent(run: SegmentRun | LedgerRun) -> tuple[int, int]:
    """The bytes of a segment that a run is about."""
    if isinstance(run, LedgerRun):
        return run.blocks[0].start, run.blocks[-1].stop
    last = run.pieces[-1]
    return run.pieces[0].offset, last.offset + last.stop - last.start


def _chunk_times(replica: Replica, name: str) -> ChunkTimes:
    """Of all chunks that hold bytes."""

    def found(view: MetadataView) -> list[tuple[int, int]]:
        segment = find_segment(view, name, None)
        return [(offset, record.created_ms) for offset, _, record in walk(view.get, segment) if record.length]

    pairs = read_view(replica, found) or [(0, 0)]
    offsets, times_ms = zip(*pairs, strict=True)
    return ChunkTimes(offsets, times_ms)


def _plan_bytes(replica: Replica, options: ReadOptions, ranges: Sequence[Range], *, repeatable: bool) -> list[ReadTask]:
    """Partitions over ranges, in the order given, cut at multiples of ``ROW_BYTES`` of the segments wherever their chunks end.

    Where that makes too few they are cut anywhere, unless rows end at these multiples and are to be the same the next time.
    """
    total = sum(max(0, item.stop - item.start) for item in ranges)
    parts = partition_count(total, options.min_partitions)
    cells = _cells(ranges, max(1, total // (_CELLS * parts * ROW_BYTES)) * ROW_BYTES)
    if len(cells) < parts and (options.lines or not repeatable):
        cells = _cells(ranges, max(1, total // parts))
    groups: list[list[tuple[Range, int, int]]] = []
    for begin, end in share([high - low for _, low, high in cells], parts):
        group: list[tuple[Range, int, int]] = []
        for item, low, high in cells[begin:end]:
            if group and group[-1][0] is item:
                low = group.pop()[1]
            group.append((item, low, high))
        groups.append(group)

    def planned(view: MetadataView) -> list[list[SegmentRun]]:
        return [[_segment_run(replica, view, options, cell, repeatable) for cell in group] for group in groups]

    return _tasks(replica, options, read_view(replica, planned))


def _cells(ranges: Sequence[Range], step: int) -> list[tuple[Range, int, int]]:
    return [
        (item, max(item.start, low), min(item.stop, low + step))
        for item in ranges
        for low in range(item.start // step * step, item.stop, step)
        if item.start < item.stop
    ]


def _segment_run(
    replica: Replica, view: MetadataView, options: ReadOptions, cell: tuple[Range, int, int], repeatable: bool
) -> SegmentRun:
    whole, start, stop = cell
    limit = options.line_bytes_max
    joined = limit > 0 and start > whole.start
    low, high = start - joined, min(whole.stop, stop + limit + 1) if limit else stop
    pieces = _pieces(replica, view, whole._replace(start=low, stop=high), whole.stop)
    cut = Cut(start, stop, whole.stop, limit, joined) if limit or repeatable else None
    return SegmentRun(whole.segment, pieces, cut)


def _pieces(replica: Replica, view: MetadataView, wanted: Range, read_to: int) -> tuple[Piece, ...]:
    """The pieces of chunks that hold these bytes, of a segment that other tasks read up to ``read_to``. Raises ``BadOffset``."""
    name, identity, start, stop = wanted
    context = copy(context_of(replica))
    context.verify, context.tail = True, None
    planned = plan_slices(context, view, (name, identity, start, stop - start), gather=False)
    if planned.length < stop - start:
        raise BadOffset(name, expected=start + planned.length, given=stop)
    return tuple(
        Piece(
            item.address.object,
            item.offset,
            item.offset + item.length,
            start + item.start,
            None if _ends_elsewhere(item, read_to) else item.borders,
            item.address.offset,
        )
        for item in planned.slices
    )


def _ends_elsewhere(item: ReadSlice, read_to: int) -> bool:
    """Whether a slice is a part of one long block that another task reads to its end: that one verifies it."""
    if item.borders is None or len(item.borders.at) > 2:
        return False
    begin, end = item.borders.at
    return item.offset + item.length < end and item.chunk_offset + end <= read_to and not is_one_block(end - begin)


class Range(NamedTuple):
    """Bytes ``[start, stop)`` of a segment."""

    segment: str
    identity: int
    start: int
    stop: int


def is_chosen(options: ReadOptions, name: str) -> bool:
    """Whether a read is about a segment, or a topic, of this name."""
    pattern = options.topics_pattern if options.reads_topics else options.segments_pattern
    if pattern is not None:
        return re.fullmatch(pattern, name) is not None
    return name == options.topic if options.reads_topics else name in options.segments


def chosen_segments(replica: ReadableContainer, options: ReadOptions) -> dict[str, SegmentInfo]:
    """The segments that are there. Raises as ``ReadableContainer.segments``."""
    if options.segments_pattern is not None:
        return {info.name: info for info in replica.segments() if is_chosen(options, info.name)}
    return {name: replica.info(name) for name in options.segments if replica.exists(name)}


def chosen_topics(replica: Replica, options: ReadOptions) -> list[str]:
    """The topic that is named, whether it is there or not; or those that are there and match. Raises as ``ReadableContainer.table``."""
    if options.topics_pattern is None:
        return [options.topic] if options.topic is not None else []
    from chunkstore.pulsar.contexts import iter_topics  # raw segments need no codec

    return [topic for topic in iter_topics(replica) if is_chosen(options, topic)]


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
