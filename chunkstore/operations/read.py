"""Reading: one consistent view, slices of chunks, straight into the caller's buffer (docs/architecture.md, "One read").

Promises: a read sees one point of history; it is short only at the segment's end; the blocks it touches are verified against
the CRCs at their borders (``read_slices``); where a chunk has vanished because defrag or truncate won, the read is planned anew,
as often as that happens; one that the newest metadata still name is ``Damaged``. Fenced reads check the fence after the local
part, so that a deposed owner never answers with an old state as if it were the present one. Where both cross a network, the
check goes on next to the reading of chunks, which never change: it still begins after the local part and ends before the answer.
With ``read_fence="tail"`` a read that ends before the known end goes without: what was committed there stays as it is.
Leaves out: read-ahead (``chunkstore.engine.reader``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeVar

from chunkstore import runtime
from chunkstore.deadline import Deadline, until
from chunkstore.errors import (
    BadOffset,
    CacheDamaged,
    ChunkNotFound,
    ChunkstoreError,
    Damaged,
    SegmentNotFound,
    SegmentTruncated,
)
from chunkstore.metadata.blocks import find_borders
from chunkstore.metadata.codec import decode_segment
from chunkstore.metadata.keys import chunk_key, segment_key
from chunkstore.metadata.port import MetadataStore, MetadataView
from chunkstore.metadata.tail_cache import TailCache
from chunkstore.operations.extents import Extent, follow_extents, in_runs, read_run
from chunkstore.operations.kept_plans import WINDOW_BYTES, Asked, KeptPlans, ReadPlan, Window
from chunkstore.operations.looking import iterate_view, look
from chunkstore.operations.owned_epoch import decode_found_chunk
from chunkstore.operations.read_slices import SliceReader
from chunkstore.records.blocks import is_one_block
from chunkstore.records.chunks import filled
from chunkstore.records.layout import ReadSlice, split_for_parallel_read
from chunkstore.records.names import Address, ContainerNames
from chunkstore.records.segments import KIND_INLINE, ChunkRecord, SegmentRecord
from chunkstore.storage import ChunkStorage

__all__ = ["ReadContext", "find_segment", "plan_read", "read", "read_into"]

T = TypeVar("T")
_READ_WAYS = 2
_NOWHERE = Address("", 0)


class ReadContext(NamedTuple):
    """What reading needs; the same for an owner and a replica."""

    storage: ChunkStorage
    names: ContainerNames
    pool: runtime.Pool
    parallel_read_bytes_min: int
    verify: bool
    """Whether bytes of chunks are verified before they are given out."""
    op_deadline_s: float
    """The deadline of calls to a remote storage (``chunkstore.deadline``)."""
    store: Callable[[], MetadataStore]
    check_open: Callable[[], None]
    """Raises ``Closed``, and for an owner that knows it is deposed ``NotOwner``. Called before anything else."""
    check: Callable[[], None]
    """Raises ``Closed``; for a fenced owner also ``NotOwner``. Called after the local part of a read, before its answer."""
    remote: bool
    """Whether the storage is over a network."""
    kept: KeptPlans
    concurrent_fence_check: bool
    """Whether ``check`` asks a storage over a network: it then runs next to the reading of chunks."""
    recheck: Callable[[], None]
    """Called when a chunk is missing or damaged, before the metadata is asked again: a replica catches up, an owner makes sure that it is
    one, for a list of chunks that lags may hold chunks that were collected."""
    rebuild: Callable[[CacheDamaged], None]
    """Called when ``store`` does not hold what was written: makes another one. Raises when that does not work."""
    why_absent: Callable[[str], ChunkstoreError | None] = lambda _chunk: None
    """Of a chunk that is absent and still named: why that is no damage; None: it is."""

    tail_only: bool = False
    """Whether reads that end before the known end go without ``check``: their bytes never change."""

    fetch: Callable[[str], bool] | None = None
    """Called for a segment that is not there: brings it, from elsewhere, and says whether it is there now."""

    tail: TailCache | None = None
    """What was appended last, in memory."""

    def look(self, call: Callable[[MetadataView], T]) -> T:
        """What ``call`` makes of a view of the present rows; see ``looking``."""
        try:
            return look(self.store, self.rebuild, call)
        except SegmentNotFound as missing:
            if self.fetch is None or not self.fetch(missing.segment):
                raise
        return look(self.store, self.rebuild, call)

    def iterate_view(self, call: Callable[[MetadataView], Iterator[T]]) -> Iterator[T]:
        """As ``look``, item by item."""
        return iterate_view(self.store, self.rebuild, call)


def find_segment(view: MetadataView, name: str, identity: int | None) -> SegmentRecord:
    """The committed record of a segment. Raises ``SegmentNotFound``."""
    raw = view.get(segment_key(name))
    segment = None if raw is None else decode_segment(name, raw)
    if segment is None or (identity is not None and segment.id != identity):
        raise SegmentNotFound(name)
    return segment


def find_chunk(view: MetadataView, names: ContainerNames, identity: bytes) -> ChunkRecord:
    """A chunk's record. Raises ``Damaged``."""
    return decode_found_chunk(names, identity, view.get(chunk_key(identity)))


