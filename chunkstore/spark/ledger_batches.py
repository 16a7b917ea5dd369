"""From the blocks of offloaded ledgers to Arrow record batches, on an executor.

Promises: entries come in order, once each, and only those that are wanted; the chunks under the blocks are read to their ends,
so that they are verified. Leaves out: which blocks (``plan``), their bytes (``chunkstore.codec.pulsar``).
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from chunkstore.codec.pulsar.offload_metadata import LedgerInfo
from chunkstore.codec.pulsar.pip76 import DataSource
from chunkstore.codec.pulsar.pip76_arrow import read_batches
from chunkstore.codec.pulsar.pip76_index import BlockRef, LedgerGroup, SegmentIndex
from chunkstore.codec.pulsar.pip76_reader import SegmentReader
from chunkstore.spark.errors import annotated
from chunkstore.spark.pieces import PieceReader, RunBytes
from chunkstore.spark.runs import LedgerRun

__all__ = ["ledger_batches"]


def ledger_batches(run: LedgerRun, reader: PieceReader, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The wanted entries of consecutive blocks, a batch for each MiB.

    The codec sees the blocks as an object of their own that ends where they end; positions in errors are the segment's.
    Raises ``Damaged``, ``ChunkNotFound``, ``StorageUnavailable``.
    """
    source = RunBytes(reader, run.segment, run.pieces)
    refs = tuple(BlockRef(block.first_entry, number, block.start) for number, block in enumerate(run.blocks, 1))
    end = run.blocks[-1].stop
    index = SegmentIndex(end, (LedgerGroup(run.ledger, LedgerInfo(ledger=run.ledger), b"", refs),))
    with annotated(topic=run.topic, ledger=run.ledger, segment=run.segment):
        decoder = SegmentReader(DataSource(f"segment {run.segment}", end, source.read), index)
        for batch in read_batches(decoder, run.ledger, run.first_entry, run.last_entry):
            columns = [
                pa.repeat(pa.scalar(run.topic, pa.string()), batch.num_rows) if name == "topic" else batch.column(name)
                for name in schema.names
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)
        source.finish()
