"""From Arrow record batches to chunks of a session, on an executor; no metadata is opened here.

Promises: rows keep their order within a segment; a value's bytes are copied once at most (by the storage that does not append, by
``framing=lines``, or where rows of many segments are mixed); what is held is in proportion to ``chunk_bytes`` and what one batch holds.
A null, a newline that would make two lines of one, and rows out of order are refused. Leaves out: Spark (``sink``), committing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, TypeAlias
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc

from chunkstore.config import LIMITS, MIB, Settings
from chunkstore.errors import InvalidArgument
from chunkstore.names import check_segment_name
from chunkstore.registry import open_storage
from chunkstore.sessions import SessionChunk, SessionWriter
from chunkstore.spark.chunk_buffers import ChunkBuffers, check_no_nulls, grouped
from chunkstore.spark.errors import annotated
from chunkstore.spark.ledgers_out import LedgersOut, Offloaded
from chunkstore.spark.places import check_place
from chunkstore.spark.write_options import PREFIX, Columns, WriteOptions

__all__ = ["Output", "WritePlan", "bucket", "write_task"]

_SCAN_BYTES: Final = 1 * MIB
Ordinal: TypeAlias = int | str | bytes | None
"""A value of the column to order by."""


class WritePlan(NamedTuple):
    """What a task needs: plain data. ``container_uuid``: of the container that the session belongs to."""

    options: WriteOptions
    columns: Columns
    container_uuid: bytes
    session_id: int


class Output(NamedTuple):
    """What a task wrote for one segment, in order. ``first`` and ``last`` of the column to order by; None where there is none."""

    segment: str
    chunks: tuple[SessionChunk, ...]
    first: Ordinal
    last: Ordinal


def bucket(key: bytes, count: int) -> int:
    """Which of ``count`` segments a key goes to: CRC-32 (of zlib, and of Spark SQL's ``crc32``) modulo ``count``. It never changes."""
    return crc32(key) % count


def write_task(batches: Iterable[pa.RecordBatch], plan: WritePlan, attempt_id: int) -> list[Output | Offloaded]:
    """Write all rows of a task, durable on return; ``attempt_id`` differs between all attempts of all tasks of the job.

    Raises ``InvalidArgument`` (a row), ``RootUnavailable`` (this machine has another container under the root, or none), and what
    opening the root and writing chunks raise. Nothing becomes visible here. Retry: safe, it writes other chunks.
    """
    options = plan.options
    with annotated(container=options.container, root=options.path):
        storage = open_storage(options.path, Settings())
        try:
            check_place(storage, container=options.container, uuid=plan.container_uuid)
            writer = SessionWriter(options.container, plan.session_id, attempt_id << 32)
            buffers = ChunkBuffers(storage, writer, options.chunk_bytes)
            out = (LedgersOut if options.ledgers else _Out)(buffers, options, plan.columns)
            for batch in batches:
                out.add(batch)
            return list(out.finish())
        except UnicodeDecodeError as error:  # Spark casts binary to string without a look
            text = f"a row's segment or topic is not valid UTF-8: {bytes(error.object)!r}; encode it, with hex() or base64(), say"
            raise InvalidArgument(text, argument="segment") from error
        finally:
            storage.close()


class _Out:
    """One task."""

    def __init__(self, buffers: ChunkBuffers, options: WriteOptions, columns: Columns) -> None:
        self._buffers = buffers
        self._options = options
        self._columns = columns
        self._ends: dict[str, tuple[Ordinal, Ordinal]] = {}
        """The first and the last of the column to order by, of each segment."""

    def add(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        check_no_nulls(batch, ["value", *filter(None, self._columns)])
        columns = [batch.column("value")]
        if self._columns.order is not None:
            columns.append(_sortable(batch.column(self._columns.order)))
        names = self._names(batch)
        for segment, rows in [(self._options.target, columns)] if names is None else grouped(names, columns):
            self._take(segment, *rows)

    def _names(self, batch: pa.RecordBatch) -> pa.Array | None:
        """The segment of each row; None: all go to the option's."""
        columns, count = self._columns, self._options.segments_count
        base = None if columns.segment is None else batch.column(columns.segment)
        if columns.key is None or count is None:
            return base
        keys = batch.column(columns.key).cast(pa.binary()).dictionary_encode()
        buckets = pa.array([bucket(key, count) for key in keys.dictionary.to_pylist()], pa.int32()).take(keys.indices)
        numbers = buckets.cast(pa.string())
        return pc.binary_join_element_wise(self._options.target or PREFIX if base is None else base, numbers, "-")

    def _take(self, segment: str, values: pa.Array, order: pa.Array | None = None) -> None:
        if segment not in self._ends:
            check_segment_name(segment, "segment")
            if len(self._ends) >= LIMITS.batch_ops_max:
                text = f"one task has rows for more than {len(self._ends)} segments, and a commit a change for each: write fewer at once"
                raise InvalidArgument(text, argument="segment")
            self._ends[segment] = None, None
        if order is not None:
            self._ends[segment] = _check_order(*self._ends[segment], segment, order)
        if self._options.lines:
            if _has_newline(_bytes_of(values)):
                text = f"a value for segment {segment!r} holds a newline: with framing=lines it would be read as two"
                raise InvalidArgument(text, argument="value")
            everything = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values.cast(pa.binary()))
            values = pc.binary_join(everything, b"\n")  # one copy; the last newline follows
        data = _bytes_of(values)
        whole = sum(buffer.size for buffer in values.buffers() if buffer is not None)
        # A small part must not keep its whole batch in memory.
        held = self._buffers.add(segment, data if len(data) * 2 >= whole else bytes(data))
        if self._options.lines:
            held = self._buffers.add(segment, b"\n")
        for _ in range(held // self._options.chunk_bytes):
            self._buffers.write(segment, self._options.chunk_bytes)
        self._buffers.relieve()

    def finish(self) -> Iterator[Output]:
        return (Output(name, self._buffers.finish(name), *ends) for name, ends in self._ends.items())


def _bytes_of(values: pa.Array) -> memoryview:
    """The bytes of all values, one after the other, where they lie: they are neighbours in an Arrow buffer."""
    if len(values) == 0:
        return memoryview(b"")
    wide = pa.types.is_large_binary(values.type) or pa.types.is_large_string(values.type)
    _, offsets, data = values.buffers()
    if data is None:
        return memoryview(b"")
    borders = memoryview(offsets).cast("B").cast("q" if wide else "i")
    return memoryview(data).cast("B")[borders[values.offset] : borders[values.offset + len(values)]]


def _has_newline(data: memoryview) -> bool:
    """By copies of what fits a processor's cache: ten times as fast as asking Arrow for each value."""
    return any(b"\n" in data[start : start + _SCAN_BYTES].tobytes() for start in range(0, len(data), _SCAN_BYTES))


def _sortable(column: pa.Array) -> pa.Array:
    """Times as whole numbers, in the same order: as Python objects they would need a calendar."""
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.int64())
    return column.cast(pa.int32()) if pa.types.is_date(column.type) else column


def _check_order(first: Ordinal, last: Ordinal, segment: str, order: pa.Array) -> tuple[Ordinal, Ordinal]:
    begin, end = order[0].as_py(), order[len(order) - 1].as_py()
    ascending = len(order) < 2 or not pc.any(pc.less(order.slice(1), order.slice(0, len(order) - 1))).as_py()
    if not ascending or (last is not None and begin < last):
        text = f"rows for segment {segment!r} do not come in the order of option 'orderBy': use repartition and sortWithinPartitions"
        raise InvalidArgument(text, argument="orderBy")
    return begin if first is None else first, end
