"""From Arrow record batches to chunks of a session, on an executor; no metadata is opened here.

Promises: rows keep their order within a segment; a value's bytes are copied once at most (by the storage that does not append, by
``framing=lines``, or where rows of many segments are mixed); what is held is in proportion to ``chunk_bytes`` and what one batch holds.
A null, and a newline that would make two lines of one, are refused. Leaves out: Spark (``sink``), committing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from chunkstore.config import LIMITS, MIB, Settings
from chunkstore.errors import InvalidArgument
from chunkstore.names import check_segment_name
from chunkstore.registry import open_storage
from chunkstore.sessions import SessionChunk, SessionWriter
from chunkstore.spark.chunk_buffers import ChunkBuffers, check_no_nulls, content_of, grouped
from chunkstore.spark.errors import annotated
from chunkstore.spark.ledgers_out import LedgersOut, Offloaded
from chunkstore.spark.once import Content
from chunkstore.spark.places import check_place
from chunkstore.spark.write_options import LEDGER_KINDS, Columns, WriteOptions

__all__ = ["Output", "WritePlan", "write_task"]

_SCAN_BYTES: Final = 1 * MIB


class WritePlan(NamedTuple):
    """What a task needs: plain data. ``container_uuid``: of the container that the session belongs to. ``session_id`` 0: the rows were
    written before, and are only compared."""

    options: WriteOptions
    columns: Columns
    container_uuid: bytes
    session_id: int


class Output(NamedTuple):
    """What a task wrote for one segment, in order."""

    segment: str
    chunks: tuple[SessionChunk, ...]


def write_task(
    batches: Iterable[pa.RecordBatch], plan: WritePlan, attempt_id: int
) -> list[Output | Offloaded | Content]:
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
            out = (LedgersOut if plan.columns.ledgers else _Out)(buffers, options, plan.columns)
            content = Content()
            names = [*filter(None, [plan.columns.segment]), *(LEDGER_KINDS if plan.columns.ledgers else ["value"])]
            for batch in batches:
                out.add(batch)
                content = content.plus(content_of(batch, names, options.target))
            return [*out.finish(), content]
        except UnicodeDecodeError as error:  # Spark casts binary to string without a look
            text = f"a row's segment or topic is not valid UTF-8: {bytes(error.object)!r}; encode it, for example with hex() or base64()"
            raise InvalidArgument(text, argument="segment") from error
        finally:
            storage.close()


class _Out:
    """One task."""

    def __init__(self, buffers: ChunkBuffers, options: WriteOptions, columns: Columns) -> None:
        self._buffers = buffers
        self._options = options
        self._columns = columns
        self._segments = dict[str, None]()

    def add(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        routed = self._columns.segment
        check_no_nulls(batch, ["value", *([] if routed is None else [routed])])
        columns, target = [batch.column("value")], self._options.target
        for segment, rows in [(target, columns)] if routed is None else grouped(batch.column(routed), columns):
            self._take(segment, *rows)

    def _take(self, segment: str, values: pa.Array) -> None:
        if segment not in self._segments:
            check_segment_name(segment, "segment")
            if len(self._segments) >= LIMITS.batch_ops_max:
                count = len(self._segments)
                text = f"one task has rows for more than {count} segments, and a commit a change for each: write fewer at once"
                raise InvalidArgument(text, argument="segment")
            self._segments[segment] = None
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
        return (Output(name, self._buffers.finish(name)) for name in self._segments)


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
