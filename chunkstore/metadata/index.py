"""The derived offset index: from a segment's offset to its chunk in two ordered look-ups (docs/decisions/0003).

Two kinds of entries (``keys``), neither journaled nor part of the state digest::

    run row     r | segment | start          ->  run, base
    extent      x | run | offset in the run  ->  chunk id

A *run* is named by the segment whose appends made its extents, and ``offset in the run`` is the offset the chunk had in
that segment's own coordinates. Segment ids are never reused, so runs never collide. A run row says: from ``start`` on, up
to the segment's next run row, the segment's bytes are in ``run`` at ``offset - start + base``. Concat moves run rows and
touches no extent; truncation drops run rows from the front.

Promises: for every offset in ``[start_offset, length)`` of a live segment ``locate`` answers the chunk that holds it.

Why a dead extent (of a chunk that left the list) is never the answer: within one run row, chunks follow one another
without gaps, so the live chunk that holds an offset begins at or below it and the next one begins above it. Chunks die
(1) from the front, by truncation: their extents begin below the live chunk's, so the floor is the live one; (2) with the
whole segment: then no run row leads to the run; (3) by REPLACE: the replaced range gets a run row of its own, so no look-up
for it reaches the old extents of foreign runs, those of the segment's own run are deleted there and then, and offsets
outside the range find their own extents nearer; where the range begins inside the first chunk, what is below is dead, as after a
truncation. Floors below a run row's base are refused besides.

Dead extents cost only space. COLLECT drops them from the low end of the runs of the chunks it forgets. What it cannot
reach (dead ones after live ones, after REPLACE; all of a segment's foreign chunks after ``rebuild_index``) stays until
the segment's own end or a rebuild.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from struct import Struct
from struct import error as StructError  # noqa: N812  (it is a class, and is used like one)
from typing import TypeAlias

from chunkstore.errors import Damaged, InvalidArgument
from chunkstore.journal import OpCode
from chunkstore.metadata.codec import decode_chunk, decode_segment
from chunkstore.metadata.keys import CHUNK, EXTENT, INLINE, RUN, SEGMENT, chunk_key
from chunkstore.metadata.port import MetadataView, Op
from chunkstore.metadata.transaction import RowTransaction
from chunkstore.records.names import CHUNK_ID_BYTES, NO_CHUNK
from chunkstore.records.segments import KIND_INLINE, ChunkRecord, SegmentRecord

__all__ = [
    "INDEXED",
    "IndexComparison",
    "add_extents",
    "apply_operation",
    "check_index",
    "count_chunks",
    "extent_entries",
    "locate",
    "rebuild_index",
    "run_entry",
    "run_range",
    "walk",
]

_KEY = Struct(">cQQ")
_PREFIX = Struct(">cQ")
_TARGET = Struct(">QQ")
_U64 = Struct(">Q")
_PREFIX_BYTES = _PREFIX.size
_U64_MAX = (1 << 64) - 1
_OFFSET_MAX = (1 << 63) - 1

Pair: TypeAlias = tuple[bytes, bytes]


# ---- reading


def locate(view: MetadataView, segment_id: int, offset: int) -> tuple[bytes, int] | None:
    """See ``MetadataView.locate``."""
    try:
        key = _KEY.pack(RUN, segment_id, offset)
    except StructError as error:
        raise InvalidArgument(f"no offset {offset} of segment {segment_id} can exist", argument="offset") from error
    row = view.floor(key)
    if row is None or row[0][:_PREFIX_BYTES] != key[:_PREFIX_BYTES]:
        return None
    try:
        run, base = _TARGET.unpack(row[1])
        shift = base - _U64.unpack_from(row[0], _PREFIX_BYTES)[0]
        key = _KEY.pack(EXTENT, run, offset + shift)
        extent = view.floor(key)
        if extent is None or extent[0][:_PREFIX_BYTES] != key[:_PREFIX_BYTES]:
            return None
        begin = _U64.unpack_from(extent[0], _PREFIX_BYTES)[0]
    except StructError as error:
        raise _malformed(segment_id) from error
    if begin < base:
        return None
    if len(extent[1]) != CHUNK_ID_BYTES:
        raise _malformed(segment_id)
    return extent[1], begin - shift


def _malformed(segment_id: int) -> Damaged:
    return Damaged(
        "an entry has a wrong length or exceeds the largest offset; delete the metadata cache and open again",
        object=f"offset index of segment {segment_id}",
    )


def count_chunks(view: MetadataView, segment_id: int, start: int, stop: int) -> int:
    """See ``MetadataView.count_chunks``."""
    if not 0 <= start <= _U64_MAX or not 0 <= stop <= _U64_MAX:
        raise InvalidArgument(f"[{start}, {stop}) is not a range of offsets", argument="start")
    if start >= stop:
        return 0
    begin = _KEY.pack(RUN, segment_id, start)
    first = view.floor(begin)
    if first is not None and first[0][:_PREFIX_BYTES] == begin[:_PREFIX_BYTES]:
        begin = first[0]
    rows = list(view.scan(begin, _KEY.pack(RUN, segment_id, stop)))
    count = 0
    try:
        for number, (key, value) in enumerate(rows):
            row_start = _U64.unpack_from(key, _PREFIX_BYTES)[0]
            row_stop = _U64.unpack_from(rows[number + 1][0], _PREFIX_BYTES)[0] if number + 1 < len(rows) else stop
            run, base = _TARGET.unpack(value)
            low = max(start, row_start) - row_start + base
            high = row_stop - row_start + base
            count += sum(1 for _ in view.scan(_KEY.pack(EXTENT, run, low), _extent_stop(run, high)))
    except StructError as error:
        raise _malformed(segment_id) from error
    return count


def run_range(kind: bytes, run: int) -> tuple[bytes, bytes]:
    """Where the entries of a kind that a run has begin, and where they end."""
    return _KEY.pack(kind, run, 0), _KEY.pack(kind, run, _U64_MAX)


def _extent_stop(run: int, offset: int) -> bytes:
    return _KEY.pack(EXTENT, run, min(offset, _U64_MAX))


# ---- changing


def apply_operation(txn: RowTransaction, op: Op, claimed: set[int] | None = None) -> None:
    """Bring the index after one operation. The commit's rows are changed already. Idempotent for the same state. ``claimed``: for
    many operations of one transaction, the segments whose newest bytes are known to be in their own run.

    Raises: ``Damaged`` if the operation's header is malformed (headers come from stored records).
    """
    change = _CHANGES.get(op[0])
    if change is not None:
        try:
            if change is _append:
                _append(txn, op, claimed)
                return
            if claimed:
                claimed.clear()
            change(txn, op)
        except (TypeError, ValueError, IndexError, StructError) as error:
            raise Damaged(f"not a valid operation: {error}", object=f"operation {op!r}") from error


def _numbers(op: Op, count: int) -> tuple[int, ...]:
    found = []
    for value in op[1 : 1 + count]:
        if type(value) is not int or not 0 <= value < _U64_MAX:
            raise ValueError(f"{value!r} is not a valid number")
        found.append(value)
    if len(found) != count:
        raise IndexError("header too short")
    return tuple(found)


def _new_chunks(given: object) -> Sequence[tuple[int, bytes]]:
    if not isinstance(given, tuple | list):
        raise TypeError("new chunks are not a list")
    for offset, identity in given:
        if type(offset) is not int or type(identity) is not bytes or len(identity) != CHUNK_ID_BYTES:
            raise TypeError("a new chunk is not (offset, chunk id)")
    return given


def _append(txn: RowTransaction, op: Op, claimed: set[int] | None = None) -> None:
    chunks = _new_chunks(op[4])
    if not chunks:
        return
    (segment_id,) = _numbers(op, 1)
    if claimed is None or segment_id not in claimed:
        _claim_tail(txn, segment_id, chunks[0][0])
        if claimed is not None:
            claimed.add(segment_id)
    inline = op[5:6] == (1,)
    for offset, identity in chunks:
        txn.put(_KEY.pack(EXTENT, segment_id, offset), identity)
        if inline:
            txn.put(_KEY.pack(INLINE, segment_id, offset), identity)


def add_extents(txn: RowTransaction, segment_id: int, chunks: Sequence[tuple[int, bytes]], claimed: set[int]) -> None:
    """As ``apply_operation`` of appends whose bytes are in records."""
    if segment_id not in claimed:
        _claim_tail(txn, segment_id, chunks[0][0])
        claimed.add(segment_id)
    for kind in (EXTENT, INLINE):
        txn.put_new([(_KEY.pack(kind, segment_id, offset), identity) for offset, identity in chunks])


def _claim_tail(txn: RowTransaction, segment_id: int, offset: int) -> None:
    """Let the segment's bytes from ``offset`` on be found in its own run."""
    last = txn.floor(_KEY.pack(RUN, segment_id, _U64_MAX))
    if (
        last is None
        or last[0][:_PREFIX_BYTES] != _PREFIX.pack(RUN, segment_id)
        or _TARGET.unpack(last[1])[0] != segment_id
    ):
        txn.put(_KEY.pack(RUN, segment_id, offset), _TARGET.pack(segment_id, offset))


