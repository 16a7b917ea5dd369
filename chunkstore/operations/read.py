"""Reading: one consistent view, slices of chunks, straight into the caller's buffer (docs/architecture.md, "One read").

Promises: a read sees one point of history; it is short only at the segment's end; a whole chunk that is read is verified
against its CRC; a chunk that vanished because defrag or truncate won is looked up once more, and still referenced means
``Damaged``. Reads never write metadata. Fenced reads check the fence after the local part, so that a deposed owner never
answers with an old state as if it were the present one. Where both cross a network, the check goes on beside the reading of
chunks: it still begins behind the local part and ends before the answer, and chunks never change, so that it does not matter
when in between their bytes are read.
Leaves out: read-ahead (``chunkstore.reader``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from chunkstore import runtime
from chunkstore.buffers import filled
from chunkstore.checksum import crc32c
from chunkstore.deadline import until
from chunkstore.errors import BadOffset, ChunkNotFound, Damaged, SegmentNotFound, SegmentTruncated
from chunkstore.layout import ReadSlice, split_for_parallel_read
from chunkstore.metadata.codec import decode_segment
from chunkstore.metadata.keys import chunk_key, segment_key
from chunkstore.metadata.port import MetadataStore, MetadataView
from chunkstore.names import ContainerNames
from chunkstore.operations.owned_epoch import decode_found_chunk
from chunkstore.records import ChunkRecord, SegmentRecord
from chunkstore.storage import ChunkHandle, ChunkStorage

__all__ = ["ReadContext", "ReadPlan", "find_segment", "plan_read", "read", "read_into"]

T = TypeVar("T")
_READ_WAYS = 2


class ReadContext(NamedTuple):
    """What reading needs; the same for an owner and a replica."""

    storage: ChunkStorage
    names: ContainerNames
    pool: runtime.Pool
    parallel_read_bytes_min: int
    op_deadline_s: float
    """The deadline of calls to a remote storage (``chunkstore.deadline``)."""
    store: Callable[[], MetadataStore]
    check_open: Callable[[], None]
    """Raises ``Closed``, and for an owner that knows it is deposed ``NotOwner``. Called before anything else."""
    check: Callable[[], None]
    """Raises ``Closed``; for a fenced owner also ``NotOwner``. Called after the local part of a read, before its answer."""
    check_beside: bool
    """Whether ``check`` asks a storage behind a network: it then runs beside the reading of chunks."""
    recheck: Callable[[], None]
    """Called when a chunk is missing, before the metadata is asked again: a replica catches up, an owner (of any
    ``read_fence``) makes sure that it is one, because a list of chunks that lags may hold chunks that were collected."""


class ReadPlan(NamedTuple):
    """Slices that cover ``length`` bytes from ``offset``."""

    slices: list[ReadSlice]
    length: int


def find_segment(view: MetadataView, name: str, identity: int | None) -> SegmentRecord:
    """The committed record of a segment. Raises ``SegmentNotFound``."""
    raw = view.get(segment_key(name))
    if raw is None:
        raise SegmentNotFound(name)
    segment = decode_segment(name, raw)
    if identity is not None and segment.id != identity:
        raise SegmentNotFound(name)
    return segment


def find_chunk(view: MetadataView, names: ContainerNames, identity: bytes) -> ChunkRecord:
    """A chunk's record. Raises ``Damaged``."""
    return decode_found_chunk(names, identity, view.get(chunk_key(identity)))


def plan_read(
    view: MetadataView,
    names: ContainerNames,
    name: str,
    identity: int | None,
    offset: int,
    length: int,
) -> ReadPlan:
    """The slices for up to ``length`` bytes from ``offset``.

    Raises ``SegmentNotFound``, ``SegmentTruncated`` below the start, ``BadOffset`` beyond the length.
    """
    segment = find_segment(view, name, identity)
    if offset < segment.start_offset:
        raise SegmentTruncated(name, start_offset=segment.start_offset, offset=offset)
    if offset > segment.length:
        raise BadOffset(name, expected=segment.length, given=offset)
    stop = min(segment.length, offset + length)
    if stop == offset:
        return ReadPlan([], 0)
    if offset >= segment.last_chunk_offset:
        chunk, chunk_offset = segment.last_chunk, segment.last_chunk_offset
    else:
        found = view.locate(segment.id, offset)
        if found is None:
            raise Damaged("the offset index has no entry; run check", object=f"segment {name}", position=offset)
        chunk, chunk_offset = found
    slices: list[ReadSlice] = []
    position = offset
    while position < stop:
        if not chunk:
            raise Damaged(
                "the chunk list ends before the segment does; run check", object=f"segment {name}", position=position
            )
        record = find_chunk(view, names, chunk)
        inside = position - chunk_offset
        if not 0 <= inside < record.length:
            raise Damaged(
                "the offset index and the chunk list differ; run check", object=f"segment {name}", position=position
            )
        take = min(stop - position, record.length - inside)
        whole = inside == 0 and take == record.length
        slices.append(
            ReadSlice(
                record.object or names.chunk(chunk),
                record.object_offset + inside,
                take,
                position - offset,
                record.crc32c if whole else None,
            )
        )
        position += take
        chunk, chunk_offset = record.next, chunk_offset + record.length
    return ReadPlan(slices, stop - offset)


