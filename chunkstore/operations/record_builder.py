"""One batch as one journal record: rows merged, encoded and added to the state digest (protocol 3.2), then written and applied.

Promises: a row that ten operations of the batch changed is encoded once, as the last of them wants it. Table, garbage and pin rows get
the record's lsn here, and only here (a pin's also in its operation's ``rows``, for its caller). The digest after the record is that of
the state after its rows.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from functools import partial
from hashlib import blake2b
from operator import attrgetter
from typing import Final

from chunkstore import runtime
from chunkstore.checksum import DIGEST_MODULUS, crc32c_of_bytes, crc32c_of_more, row_digest
from chunkstore.errors import Damaged
from chunkstore.journal import Batch, Journal
from chunkstore.metadata.codec import (
    decode_chunk,
    encode_row,
    encode_segment,
)
from chunkstore.metadata.keys import garbage_key
from chunkstore.metadata.port import Line, Lines, MetadataStore, Op, Position, RowChange
from chunkstore.operations.backlog import Backlog
from chunkstore.operations.pending import Pending, PendingLine, PendingOp
from chunkstore.records.segments import (
    KIND_INLINE,
    ChunkRecord,
    PinRecord,
    SegmentRecord,
    TableRecord,
)
from chunkstore.storage import ChunkStorage

__all__ = ["BatchWriter"]

_make = tuple.__new__  # what a NamedTuple's constructor does, without its argument handling
_by_segment: Final = attrgetter("segment_id")

_DIGESTS_KEPT: Final = 65_536
_LENGTHS: Final = tuple(length.to_bytes(4, "little") for length in range(512))


class BatchWriter:
    """The steps of a commit, for one epoch's queue. All are called by the one thread that leads."""

    def __init__(self, journal: Journal, store: MetadataStore, storage: ChunkStorage, backlog: Backlog) -> None:
        self.opened_s: float = runtime.monotonic_s()
        self.opened_ms: int = runtime.now_ms()
        self.storage = storage
        self.sync = storage.sync
        self.apply = partial(store.apply, verify=False)
        self._journal = journal
        self._store = store
        self._tail = backlog.tail
        self._backlog = backlog
        self._places: dict[bytes, tuple[str, int]] = {}
        """Of extents that were built last, by the keys of their rows."""
        self._digest = store.head().digest
        self._lined = False
        """Whether records of lines have changed rows since the record built last."""
        self._began_ms = self.opened_ms - int(self.opened_s * 1000)
        self._time_ms = 0
        self._digests: dict[bytes, int] = {}
        """Of rows that were written last."""
        self._built: tuple[int, int, list[tuple[bytes, int]]] = (0, self._digest, [])
        """The lsn of the record built last, the digest after it, and the digests of its rows (0: deleted)."""

    def build(self, batch: Sequence[PendingOp], lsn: int) -> Batch:
        """The record of a batch. To ask for the next lsn says that the record built before was committed; for the same one,
        that it was not."""
        built_lsn, built_digest, built_rows = self._built
        if self._lined:
            self._digest = self._store.head().digest
            self._digests.clear()
            self._lined = False
        elif lsn == built_lsn + 1:
            self._digest = built_digest
            self._digests.update(built_rows)
            if len(self._digests) > _DIGESTS_KEPT:
                for key in list(self._digests)[: _DIGESTS_KEPT // 2]:
                    del self._digests[key]
        # Never after our own age: a clock set back must not make what is removed now look as if it had been long ago.
        aged_ms = self._began_ms + int(runtime.monotonic_s() * 1000)
        self._time_ms = time_ms = max(self._time_ms, runtime.now_ms(), aged_ms)
        first = batch[0]
        headers: Sequence[Op] = first.headers
        merged, garbage = first.rows, first.garbage
        if len(batch) > 1:
            headers = [header for op in batch for header in op.headers]
            garbage = [item for op in batch for item in op.garbage]
            merged = {}
            for op in batch:
                merged.update(op.rows)
        if garbage:
            merged = dict(merged)
            for sequence, item in enumerate(garbage):
                merged[garbage_key(lsn, sequence)] = item._replace(lsn=lsn, time_ms=time_ms)
        blob, fresh = self._gather(batch)
        rows: list[RowChange] = []
        digests: list[tuple[bytes, int]] = []
        digest, known, places = self._digest, self._digests, self._places
        for key, record in merged.items():
            if type(record) is TableRecord:
                record = record._replace(version=lsn)
            elif type(record) is PinRecord:
                # It has a batch of its own, so these are the operation's rows.
                record = merged[key] = record._replace(lsn=lsn, time_ms=time_ms)
            elif type(record) is ChunkRecord and record[9] == KIND_INLINE and not record[0]:
                place, offset = places.get(key) or self._place_of(key)
                record = record.placed(place, offset)
            if record is None:
                value, new = None, 0
            else:
                value = encode_segment(record) if isinstance(record, SegmentRecord) else encode_row(record)
                # ``row_digest``, without a call: three times for every append.
                digested = blake2b(key + _LENGTHS[len(key)] + value, digest_size=32)
                new = int.from_bytes(digested.digest(), "big")
            rows.append((key, value))
            old = known.get(key)
            if old is None:
                raw = None if key in fresh else self._store.get(key)
                old = 0 if raw is None else row_digest(key, raw)
            digest += new - old
            digests.append((key, new))
        digest %= DIGEST_MODULUS
        self._built = (lsn, digest, digests)
        return Batch(first.kind, headers, rows, digest, time_ms, first.notes, blob)

    def append(self, batch: Batch) -> Position:
        """Write a record. Raises what the journal raises."""
        position = self._journal.append(batch)
        if batch.blob:
            # Only after that: what was refused, or may have been, is no one's to read.
            self._tail.put_record(batch.ops, batch.blob)
        return position

    def append_lines(self, batch: Sequence[PendingLine], now_s: float) -> tuple[Position, Lines]:
        """As ``build`` and ``append``, of lines. Those of one segment go on in one extent, as far as one may be long."""
        if len(batch) > 1:
            batch = sorted(batch, key=_by_segment)
        lines: list[Line] = []
        pieces: list[bytes] = []
        run = run_id = crc = 0
        for op in batch:
            data, segment_id, (state,) = op.data, op.segment_id, op.segments
            length = len(data)
            op.joined = joined = segment_id == run_id and run + length <= state.extent_bytes_max
            if joined:
                run, crc = run + length, crc32c_of_more(crc, data)
            else:
                run, crc, run_id = length, crc32c_of_bytes(data), segment_id
            pieces.append(data)
            lines.append(_make(Line, (segment_id, op.offset, length, crc, joined, state.encoded, op.event)))
        self._lined = True
        self._time_ms = time_ms = max(self._time_ms, runtime.now_ms(), self._began_ms + int(now_s * 1000))
        done = self._journal.append_lines(lines, pieces, time_ms)
        put = self._tail.put
        for op in batch:
            put(op.segment_id, op.offset, op.data)
        return done

    def applied(self, batch: Sequence[Pending]) -> None:
        """The cache shows these operations: count their extents. Not before: what is counted can be looked up."""
        for op in batch:
            if isinstance(op, PendingLine):
                self._backlog.came(op.segments[0].name, len(op.data), not op.joined)
            else:
                for count in op.counts:
                    self._backlog.count(count)

    def _gather(self, batch: Sequence[PendingOp]) -> tuple[bytes, Container[bytes]]:
        """The bytes of the batch's extents, each in one piece, and their keys, which have no rows yet; where they will be is kept."""
        places = self._places
        if len(batch) == 1:
            # Nearly every batch of a lone writer.
            inline = batch[0].inline
            if len(inline) < 2:
                if not inline:
                    return b"", ()
                if len(places) > _DIGESTS_KEPT:
                    places.clear()
                ((key, data),) = inline
                places[key] = self._journal.place
                return data, (key,)
        parts: dict[bytes, list[bytes]] = {}
        for op in batch:
            for key, data in op.inline:
                parts.setdefault(key, []).append(data)
        if not parts:
            return b"", ()
        if len(places) > _DIGESTS_KEPT:
            places.clear()
        name, offset = self._journal.place
        found = [b"".join(pieces) for pieces in parts.values()]
        for key, data in zip(parts, found, strict=True):
            places[key] = name, offset
            offset += len(data)
        return b"".join(found), parts

    def _place_of(self, key: bytes) -> tuple[str, int]:
        """Where an extent of a record before is, which is not remembered. Raises ``Damaged``."""
        raw = self._store.get(key)
        if raw is None:
            raise Damaged("an extent that is about to change is not there; run check", object=f"chunk row {key!r}")
        place = self._places[key] = decode_chunk(f"chunk row {key!r}", raw)[:2]
        return place
