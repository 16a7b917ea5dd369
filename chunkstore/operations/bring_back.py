"""Going back to a moment in place: which of its chunks somebody may delete, their copies, and what OPEN says of them (protocol 3.15, A3).

Promises: a chunk of that moment that is in no list any more has been removed in between, and whoever owned the container then may delete it
at any time. So each of these is copied, byte for byte and compared with its CRCs, under a name of the new epoch; the OPEN's rows put the
copies in their places, and the originals into garbage, as a replacement does (3.10). Whatever is still in a list was never removed, and is
referred to where it lies. Sessions end, because their holders may have attached chunks behind the moment that are deleted by now; pins that
were given up since stay so, because what they kept may be gone. Nothing here changes the state that is cut off.
Leaves out: finding the moment and the take-over (``chunkstore_journal.early_cut``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Final, NamedTuple

from chunkstore import runtime
from chunkstore.checksum import crc32c_extend
from chunkstore.config import LIMITS, MIB
from chunkstore.deadline import Deadline, until
from chunkstore.errors import ChunkNotFound, Damaged, InvalidArgument, Unsupported
from chunkstore.journal import OpCode
from chunkstore.metadata.codec import (
    decode_chunk,
    decode_segment,
    decode_table,
    encode_chunk,
    encode_garbage,
    encode_segment,
    encode_table,
)
from chunkstore.metadata.index import walk
from chunkstore.metadata.keys import (
    PIN,
    REPAIR_KEY,
    SEGMENT,
    SESSION,
    block_key,
    block_range,
    chunk_key,
    garbage_key,
    segment_key,
)
from chunkstore.metadata.port import MetadataView, Op, RowChange
from chunkstore.names import ContainerNames, chunk_id, confined
from chunkstore.operations.id_set import IdSet
from chunkstore.records import CLOSED, KIND_FOREIGN, KIND_OBJECT, ChunkRecord, GarbageRecord, SegmentRecord, TableRecord
from chunkstore.storage import ChunkHandle, ChunkRange, ChunkStorage

__all__ = ["Removed", "bring_back", "plan_open", "removed_chunks", "require_whole", "where_stored"]

_COPIED_AT_ONCE: Final = 64
_READ_BYTES: Final = 4 * MIB
_FIRST_NUMBER: Final = 1 << 32
"""Of copies: the numbers of chunks that the epoch writes later begin at 1."""
_HEADROOM_BYTES: Final = 64 * 1024
_BYTES_OF_A_ROW: Final = 12
_BYTES_OF_A_COPY: Final = 150
"""At least."""
_BYTES_OF_A_LINK: Final = 40


class Removed(NamedTuple):
    """A chunk of the moment that was removed behind it; its first byte is byte ``offset`` of the segment."""

    segment: SegmentRecord
    offset: int
    identity: bytes
    record: ChunkRecord


def require_whole(view: MetadataView) -> None:
    """Raise ``Unsupported`` where a container cannot go on from this state."""
    what = ""
    if view.get(REPAIR_KEY) is not None:
        what = "at that moment a repair had not ended"
    if what:
        raise Unsupported(f"{what}: choose another one", feature="restore_in_place")


def where_stored(names: ContainerNames, item: Removed) -> tuple[str, int]:
    """The object that holds a removed chunk's bytes, by the name that a door to foreign roots knows, and where they begin there."""
    record = item.record
    if record.kind == KIND_FOREIGN:
        return names.object_of(item.identity, record), record.object_offset
    return names.stored_at(item.identity, record)


def removed_chunks(past: MetadataView, present: MetadataView, names: ContainerNames) -> list[Removed]:
    """The chunks of the moment that are in no list of the present, in the order of their segments' names and of their bytes.

    Reads the rows of every chunk of both. Raises ``Unsupported`` (more than fit a record), ``Damaged``.
    """
    kept = IdSet()
    for _, identity, _ in _listed(present):
        kept.add(identity)
    found: list[Removed] = []
    for segment, identity, (offset, record) in _listed(past):
        if identity not in kept:
            found.append(Removed(segment, offset, identity, confined(names, identity, record)))
            if len(found) * _BYTES_OF_A_COPY > LIMITS.record_bytes_max:
                raise _too_much()
    return found


