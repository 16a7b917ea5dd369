"""Reading: one consistent view, slices of chunks, straight into the caller's buffer (docs/architecture.md, "One read").

Promises
* A read sees one point of history. It is short only at the segment's end, and every block that it touches is verified (``read_slices``).
* Where a chunk has vanished, because defrag or truncate won, the read is planned anew. A chunk that the newest rows still name is
  ``Damaged``.
* A fenced read checks the fence after its local part, so a deposed owner never answers with an old state. Where both cross a network, the
  check runs next to the reading of chunks, which never change.
* With ``read_fence="tail"`` a read that ends before the known end goes without: what was committed there stays as it is.
* A kept plan is used only at the very point of history (lsn and hash) that its view showed, and not after a chunk was absent or damaged.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from chunkstore import runtime
from chunkstore.config import MIB, Settings
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
from chunkstore.metadata.codec import decode_segment
from chunkstore.metadata.keys import chunk_key, segment_key
from chunkstore.metadata.port import MetadataStore, MetadataView, Position
from chunkstore.metadata.reserved import find_borders
from chunkstore.metadata.tail_cache import TailCache
from chunkstore.operations.container import OwnedContainer
from chunkstore.operations.fence import SharedCheck
from chunkstore.operations.looking import RowSource
from chunkstore.operations.owned_epoch import decode_found_chunk
from chunkstore.operations.read_slices import Extent, ExtentRun, SliceReader, follow_extents, in_runs, read_run
from chunkstore.records.blocks import Borders, is_one_block
from chunkstore.records.chunks import filled
from chunkstore.records.layout import ReadSlice, split_for_parallel_read
from chunkstore.records.names import Address, ContainerNames
from chunkstore.records.segments import KIND_INLINE, ChunkRecord, SegmentRecord
from chunkstore.storage import ChunkStorage

__all__ = [
    "PLANS_MAX",
    "WINDOW_BYTES",
    "Asked",
    "KeptPlans",
    "OwnerReads",
    "ReadContext",
    "ReadPlan",
    "Window",
    "find_segment",
    "plan_read",
    "read",
    "read_into",
]

WINDOW_BYTES: Final = 4 * MIB
"""Reads within one such stretch of a segment and within one chunk share a plan."""
PLANS_MAX: Final = 1024
"""About 5 KB each."""

Asked: TypeAlias = tuple[str, int | None, int, int]
"""Segment name, its id (None: of any), offset and length."""


class Window(NamedTuple):
    """What the rows say of ``segment`` at ``position``: bytes ``[low, high)`` are in the chunk at ``address``, which begins at
    ``chunk_offset`` of the segment and has these borders there. ``high`` 0: of no chunk."""

    position: Position
    segment: SegmentRecord
    low: int
    high: int
    address: Address
    chunk_offset: int
    borders: Borders | None

    def slice(self, offset: int, stop: int) -> ReadSlice:
        """For bytes ``[offset, stop)`` of the segment, which are among these."""
        inside, borders = offset - self.chunk_offset, self.borders
        if borders is not None:
            borders = borders.between(inside, stop - self.chunk_offset)
        return ReadSlice(self.address, self.chunk_offset, inside, stop - offset, 0, borders)


class ReadPlan(NamedTuple):
    """Slices and runs of extents that cover ``[offset, offset + length)`` of segment ``name``, or the bytes themselves (``held``).
    ``inside``: all that was asked for, before the segment's end. ``window``: what other reads may use."""

    name: str
    slices: Sequence[ReadSlice]
    length: int
    inside: bool
    offset: int = 0
    runs: Sequence[ExtentRun] = ()
    held: Sequence[bytes] = ()
    window: Window | None = None


