"""From one metadata snapshot to partitions: which ranges of which chunks each task reads. Runs in the driver, without a JVM.

Promises: everything comes from one point of history (a replica that is not refreshed meanwhile), so that a read that runs
beside writers sees one snapshot; the tasks are plain data (names, ranges, CRCs) and need no metadata. They name the borders of
the blocks that hold their bytes, against which these are verified.

A row of a raw segment is at most ``ROW_BYTES`` long: chunks are cut at multiples of that, counted from the chunk's first
byte, and a row never spans two chunks. Partitions are cut between chunks; inside chunks (at ends of rows) only where there
are fewer chunks than ``minPartitions``, or ``maxBytesPerPartition`` says so. Rows of streams and of lines do not depend on chunks at all
(``Cut``). Leaves out: reading (``pieces``, ``batches``), what ledgers are (``chunkstore.pulsar``).
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from chunkstore.blocks import Borders, is_one_block
from chunkstore.codec.pulsar.ranges import Block, LedgerRange
from chunkstore.config import MIB
from chunkstore.errors import BadOffset, Conflict, Damaged, SegmentTruncated, Unsupported
from chunkstore.metadata.port import MetadataView
from chunkstore.metadata.roots import scan_roots
from chunkstore.names import parse_routed
from chunkstore.operations.read import plan_read as plan_slices
from chunkstore.reading import ReadableContainer
from chunkstore.records import LayoutChunk, RootRecord, SegmentInfo
from chunkstore.replica import Replica
from chunkstore.spark.chunk_times import ChunkTimes, TimesOfTasks
from chunkstore.spark.options import ReadOptions
from chunkstore.spark.ranges import Range, chosen_ranges, chosen_topics

__all__ = [
    "PARTITION_BYTES",
    "ROW_BYTES",
    "Cut",
    "LedgerPlanner",
    "LedgerRun",
    "Piece",
    "ReadTask",
    "SegmentRun",
    "plan_parts",
    "plan_ranges",
    "plan_read",
    "plan_segments",
    "share",
]

PARTITION_BYTES: Final = 128 * MIB
"""Bytes of a partition unless chunks are longer: a task costs tens of milliseconds whatever it does."""
ROW_BYTES: Final = 1 * MIB
"""The longest row of a raw segment."""
_CELLS: Final = 16
"""Equal parts that a partition is put together from, where it can be."""


class LedgerPlanner(Protocol):
    """Finds the parts of a topic's ledgers by reading tables and index segments of one snapshot: ``chunkstore.pulsar.plan``."""

    def __call__(self, replica: Replica, topic: str, ledgers: Sequence[int] | None, /) -> Sequence[LedgerRange]:
        """The parts of these ledgers (None: all of the topic's), in the order rows are wanted: by ledger, then by entry.

        No entry is in two parts. Raises a ``ChunkstoreError`` that names the topic or the ledger which is not there.
        """


class Piece(NamedTuple):
    """Bytes ``[start, stop)`` of chunk ``chunk``; byte ``start`` is byte ``offset`` of the segment.

    ``length`` is how many of the chunk's bytes the snapshot knows (it may have grown since). ``borders``: of the blocks that
    hold the piece; None where nothing verifies it (``_with_own_borders``).
    """

    chunk: str
    start: int
    stop: int
    length: int
    offset: int
    borders: Borders | None


class Cut(NamedTuple):
    """How rows are cut so that they are the same whatever becomes of chunks: those that begin in ``[start, stop)`` of the segment.

    ``line_bytes_max`` 0: at multiples of ``ROW_BYTES`` of the segment. Else behind newlines: a line that begins there may end
    behind it, up to ``end``, where the last one ends in any case; and with ``joined`` one that began before goes on there.
    """

    start: int
    stop: int
    end: int
    line_bytes_max: int
    joined: bool


class SegmentRun(NamedTuple):
    """Consecutive bytes of a raw segment. ``cut`` None: rows are pieces of chunks."""

    segment: str
    pieces: tuple[Piece, ...]
    cut: Cut | None = None


