"""The index files of a segment, ``.index``, ``.timeindex``, ``.txnindex`` and ``.snapshot``: read, and made from its batches.

Promises: the files have the bytes that a broker gives them where it recovers the segment, producers in the order of its hash map
included; look-ups are binary searches in the bytes, without a list of entries. Leaves out: producers that a broker's clock expired, and
reading batches: ``BatchMark`` is all that is wanted of one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import ClassVar, Final, NamedTuple

from chunkstore.checksum import crc32c_of_bytes
from chunkstore.errors import Damaged

__all__ = [
    "AbortedTransaction", "BatchMark", "Index", "OffsetIndex", "ProducerEntry", "ProducerStates", "SegmentIndexes", "TimeIndex",
    "read_producer_snapshot", "read_transaction_index", "rebuild_indexes", "write_producer_snapshot", "write_transaction_index",
]  # fmt: skip

_TRANSACTION: Final = Struct(">hqqqq")
_SNAPSHOT: Final = Struct(">hIi")
_CHECKED_AT: Final = 6
_PRODUCER: Final = Struct(">qhiqiqiq")


class BatchMark(NamedTuple):
    """What indexes need of a batch. ``position`` is where it begins in the log; -1 is Kafka's "none".

    A ``control`` batch that ends a transaction says whether it was ``committed``; ``None``: it does not, or compaction emptied it.
    """

    base_offset: int
    last_offset: int
    position: int
    max_timestamp_ms: int
    producer_id: int = -1
    producer_epoch: int = -1
    last_sequence: int = -1
    transactional: bool = False
    control: bool = False
    committed: bool | None = None
    coordinator_epoch: int = -1


class AbortedTransaction(NamedTuple):
    """An aborted transaction, as ``.txnindex`` has it: offsets of its first record, of its marker, and the first one that was then still
    undecided (-1: not known)."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int = -1


class ProducerEntry(NamedTuple):
    """A producer in a ``.snapshot``: its last batch, and the first offset of its open transaction (-1: none)."""

    producer_id: int
    epoch: int = -1
    last_sequence: int = -1
    last_offset: int = -1
    offset_delta: int = 0
    timestamp_ms: int = -1
    coordinator_epoch: int = -1
    transaction_offset: int = -1


def _row_count(data: bytes, row: Struct, object: str) -> int:
    if rest := len(data) % row.size:
        raise Damaged(f"{rest} bytes of a cut row", object=object, position=len(data) - rest)
    return len(data) // row.size


class Index:
    """Pairs of numbers that ascend, in the bytes of a file."""

    row: ClassVar[Struct]
    offset_column: ClassVar[int]

    def __init__(self, data: bytes, base_offset: int, *, object: str = "index") -> None:
        """``base_offset`` is the segment's; ``data`` is kept. ``Damaged`` where rows do not ascend, or the last is cut."""
        self._data, self._length = data, _row_count(data, self.row, object)
        self._bases = (base_offset, 0) if self.offset_column == 0 else (0, base_offset)
        last = (0, 0)
        for number, row in enumerate(self.row.iter_unpack(data)):
            if row[0] < last[0] or row[1] < last[1] or (number and row[0] == last[0]):
                text = f"{row} follows {last}: rows ascend (an index that was not closed ends with zeros: rebuild it)"
                raise Damaged(text, object=object, position=number * self.row.size)
            last = row

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, number: int) -> tuple[int, int]:
        first, second = self.row.unpack_from(self._data, range(self._length)[number] * self.row.size)
        return first + self._bases[0], second + self._bases[1]

    def floor(self, key: int) -> tuple[int, int] | None:
        """The last row whose first number is at most ``key``; ``None`` before the first: begin at the start of the log."""
        number = bisect_right(self, key, key=lambda row: row[0])
        return self[number - 1] if number else None


class OffsetIndex(Index):
    """``.index``: the last offset of a batch, and the position where the batch begins."""

    row: ClassVar[Struct] = Struct(">ii")
    offset_column: ClassVar[int] = 0


class TimeIndex(Index):
    """``.timeindex``: the largest timestamp so far in ms, and the last offset of the batch that has it."""

    row: ClassVar[Struct] = Struct(">qi")
    offset_column: ClassVar[int] = 1


def read_transaction_index(data: bytes, *, object: str = "txnindex") -> list[AbortedTransaction]:
    """The aborted transactions of a segment, in the order of their markers. ``Damaged``: a new version, cut or disordered rows."""
    _row_count(data, _TRANSACTION, object)
    found: list[AbortedTransaction] = []
    last = -1
    for number, (version, *row) in enumerate(_TRANSACTION.iter_unpack(data)):
        entry = AbortedTransaction(*row)
        if version or not 0 <= entry.first_offset <= entry.last_offset or entry.last_offset <= last:
            text = f"version {version}, {entry} after offset {last}: markers ascend"
            raise Damaged(text, object=object, position=number * _TRANSACTION.size)
        found.append(entry)
        last = entry.last_offset
    return found


def write_transaction_index(entries: Iterable[AbortedTransaction]) -> bytes:
    """The bytes of ``.txnindex``. A segment without aborted transactions has no such file."""
    return b"".join(_TRANSACTION.pack(0, *entry) for entry in entries)