def plan_read(
    context: ReadContext, view: MetadataView, asked: Asked, *, keep: bool = False, gather: bool = True
) -> ReadPlan:
    """Plan by the rows; ``keep``: for other reads, too. Without ``gather`` each extent is a slice.

    Raises ``SegmentNotFound``, ``SegmentTruncated`` below the start, ``BadOffset`` beyond the length.
    """
    name, identity, offset, length = asked
    names = context.names
    segment = find_segment(view, name, identity)
    if offset < segment.start_offset:
        raise SegmentTruncated(name, start_offset=segment.start_offset, offset=offset)
    if offset > segment.length:
        raise BadOffset(name, expected=segment.length, given=offset)
    stop = min(segment.length, offset + length)
    if stop == offset:
        return ReadPlan(name, [], 0, inside=False)
    held = None if context.tail is None else context.tail.find(segment.id, offset, stop - offset)
    if held is not None:
        window = Window(view.head.position, segment, 0, 0, _NOWHERE, 0, None) if keep else None
        return ReadPlan(name, [], stop - offset, stop < segment.length, offset, held=held, window=window)
    where = f"segment {name}"
    if offset >= segment.last_chunk_offset:
        chunk, chunk_offset = segment.last_chunk, segment.last_chunk_offset
    else:
        found = view.locate(segment.id, offset)
        if found is None:
            raise Damaged("the offset index has no entry; run check", object=where, position=offset)
        chunk, chunk_offset = found
    slices: list[ReadSlice] = []
    extents: list[Extent] = []
    position = offset
    while position < stop:
        if not chunk:
            raise Damaged("the chunk list ends before the segment does; run check", object=where, position=position)
        record = find_chunk(view, names, chunk)
        inside = position - chunk_offset
        if not 0 <= inside < record.length:
            raise Damaged("the offset index and the chunk list differ; run check", object=where, position=position)
        if gather and record.kind == KIND_INLINE and names.has_journal:
            found_here, chunk, chunk_offset = follow_extents(view, chunk, chunk_offset, stop)
            if found_here:
                extents += found_here
                position = chunk_offset
                continue
        take = min(stop - position, record.length - inside)
        if keep and take == stop - offset:
            window = _window(context, view, segment, (chunk, record, chunk_offset), offset)
            if window is not None and stop <= window.high:
                piece = window.slice(offset, stop)
                return ReadPlan(name, [piece], take, stop < segment.length, offset, window=window)
        borders = find_borders(view, chunk, record, inside, inside + take) if context.verify else None
        slices.append(ReadSlice(names.address(chunk, record), chunk_offset, inside, take, position - offset, borders))
        position += take
        chunk, chunk_offset = record.next, chunk_offset + record.length
    runs = in_runs(names, extents, remote=context.remote)
    return ReadPlan(name, slices, stop - offset, stop < segment.length, offset, runs)


def _window(
    context: ReadContext, view: MetadataView, segment: SegmentRecord, found: tuple[bytes, ChunkRecord, int], offset: int
) -> Window | None:
    """What is to be kept of the chunk that holds ``offset``; None: its bytes are verified all at once, or not at all."""
    chunk, record, chunk_offset = found
    start = offset - offset % WINDOW_BYTES
    low = max(start, chunk_offset, segment.start_offset)
    high = min(start + WINDOW_BYTES, chunk_offset + record.length, segment.length)
    borders = None
    if context.verify:
        borders = find_borders(view, chunk, record, low - chunk_offset, high - chunk_offset)
        is_whole = borders is not None and borders.at[1] - borders.at[0] == record.length
        if borders is None or (is_whole and not is_one_block(record.length)):
            return None
    address = context.names.address(chunk, record)
    return Window(view.head.position, segment, low, high, address, chunk_offset, borders)


def _plan_fenced(context: ReadContext, asked: Asked, *, again: bool) -> ReadPlan:
    """The slices as of now, of the rows if ``again``. The fence has been checked then, unless that happens next to the reading of them
    (``_fetch``)."""
    left_to_fetch, kept = False, context.kept
    try:
        try:
            position = context.store().position
        except ChunkstoreError:
            position = None  # the look deals with it
        plan = None if again else kept.find(position, asked, context.tail)
        if plan is None:
            # Where every read finds other rows nothing is worth keeping.
            keep = kept.rests(position)
            plan = context.look(lambda view: plan_read(context, view, asked, keep=keep))
            kept.keep(plan)
            if plan.runs and context.tail is not None:
                context.tail.missed()
        if context.tail_only or context.concurrent_fence_check:
            left_to_fetch = _goes_without(context, plan) or (
                context.concurrent_fence_check and bool(plan.slices or plan.runs)
            )
        return plan
    finally:
        # Also before an error: a deposed owner's "not found" is as old as its bytes.
        if not left_to_fetch:
            context.check()