class LedgerRun(NamedTuple):
    """Consecutive blocks of a ledger in one data segment, and their bytes; entries outside first to last are not wanted."""

    topic: str
    ledger: int
    first_entry: int
    last_entry: int
    segment: str
    blocks: tuple[Block, ...]
    pieces: tuple[Piece, ...]


class ReadTask(NamedTuple):
    """One partition: plain data. ``lsn`` is the point of history all tasks of a read were planned at."""

    root: str
    container: str
    lsn: int
    runs: tuple[SegmentRun | LedgerRun, ...]
    roots: tuple[tuple[int, RootRecord], ...] = ()
    """Where foreign chunks of these runs lie."""
    uuid: bytes = b""
    """The container's: what lies under ``root`` on the task's machine must be the same one."""
    times: tuple[ChunkTimes, ...] = ()
    """Of the segments of these runs, if column ``timestamp`` is wanted."""


def plan_read(replica: Replica, options: ReadOptions, ledger_planner: LedgerPlanner | None = None) -> list[ReadTask]:
    """The partitions of a read, in the order of their rows; none where there are no bytes.

    Raises ``SegmentNotFound``, ``SegmentTruncated`` or ``Damaged`` (a ledger's blocks are not in its segment), ``Unsupported``
    (ledgers without a planner, chunks of a kind this version cannot read), ``Conflict`` (the replica was refreshed
    meanwhile), and what the replica and the planner raise.
    """
    lsn = replica.lsn
    if not options.reads_topics:
        ranges = chosen_ranges(replica, options)
        groups: Sequence[Sequence[SegmentRun | LedgerRun]] = (
            _plan_cuts(replica, ranges, options) if options.lines else plan_segments(replica, ranges, options)
        )
    else:
        if ledger_planner is None:
            raise Unsupported("option 'topic' needs the offload layer, which is not installed", feature="topic")
        topics = chosen_topics(replica, options)
        parts = [part for topic in topics for part in ledger_planner(replica, topic, options.ledgers)]
        groups = _plan_ledgers(replica, parts, options)
    if replica.lsn != lsn:
        raise Conflict("the replica that is planned from", expected=lsn, found=replica.lsn)
    return _tasks(replica, options, lsn, groups)


def plan_ranges(replica: Replica, options: ReadOptions, ranges: Sequence[Range]) -> list[ReadTask]:
    """The partitions of these ranges, whose rows are the same each time. Raises as ``plan_read``, and ``BadOffset``."""
    return _tasks(replica, options, replica.lsn, _plan_cuts(replica, ranges, options))


def plan_parts(replica: Replica, options: ReadOptions, parts: Sequence[LedgerRange]) -> list[ReadTask]:
    """The partitions of these blocks. Raises as ``plan_read``."""
    return _tasks(replica, options, replica.lsn, _plan_ledgers(replica, parts, options))


