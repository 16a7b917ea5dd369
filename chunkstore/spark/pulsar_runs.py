"""Planning and reading of the format "pulsar-offload": which runs of blocks a bucket has, and the rows of one run.

Promises: planning lists the bucket and reads indexes, once; each task reads one run of blocks of one ledger.
Leaves out: options and schema (``pulsar_offload``), what messages are (``pulsar_messages``).
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
from chunkstore.spark.pulsar_plan import OffloadOptions, runs_of
from chunkstore.spark.tasks import settle_process

__all__ = ["OffloadReader", "RunPartition", "plan_runs"]


def plan_runs(options: OffloadOptions, schema: pa.Schema) -> OffloadReader:
    """The reader of the columns in ``schema``: one snapshot of the bucket. Raises as ``PulsarBucket.plan``."""
    runs: list[RunPartition] = []
    wanted = options.ledgers
    with PulsarBucket(options.url) as bucket:
        # The end of a transaction, and the rest of a chunked message, may be in ledgers that were not asked for.
        planned = bucket.plan(options.topic, None if options.messages else wanted)
        for missing in sorted(set(wanted or ()) - {each.ledger for each in planned}):
            raise LedgerNotFound(options.topic, missing, where=bucket.bucket.url)
        for number, each in enumerate(planned):
            if wanted is None or each.ledger in wanted:
                with bucket.open_planned(each) as ledger:
                    found = runs_of(ledger.blocks(), options.partition_bytes)
                runs += [RunPartition(number, first, last) for first, last in found]
    return OffloadReader(options, schema, planned, runs)


class RunPartition(InputPartition):
    """Entries ``first`` to ``last`` (both included) of one ledger: ``number`` in the reader's list."""

    def __init__(self, number: int, first: int, last: int) -> None:
        super().__init__((number, first, last))
        self.number = number
        self.first = first
        self.last = last


class OffloadReader(DataSourceReader):
    """Planned already, reads on executors; plain data, so that it can be pickled."""

    def __init__(
        self,
        options: OffloadOptions,
        schema: pa.Schema,
        planned: Sequence[PlannedLedger],
        runs: Sequence[RunPartition],
    ) -> None:
        """``planned``: by topic, then by ledger; a task reads on in them, where transactions and chunks reach beyond its run."""
        self._options = options
        self._schema = schema
        self._planned = planned
        self._runs = runs

    def partitions(self) -> Sequence[InputPartition]:
        """A partition for each run of blocks."""
        return list(self._runs)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one run as Arrow batches. Raises as ``ReadHandle.read_batches`` and ``message_batches``."""
        if not isinstance(partition, RunPartition):
            return  # Spark asks for one nameless partition where there are none
        settle_process()
        source = self._planned[partition.number]
        with (
            annotated(topic=source.topic or "", ledger=source.ledger),
            PulsarBucket(self._options.url) as bucket,
            bucket.open_planned(source) as ledger,
        ):
            entries = ledger.read_batches(partition.first, partition.last)
            batches = self._messages(bucket, partition, list(entries)) if self._options.messages else entries
            for batch in batches:
                yield self._with_topic(batch, source.topic)

    def _messages(self, bucket: PulsarBucket, run: RunPartition, own: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
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