def _listed(view: MetadataView) -> Iterator[tuple[SegmentRecord, bytes, tuple[int, ChunkRecord]]]:
    """Every chunk that a segment's list names."""
    for key, raw in view.scan(SEGMENT, bytes((SEGMENT[0] + 1,))):
        segment = decode_segment(key, raw)
        for offset, identity, record in walk(view.get, segment):
            yield segment, identity, (offset, record)


# ---- what OPEN says


def _size_of_open(ops: Sequence[Op], rows: Sequence[RowChange]) -> int:
    """About how many bytes of an OPEN these take, at most."""
    links = [link for op in ops if op[0] == OpCode.REPLACE for link in op[4]]  # type: ignore[attr-defined]
    stored = sum(len(key) + len(value or b"") + _BYTES_OF_A_ROW for key, value in rows)
    return _HEADROOM_BYTES + stored + (len(links) + len(ops)) * _BYTES_OF_A_LINK


def plan_open(
    past: MetadataView, present: MetadataView, removed: Sequence[Removed], epoch: int
) -> tuple[dict[bytes, bytes], list[Op], list[RowChange]]:
    """The ids of the copies by those of the originals, and what the OPEN behind ``past`` says. Pure but for the ids' random part.

    Raises ``Unsupported`` where it would not fit a record, ``Damaged``.
    """
    lsn, now_ms = past.head.position.lsn + 1, runtime.now_ms()
    copies: dict[bytes, bytes] = {}
    for number, item in enumerate(removed):
        random = int.from_bytes(runtime.token(4), "big")
        copies[item.identity] = chunk_id(item.segment.id, epoch, _FIRST_NUMBER + number, random)
    ops: list[Op] = []
    rows: dict[bytes, bytes | None] = {}
    for sequence, run in enumerate(_runs(removed)):
        first, last = run[0], run[-1]
        size_bytes = sum(item.record.length for item in run)
        garbage = GarbageRecord(first.identity, last.identity, len(run), size_bytes, lsn, now_ms, 0)
        if sequence > 0xFFFF:
            raise _too_much()
        rows[garbage_key(lsn, sequence)] = encode_garbage(garbage)
        links = tuple((item.offset, copies[item.identity]) for item in run)
        stop = last.offset + last.record.length
        ops.append((int(OpCode.REPLACE), first.segment.id, first.offset, stop, links))
        rows.update(_rows_of_run(past, run, copies, epoch, lsn))
    for name, items in groupby(removed, key=lambda item: item.segment.name):
        segment = next(items).segment
        ends = segment._replace(
            first_chunk=copies.get(segment.first_chunk, segment.first_chunk),
            last_chunk=copies.get(segment.last_chunk, segment.last_chunk),
        )
        if ends != segment:
            rows[segment_key(name)] = encode_segment(ends)
    for key, _ in past.scan(SESSION, bytes((SESSION[0] + 1,))):
        rows[key] = None
        ops.append((int(OpCode.SESSION_END), int.from_bytes(key[1:], "big")))
    rows.update((key, None) for key, raw in past.scan(PIN, bytes((PIN[0] + 1,))) if present.get(key) != raw)
    if _size_of_open(ops, list(rows.items())) > LIMITS.record_bytes_max:
        raise _too_much()
    return copies, ops, list(rows.items())


def _too_much() -> Unsupported:
    text = (
        f"what was removed since does not fit one record of {LIMITS.record_bytes_max} bytes: restore into another root"
    )
    return Unsupported(text, feature="restore_in_place")


def _runs(removed: Sequence[Removed]) -> Iterator[list[Removed]]:
    """Neighbours in one list together."""
    run: list[Removed] = []
    for item in removed:
        if run and run[-1].record.next != item.identity:
            yield run
            run = []
        run.append(item)
    if run:
        yield run