def _runs(txn: RowTransaction, segment_id: int, start: int = 0, stop: int = _U64_MAX) -> list[Pair]:
    return list(txn.scan(_KEY.pack(RUN, segment_id, start), _KEY.pack(RUN, segment_id, stop)))


def _concat(txn: RowTransaction, op: Op) -> None:
    target_id, target_offset, source_id = _numbers(op, 3)
    for key, value in _runs(txn, source_id):
        txn.delete(key)
        start = _U64.unpack_from(key, _PREFIX_BYTES)[0]
        txn.put(_KEY.pack(RUN, target_id, target_offset + start), value)


def _truncate(txn: RowTransaction, op: Op) -> None:
    segment_id, new_start = _numbers(op, 2)
    for key, _ in _runs(txn, segment_id, 0, new_start + 1)[:-1]:
        txn.delete(key)


def _delete(txn: RowTransaction, op: Op) -> None:
    (segment_id,) = _numbers(op, 1)
    for key, _ in _runs(txn, segment_id):
        txn.delete(key)


def _replace(txn: RowTransaction, op: Op) -> None:
    """Give ``[start, stop)``, whole chunks, to new chunks in the segment's own run and coordinates."""
    segment_id, start, stop = _numbers(op, 3)
    chunks = _new_chunks(op[4])
    if not start < stop or not (chunks or op[0] == OpCode.SPILL):
        raise ValueError("an empty range cannot be replaced")
    own = _TARGET.pack(segment_id, start)
    following = txn.floor(_KEY.pack(RUN, segment_id, stop))
    if following is not None and following[0][:_PREFIX_BYTES] == _PREFIX.pack(RUN, segment_id):
        run, base = _TARGET.unpack(following[1])
        shift = base - _U64.unpack_from(following[0], _PREFIX_BYTES)[0]
        # A row only where a chunk begins: after the segment's last chunk a row would cut off that chunk's later growth.
        if txn.get(_KEY.pack(EXTENT, run, stop + shift)) is not None:
            txn.put(_KEY.pack(RUN, segment_id, stop), _TARGET.pack(run, stop + shift))
    for key, _ in _runs(txn, segment_id, start, stop):
        txn.delete(key)
    if chunks:
        txn.put(_KEY.pack(RUN, segment_id, start), own)
    for key, _ in list(txn.scan(_KEY.pack(EXTENT, segment_id, start), _KEY.pack(EXTENT, segment_id, stop))):
        txn.delete(key)
    for offset, identity in chunks:
        txn.put(_KEY.pack(EXTENT, segment_id, offset), identity)