def _goes_without(context: ReadContext, plan: ReadPlan) -> bool:
    """Whether no one looks at the fence for this read."""
    return context.tail_only and plan.inside


def _fetch(context: ReadContext, plan: ReadPlan, calls: Sequence[Callable[[], None]]) -> None:
    """Read what was planned, and check the fence if that is still to be done."""
    # The first failure in order is raised: a deposed owner's is ``NotOwner``, and nothing else.
    background = context.concurrent_fence_check and not _goes_without(context, plan)
    context.pool.run_all([context.check, *calls] if background else calls)


def read(context: ReadContext, name: str, identity: int | None, offset: int, length: int) -> bytes:
    """Up to ``length`` bytes; see ``Store.read``. The arguments have been checked."""
    return _read_with_retry(context, (name, identity, offset, length), partial(_read_plan, context))


def read_into(context: ReadContext, name: str, identity: int | None, offset: int, target: memoryview) -> int:
    """Fill ``target``; see ``Store.read_into``. The arguments have been checked."""
    return _read_with_retry(context, (name, identity, offset, len(target)), partial(_fill, context, target))


def _read_with_retry(context: ReadContext, asked: Asked, take: Callable[[ReadPlan], T]) -> T:
    """Plan, and let ``take`` read what is planned; again from the start as often as a chunk has vanished meanwhile, or was damaged.

    Raises ``Damaged`` for a chunk that was so before, and that the metadata still named after that; ``DeadlineExceeded`` when
    chunks go faster than they are read. On a remote storage the calls themselves end by the deadline, too (``chunkstore.deadline``).
    """
    if not context.remote:
        return _attempt(context, asked, take)
    with until(Deadline(context.op_deadline_s).end_s):
        return _attempt(context, asked, take)


def _attempt(context: ReadContext, asked: Asked, take: Callable[[ReadPlan], T]) -> T:
    deadline: Deadline | None = None
    missed: tuple[str, ...] = ()
    while True:
        # Everything may differ each time, the length as well: the name may mean another segment.
        plan = _plan_fenced(context, asked, again=bool(missed))
        try:
            return take(plan)
        except ChunkNotFound as error:
            if error.chunk in missed:
                raise (context.why_absent(error.chunk) or _absent(plan, error.chunk)) from error
            missed += (error.chunk,)
        except Damaged as damage:
            # Newer metadata may lead to sound bytes, and what refuses to be newer says what is wrong (``RolledBack``).
            if damage.object in missed:
                raise
            missed += (damage.object,)
            # A file that is kept open may have lost its name to another one.
            with suppress(ChunkstoreError):
                context.storage.open_read(damage.object)
        deadline = deadline or Deadline(context.op_deadline_s)
        if not deadline.left_s():
            deadline.fail(f"reading segment {plan.name!r}, whose chunks are being replaced")
        context.recheck()


def _absent(plan: ReadPlan, chunk: str) -> Damaged:
    message = "referenced by the metadata, but absent from the storage"
    for run in plan.runs:
        if run.name == chunk:
            return Damaged(message, object=chunk, segment=plan.name, start=run.start, stop=run.stop)
    for piece in plan.slices:
        if piece.address.object == chunk:
            start = piece.chunk_offset + piece.offset
            return Damaged(message, object=chunk, segment=plan.name, start=start, stop=start + piece.length)
    return Damaged(message, object=chunk)


def _read_plan(context: ReadContext, plan: ReadPlan) -> bytes:
    if plan.held:
        return plan.held[0] if len(plan.held) == 1 else b"".join(plan.held)
    if not plan.length:
        return b""
    if len(plan.slices) == 1 and not plan.runs and plan.length < context.parallel_read_bytes_min:
        reader, piece = SliceReader(context.storage, plan.name, remote=context.remote), plan.slices[0]
        if reader.is_short(piece) and (not context.concurrent_fence_check or _goes_without(context, plan)):
            return reader.read(piece)
    return filled(plan.length, lambda target: _fill(context, target, plan))


def _fill(context: ReadContext, target: memoryview, plan: ReadPlan) -> int:
    """Read what is planned into ``target``; returns its length."""
    slices, position = plan.slices, 0
    for held in plan.held:
        target[position : position + len(held)] = held
        position += len(held)
    if position or not plan.length:
        return plan.length
    # Of runs little is reading where that is a system call: two threads would only get into each other's way.
    small = plan.length < context.parallel_read_bytes_min or not slices
    if not small:
        slices = split_for_parallel_read(slices, ways=_READ_WAYS)
    reader, into = SliceReader(context.storage, plan.name, remote=context.remote), target[: plan.length]
    calls = [partial(reader.read_into, piece, target) for piece in slices]
    calls += [
        partial(read_run, context.storage, plan.name, run, plan.offset, into, verify=context.verify)
        for run in plan.runs
    ]
    if small and context.storage.capabilities.append and not context.concurrent_fence_check:
        # Local storage: a hand-over to the pool costs more than a small read.
        for call in calls:
            call()
    else:
        _fetch(context, plan, calls)
    return plan.length
