"""From Arrow record batches to whole PIP-76 offload segments, on an executor; no metadata is opened here.

Promises: the bytes are those of the offload writer (``chunkstore.pulsar.filling``); of each ledger a task has entries without gaps, in
order. Leaves out: which sequence numbers the offload segments get, and what lies in front of them (``ledgers_in``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from chunkstore.codec.pulsar.encoding import EncodedBlock
from chunkstore.errors import InvalidArgument
from chunkstore.pulsar.contexts import Context, check_topic, new_context
from chunkstore.pulsar.filling import Filled, SegmentFiller
from chunkstore.sessions import SessionChunk
from chunkstore.spark.chunk_buffers import ChunkBuffers, check_no_nulls, grouped
from chunkstore.spark.write_options import LEDGER_KINDS, Columns, WriteOptions

__all__ = ["LedgersOut", "Offloaded"]


class Offloaded(NamedTuple):
    """An offload segment that a task wrote: its context, which has no sequence number yet, and the chunks of its data and of its index."""

    context: Context
    data_chunks: tuple[SessionChunk, ...]
    index_chunks: tuple[SessionChunk, ...]


class LedgersOut:
    """One task. Raises ``InvalidArgument`` (a row), and as ``ChunkBuffers``."""

    def __init__(self, buffers: ChunkBuffers, options: WriteOptions, columns: Columns) -> None:
        self._buffers = buffers
        self._options = options
        self._columns = columns
        self._topics: dict[str, _Topic] = {}
        self._uncut_bytes = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Take these rows."""
        if batch.num_rows == 0:
            return
        routed = self._columns.segment
        check_no_nulls(batch, [*LEDGER_KINDS, *([] if routed is None else [routed])])
        columns = [batch.column(name) for name in LEDGER_KINDS]
        target = self._options.target
        for topic, rows in [(target, columns)] if routed is None else grouped(batch.column(routed), columns):
            self._add(topic, *rows)

    def _add(self, name: str, ledgers: pa.Array, entries: pa.Array, payloads: pa.Array) -> None:
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = _Topic(name, self._buffers, self._options.chunk_bytes)
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