_CHANGES: dict[object, Callable[[RowTransaction, Op], None]] = {
    int(OpCode.APPEND): _append,
    int(OpCode.ATTACH): _append,
    int(OpCode.CONCAT): _concat,
    int(OpCode.TRUNCATE): _truncate,
    int(OpCode.DELETE): _delete,
    int(OpCode.REPLACE): _replace,
    int(OpCode.SPILL): _replace,
}
INDEXED = frozenset(_CHANGES)
"""Opcodes that ``apply_operation`` answers to."""


# ---- against the list


def _data_start(segment: SegmentRecord) -> int:
    """The offset of the first chunk's first byte."""
    offset = segment.start_offset - segment.first_chunk_skip
    if offset < 0:
        raise Damaged("its first chunk begins below offset 0", object=f"segment {segment.name!r}")
    return offset


def walk(get: Callable[[bytes], bytes | None], segment: SegmentRecord) -> Iterator[tuple[int, bytes, ChunkRecord]]:
    """The segment's chunks by their next pointers: (segment offset of the first byte, chunk id, record).

    Raises: ``Damaged`` where a pointer leads nowhere, or the list is longer or shorter than the segment says.
    """
    offset = _data_start(segment)
    identity = segment.first_chunk
    count = 0
    # A cycle comes back to one of these: each is twice as far along as the one before. What the segment says of its number
    # of chunks is no bound, because a row is believed up to 2**63.
    mark, mark_at = NO_CHUNK, 1
    while identity != NO_CHUNK:
        if identity == mark or offset > _OFFSET_MAX:
            what = "contains a cycle" if identity == mark else "exceeds the largest offset"
            raise Damaged(f"the list of chunks {what}", object=f"segment {segment.name!r}", position=offset)
        if count == mark_at:
            mark, mark_at = identity, 2 * mark_at
        key = chunk_key(identity)
        value = get(key)
        if value is None or count == segment.chunk_count:
            what = "is missing" if value is None else f"is one more than the {count} the segment has"
            raise Damaged(
                f"chunk {identity.hex()} of the list {what}", object=f"segment {segment.name!r}", position=offset
            )
        chunk = decode_chunk(key, value)
        yield offset, identity, chunk
        offset += chunk.length
        identity = chunk.next
        count += 1
    if count != segment.chunk_count:
        raise Damaged(
            f"the list has {count} chunks, but the segment has {segment.chunk_count}",
            object=f"segment {segment.name!r}",
            position=offset,
        )


