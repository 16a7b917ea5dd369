"""The index files of a segment: ``.index``, ``.timeindex``, ``.txnindex`` and ``.snapshot``.

Promises: look-ups are binary searches in the bytes, without a list of entries. Leaves out: making ``.index`` and ``.timeindex``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from struct import Struct
from typing import ClassVar, Final, NamedTuple

from chunkstore.checksum import crc32c_of_bytes
from chunkstore.errors import Damaged

__all__ = [
    "AbortedTransaction", "Index", "OffsetIndex", "ProducerEntry", "TimeIndex", "read_producer_snapshot", "read_transaction_index",
    "write_producer_snapshot", "write_transaction_index",
]  # fmt: skip

_TRANSACTION: Final = Struct(">hqqqq")
_SNAPSHOT: Final = Struct(">hIi")
_CHECKED_AT: Final = 6
_PRODUCER: Final = Struct(">qhiqiqiq")


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
