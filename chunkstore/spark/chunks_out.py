"""From Arrow record batches to chunks of a session, or to whole PIP-76 offload segments, on an executor, which opens no metadata.

Rows keep their order within a segment. What is held is in proportion to ``chunk_bytes`` and to one batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import repeat
from struct import Struct
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from chunkstore.changes.sessions import SessionChunk
from chunkstore.checksum import BytesLike, crc32c_of_bytes, crc32c_of_more
from chunkstore.codec.pulsar.encoding import EncodedBlock
from chunkstore.config import LIMITS, MIB, Settings
from chunkstore.errors import InvalidArgument
from chunkstore.operations.session_writer import SessionWriter
from chunkstore.pulsar.contexts import Context, check_topic, new_context
from chunkstore.pulsar.writer import Filled, SegmentFiller
from chunkstore.records.names import check_segment_name
from chunkstore.registry import open_storage
from chunkstore.spark.errors import annotated
from chunkstore.spark.pieces import check_place
from chunkstore.spark.write_options import LEDGER_KINDS, Columns, WriteOptions
from chunkstore.storage import ChunkStorage

__all__ = ["CONTENT", "Content", "Offloaded", "Output", "WritePlan", "write_task"]

CONTENT: Final = Struct(">QQ")
_SCAN_BYTES: Final = 1 * MIB


class WritePlan(NamedTuple):
    """What a task needs: plain data. ``container_uuid``: of the container that the session belongs to. ``session_id`` 0: the rows were
    written before, and are only compared."""

    options: WriteOptions
    columns: Columns
    container_uuid: bytes
    session_id: int


class Content(NamedTuple):
    """What a commit writes, the same however its rows are ordered and split between tasks: Spark repeats the rows of a micro-batch, and
    neither their order nor their tasks. ``crcs``: the sum of the rows' CRC32Cs, modulo 2**64."""

    rows: int = 0
    crcs: int = 0

    def plus(self, other: Content) -> Content:
        """Of both."""
        return Content(self.rows + other.rows, (self.crcs + other.crcs) % (1 << 64))

    def packed(self) -> bytes:
        """As ``SinkRow.content``."""
        return CONTENT.pack(*self)


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
            out = (LedgersOut if plan.columns.ledgers else _Out)(buffers, options)
            content, routed = Content(), plan.columns.segment
            kinds = list(LEDGER_KINDS if plan.columns.ledgers else ["value"])
            names = kinds if routed is None else [routed, *kinds]
            for batch in batches:
                if batch.num_rows == 0:
                    continue
                check_no_nulls(batch, names)
                columns = [batch.column(name) for name in kinds]
                whole = [(options.target, columns)]
                for target, rows in whole if routed is None else grouped(batch.column(routed), columns):
                    out.take(target, *rows)
                content = content.plus(content_of(batch, names, options.target))
            return [*out.finish(), content]
        except UnicodeDecodeError as error:  # Spark casts binary to string without a look
            text = f"a row's segment or topic is not valid UTF-8: {bytes(error.object)!r}; encode it, for example with hex() or base64()"
            raise InvalidArgument(text, argument="segment") from error
        finally:
            storage.close()


class _Out:
    """One task."""

    def __init__(self, buffers: ChunkBuffers, options: WriteOptions) -> None:
        self._buffers = buffers
        self._options = options
        self._segments = dict[str, None]()

    def take(self, segment: str, values: pa.Array) -> None:
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
    """The bytes of all values, one after the other, where they are: they are neighbours in an Arrow buffer."""
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


_HELD_BYTES: Final = 128 * MIB
"""How much a task of many segments holds, unless one chunk is more."""
_PART_BYTES: Final = 1 * MIB
"""Parts are put together up to this before they are written: a system call for each row would cost more than the copy."""


class _Pending:
    """Bytes of a segment that are not in a chunk yet, and what was written of it."""

    def __init__(self) -> None:
        self.parts: list[BytesLike] = []
        self.size = 0
        self.chunks: list[SessionChunk] = []


class ChunkBuffers:
    """Of one task. Everything that writes raises as ``SessionWriter.write_chunk``."""

    def __init__(self, storage: ChunkStorage, writer: SessionWriter, chunk_bytes: int) -> None:
        self._storage = storage
        self._writer = writer
        self._pending: dict[str, _Pending] = {}
        self._held = 0
        self._number = 0
        self.held_bytes_max: int = max(_HELD_BYTES, chunk_bytes)

    def add(self, segment: str, data: BytesLike) -> int:
        """Hold these bytes, which must not change. Returns how many of the segment are held."""
        pending = self._pending.setdefault(segment, _Pending())
        if len(data):
            pending.parts.append(data)
            pending.size += len(data)
            self._held += len(data)
        return pending.size

    def relieve(self) -> None:
        """Write what is held of the segments that have most, until it is not too much."""
        while self._held > self.held_bytes_max:
            longest = max(self._pending.values(), key=lambda item: item.size)
            self._write(longest, longest.size)

    def write(self, segment: str, size: int) -> None:
        """Write the first ``size`` bytes that are held of a segment as a chunk."""
        self._write(self._pending[segment], size)

    def finish(self, segment: str) -> tuple[SessionChunk, ...]:
        """Write the rest of a segment, and forget it. Returns all its chunks."""
        pending = self._pending.pop(segment)
        if pending.size:
            self._write(pending, pending.size)
        return tuple(pending.chunks)

    def _write(self, pending: _Pending, size: int) -> None:
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
        if not self._writer.session_id:
            return
        chunk = self._writer.write_chunk(self._storage, self._number, list(_coalesced(parts)))
        self._number += 1
        pending.chunks.append(chunk)


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