def read_producer_snapshot(data: bytes, *, object: str = "snapshot") -> list[ProducerEntry]:
    """The producers before the offset that names the file, in its order. ``Damaged``: a wrong version, CRC-32C or length."""
    version, crc, count = _SNAPSHOT.unpack_from(data) if len(data) >= _SNAPSHOT.size else (0, 0, 0)
    if version != 1 or crc != crc32c_of_bytes(data[_CHECKED_AT:]):
        raise Damaged("version 1 and the right CRC-32C expected: rebuild it", object=object)
    if count * _PRODUCER.size != len(data) - _SNAPSHOT.size:
        raise Damaged(f"{count} producers do not fit {len(data)} bytes", object=object, position=_CHECKED_AT)
    return [ProducerEntry(*row) for row in _PRODUCER.iter_unpack(data[_SNAPSHOT.size :])]


def write_producer_snapshot(entries: Iterable[ProducerEntry]) -> bytes:
    """The bytes of ``.snapshot``, with the producers in this order."""
    rows = [_PRODUCER.pack(*entry) for entry in entries]
    checked = b"".join([len(rows).to_bytes(4, "big"), *rows])
    return _SNAPSHOT.pack(1, crc32c_of_bytes(checked), len(rows)) + checked[4:]


class ProducerStates:
    """The state of a partition's producers as its batches pass by. It begins with the entries of a snapshot, or with none."""

    def __init__(self, entries: Iterable[ProducerEntry] = ()) -> None:
        self._entries = {entry.producer_id: entry for entry in entries}

    def apply(self, mark: BatchMark) -> AbortedTransaction | None:
        """Take the next batch in; returns the transaction that it aborts, if it does."""
        if mark.producer_id < 0:
            return None
        entry = self._entries.get(mark.producer_id, ProducerEntry(mark.producer_id))
        first, ends = entry.transaction_offset, mark.committed is not None
        if (ends or not mark.control) and entry.epoch != mark.producer_epoch:
            entry = ProducerEntry(mark.producer_id, mark.producer_epoch, coordinator_epoch=entry.coordinator_epoch)
        if ends:
            epoch = mark.coordinator_epoch
            entry = entry._replace(timestamp_ms=mark.max_timestamp_ms, coordinator_epoch=epoch, transaction_offset=-1)
        elif not mark.control:
            opened = mark.base_offset if mark.transactional and first < 0 else first
            delta = mark.last_offset - mark.base_offset
            batch = (mark.last_sequence, mark.last_offset, delta, mark.max_timestamp_ms, entry.coordinator_epoch)
            entry = ProducerEntry(mark.producer_id, entry.epoch, *batch, opened)
        self._entries[mark.producer_id] = entry
        if first < 0 or not ends or mark.committed:
            return None
        stable = self.first_open_offset
        last = mark.base_offset
        return AbortedTransaction(mark.producer_id, first, last, last + 1 if stable is None else stable)

    @property
    def first_open_offset(self) -> int | None:
        """The first offset of the oldest transaction that is open; ``None`` if none is."""
        offsets = (entry.transaction_offset for entry in self._entries.values())
        return min((offset for offset in offsets if offset >= 0), default=None)

    def __iter__(self) -> Iterator[ProducerEntry]:
        """The producers in a snapshot's order: that of the buckets of Java's hash map, then that of arrival."""
        buckets = 16
        while len(self._entries) * 4 > buckets * 3:
            buckets *= 2

        def bucket(entry: ProducerEntry) -> int:
            folded = (entry.producer_id ^ entry.producer_id >> 32) & 0xFFFFFFFF
            return (folded ^ folded >> 16) & (buckets - 1)

        return iter(sorted(self._entries.values(), key=bucket))


class SegmentIndexes(NamedTuple):
    """The bytes of a segment's files. ``transactions`` is empty where there is no such file; ``snapshot`` is that of the next segment."""

    offsets: bytes
    timestamps: bytes
    transactions: bytes
    snapshot: bytes


def rebuild_indexes(
    marks: Iterable[BatchMark],
    base_offset: int,
    producers: ProducerStates,
    *,
    interval_bytes: int = 4096,
    object: str = "log",
) -> SegmentIndexes:
    """The files of a segment whose batches are ``marks``, as a broker makes them where it recovers.

    ``producers`` is the state before the segment and becomes that after it; ``interval_bytes`` is the topic's ``index.interval.bytes``.
    ``Damaged`` names ``object`` where batches go back or leave the segment's range.
    """
    offsets, timestamps, aborted = bytearray(), bytearray(), []
    indexed_at, last_offset, largest, largest_at, written = 0, base_offset - 1, -1, base_offset, -1
    for mark in marks:
        if not last_offset < mark.base_offset <= mark.last_offset < base_offset + (1 << 31) or mark.position >> 31:
            raise Damaged(f"{mark} follows offset {last_offset}", object=object, position=mark.position)
        last_offset = mark.last_offset
        if mark.max_timestamp_ms > largest:
            largest, largest_at = mark.max_timestamp_ms, mark.last_offset
        if mark.position - indexed_at > interval_bytes:
            indexed_at = mark.position
            offsets += OffsetIndex.row.pack(mark.last_offset - base_offset, mark.position)
            if largest > written:
                written = largest
                timestamps += TimeIndex.row.pack(largest, largest_at - base_offset)
        if (transaction := producers.apply(mark)) is not None:
            aborted.append(transaction)
    if largest > written:
        timestamps += TimeIndex.row.pack(largest, largest_at - base_offset)
    snapshot = write_producer_snapshot(producers)
    return SegmentIndexes(bytes(offsets), bytes(timestamps), write_transaction_index(aborted), snapshot)