def _tasks(
    replica: Replica, options: ReadOptions, lsn: int, groups: Sequence[Sequence[SegmentRun | LedgerRun]]
) -> list[ReadTask]:
    roots = {
        number: root
        for number, root in replica.look(lambda view: list(scan_roots(view)))
        if isinstance(root, RootRecord)
    }
    times = TimesOfTasks(replica) if "timestamp" in options.columns else None
    return [
        ReadTask(
            options.path,
            options.container,
            lsn,
            tuple(group),
            _roots_of(group, roots),
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


def _roots_of(
    runs: Sequence[SegmentRun | LedgerRun], roots: Mapping[int, RootRecord]
) -> tuple[tuple[int, RootRecord], ...]:
    """Those that chunks of the runs lie in."""
    found = (parse_routed(piece.chunk) for run in runs for piece in run.pieces) if roots else ()
    return tuple((number, roots[number]) for number in sorted({item[0] for item in found if item}) if number in roots)


def share(sizes: Sequence[int], parts: int) -> list[tuple[int, int]]:
    """Cut a row of sizes into ``parts`` groups of neighbours (fewer only where there are fewer sizes), about equal in sum.

    Returns the groups as half-open ranges; none is empty.
    """
    groups: list[tuple[int, int]] = []
    begin, left = 0, sum(sizes)
    for number in range(min(parts, len(sizes)), 0, -1):
        goal = left / number
        end, got = begin + 1, sizes[begin]
        while len(sizes) - end >= number and (number == 1 or got + sizes[end] / 2 <= goal):
            got += sizes[end]
            end += 1
        groups.append((begin, end))
        begin, left = end, left - got
    return groups


def plan_segments(replica: ReadableContainer, ranges: Iterable[Range], options: ReadOptions) -> list[list[SegmentRun]]:
    """Partitions over raw segments, in the order given. Raises as ``plan_read``."""
    pieces: list[tuple[str, Piece]] = []
    for name, _, start, stop in ranges:
        pieces += [(name, piece) for piece in _Stored(replica, name).pieces(start, stop)]
    total = sum(piece.stop - piece.start for _, piece in pieces)
    goals = [options.partition_bytes] if options.partition_bytes is not None else []
    if len(pieces) < options.min_partitions:
        goals.append(total // options.min_partitions)
    if goals:
        rows = max(1, min(goals) // ROW_BYTES)
        pieces = [(name, part) for name, piece in pieces for part in _cut(piece, rows)]
    sizes = [piece.stop - piece.start for _, piece in pieces]
    return [_segment_runs(pieces[begin:end]) for begin, end in share(sizes, _parts(sizes, options))]


def _parts(sizes: Sequence[int], options: ReadOptions) -> int:
    return max(options.min_partitions, -(-sum(sizes) // (options.partition_bytes or PARTITION_BYTES)))


def _plan_cuts(replica: ReadableContainer, ranges: Sequence[Range], options: ReadOptions) -> list[list[SegmentRun]]:
    """Partitions over ranges, in the order given, cut at multiples of ``ROW_BYTES`` of the segments wherever their chunks end."""
    sizes = [item.stop - item.start for item in ranges]
    parts = _parts(sizes, options)
    step = max(1, sum(sizes) // (_CELLS * parts * ROW_BYTES)) * ROW_BYTES
    cells = [
        (item, max(item.start, low), min(item.stop, low + step))
        for item in ranges
        for low in range(item.start // step * step, item.stop, step)
    ]
    groups: list[list[tuple[Range, int, int]]] = []
    for begin, end in share([high - low for _, low, high in cells], parts):
        group: list[tuple[Range, int, int]] = []
        for item, low, high in cells[begin:end]:
            if group and group[-1][0] is item:
                low = group.pop()[1]
            group.append((item, low, high))
        groups.append(group)
    limit = options.line_bytes_max

    def planned(view: MetadataView) -> list[list[SegmentRun]]:
        return [[_cut_run(replica, view, *cell, limit) for cell in group] for group in groups]

    return replica.look(planned)


def _cut_run(
    replica: ReadableContainer, view: MetadataView, whole: Range, start: int, stop: int, limit: int
) -> SegmentRun:
    joined = limit > 0 and start > whole.start
    low, high = start - joined, min(whole.stop, stop + limit + 1) if limit else stop
    name = whole.segment
    slices = plan_slices(view, replica.read_context.names, name, whole.identity, low, high - low, verify=True)
    if slices.length < high - low:
        raise BadOffset(name, expected=low + slices.length, given=high)
    pieces = tuple(
        Piece(
            item.name,
            item.offset,
            item.offset + item.length,
            item.offset + item.length,
            low + item.start,
            item.borders,
        )
        for item in slices.slices
    )
    return SegmentRun(name, pieces, Cut(start, stop, whole.stop, limit, joined))


def _cut(piece: Piece, rows: int) -> list[Piece]:
    """The piece in parts of ``rows`` rows; the parts end where rows end."""
    parts: list[Piece] = []
    start = piece.start
    while start < piece.stop:
        stop = min(piece.stop, (start // ROW_BYTES + rows) * ROW_BYTES)
        parts.append(piece._replace(start=start, stop=stop, offset=piece.offset + start - piece.start))
        start = stop
    return parts


def _segment_runs(pieces: Sequence[tuple[str, Piece]]) -> list[SegmentRun]:
    runs: list[tuple[str, list[Piece]]] = []
    for name, piece in pieces:
        if not runs or runs[-1][0] != name:
            runs.append((name, [piece]))
            continue
        last = runs[-1][1][-1]
        if last.chunk == piece.chunk and last.stop == piece.start:
            runs[-1][1][-1] = last._replace(stop=piece.stop)
        else:
            runs[-1][1].append(piece)
    return [SegmentRun(name, _with_own_borders(found)) for name, found in runs]


def _with_own_borders(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
    """The pieces with the borders of their own blocks, instead of the whole chunk's. Of a chunk that an older version wrote as one
    long block only the piece that ends it has any: one task reads all of it."""
    found: list[Piece] = []
    for piece in pieces:
        borders = piece.borders
        if borders is not None:
            left_to_another = len(borders.at) == 2 and piece.stop < piece.length and not is_one_block(piece.length)
            borders = None if left_to_another else borders.between(piece.start, piece.stop)
        found.append(piece._replace(borders=borders))
    return tuple(found)


class _Stored:
    """A segment and its chunks, as the snapshot has them."""

    def __init__(self, replica: ReadableContainer, name: str) -> None:
        self.info: SegmentInfo = replica.info(name)
        stored = zip(replica.layout(name), replica.borders(name), strict=True)
        self._chunks: list[tuple[LayoutChunk, Borders | None]] = [
            (chunk, borders and Borders(array("Q", borders.at), array("I", borders.crcs)))
            for chunk, borders in stored
            if chunk.length
        ]
        self._offsets = [chunk.offset for chunk, _ in self._chunks]
        for chunk, _ in self._chunks:
            if chunk.kind not in ("object", "foreign"):
                raise Unsupported(
                    f"chunk {chunk.name} of segment {name!r} is of kind {chunk.kind!r}; executors do not read those",
                    feature=f"chunks of kind {chunk.kind}",
                )

    def check_range(self, start: int, stop: int) -> None:
        if start < self.info.start_offset:
            raise SegmentTruncated(self.info.name, start_offset=self.info.start_offset, offset=start)
        if stop > self.info.length:
            raise Damaged(
                f"a block is said to end at {stop}, but the segment has {self.info.length} bytes",
                object=f"segment {self.info.name}",
                position=start,
            )

    def pieces(self, start: int, stop: int) -> list[Piece]:
        """The pieces that hold bytes ``[start, stop)``, with all borders of their chunks."""
        found: list[Piece] = []
        at = max(0, bisect_right(self._offsets, start) - 1)
        for chunk, borders in self._chunks[at:]:
            if chunk.offset >= stop:
                break
            low, high = max(start - chunk.offset, 0), min(stop - chunk.offset, chunk.length)
            if low < high:
                found.append(Piece(chunk.name, low, high, chunk.length, chunk.offset + low, borders))
        return found


def _plan_ledgers(
    replica: ReadableContainer, parts: Sequence[LedgerRange], options: ReadOptions
) -> list[list[LedgerRun]]:
    """Partitions over blocks of ledgers; a block is never cut."""
    stored: dict[str, _Stored] = {}
    for part in parts:
        if part.segment not in stored:
            stored[part.segment] = _Stored(replica, part.segment)
        for block in part.blocks:
            stored[part.segment].check_range(block.start, block.stop)
    blocks = [(part, block) for part in parts for block in part.blocks]
    sizes = [block.stop - block.start for _, block in blocks]
    groups: list[list[LedgerRun]] = []
    for begin, end in share(sizes, _parts(sizes, options)):
        runs: list[LedgerRun] = []
        for part, row in _rows_of_blocks(blocks[begin:end]):
            pieces = stored[part.segment].pieces(row[0].start, row[-1].stop)
            runs.append(
                LedgerRun(
                    part.topic,
                    part.ledger,
                    part.first_entry,
                    part.last_entry,
                    part.segment,
                    tuple(row),
                    _with_own_borders(pieces),
                )
            )
        groups.append(runs)
    return groups


def _rows_of_blocks(blocks: Sequence[tuple[LedgerRange, Block]]) -> list[tuple[LedgerRange, list[Block]]]:
    """Neighbouring blocks of one part that follow each other without a hole, together."""
    rows: list[tuple[LedgerRange, list[Block]]] = []
    for part, block in blocks:
        if rows and rows[-1][0] is part and rows[-1][1][-1].stop == block.start:
            rows[-1][1].append(block)
        else:
            rows.append((part, [block]))
    return rows