def check_no_nulls(batch: pa.RecordBatch, names: Iterable[str]) -> None:
    """Raise ``InvalidArgument`` naming a column that has one."""
    for name in names:
        if batch.column(name).null_count:
            at = pc.index(batch.column(name).is_null(), True).as_py()
            text = f"column {name!r} is null in a row (row {at} of a batch): filter such rows, or give them a value"
            raise InvalidArgument(text, argument=name)


def content_of(batch: pa.RecordBatch, names: Iterable[str], target: str) -> Content:
    """Of these rows: the CRC of each is over ``target`` and the columns, in this order."""
    crcs: Iterable[int] = repeat(crc32c_of_bytes(target.encode()), batch.num_rows)
    for name in names:
        column = batch.column(name)
        text = column.cast(pa.string()) if pa.types.is_integer(column.type) else column
        crcs = map(crc32c_of_more, crcs, text.cast(pa.large_binary()).to_pylist())
    return Content(batch.num_rows, sum(crcs))


def grouped(by: pa.Array, columns: list[pa.Array]) -> Iterator[tuple[Any, list[pa.Array]]]:
    """The rows of each value of ``by``, in their order."""
    runs = pc.run_end_encode(by)
    if len(runs.values) > 1 and len(runs.values) > len(pc.unique(by)):
        at = pc.sort_indices(by)  # stable
        by, columns = by.take(at), [column.take(at) for column in columns]
        runs = pc.run_end_encode(by)
    start = 0
    for value, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        yield value, [column.slice(start, end - start) for column in columns]
        start = end


class Offloaded(NamedTuple):
    """An offload segment that a task wrote: its context, which has no sequence number yet, and the chunks of its data and of its index."""

    context: Context
    data_chunks: tuple[SessionChunk, ...]
    index_chunks: tuple[SessionChunk, ...]


class LedgersOut:
    """One task. Raises ``InvalidArgument`` (a row), and as ``ChunkBuffers``."""

    def __init__(self, buffers: ChunkBuffers, options: WriteOptions) -> None:
        self._buffers = buffers
        self._chunk_bytes = options.chunk_bytes
        self._topics: dict[str, _Topic] = {}
        self._uncut_bytes = 0

    def take(self, name: str, ledgers: pa.Array, entries: pa.Array, payloads: pa.Array) -> None:
        """Take these rows of a topic."""
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = _Topic(name, self._buffers, self._chunk_bytes)
        before = topic.filler.pending_bytes
        for ledger, (ids, values) in grouped(ledgers, [entries, payloads]):
            last = topic.filler.last_added(ledger)
            _check_dense(name, ledger, last, ids)
            topic.filler.append_batch(ledger, ids[0].as_py(), values)
        self._uncut_bytes += topic.filler.pending_bytes - before
        if self._uncut_bytes > self._buffers.held_bytes_max:
            for item in self._topics.values():
                item.filler.flush()
            self._uncut_bytes = 0
        self._buffers.relieve()

    def finish(self) -> Iterator[Offloaded]:
        """Complete everything, and say what there is, by topic, in the order in which it was written."""
        for topic in self._topics.values():
            topic.filler.complete()
            yield from topic.written


class _Topic:
    """The offload segments of a topic."""

    def __init__(self, name: str, buffers: ChunkBuffers, segment_bytes_max: int) -> None:
        self._context = new_context(check_topic(name), 0)
        self._buffers = buffers
        self.written: list[Offloaded] = []
        self.filler = SegmentFiller(self._put, self._complete, segment_bytes_max=segment_bytes_max)

    def _put(self, block: EncodedBlock) -> None:
        for part in block.buffers:
            self._buffers.add(self._context.data, part)

    def _complete(self, filled: Filled) -> None:
        context = self._context.completed(filled.data_length, len(filled.index_data), filled.ranges)
        data = self._buffers.finish(context.data)
        self._buffers.add(context.index_segment, filled.index_data)
        self.written.append(Offloaded(context, data, self._buffers.finish(context.index_segment)))
        self._context = new_context(context.topic, 0)


def _check_dense(topic: str, ledger: int, last: int, ids: pa.Array) -> None:
    """Raise ``InvalidArgument`` unless these ids follow ``last`` (-1: nothing), each by one."""
    steps = pc.subtract(ids.slice(1), ids.slice(0, len(ids) - 1))
    bad = pc.index(pc.equal(steps, 1), False).as_py()
    if 0 <= last != ids[0].as_py() - 1:
        before, came = last, ids[0].as_py()
    elif bad >= 0:
        before, came = ids[bad].as_py(), ids[bad + 1].as_py()
    else:
        return
    text = (
        f"entry {came} of ledger {ledger} of topic {topic!r} follows entry {before}, {before + 1} was "
        "expected. Entries of a ledger must be in order without gaps: use repartition by topic and "
        "ledger, and sortWithinPartitions by entry"
    )
    raise InvalidArgument(text, argument="entry")
