"""From the blocks of offloaded ledgers to Arrow record batches, on an executor. Chunks are read, and so verified, to their ends."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from chunkstore.codec.pulsar.arrow import read_batches
from chunkstore.codec.pulsar.block_index import BlockRef
from chunkstore.codec.pulsar.frames import DataSource
from chunkstore.codec.pulsar.offload_metadata import LedgerInfo
from chunkstore.codec.pulsar.pip76 import LedgerGroup, SegmentIndex, SegmentReader
from chunkstore.spark.columns import split_partition
from chunkstore.spark.errors import annotated
from chunkstore.spark.pieces import PieceReader, RunBytes
from chunkstore.spark.runs import LedgerRun

__all__ = ["ledger_batches"]


_SAME: Final = {"offset": "entry", "value": "payload"}
"""Kafka's names."""


def ledger_batches(run: LedgerRun, reader: PieceReader, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The wanted entries of consecutive blocks, a batch for each MiB.

    The codec sees the blocks as an object of their own that ends where they end; positions in errors are the segment's.
    Raises ``Damaged``, ``ChunkNotFound``, ``StorageUnavailable``.
    """
    source = RunBytes(reader, run.segment, run.pieces)
    refs = tuple(BlockRef(block.first_entry, number, block.start) for number, block in enumerate(run.blocks, 1))
    first_entries = [block.first_entry for block in run.blocks]
    end = run.blocks[-1].stop
    index = SegmentIndex(end, (LedgerGroup(run.ledger, LedgerInfo(ledger=run.ledger), b"", refs),))
    with annotated(topic=run.topic, ledger=run.ledger, segment=run.segment):
        decoder = SegmentReader(DataSource(f"segment {run.segment}", end, source.read), index)
        for batch in read_batches(decoder, run.ledger, run.first_entry, run.last_entry):
            block = run.blocks[bisect_right(first_entries, batch.column("entry")[0].as_py()) - 1]  # no batch spans two
            same = {
                "topic": run.topic,
                "partition": split_partition(run.topic)[1],
                "timestamp": run.times and run.times.at(block.start),
            }
            columns = [
                pa.repeat(pa.scalar(same[field.name], field.type), batch.num_rows)
                if field.name in same
                else batch.column(_SAME.get(field.name, field.name))
                for field in schema
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)
        source.finish()
