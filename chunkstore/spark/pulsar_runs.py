"""Planning and reading of the format "pulsar-offload": which runs of blocks a bucket has, and the rows of one run.

Promises: planning lists the bucket and reads indexes, once; a task reads a run of blocks of one ledger, or some small ledgers.
Leaves out: options (``pulsar_plan``), columns (``tier_sources``), what messages are (``pulsar_messages``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from chunkstore.codec.pulsar.frames import Entry
from chunkstore.pulsar.bucket import PlannedLedger, PulsarBucket
from chunkstore.pulsar.contexts import LedgerNotFound
from chunkstore.spark.errors import annotated
from chunkstore.spark.pulsar_messages import run_messages
from chunkstore.spark.pulsar_plan import OffloadOptions, Run, partitions_of
from chunkstore.spark.tasks import settle_process

__all__ = ["OffloadReader", "RunPartition", "plan_runs"]


def plan_runs(options: OffloadOptions, schema: pa.Schema) -> OffloadReader:
    """The reader of the columns in ``schema``: one snapshot of the bucket. Raises as ``PulsarBucket.plan``."""
    wanted = options.ledgers
    blocks: list[tuple[Run, int]] = []
    with PulsarBucket(options.url) as bucket:
        # The end of a transaction, and the rest of a chunked message, may be in ledgers that were not asked for.
        planned = bucket.plan(options.topic, None if options.messages else wanted)
        for missing in sorted(set(wanted or ()) - {each.ledger for each in planned}):
            raise LedgerNotFound(options.topic, missing, where=bucket.bucket.url)
        for number, each in enumerate(planned):
            if wanted is None or each.ledger in wanted:
                with bucket.open_planned(each) as ledger:
                    blocks += [(Run(number, first, last), size_bytes) for first, last, size_bytes in ledger.blocks()]
    return OffloadReader(options, schema, planned, partitions_of(blocks, options.partition_bytes))


class RunPartition(InputPartition):
    """What one task reads."""

    def __init__(self, runs: list[Run]) -> None:
        super().__init__(runs)
        self.runs = runs


class OffloadReader(DataSourceReader):
    """Planned already, reads on executors; plain data, so that it can be pickled."""

    def __init__(
        self,
        options: OffloadOptions,
        schema: pa.Schema,
        planned: Sequence[PlannedLedger],
        partitions: Sequence[list[Run]],
    ) -> None:
        """``planned``: by topic, then by ledger; a task reads on in them, where transactions and chunks reach beyond its run."""
        self._options = options
        self._schema = schema
        self._planned = planned
        self._partitions = partitions

    def partitions(self) -> Sequence[InputPartition]:
        """A partition for each run of blocks; small ledgers share one."""
        return list(map(RunPartition, self._partitions))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task as Arrow batches. Raises as ``ReadHandle.read_batches`` and ``message_batches``."""
        if not isinstance(partition, RunPartition):
            return  # Spark asks for one nameless partition where there are none
        settle_process()
        with PulsarBucket(self._options.url) as bucket:
            for run in partition.runs:
                planned = self._planned[run.number]
                with (
                    annotated(topic=planned.topic or "", ledger=planned.ledger),
                    bucket.open_planned(planned) as ledger,
                ):
                    entries = ledger.read_batches(run.first, run.last)
                    batches = self._messages(bucket, run, list(entries)) if self._options.messages else entries
                    for batch in batches:
                        yield self._with_topic(batch, planned.topic)

    def _messages(self, bucket: PulsarBucket, run: Run, own: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        def later() -> Iterator[Entry]:
            topic = self._planned[run.number].topic
            for number in range(run.number, len(self._planned)):
                if self._planned[number].topic != topic:
                    return
                with bucket.open_planned(self._planned[number]) as ledger:
                    first = run.last + 1 if number == run.number else 0
                    if first <= ledger.last_add_confirmed:
                        yield from ledger.iter_entries(first)

        options = self._options
        columns = [name for name in self._schema.names if name != "topic"] or ["ledger"]
        mode: Literal["strict", "lenient"] = "lenient" if options.lenient else "strict"
        return run_messages(own, later, columns=columns, transactions=options.transactions, messages=mode)

    def _with_topic(self, batch: pa.RecordBatch, topic: str | None) -> pa.RecordBatch:
        columns = [
            pa.repeat(pa.scalar(topic, field.type), batch.num_rows)
            if field.name == "topic"
            else batch.column(field.name).cast(field.type)
            for field in self._schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)