class KeptPlans:
    """What reads have found in the rows, kept while the rows stay as they are; the plans that were made longest ago go first. Thread-safe,
    without a lock where a plan is found."""

    def __init__(self) -> None:
        self._lock = runtime.lock()
        self._windows: OrderedDict[tuple[str, int], Window] = OrderedDict()
        self._position: Position | None = None

    def rests(self, position: Position | None) -> bool:
        """Whether the rows are as they were when this was called last."""
        rests = position is not None and position == self._position
        self._position = position
        return rests

    def keep(self, name: str, offset: int, window: Window) -> None:
        """Keep what was found for a read at ``offset``."""
        key = name, offset // WINDOW_BYTES
        with self._lock:
            self._windows[key] = window
            self._windows.move_to_end(key)
            if len(self._windows) > PLANS_MAX:
                self._windows.popitem(last=False)

    def find(self, position: Position | None, asked: Asked, tail: TailCache | None) -> ReadPlan | None:
        """The plan of what is asked for at ``position``; None: it has to be made."""
        name, identity, offset, length = asked
        window = self._windows.get((name, offset // WINDOW_BYTES))
        if window is None or window.position != position:
            return None
        segment, stop = window.segment, offset + length
        inside = stop < segment.length
        if not inside:
            stop = segment.length
        if not segment.start_offset <= offset < stop or (identity is not None and identity != segment.id):
            return None
        held = None if tail is None else tail.find(segment.id, offset, stop - offset)
        if held is not None:
            return ReadPlan(name, (), stop - offset, inside, offset, (), held)
        if offset < window.low or stop > window.high:
            return None
        return ReadPlan(name, (window.slice(offset, stop),), stop - offset, inside, offset)


_READ_WAYS = 2
_NOWHERE = Address("", 0)


class ReadContext(RowSource):
    """What reading needs, of an owner or a replica. ``tail``: what was appended last, in memory."""

    def __init__(
        self,
        storage: ChunkStorage,
        names: ContainerNames,
        pool: runtime.Pool,
        settings: Settings,
        tail: TailCache | None,
    ) -> None:
        self.storage = storage
        self.names = names
        self.pool = pool
        self.tail = tail
        self.remote: bool = storage.capabilities.remote
        self.parallel_read_bytes_min: int = settings.tuning.parallel_read_bytes_min
        self.verify: bool = settings.verify == "blocks"
        self.op_deadline_s: float = settings.op_deadline_s
        self.kept: KeptPlans = KeptPlans()
        self.concurrent_fence_check: bool = False
        """Whether ``check`` asks a storage over a network: it then runs next to the reading of chunks."""
        self.tail_only: bool = False
        """Whether reads that end before the known end go without ``check``: their bytes never change."""

    @abstractmethod
    def check_open(self) -> None:
        """Raise ``Closed``, and of an owner that knows it is deposed ``NotOwner``. Called before anything else."""

    @abstractmethod
    def check(self) -> None:
        """Raise ``Closed``; of a fenced owner also ``NotOwner``. Called after the local part of a read, before its answer."""

    @abstractmethod
    def recheck(self) -> None:
        """A chunk is missing or damaged: a replica catches up, an owner makes sure that it is one, before the rows are asked again."""

    def why_absent(self, chunk: str) -> ChunkstoreError | None:
        """Why it is no damage that a chunk is absent and still named; None: it is."""
        return None


class OwnerReads(ReadContext):
    """Reads of an owner, each fenced; on a remote storage one look at the fence serves many."""

    def __init__(self, container: OwnedContainer) -> None:
        super().__init__(container.storage, container.names, container.pool, container.settings, container.tail)
        self._container = container
        self._shared = SharedCheck(container.check_fence, container.settings.op_deadline_s) if self.remote else None
        self.concurrent_fence_check = self.remote
        self.tail_only = container.settings.read_fence == "tail"

    def store(self) -> MetadataStore:
        return self._container.current.store

    def rebuild(self, damage: CacheDamaged) -> None:
        self._container.rebuild(damage)

    def fetch(self, name: str) -> bool:
        return self._container.fetch(name)

    def check_open(self) -> None:
        self._container.check_owner()

    def check(self) -> None:
        if self._shared is None:
            self._container.check_fence()
        else:
            self._shared()

    def recheck(self) -> None:
        self._container.check_fence()


def find_segment(view: MetadataView, name: str, identity: int | None) -> SegmentRecord:
    """The committed record of a segment. Raises ``SegmentNotFound``."""
    raw = view.get(segment_key(name))
    segment = None if raw is None else decode_segment(name, raw)
    if segment is None or (identity is not None and segment.id != identity):
        raise SegmentNotFound(name)
    return segment


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
        record = decode_found_chunk(names, chunk, view.get(chunk_key(chunk)))
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
    runs = in_runs(names, extents, remote=context.remote) if extents else ()
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
    """The plan as of now, of the rows if ``again``. The fence has been checked then, unless ``_fill`` does it next to its reads."""
    is_left, kept = False, context.kept
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
            if plan.window is not None:
                kept.keep(plan.name, plan.offset, plan.window)
            if plan.runs and context.tail is not None:
                context.tail.missed()
        if context.tail_only and plan.inside:
            is_left = True  # for ever
        elif context.concurrent_fence_check:
            is_left = bool(plan.slices or plan.runs)
        return plan
    finally:
        # Also before an error: a deposed owner's "not found" is as old as its bytes.
        if not is_left:
            context.check()


def read(context: ReadContext, name: str, identity: int | None, offset: int, length: int) -> bytes:
    """Up to ``length`` bytes; see ``Store.read``. The arguments have been checked."""
    asked = name, identity, offset, length
    if not context.remote:
        return _read(context, asked, None)[0]
    with until(Deadline(context.op_deadline_s).end_s):
        return _read(context, asked, None)[0]


def read_into(context: ReadContext, name: str, identity: int | None, offset: int, target: memoryview) -> int:
    """Fill ``target``; see ``Store.read_into``. The arguments have been checked."""
    asked = name, identity, offset, len(target)
    with until(Deadline(context.op_deadline_s).end_s) if context.remote else nullcontext():
        return _read(context, asked, target)[1]


def _read(context: ReadContext, asked: Asked, target: memoryview | None) -> tuple[bytes, int]:
    """The bytes, or with a ``target`` that is filled none, and how many they are."""
    deadline: Deadline | None = None
    missed: tuple[str, ...] = ()
    while True:
        # Everything may differ each time, the length as well: the name may mean another segment.
        plan = _plan_fenced(context, asked, again=bool(missed))
        try:
            if target is not None:
                return b"", _fill(context, target, plan)
            return _whole(context, plan), plan.length
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


def _checks_next_to(context: ReadContext, plan: ReadPlan) -> bool:
    """Whether the fence is to be checked next to the reading of chunks."""
    return context.concurrent_fence_check and not (context.tail_only and plan.inside)


def _whole(context: ReadContext, plan: ReadPlan) -> bytes:
    if plan.held:
        return plan.held[0] if len(plan.held) == 1 else b"".join(plan.held)
    if not plan.length:
        return b""
    if len(plan.slices) == 1 and not plan.runs and plan.length < context.parallel_read_bytes_min:
        reader, piece = SliceReader(context.storage, plan.name, remote=context.remote), plan.slices[0]
        if reader.is_short(piece) and not _checks_next_to(context, plan):
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
    calls: list[partial[None]] = [partial(reader.read_into, piece, target) for piece in slices]
    calls += [
        partial(read_run, context.storage, plan.name, run, plan.offset, into, verify=context.verify)
        for run in plan.runs
    ]
    if _checks_next_to(context, plan):
        # The first failure in order is raised: a deposed owner's is ``NotOwner``, and nothing else.
        context.pool.run_all([partial(context.check), *calls])
    elif small and context.storage.capabilities.append and not context.concurrent_fence_check:
        # Local storage: a hand-over to the pool costs more than a small read.
        for call in calls:
            call()
    else:
        context.pool.run_all(calls)
    return plan.length
