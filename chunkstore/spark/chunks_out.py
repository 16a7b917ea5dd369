"""From Arrow record batches to chunks of a session, on an executor; no metadata is opened here.

Promises: rows keep their order within a segment; a value's bytes are copied once at most (by the storage that does not append, by
``framing=lines``, or where rows of many segments are mixed); what is held is in proportion to ``chunk_bytes`` and what one batch holds.
A null, a newline that would make two lines of one, and rows out of order are refused. Leaves out: Spark (``sink``), committing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc

from chunkstore.checksum import BytesLike
from chunkstore.config import MIB, Settings
from chunkstore.errors import InvalidArgument
from chunkstore.names import check_segment_name
from chunkstore.registry import open_storage
from chunkstore.sessions import SessionChunk, SessionWriter
from chunkstore.spark.errors import annotated
from chunkstore.spark.places import check_place
from chunkstore.spark.write_options import PREFIX, Columns, WriteOptions
from chunkstore.storage import ChunkStorage

__all__ = ["Output", "WritePlan", "bucket", "write_task"]

_HELD_BYTES: Final = 128 * MIB
"""How much a task of many segments holds, unless one chunk is more."""
_PART_BYTES: Final = 1 * MIB
"""Parts are put together up to this before they are written: a system call for each row would cost more than the copy."""


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
    first: int | str | bytes | None
    last: int | str | bytes | None


def bucket(key: bytes, count: int) -> int:
    """Which of ``count`` segments a key goes to: CRC-32 (of zlib, and of Spark SQL's ``crc32``) modulo ``count``. It never changes."""
    return crc32(key) % count


def write_task(batches: Iterable[pa.RecordBatch], plan: WritePlan, attempt_id: int) -> list[Output]:
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
            out = _Out(storage, writer, plan)
            for batch in batches:
                out.add(batch)
            return out.finish()
        finally:
            storage.close()


class _Pending:
    """Bytes of a segment that are not in a chunk yet, and what was written of it."""

    def __init__(self) -> None:
        self.parts: list[BytesLike] = []
        self.size = 0
        self.chunks: list[SessionChunk] = []
        self.first: int | str | bytes | None = None
        self.last: int | str | bytes | None = None


class _Out:
    """One task."""

    def __init__(self, storage: ChunkStorage, writer: SessionWriter, plan: WritePlan) -> None:
        self._storage = storage
        self._writer = writer
        self._options = plan.options
        self._columns = plan.columns
        self._pending: dict[str, _Pending] = {}
        self._held = 0
        self._number = 0

    def add(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        for name in filter(None, ("value", *self._columns)):
            if batch.column(name).null_count:
                at = pc.index(batch.column(name).is_null(), True).as_py()
                text = f"column {name!r} is null in a row (row {at} of a batch): filter such rows, or give them a value"
                raise InvalidArgument(text, argument=name)
        order = None if self._columns.order is None else _sortable(batch.column(self._columns.order))
        values, names = batch.column("value"), self._names(batch)
        if names is None:
            self._take(self._options.target, values, order)
            return
        runs = pc.run_end_encode(names)
        if len(runs.values) > 1 and len(runs.values) > len(pc.unique(names)):
            at = pc.sort_indices(names)  # stable
            values, names = values.take(at), names.take(at)
            order = None if order is None else order.take(at)
            runs = pc.run_end_encode(names)
        start = 0
        for name, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            part = values.slice(start, end - start)
            self._take(name, part, None if order is None else order.slice(start, end - start))
            start = end

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

    def _take(self, segment: str, values: pa.Array, order: pa.Array | None) -> None:
        pending = self._pending.get(segment)
        if pending is None:
            check_segment_name(segment, "segment")
            pending = self._pending[segment] = _Pending()
        if order is not None:
            _check_order(pending, segment, order)
        if self._options.lines:
            if _has_newline(_bytes_of(values)):
                text = f"a value for segment {segment!r} holds a newline: with framing=lines it would be read as two"
                raise InvalidArgument(text, argument="value")
            everything = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values.cast(pa.binary()))
            values = pc.binary_join(everything, b"\n")  # one copy; the last newline follows
        self._append(pending, values)
        if self._options.lines:
            pending.parts.append(b"\n")
            pending.size += 1
            self._held += 1
        while pending.size >= self._options.chunk_bytes:
            self._flush(pending, self._options.chunk_bytes)
        while self._held > max(_HELD_BYTES, self._options.chunk_bytes):
            longest = max(self._pending.values(), key=lambda item: item.size)
            self._flush(longest, longest.size)

    def _append(self, pending: _Pending, values: pa.Array) -> None:
        data = _bytes_of(values)
        if len(data):
            whole = sum(buffer.size for buffer in values.buffers() if buffer is not None)
            # A small part must not keep its whole batch in memory.
            pending.parts.append(data if len(data) * 2 >= whole else bytes(data))
            pending.size += len(data)
            self._held += len(data)

    def _flush(self, pending: _Pending, size: int) -> None:
        """Write the first ``size`` bytes as a chunk."""
        parts, left, kept = [], size, len(pending.parts)
        for number, part in enumerate(pending.parts):
            view = memoryview(part)
            parts.append(view[:left])
            left -= len(parts[-1])
            if left == 0:
                kept = number + (len(parts[-1]) == len(view))
                if kept == number:
                    pending.parts[number] = view[len(parts[-1]) :]
                break
        del pending.parts[:kept]
        pending.size -= size
        self._held -= size
        chunk = self._writer.write_chunk(self._storage, self._number, list(_coalesced(parts)))
        self._number += 1
        pending.chunks.append(chunk)

    def finish(self) -> list[Output]:
        for pending in self._pending.values():
            if pending.size:
                self._flush(pending, pending.size)
        found = self._pending.items()
        return [Output(name, tuple(item.chunks), item.first, item.last) for name, item in found]


def _coalesced(parts: list[memoryview]) -> Iterator[BytesLike]:
    """The same bytes in parts that are not small."""
    held: list[memoryview] = []
    size = 0
    for part in parts:
        held.append(part)
        size += len(part)
        if size >= _PART_BYTES:
            yield held[0] if len(held) == 1 else b"".join(held)
            held, size = [], 0
    if held:
        yield held[0] if len(held) == 1 else b"".join(held)


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
    return any(b"\n" in data[start : start + _PART_BYTES].tobytes() for start in range(0, len(data), _PART_BYTES))


def _sortable(column: pa.Array) -> pa.Array:
    """Times as whole numbers, in the same order: as Python objects they would need a calendar."""
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.int64())
    return column.cast(pa.int32()) if pa.types.is_date(column.type) else column


def _check_order(pending: _Pending, segment: str, order: pa.Array) -> None:
    first, last = order[0].as_py(), order[len(order) - 1].as_py()
    ascending = len(order) < 2 or not pc.any(pc.less(order.slice(1), order.slice(0, len(order) - 1))).as_py()
    if not ascending or (pending.last is not None and first < pending.last):
        text = f"rows for segment {segment!r} do not come in the order of option 'orderBy': use repartition and sortWithinPartitions"
        raise InvalidArgument(text, argument="orderBy")
    pending.first = first if pending.first is None else pending.first
    pending.last = last
