"""From planned tasks to Arrow record batches of about 1 MiB, on an executor, which opens no metadata.

A batch is yielded only after every due check of its bytes. Payload bytes are copied once at most on the way into a batch."""

from __future__ import annotations

import gc
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from chunkstore.checksum import BytesLike
from chunkstore.config import Settings
from chunkstore.errors import ChunkNotFound
from chunkstore.registry import open_storage
from chunkstore.spark.columns import (
    LEDGER_COLUMNS,
    LEDGER_EXTRAS,
    SEGMENT_COLUMNS,
    SEGMENT_EXTRAS,
    TableTask,
    arrow_columns,
    split_partition,
)
from chunkstore.spark.errors import annotated
from chunkstore.spark.framing import Rows, fixed_rows, line_rows, offsets_of_rows
from chunkstore.spark.mapping import Mapped
from chunkstore.spark.pieces import PieceReader, Span, check_place
from chunkstore.spark.runs import ROW_BYTES, LedgerRun, ReadTask, SegmentRun

if TYPE_CHECKING:
    from pyspark.sql.datasource import InputPartition

__all__ = ["BATCH_BYTES", "read_partition", "read_task", "settle_process"]

BATCH_BYTES: Final = ROW_BYTES
"""A batch ends when it holds this much: larger ones cost memory in the JVM, smaller ones time."""
_ROWS_MAX: Final = 4096
"""Rows of a batch where rows are tiny chunks."""
_IDS_MAX: Final = 1 << 14
"""Rows of a batch where rows are ids, next to which the name of a topic may stand."""

_TYPES: Final = {
    field.name: field.type
    for field in arrow_columns({**SEGMENT_COLUMNS, **SEGMENT_EXTRAS, **LEDGER_COLUMNS, **LEDGER_EXTRAS})
}


@cache
def settle_process() -> None:
    """Once in an executor's Python process: take what is loaded by now out of the garbage collector's sight.

    Spark's workers collect garbage after every task; going through all that pandas, pyarrow and the like keep for good took
    70 ms of it, more than reading 64 MiB does. Objects made later are collected as ever.
    """
    gc.collect()
    gc.freeze()


def read_partition(
    partition: InputPartition, columns: Sequence[tuple[str, bool]], mapped: Mapped | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of one task, or what ``mapped`` makes of them. Raises as ``read_task`` and ``Mapped.batches``."""
    from chunkstore.spark.tables import table_batches  # rows of segments need no metadata

    task = partition.value
    if task is None:
        return iter(())  # Spark asks for one nameless partition where there are none
    settle_process()
    found = table_batches(task, columns) if isinstance(task, TableTask) else read_task(task, columns)
    return found if mapped is None else mapped.batches(found)


def read_task(task: ReadTask, columns: Sequence[tuple[str, bool]]) -> Iterator[pa.RecordBatch]:
    """The rows of one partition, in order, with these columns (and whether they may be null).

    The storage is opened when the first batch is asked for, and closed at the end; raw segments without their bytes need no
    storage at all. Raises ``Damaged`` (chunk or block), ``ChunkNotFound``, ``RootUnavailable`` (this machine has another container
    under the root, or none), ``StorageUnavailable``, and what opening the root raises, each with a note that names segment or
    ledger (``chunkstore.spark.errors``).
    """
    schema = pa.schema([pa.field(name, _TYPES[name], nullable=nullable) for name, nullable in columns])
    if not any(_needs_bytes(run, schema) for run in task.runs):
        for run in task.runs:
            yield from _planned_batches(run, schema)
        return
    with annotated(container=task.container, lsn=task.lsn):
        storage = open_storage(task.root, Settings())
        try:
            reader = PieceReader(storage, lsn=task.lsn)
            for run in task.runs:
                if not _needs_bytes(run, schema):
                    yield from _planned_batches(run, schema)
                elif isinstance(run, LedgerRun):
                    from chunkstore.spark.ledger_batches import ledger_batches  # raw segments need no codec

                    yield from ledger_batches(run, reader, schema)
                else:
                    yield from _segment_batches(run, _rows(run, reader), schema)
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


def _planned_batches(run: SegmentRun | LedgerRun, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Rows that the plan knows: where those of a segment begin, or all ids of a ledger."""
    if isinstance(run, SegmentRun):
        yield from _segment_batches(run, _rows_of_plan(run), schema)
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


def _segment_batches(run: SegmentRun, found: Iterable[Rows], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    def batch() -> pa.RecordBatch:
        columns = [_segment_column(field.name, run, held) for field in schema]
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


def _segment_column(name: str, run: SegmentRun, rows: Rows) -> pa.Array:
    """``rows.values`` are there if it is their bytes."""
    topic, partition = split_partition(run.segment)
    same = {"segment": run.segment, "topic": topic, "partition": partition}
    if name in same:
        return pa.repeat(pa.scalar(same[name], _TYPES[name]), len(rows.offsets))
    if name == "offset":
        return pa.array(rows.offsets, pa.int64())
    if name == "timestamp":
        assert run.times is not None
        return pa.array(map(run.times.at, rows.offsets), _TYPES[name])
    return _binary(rows.values)


def _binary(values: Sequence[BytesLike]) -> pa.Array:
    """A binary array; a single value is not copied."""
    ends = array("i", accumulate((len(value) for value in values), initial=0))
    data = values[0] if len(values) == 1 else b"".join(values)
    return pa.Array.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(ends), pa.py_buffer(data)])