def _rows_of_run(
    past: MetadataView, run: Sequence[Removed], copies: Mapping[bytes, bytes], epoch: int, lsn: int
) -> Iterator[RowChange]:
    """The rows of the copies, with those of their borders, and of the neighbours that stay."""

    def linked(record: ChunkRecord) -> ChunkRecord:
        before, after = record.previous, record.next
        return record._replace(previous=copies.get(before, before), next=copies.get(after, after))

    for item in run:
        copy, segment_id = copies[item.identity], item.segment.id
        record = linked(item.record)._replace(
            object="", object_offset=0, segment_id=segment_id, epoch=epoch, state=CLOSED, kind=KIND_OBJECT
        )
        yield chunk_key(copy), encode_chunk(record)
        for key, raw in past.scan(*block_range(item.identity)):
            row = TableRecord(lsn, decode_table(key, raw).value)
            yield block_key(copy, int.from_bytes(key[-8:], "big")), encode_table(row)
    first, last = run[0], run[-1]
    neighbours = [first.record.previous] if first.identity != first.segment.first_chunk else []
    neighbours += [last.record.next] if last.identity != last.segment.last_chunk else []
    for identity in neighbours:
        key = chunk_key(identity)
        yield key, encode_chunk(linked(decode_chunk(key, past.get(key) or b"")))


# ---- copying


def bring_back(
    storage: ChunkStorage,
    names: ContainerNames,
    past: MetadataView,
    present: MetadataView,
    removed: Sequence[Removed],
    epoch: int,
    *,
    deadline_s: float,
    workers: int,
    progress: Callable[[int], object],
    missing: Callable[[Sequence[Removed]], None],
) -> tuple[Sequence[Op], Sequence[RowChange]]:
    """Copy the chunks ``removed`` behind the moment, for the OPEN of ``epoch``, and return what that says: operations and rows.

    ``deadline_s``: for each copy. ``progress`` is told bytes; ``missing`` what is gone, and raises. The copies are durable on return; of
    what raises nothing is referred to. Raises ``Unsupported`` (it does not fit a record; nothing was copied), ``Damaged`` (a chunk is not
    what its record says), and what the storage raises. Retry: safe, under another epoch.
    """
    copies, ops, rows = plan_open(past, present, removed, epoch)
    pool = runtime.pool("chunkstore-bring-back", workers)
    try:
        for first in range(0, len(removed), _COPIED_AT_ONCE):
            group = removed[first : first + _COPIED_AT_ONCE]
            calls = [partial(_copy, storage, names, item, copies[item.identity], deadline_s) for item in group]
            gone = [item for item, copied in zip(group, pool.run_all(calls), strict=True) if not copied]
            if gone:
                missing(gone)
            progress(sum(item.record.length for item in group))
    finally:
        pool.close()
    return ops, rows


def _copy(storage: ChunkStorage, names: ContainerNames, item: Removed, copy: bytes, deadline_s: float) -> bool:
    """False: the original is gone. Raises ``Damaged``, and what the storage raises."""
    (source, begin), target, length = where_stored(names, item), names.chunk(copy), item.record.length
    try:
        with until(Deadline(deadline_s).end_s):
            storage.compose(target, [ChunkRange(source, begin, length)])
    except ChunkNotFound:
        return False
    except InvalidArgument as error:
        raise Damaged(f"the chunk is shorter than its record: {error}", object=source) from error
    # What counts are the bytes of the copy: whoever made it may have read others than we would.
    crc = position = 0
    while position < length:
        with until(Deadline(deadline_s).end_s):
            data = storage.read(ChunkHandle(target, False), position, min(_READ_BYTES, length - position))
        if not data:
            raise Damaged("the copy of a chunk is shorter than that", object=target, position=position)
        crc, position = crc32c_extend(crc, data), position + len(data)
    if item.record.crc32c not in (None, crc):
        raise Damaged("the bytes do not have the CRC32C that is recorded", object=source)
    return True
