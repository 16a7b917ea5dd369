"""Chunks that an earlier version grew without records: measured and closed at open (decision 0012, protocol 3.10).

Promises: runs after our claim and before the container serves. Each chunk's size is looked at, then hardened (P6), and its
length committed with its CRC as the first records of the new stream, so that every byte its owner acknowledged is found; what
a zombie of that version writes later lies behind the closed length.
"""

from __future__ import annotations

from contextlib import closing, suppress
from functools import partial
from itertools import islice
from typing import Final, NamedTuple

from chunkstore import runtime
from chunkstore.checksum import DIGEST_MODULUS, crc32c_extend, row_digest
from chunkstore.config import LIMITS, MIB
from chunkstore.errors import ChunkNotFound, Damaged, StorageUnavailable
from chunkstore.journal import Batch, JournalBroken, OpCode, Ownership, RecordKind
from chunkstore.metadata.codec import decode_segment, decode_table, encode_chunk, encode_segment
from chunkstore.metadata.keys import chunk_key, lazy_key, lazy_range, segment_key
from chunkstore.metadata.port import Commit, MetadataView, Op
from chunkstore.names import ContainerNames
from chunkstore.operations.owned_epoch import decode_found_chunk
from chunkstore.records import CLOSED, LAZY, ChunkRecord, SegmentRecord
from chunkstore.storage import ChunkHandle, ChunkStorage

__all__ = ["close_lazy_chunks"]

_APPEND: Final = int(OpCode.APPEND)
_READ_BYTES: Final = 4 * MIB
_WAYS: Final = 8


def close_lazy_chunks(storage: ChunkStorage, names: ContainerNames, ownership: Ownership) -> None:
    """Measure every lazy chunk that a former owner left, and commit the lengths in the new stream.

    Raises what storage and journal raise; the container must not serve then. Retry, by another take-over: safe.
    """
    try:
        while _close_some(storage, names, ownership):
            pass
    except JournalBroken as broken:
        raise broken.error from broken


class _Left(NamedTuple):
    """A lazy chunk that was left. ``segment`` and ``record`` are None where only the row that names it is left."""

    identity: bytes
    segment: SegmentRecord | None
    record: ChunkRecord | None


def _close_some(storage: ChunkStorage, names: ContainerNames, ownership: Ownership) -> bool:
    store, journal = ownership.store, ownership.journal
    with store.view() as view:
        left = _find_left(view, names)
        if not left:
            return False
        calls = [partial(_measure, storage, names, item) for item in left]
        with closing(runtime.pool("chunkstore-measure", _WAYS)) as pool:
            measured = pool.run_all(calls)
        ops: list[Op] = []
        rows: list[tuple[bytes, bytes | None]] = []
        now_ms = runtime.now_ms()
        for item, record in zip(left, measured, strict=True):
            rows.append((lazy_key(item.identity), None))
            if item.segment is None or item.record is None or record is None:
                continue
            known, added = item.segment.length, record.length - item.record.length
            after = item.segment
            if added:
                after = after._replace(length=known + added, modified_ms=now_ms)
            rows.append((segment_key(after.name), encode_segment(after)))
            rows.append((chunk_key(item.identity), encode_chunk(record)))
            ops.append((_APPEND, after.id, known, added, ()))
        head = view.head
        digest = head.digest
        for key, value in rows:
            old = view.get(key)
            digest -= row_digest(key, old) if old is not None else 0
            digest += row_digest(key, value) if value is not None else 0
    digest %= DIGEST_MODULUS
    position = journal.append(Batch(RecordKind.OPS, ops, rows, digest, now_ms))
    commit = Commit(position, head.position.hash, digest, ops, rows)
    if not store.apply([commit], verify=False):
        raise StorageUnavailable("the metadata cache is not where the journal is; open the container again")
    return True


def _find_left(view: MetadataView, names: ContainerNames) -> list[_Left]:
    prefix, stop = lazy_range()
    left = []
    for key, raw in islice(view.scan(prefix, stop), LIMITS.garbage_unfold_chunks_max):
        identity = key[len(prefix) :]
        try:
            name = decode_table(key, raw).value.decode()
        except UnicodeDecodeError as error:
            raise Damaged("the row of a lazy chunk names no segment", object=f"metadata row {key!r}") from error
        raw_segment, raw_record = view.get(segment_key(name)), view.get(chunk_key(identity))
        segment = None if raw_segment is None else decode_segment(name, raw_segment)
        record = None if raw_record is None else decode_found_chunk(names, identity, raw_record)
        if segment is None or segment.last_chunk != identity or record is None or record.state != LAZY:
            segment = record = None
        left.append(_Left(identity, segment, record))
    return left


def _measure(storage: ChunkStorage, names: ContainerNames, item: _Left) -> ChunkRecord | None:
    """The chunk's record with the length that it has now, made durable, closed."""
    record = item.record
    if record is None:
        return None
    name = names.chunk(item.identity)
    length, crc = record.length, record.crc32c or 0
    # A chunk that is gone, or shorter than its record, is damage for ``check`` to report, like any other.
    with suppress(ChunkNotFound):
        stop = storage.stat(name).length
        # P6: after the size was seen, or bytes that come between would be counted and not be durable.
        storage.harden(name)
        while length < stop:
            data = storage.read(ChunkHandle(name, False), length, min(_READ_BYTES, stop - length))
            if not data:
                break
            length, crc = length + len(data), crc32c_extend(crc, data)
    return record._replace(length=length, crc32c=crc, state=CLOSED)