def rebuild_index(reader: MetadataView) -> Iterator[Pair]:
    """All index entries, derived from the rows alone, in ascending key order: one run per segment.

    For exports, whose rows are those of lists and none of garbage: extents in garbage get no entry, and so no owner serves from this. A
    store rebuilt from a snapshot loads the entries the snapshot has. Raises ``Damaged`` as ``walk``.
    """
    segments = [decode_segment(key, value) for key, value in reader.scan(SEGMENT, bytes((SEGMENT[0] + 1,)))]
    segments.sort(key=lambda segment: segment.id)
    chunks = reader.scan(CHUNK, bytes((CHUNK[0] + 1,)))
    has_inline = any(decode_chunk(key, value).kind == KIND_INLINE for key, value in chunks)
    for segment in segments if has_inline else ():
        for offset, identity, chunk in walk(reader.get, segment):
            if chunk.kind == KIND_INLINE:
                yield _KEY.pack(INLINE, segment.id, offset), identity
    for segment in segments:
        if segment.first_chunk != NO_CHUNK:
            yield run_entry(segment)
    for segment in segments:
        for offset, identity, _ in walk(reader.get, segment):
            yield _KEY.pack(EXTENT, segment.id, offset), identity


def run_entry(segment: SegmentRecord) -> Pair:
    """The run row of a segment with chunks whose extents are all its own."""
    start = _data_start(segment)
    return _KEY.pack(RUN, segment.id, start), _TARGET.pack(segment.id, start)


def extent_entries(run: int, offsets: Iterable[int], ids: Iterable[bytes]) -> list[Pair]:
    """The entries of chunks that begin at these offsets of the run."""
    return [(_KEY.pack(EXTENT, run, offset), identity) for offset, identity in zip(offsets, ids, strict=True)]


def check_index(reader: MetadataView, segment: SegmentRecord) -> Iterator[tuple[int, str]]:
    """Where the index does not say what the list of chunks says, and what. Raises ``Damaged`` as ``walk``."""
    begin = offset = segment.start_offset - segment.first_chunk_skip
    for offset, identity, chunk in walk(reader.get, segment):
        for probe in (offset, offset + max(chunk.length, 1) - 1):
            found = reader.locate(segment.id, max(probe, 0))
            if found != (identity, offset):
                where = "nothing" if found is None else f"chunk {found[0].hex()} from offset {found[1]}"
                message = f"the index has {where} for offset {probe}, the list chunk {identity.hex()} from {offset}"
                yield probe, message
    count = reader.count_chunks(segment.id, max(begin, 0), segment.length)
    if count != segment.chunk_count:
        message = f"the index has {count} chunks, the segment {segment.chunk_count}"
        yield offset, message


class IndexComparison:
    """A segment's index, compared with the list by somebody who walks that. Where they agree ``check_index`` finds nothing: the same
    without a second walk, and by scans instead of look-ups."""

    def __init__(self, reader: MetadataView, segment: SegmentRecord) -> None:
        self._offset = segment.start_offset - segment.first_chunk_skip
        self._entries = _entries(reader, segment, self._offset)
        self._agrees = True

    def meet(self, identity: bytes, length: int) -> None:
        """The next chunk of the list, and its length. Raises nothing of the index."""
        if self._agrees:
            self._agrees = next(self._entries, None) == (self._offset, identity)
            self._offset += length

    def agrees(self) -> bool:
        """At the end: whether the index had just these chunks."""
        return self._agrees and next(self._entries, None) is None


def _entries(reader: MetadataView, segment: SegmentRecord, begin: int) -> Iterator[tuple[int, bytes]]:
    """What the index has from ``begin`` to the segment's end: where chunks begin, and their ids; no id where look-ups find none."""
    before: tuple[int, int, int] | None = None
    try:
        for key, value in reader.scan(_KEY.pack(RUN, segment.id, 0), _KEY.pack(RUN, segment.id, segment.length)):
            start = _U64.unpack_from(key, _PREFIX_BYTES)[0]
            if before is not None:
                yield from _entries_of_run(reader, before, begin, start)
            before = (start, *_TARGET.unpack(value))
        if before is not None:
            yield from _entries_of_run(reader, before, begin, segment.length)
    except StructError:
        yield begin, NO_CHUNK


def _entries_of_run(
    reader: MetadataView, row: tuple[int, int, int], begin: int, stop: int
) -> Iterator[tuple[int, bytes]]:
    start, run, base = row
    low, shift = max(begin, start), base - start
    awaited = low
    if low < stop:
        for key, identity in reader.scan(_KEY.pack(EXTENT, run, low + shift), _extent_stop(run, stop + shift)):
            offset = _U64.unpack_from(key, _PREFIX_BYTES)[0] - shift
            if offset > awaited:
                break
            awaited = stop
            yield offset, identity
        if awaited == low:
            yield low, NO_CHUNK  # a row that begins within a chunk hides the rest of that
