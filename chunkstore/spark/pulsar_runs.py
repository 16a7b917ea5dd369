"""The format "pulsar-offload" of Spark: its options, planning, and the rows of one run of blocks.

Planning lists the bucket and reads indexes once. The run in which a chunked message begins has the message: for its other chunks, and
for ends of transactions, a run reads on in the entries after it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from chunkstore.codec.pulsar.arrow import SCHEMA
from chunkstore.codec.pulsar.frames import Entry
from chunkstore.codec.pulsar.message_batches import MESSAGE_SCHEMA, MessageBatches
from chunkstore.codec.pulsar.message_entries import (
    EntryOpener,
    RawEntry,
    Transactions,
    TxnState,
    opener_of,
    scan_transactions,
)
from chunkstore.codec.pulsar.message_metadata import TxnId, parse_head
from chunkstore.config import MIB
from chunkstore.errors import Damaged
from chunkstore.pulsar.bucket import PlannedLedger, PulsarBucket
from chunkstore.pulsar.contexts import LedgerNotFound
from chunkstore.registry import root_url
from chunkstore.spark.batches import settle_process
from chunkstore.spark.errors import annotated
from chunkstore.spark.options import items_of, known_values, numbers_of, one_of, path_option, refused, whole_number

__all__ = [
    "CHUNK_WAIT_MS",
    "OffloadOptions",
    "OffloadReader",
    "Run",
    "every_column",
    "parse_options",
    "partitions_of",
    "plan_runs",
    "run_messages",
]


def every_column(options: OffloadOptions) -> pa.Schema:
    """Every column that a read with these options can give."""
    return pa.schema([pa.field("topic", pa.string()), *(MESSAGE_SCHEMA if options.messages else SCHEMA)])


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


@dataclass
class OffloadReader(DataSourceReader):
    """Planned already, reads on executors; plain data, so that it can be pickled.

    ``planned``: by topic, then by ledger; a task reads on in them, where transactions and chunks reach beyond its run."""

    options: OffloadOptions
    schema: pa.Schema
    planned: Sequence[PlannedLedger]
    runs: Sequence[list[Run]]

    def partitions(self) -> Sequence[InputPartition]:
        """A partition for each run of blocks; small ledgers share one."""
        return list(map(InputPartition, self.runs))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task as Arrow batches. Raises as ``ReadHandle.read_batches`` and ``message_batches``."""
        if not partition.value:
            return  # Spark asks for one nameless partition where there are none
        settle_process()
        with PulsarBucket(self.options.url) as bucket:
            for run in partition.value:
                planned = self.planned[run.number]
                with (
                    annotated(topic=planned.topic or "", ledger=planned.ledger),
                    bucket.open_planned(planned) as ledger,
                ):
                    entries = ledger.read_batches(run.first, run.last)
                    batches = self._messages(bucket, run, list(entries)) if self.options.messages else entries
                    for batch in batches:
                        yield self._with_topic(batch, planned.topic)

    def _messages(self, bucket: PulsarBucket, run: Run, own: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        def later() -> Iterator[Entry]:
            topic = self.planned[run.number].topic
            for number in range(run.number, len(self.planned)):
                if self.planned[number].topic != topic:
                    return
                with bucket.open_planned(self.planned[number]) as ledger:
                    first = run.last + 1 if number == run.number else 0
                    if first <= ledger.last_add_confirmed:
                        yield from ledger.iter_entries(first)

        options = self.options
        columns = [name for name in self.schema.names if name != "topic"] or ["ledger"]
        mode: Literal["strict", "lenient"] = "lenient" if options.lenient else "strict"
        return run_messages(own, later, columns=columns, transactions=options.transactions, messages=mode)

    def _with_topic(self, batch: pa.RecordBatch, topic: str | None) -> pa.RecordBatch:
        columns = [
            pa.repeat(pa.scalar(topic, field.type), batch.num_rows)
            if field.name == "topic"
            else batch.column(field.name).cast(field.type)
            for field in self.schema
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


OPTIONS: Final = ("path", "topic", "ledgers", "messages", "transactions", "lenient", "columns", "maxBytesPerPartition")
_PARTITION_BYTES: Final = 128 * MIB
_BYTES_MAX: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class OffloadOptions:
    """What one read asks for; ``topic`` and ``ledgers``: None for all."""

    url: str
    topic: str | None
    ledgers: tuple[int, ...] | None
    messages: bool
    transactions: Literal["committed", "all"]
    lenient: bool
    columns: tuple[str, ...] | None
    partition_bytes: int


def parse_options(given: Mapping[str, str]) -> OffloadOptions:
    """Check the options as Spark hands them over. Raises ``InvalidArgument`` naming the option, ``Unsupported``."""
    values = known_values(given, OPTIONS)
    path = path_option(values, "the bucket, for example s3://bucket")
    messages = one_of(values, "messages", ("false", "true")) == "true"
    for name in () if messages else ("transactions", "lenient"):
        if name in values:
            raise refused(name, "needs messages=true")
    columns = tuple(map(str, items_of(values, "columns"))) if "columns" in values else None
    return OffloadOptions(
        url=root_url(path, "path"),
        topic=values.get("topic"),
        ledgers=numbers_of(values, "ledgers", "ledger id"),
        messages=messages,
        transactions="all" if one_of(values, "transactions", ("committed", "all")) == "all" else "committed",
        lenient=one_of(values, "lenient", ("false", "true")) == "true",
        columns=columns,
        partition_bytes=whole_number(values, "maxBytesPerPartition", 1, _BYTES_MAX) or _PARTITION_BYTES,
    )


class Run(NamedTuple):
    """Entries ``first`` to ``last`` (both included) of the ledger ``number`` in a plan: consecutive blocks."""

    number: int
    first: int
    last: int


def partitions_of(blocks: Iterable[tuple[Run, int]], partition_bytes: int) -> list[list[Run]]:
    """Consecutive blocks, each with its bytes, put together to at most ``partition_bytes``, at least one: the runs of each partition."""
    found: list[list[Run]] = []
    size_bytes = 0
    for run, block_bytes in blocks:
        if not found or size_bytes + block_bytes > partition_bytes:
            found.append([run])
            size_bytes = block_bytes
            continue
        before = found[-1][-1]
        if before.number == run.number:
            found[-1][-1] = before._replace(last=run.last)
        else:
            found[-1].append(run)
        size_bytes += block_bytes
    return found


CHUNK_WAIT_MS: Final = 3_600_000
"""A chunked message is unfinished when an hour of the topic's publish times has passed. Pulsar's consumers wait a minute."""


def run_messages(
    own: Sequence[pa.RecordBatch],
    later: Callable[[], Iterator[RawEntry]],
    *,
    columns: Sequence[str],
    transactions: Literal["committed", "all"],
    messages: Literal["strict", "lenient"],
) -> MessageBatches:
    """The messages of the entries in ``own`` (columns ledger, entry, payload), as ``message_batches``.

    ``later`` gives the topic's entries after these, from the first one, each time it is called. Raises as ``message_batches``, and
    what ``later`` raises.
    """
    known = _with_ends(scan_transactions(_entries(own)), later)
    opener = opener_of((), transactions, known, messages)
    return MessageBatches(_with_chunks(_entries(own), opener, later), opener, columns)


def _entries(batches: Sequence[pa.RecordBatch]) -> Iterator[RawEntry]:
    for batch in batches:
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _with_ends(known: Transactions, later: Callable[[], Iterator[RawEntry]]) -> Transactions:
    """These transactions, with the ends that the entries after the run have."""
    waiting = set(known.those("open"))
    ends: dict[TxnId, TxnState] = {}
    entries = later() if waiting else iter(())
    for item in entries:
        for txn, state in scan_transactions([item]).states.items():
            if state != "open" and txn in waiting:
                ends[txn] = state
                waiting.remove(txn)
        if not waiting:
            break
    return known | Transactions(ends)


def _with_chunks(
    own: Iterator[RawEntry], opener: EntryOpener, later: Callable[[], Iterator[RawEntry]]
) -> Iterator[RawEntry]:
    """The run's entries, then the chunks after it of messages that began in it. ``opener`` has opened each entry before the next one."""
    last: RawEntry | None = None
    for item in own:
        yield item
        last = item
    if last is None or not opener.waiting:
        return
    until_ms = _publish_ms(last) + CHUNK_WAIT_MS
    begun_again: set[bytes] = set()
    for item in later():
        try:
            metadata = parse_head(item[0], item[1], bytes(item[2]), checked=False).metadata
        except Damaged:
            continue  # the run that has this entry raises about it
        if metadata.publish_time > until_ms:
            return
        if metadata.uuid in opener.waiting and metadata.num_chunks_from_msg > 1:
            if not metadata.chunk_id:
                begun_again.add(metadata.uuid)  # by a producer that reconnected: the run of this entry has the message
            elif metadata.uuid not in begun_again:
                yield item
            if opener.waiting <= begun_again:
                return


def _publish_ms(item: RawEntry) -> int:
    try:
        return int(parse_head(item[0], item[1], bytes(item[2]), checked=False).metadata.publish_time)
    except Damaged:
        return 0
