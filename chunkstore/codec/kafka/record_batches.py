"""The records of Kafka's log segments as Arrow batches, without a Python object per record.

The lengths of records are followed one by one; their fields are then found for all at once, with numpy. Places become the offsets of an
Arrow array over the decompressed bytes, and ``take`` copies the values. Promises: the rows of ``iter_records``, in its order; those of
batches before damage come first. Memory: about 8 MiB of records with their columns, or one batch. Leaves out: checks of headers that
are not asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from chunkstore.codec.kafka.batches import EVERYTHING, Batch, ReadOptions
from chunkstore.codec.kafka.records import Isolation, Record, Transactions, parse_records, records_data, visible_batches
from chunkstore.codec.sources import DataSource
from chunkstore.config import MIB
from chunkstore.errors import ChunkstoreError, InvalidArgument

__all__ = ["RECORD_SCHEMA", "record_batches"]

_HEADER: Final = pa.struct([pa.field("name", pa.string(), nullable=False), pa.field("value", pa.binary())])
_TYPES: Final[dict[str, pa.DataType]] = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.int64(),
    "timestamp_type": pa.string(),
    "key": pa.binary(),
    "value": pa.binary(),
    "headers": pa.list_(_HEADER),
    "leader_epoch": pa.int32(),
    "producer_id": pa.int64(),
    "transactional": pa.bool_(),
}
RECORD_SCHEMA: Final = pa.schema([pa.field(name, kind, name in ("key", "value")) for name, kind in _TYPES.items()])
"""The columns of ``record_batches``: the fields of ``Record``, in its order."""

_PIECE_BYTES: Final = 8 * MIB
_PIECE_RECORDS: Final = 1 << 16
_ROWS_AT_ONCE: Final = 1 << 12
_HEADERS_MAX: Final = 64
"""Of a record that is taken apart with others: a step costs as much for one record as for a thousand."""
_SHIFT_MAX: Final = 28
"""Of the last byte of a number with 32 bits."""
_PAD_BYTES: Final = 64
"""Zero bytes after the last record: a few numbers are read before it is known that they are in their record."""

Ints = npt.NDArray[np.int64]
_Piece = list[tuple[Batch, bytes]]


def record_batches(
    source: DataSource,
    topic: str,
    partition: int,
    *,
    columns: Sequence[str] | None = None,
    isolation: Isolation = "read_uncommitted",
    transactions: Transactions | None = None,
    options: ReadOptions = EVERYTHING,
) -> Iterator[pa.RecordBatch]:
    """The records of a log segment as record batches, of about 8 MiB of records at most (more where one batch has more).

    ``columns``: of ``RECORD_SCHEMA``, in this order; all by default. What is not asked for costs little. Other arguments and errors: as
    ``iter_records``, and ``InvalidArgument`` for columns that are unknown, given twice, or none. Retry: safe.
    """
    names = list(_TYPES) if columns is None else list(columns)
    if not names or len(set(names)) < len(names) or not set(names) <= set(_TYPES):
        raise InvalidArgument(f"columns are some of {', '.join(_TYPES)}; not {names}", argument="columns")
    schema = pa.schema([RECORD_SCHEMA.field(name) for name in names])
    options, batches = visible_batches(source, isolation, transactions, options)
    place = topic, partition
    return (found for piece in _pieces(batches, options) for found in _of_piece(piece, place, schema, options))


def _pieces(batches: Iterator[Batch], options: ReadOptions) -> Iterator[_Piece]:
    """Batches that are taken apart at once, with their data. What came before an error comes first."""
    piece: _Piece = []
    size_bytes = records = 0
    try:
        for batch in batches:
            piece.append((batch, records_data(batch, options)))
            size_bytes += len(piece[-1][1])
            records += batch.count
            if size_bytes >= _PIECE_BYTES or records >= _PIECE_RECORDS:
                yield piece
                piece, size_bytes, records = [], 0, 0
    except ChunkstoreError:
        yield piece
        raise
    yield piece


def _of_piece(piece: _Piece, place: tuple[str, int], schema: pa.Schema, options: ReadOptions) -> Iterator[pa.RecordBatch]:  # fmt: skip
    start, end = options.start_offset, options.end_offset
    try:
        columns = _Columns(piece, place)
        found = pa.RecordBatch.from_arrays([columns.array(field) for field in schema], schema=schema)
        first, last = np.searchsorted(columns.offsets, (start, end)).tolist()
    except (_OddError, IndexError, pa.ArrowInvalid):
        # Damage, numbers of unusual length, names that are not UTF-8, or more records than belong into one batch of ours.
        for batch, data in piece:
            rows = (row for row in parse_records(batch, data, *place) if start <= row.offset < end)
            while several := list(islice(rows, _ROWS_AT_ONCE)):
                yield _of_rows(several, schema)
    else:
        if first < last:
            yield found.slice(first, last - first)


def _of_rows(rows: list[Record], schema: pa.Schema) -> pa.RecordBatch:
    columns: dict[str, Sequence[Any]] = dict(zip(Record._fields, zip(*rows, strict=True), strict=True))
    columns["headers"] = [[{"name": name, "value": value} for name, value in row.headers] for row in rows]
    return pa.RecordBatch.from_arrays([pa.array(columns[field.name], field.type) for field in schema], schema=schema)


class _OddError(Exception):
    """Something in a piece that is rare enough to read all of it record by record."""


def _check(right: npt.NDArray[np.bool_]) -> None:
    if not right.all():
        raise _OddError


class _Columns:
    """The columns of the records in a piece; places are positions in ``_data``. Raises ``_OddError``, ``IndexError``."""

    def __init__(self, piece: _Piece, place: tuple[str, int]) -> None:
        self._batches = [batch for batch, _ in piece]
        self._place = place
        counts = [batch.count for batch in self._batches]
        if sum(counts) > 2 * _PIECE_RECORDS:
            raise _OddError
        self._owners: Ints = np.repeat(np.arange(len(counts)), counts)
        self._data = b"".join([*(data for _, data in piece), bytes(_PAD_BYTES)])
        begins, self._ends = self._marks(piece)
        self._times, at = self._numbers(begins + 1, 8)
        deltas, at = self._numbers(at)
        self._key, at = self._sized(at, self._ends)
        self._value, at = self._sized(at, self._ends)
        self._several, self._headers_at = self._numbers(at)
        left = self._ends - self._headers_at
        _check((left == 0) & (self._several == 0) | (left > 0) & (self._several > 0))
        _check((deltas >= 0) & (deltas <= self._of_batch("last_offset_delta")))
        self.offsets = self._of_batch("base_offset") + deltas
        _check(self.offsets[1:] > self.offsets[:-1])

    def array(self, field: pa.Field) -> pa.Array:
        """The column of this field."""
        match field.name:
            case "key":
                return self._values(*self._key)
            case "value":
                return self._values(*self._value)
            case "headers":
                return self._headers()
            case "offset":
                return pa.array(self.offsets)
            case "timestamp":
                created = self._of_batch("base_timestamp") + self._times
                appended = self._of_batch("attributes") & 8 != 0
                return pa.array(np.where(appended, self._of_batch("max_timestamp"), created))
        topic, partition = self._place
        fixed = {"topic": topic, "partition": partition}
        values = [fixed.get(field.name) or getattr(batch, field.name, 0) for batch in self._batches]
        return pa.array(values, field.type).take(pa.array(self._owners))

    def _of_batch(self, name: str) -> Ints:
        """A field of each record's batch."""
        return np.array([getattr(batch, name) for batch in self._batches], np.int64)[self._owners]

    def _marks(self, piece: _Piece) -> tuple[Ints, Ints]:
        """Where records begin, after their lengths, and where they end."""
        begins: list[int] = []
        ends: list[int] = []
        begun, ended, data = begins.append, ends.append, self._data
        at = stop = 0
        for batch, own in piece:
            stop += len(own)
            for _ in range(batch.count):
                size = byte = data[at]
                at += 1
                shift = 7
                while byte > 127:
                    if shift > _SHIFT_MAX:
                        raise _OddError
                    byte = data[at]
                    at += 1
                    size += (byte - 1) << shift
                    shift += 7
                begun(at)
                at += size >> 1
                if size & 1 or at > stop:
                    raise _OddError
                ended(at)
            if at != stop:
                raise _OddError
        return np.array(begins, np.int64), np.array(ends, np.int64)

    def _numbers(self, at: Ints, width_max: int = 5) -> tuple[Ints, Ints]:
        """The zigzag numbers at these places, and where they end."""
        octets = np.frombuffer(self._data, np.uint8)
        value = octets[at].astype(np.int64)
        at = at + 1
        going = np.flatnonzero(value > 127)
        for shift in range(7, 7 * width_max, 7):
            if not len(going):
                break
            byte = octets[at[going]].astype(np.int64)
            value[going] += (byte - 1) << shift
            at[going] += 1
            going = going[byte > 127]
        if len(going):
            raise _OddError
        return (value >> 1) ^ -(value & 1), at

    def _sized(self, at: Ints, ends: Ints) -> tuple[tuple[Ints, Ints], Ints]:
        """Bytes after their lengths, which are -1 for null: where they begin and their lengths, and where they end."""
        size, begin = self._numbers(at)
        end = begin + np.maximum(size, 0)
        _check((size >= -1) & (end <= ends))
        return (begin, size), end

    def _values(self, at: Ints, size: Ints) -> pa.Array:
        """The bytes at these places, which ascend: every second value of an array over all bytes; the others are the gaps."""
        count = len(at)
        offsets = np.empty(2 * count + 1, np.int32)
        offsets[:-1:2] = at
        offsets[1::2] = at + np.maximum(size, 0)
        offsets[-1] = len(self._data)
        turns = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(offsets), pa.py_buffer(self._data)])
        return turns.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int32), mask=size < 0))

    def _headers(self) -> pa.Array:
        """Places of the first header of every record that has one, then of the second one, and so on."""
        those = np.flatnonzero(self._several)
        at, ends, left = self._headers_at[those], self._ends[those], self._several[those]
        _check(left <= _HEADERS_MAX)
        found = [np.zeros((4, 0), np.int64)]
        while len(left):
            name, at = self._sized(at, ends)
            value, at = self._sized(at, ends)
            left = left - 1
            _check((name[1] >= 0) & ((left > 0) | (at == ends)))
            found.append(np.stack((*name, *value)))
            at, ends, left = at[left > 0], ends[left > 0], left[left > 0]
        places = np.concatenate(found, axis=1)
        name_at, name_size, value_at, value_size = places[:, np.argsort(places[0])]
        names = self._values(name_at, name_size).cast(pa.string())
        pairs = pa.StructArray.from_arrays([names, self._values(value_at, value_size)], fields=list(_HEADER))
        edges = np.concatenate([np.zeros(1, np.int64), np.cumsum(self._several)]).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(edges), pairs)