def _plan_fenced(context: ReadContext, name: str, identity: int | None, offset: int, length: int) -> ReadPlan:
    """The slices as of now. The fence has been checked then, unless that happens beside the reading of them (``_fetch``)."""
    left_to_fetch = False
    try:
        with context.store().view() as view:
            plan = plan_read(view, context.names, name, identity, offset, length)
        left_to_fetch = context.check_beside and bool(plan.slices)
        return plan
    finally:
        # Also before an error: a deposed owner's "not found" is as old as its bytes.
        if not left_to_fetch:
            context.check()


def _fetch(context: ReadContext, calls: Sequence[Callable[[], None]]) -> None:
    """Read what was planned, and check the fence if that is still to be done: a deposed owner raises ``NotOwner``, and nothing else."""
    # The first failure in order is the one that is raised.
    context.pool.run_all([context.check, *calls] if context.check_beside else calls)


def read(context: ReadContext, name: str, identity: int | None, offset: int, length: int) -> bytes:
    """Up to ``length`` bytes; see ``ChunkedSegmentStorage.read``. The arguments have been checked."""
    return _carry_out(context, partial(_plan_fenced, context, name, identity, offset, length), _read_plan)


def _read_plan(context: ReadContext, plan: ReadPlan) -> bytes:
    if not plan.slices:
        return b""
    if len(plan.slices) == 1 and plan.length < context.parallel_read_bytes_min:
        if not context.check_beside:
            return _read_piece(context.storage, plan.slices[0])
        read: list[bytes] = []
        _fetch(context, [lambda: read.append(_read_piece(context.storage, plan.slices[0]))])
        return read[0]

    def fill(target: memoryview) -> int:
        _read_slices(context, plan, target)
        return plan.length

    return filled(plan.length, fill)


def _carry_out(context: ReadContext, plan: Callable[[], ReadPlan], take: Callable[[ReadContext, ReadPlan], T]) -> T:
    """Plan, and let ``take`` read what is planned, on a remote storage by the deadline (``chunkstore.deadline``)."""
    if not context.storage.capabilities.remote:
        return _carry_out_anew(context, plan, take)
    with until(runtime.monotonic_s() + context.op_deadline_s):
        return _carry_out_anew(context, plan, take)


def _carry_out_anew(
    context: ReadContext, plan: Callable[[], ReadPlan], take: Callable[[ReadContext, ReadPlan], T]
) -> T:
    """Once more from the start where a chunk has vanished meanwhile. Raises ``Damaged`` if one is absent again."""
    planned = plan()
    try:
        return take(context, planned)
    except ChunkNotFound:
        context.recheck()
    # Everything may differ now, the length as well: the name may mean another segment.
    planned = plan()
    try:
        return take(context, planned)
    except ChunkNotFound as error:
        raise Damaged("referenced by the metadata, but absent from the storage", object=error.chunk) from error


def read_into(context: ReadContext, name: str, identity: int | None, offset: int, target: memoryview) -> int:
    """Fill ``target``; see ``ChunkedSegmentStorage.read_into``. The arguments have been checked."""

    def take(context: ReadContext, plan: ReadPlan) -> int:
        _read_slices(context, plan, target)
        return plan.length

    return _carry_out(context, partial(_plan_fenced, context, name, identity, offset, len(target)), take)


def _read_slices(context: ReadContext, plan: ReadPlan, target: memoryview) -> None:
    slices = plan.slices
    if not slices:
        return
    if plan.length >= context.parallel_read_bytes_min:
        slices = split_for_parallel_read(slices, ways=_READ_WAYS)
    if context.check_beside:
        _fetch(context, [partial(_read_slice, context.storage, piece, target) for piece in slices])
        return
    if len(slices) == 1:
        _read_slice(context.storage, slices[0], target)
        return
    if plan.length < context.parallel_read_bytes_min and context.storage.capabilities.append:
        # Local storage: a hand-over to the pool costs more than a small read.
        for piece in slices:
            _read_slice(context.storage, piece, target)
        return
    _fetch(context, [partial(_read_slice, context.storage, piece, target) for piece in slices])


def _read_piece(storage: ChunkStorage, piece: ReadSlice) -> bytes:
    data = storage.read(ChunkHandle(piece.name, False), piece.offset, piece.length)
    _verify(piece, data, len(data))
    return data


def _read_slice(storage: ChunkStorage, piece: ReadSlice, target: memoryview) -> None:
    part = target[piece.start : piece.start + piece.length]
    count = storage.read_into(ChunkHandle(piece.name, False), piece.offset, part)
    _verify(piece, part, count)


def _verify(piece: ReadSlice, data: bytes | memoryview, count: int) -> None:
    if count != piece.length:
        raise Damaged(
            f"the chunk is shorter than its record: {count} of {piece.length} bytes",
            object=piece.name,
            position=piece.offset,
        )
    if piece.crc32c is not None and crc32c(data) != piece.crc32c:
        raise Damaged("the chunk's bytes do not have the recorded CRC32C", object=piece.name, position=piece.offset)
