"""From one metadata snapshot to partitions: which ranges of which chunks each task reads. Runs in the driver, without a JVM.

Promises: everything comes from one point of history (a replica that is not refreshed meanwhile), so that a read that runs
beside writers sees one snapshot. Tasks name the borders of the blocks that hold their bytes, against which these are verified.
Rows of streams and of lines do not depend on chunks at all (``Cut``). Leaves out: what tasks are, and sharing out (``runs``),
reading (``pieces``, ``batches``), what ledgers are (``chunkstore.pulsar``).
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, Protocol

from chunkstore.blocks import Borders
from chunkstore.codec.pulsar.ranges import LedgerRange
from chunkstore.errors import BadOffset, Conflict, Damaged, SegmentTruncated, Unsupported
from chunkstore.metadata.port import MetadataView
from chunkstore.operations.inspect import borders as find_borders
from chunkstore.operations.read import plan_read as plan_slices
from chunkstore.reading import ReadableContainer, context_of, read_view
from chunkstore.records import LayoutChunk, SegmentInfo
from chunkstore.replica import Replica
from chunkstore.spark.chunk_times import TimesOfTasks
from chunkstore.spark.options import ReadOptions
from chunkstore.spark.ranges import Range, chosen_ranges, chosen_topics, require_match
from chunkstore.spark.runs import (
    ROW_BYTES,
    Cut,
    LedgerRun,
    Piece,
    ReadTask,
    SegmentRun,
    plan_entries,
    plan_pieces,
)

__all__ = ["LedgerPlanner", "plan_parts", "plan_ranges", "plan_read", "plan_segments"]

_CELLS: Final = 16
"""Equal parts that a partition is put together from, where it can be."""


class LedgerPlanner(Protocol):
    """Finds the parts of a topic's ledgers by reading tables and index segments of one snapshot: ``chunkstore.pulsar.plan``."""

    def __call__(
        self, replica: Replica, topic: str, ledgers: Sequence[int] | None, blocks: Callable[[LedgerRange], bool], /
    ) -> Sequence[LedgerRange]:
        """The parts of these ledgers (None: all of the topic's), in the order rows are wanted: by ledger, then by entry.

        No entry is in two parts. Those for which ``blocks`` is false may come without any.
        Raises a ``ChunkstoreError`` that names the topic or the ledger which is not there.
        """


_IDS_ONLY: Final = {"topic", "ledger", "entry"}


def plan_read(replica: Replica, options: ReadOptions, ledger_planner: LedgerPlanner | None = None) -> list[ReadTask]:
    """The partitions of a read, in the order of their rows; none where there are no bytes.

    Raises ``SegmentNotFound``, ``SegmentTruncated`` or ``Damaged`` (a ledger's blocks are not in its segment), ``Unsupported``
    (ledgers without a planner, chunks of a kind this version cannot read), ``Conflict`` (the replica was refreshed
    meanwhile), and what the replica and the planner raise.
    """
    lsn = replica.lsn
    if not options.reads_topics:
        ranges = chosen_ranges(replica, options)
        groups: Sequence[Sequence[SegmentRun | LedgerRun]]
        planned = _plan_cuts if options.lines else plan_segments
        groups = planned(replica, ranges, options)
    else:
        if ledger_planner is None:
            raise Unsupported("option 'topic' needs the offload layer, which is not installed", feature="topic")
        ids_suffice = _IDS_ONLY.issuperset(options.columns)

        def needs_blocks(part: LedgerRange) -> bool:
            return not (ids_suffice and part.is_dense)

        topics = chosen_topics(replica, options)
        require_match(options.topics_pattern, topics, "topicsPattern")
        found = [part for topic in topics for part in ledger_planner(replica, topic, options.ledgers, needs_blocks)]
        parts = [part if needs_blocks(part) else part._replace(blocks=()) for part in found]
        groups = plan_entries(parts, partial(_Stored, replica), options.sizing)
    if replica.lsn != lsn:
        raise Conflict("the replica that is planned from", expected=lsn, found=replica.lsn)
    return _tasks(replica, options, lsn, groups)


def plan_ranges(replica: Replica, options: ReadOptions, ranges: Sequence[Range]) -> list[ReadTask]:
    """The partitions of these ranges, whose rows are the same each time. Raises as ``plan_read``, and ``BadOffset``."""
    return _tasks(replica, options, replica.lsn, _plan_cuts(replica, ranges, options))


def plan_parts(replica: Replica, options: ReadOptions, parts: Sequence[LedgerRange]) -> list[ReadTask]:
    """The partitions of these blocks. Raises as ``plan_read``."""
    return _tasks(replica, options, replica.lsn, plan_entries(parts, partial(_Stored, replica), options.sizing))


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
    context = context_of(replica)._replace(verify=True, tail=None)
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
