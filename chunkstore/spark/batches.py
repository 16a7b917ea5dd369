"""From planned tasks to Arrow record batches of about 1 MiB, on an executor, which opens no metadata.

A batch is yielded only after every due check of its bytes. Payload bytes are copied once at most on the way into a batch."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

import pyarrow as pa

from chunkstore.checksum import BytesLike
from chunkstore.config import Settings
from chunkstore.errors import ChunkNotFound
from chunkstore.registry import open_storage
from chunkstore.spark.columns import split_partition
from chunkstore.spark.errors import annotated
from chunkstore.spark.framing import Rows, fixed_rows, line_rows, offsets_of_rows
from chunkstore.spark.pieces import PieceReader, Span, check_place
from chunkstore.spark.runs import ROW_BYTES, ChunkTimes, LedgerRun, ReadTask, SegmentRun

__all__ = ["BATCH_BYTES", "Column", "read_task"]

BATCH_BYTES: Final = ROW_BYTES
"""A batch ends when it holds this much: larger ones cost memory in the JVM, smaller ones time."""
_ROWS_MAX: Final = 4096
"""Rows of a batch where rows are tiny chunks."""
_IDS_MAX: Final = 1 << 14
"""Rows of a batch where rows are ids, next to which the name of a topic may stand."""

_TYPES: Final = {
    "segment": pa.string(),
    "offset": pa.int64(),
    "value": pa.binary(),
    "topic": pa.string(),
    "ledger": pa.int64(),
    "entry": pa.int64(),
    "payload": pa.binary(),
    "partition": pa.int32(),
    "timestamp": pa.timestamp("us", "UTC"),
}


class Column(NamedTuple):
    """A column that is wanted."""

    name: str
    nullable: bool = True


def read_task(task: ReadTask, columns: Sequence[Column]) -> Iterator[pa.RecordBatch]:
    """The rows of one partition, in order, with these columns.

    The storage is opened when the first batch is asked for, and closed at the end; raw segments without their bytes need no
    storage at all. Raises ``Damaged`` (chunk or block), ``ChunkNotFound``, ``RootUnavailable`` (this machine has another container
    under the root, or none), ``StorageUnavailable``, and what opening the root raises, each with a note that names segment or
    ledger (``chunkstore.spark.errors``).
    """
    schema = pa.schema([pa.field(column.name, _TYPES[column.name], nullable=column.nullable) for column in columns])
    times = {item.segment: item for item in task.times}
    if not any(_needs_bytes(run, schema) for run in task.runs):
        for run in task.runs:
            yield from _planned_batches(run, schema, times.get(run.segment))
        return
    with annotated(container=task.container, lsn=task.lsn):
        storage = open_storage(task.root, Settings())
        try:
            reader = PieceReader(storage, lsn=task.lsn)
            for run in task.runs:
                if not _needs_bytes(run, schema):
                    yield from _planned_batches(run, schema, times.get(run.segment))
                elif isinstance(run, LedgerRun):
                    from chunkstore.spark.ledger_batches import ledger_batches  # raw segments need no codec

                    yield from ledger_batches(run, reader, schema, times.get(run.segment))
                else:
                    yield from _segment_batches(run.segment, _rows(run, reader), schema, times.get(run.segment))
        except ChunkNotFound:
            check_place(storage, container=task.container, uuid=task.uuid)
            raise
        finally:
            storage.close()


def _needs_bytes(run: SegmentRun | LedgerRun, schema: pa.Schema) -> bool:
    """Whether the plan does not know the rows already."""
    if isinstance(run, LedgerRun):
        return bool(run.blocks)
    return "value" in schema.names or (run.cut is not None and run.cut.line_bytes_max > 0)


def _planned_batches(
    run: SegmentRun | LedgerRun, schema: pa.Schema, times: ChunkTimes | None
) -> Iterator[pa.RecordBatch]:
    """Rows that the plan knows: where those of a segment begin, or all ids of a ledger."""
    if isinstance(run, SegmentRun):
        yield from _segment_batches(run.segment, _rows_of_plan(run), schema, times)
        return
    for low in range(run.first_entry, run.last_entry + 1, _IDS_MAX):
        ids = pa.array(range(low, min(low + _IDS_MAX, run.last_entry + 1)), pa.int64())
        constants = {"topic": pa.scalar(run.topic, pa.string()), "ledger": pa.scalar(run.ledger, pa.int64())}
        columns = [ids if name == "entry" else pa.repeat(constants[name], len(ids)) for name in schema.names]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _rows_of_plan(run: SegmentRun) -> Iterator[Rows]:
    if run.cut is not None:
        yield Rows(offsets_of_rows(run.cut), [])
        return
    for piece in run.pieces:
        base = piece.offset - piece.start
        first = piece.start // ROW_BYTES * ROW_BYTES
        yield Rows([base + max(piece.start, low) for low in range(first, piece.stop, ROW_BYTES)], [])


def _rows(run: SegmentRun, reader: PieceReader) -> Iterator[Rows]:
    spans = reader.spans(run.segment, run.pieces)
    if run.cut is None:
        return _rows_of_chunks(spans)
    return line_rows(run.segment, run.cut, spans) if run.cut.line_bytes_max else fixed_rows(run.cut, spans)


def _rows_of_chunks(spans: Iterable[Span]) -> Iterator[Rows]:
    for span in spans:
        view = memoryview(span.data)
        begin = 0
        while begin < len(view):
            # Rows end at multiples of ROW_BYTES of the chunk, however the reads were cut.
            end = min(len(view), ((span.start + begin) // ROW_BYTES + 1) * ROW_BYTES - span.start)
            yield Rows([span.offset + begin], [view[begin:end]])
            begin = end


def _segment_batches(
    segment: str, found: Iterable[Rows], schema: pa.Schema, times: ChunkTimes | None
) -> Iterator[pa.RecordBatch]:
    def batch() -> pa.RecordBatch:
        columns = [_segment_column(field.name, segment, held, times) for field in schema]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    held = Rows([], [])
    held_bytes = 0
    for rows in found:
        size = sum(map(len, rows.values))
        if held.offsets and (held_bytes + size > BATCH_BYTES or len(held.offsets) >= _ROWS_MAX):
            yield batch()
            held, held_bytes = Rows([], []), 0
        held.offsets.extend(rows.offsets)
        held.values.extend(rows.values)
        held_bytes += size
    if held.offsets:
        yield batch()


def _segment_column(name: str, segment: str, rows: Rows, times: ChunkTimes | None) -> pa.Array:
    """``rows.values`` are there if it is their bytes, ``times`` if it is these."""
    topic, partition = split_partition(segment)
    same = {"segment": segment, "topic": topic, "partition": partition}
    if name in same:
        return pa.repeat(pa.scalar(same[name], _TYPES[name]), len(rows.offsets))
    if name == "offset":
        return pa.array(rows.offsets, pa.int64())
    if name == "timestamp":
        assert times is not None
        return pa.array(map(times.at, rows.offsets), _TYPES[name])
    return _binary(rows.values)


def _binary(values: Sequence[BytesLike]) -> pa.Array:
    """A binary array; a single value is not copied."""
    ends = array("i", accumulate((len(value) for value in values), initial=0))
    data = values[0] if len(values) == 1 else b"".join(values)
    return pa.Array.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(ends), pa.py_buffer(data)])
