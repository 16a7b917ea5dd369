"""A container's metadata as tables of Spark: rows from one replica, in the driver, in the order of their keys.

Rows are cut into tasks of some 20,000 rows or 4 MiB, encoded as they fill, so that neither planner nor task holds a million rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

import pyarrow as pa

from chunkstore.assembly import journal_records
from chunkstore.engine.reading import context_of, read_view
from chunkstore.engine.replica import Replica
from chunkstore.errors import InvalidArgument
from chunkstore.metadata.codec import decode_garbage
from chunkstore.metadata.keys import GARBAGE
from chunkstore.metadata.port import MetadataView
from chunkstore.records.names import NO_CHUNK
from chunkstore.records.segments import GarbageRecord, SegmentInfo
from chunkstore.spark.columns import TABLES, TableTask, arrow_columns
from chunkstore.spark.options import ReadOptions
from chunkstore.spark.plan import chosen_segments, chosen_topics, require_lsn, require_named

__all__ = ["BATCH_ROWS", "TASK_BYTES", "TASK_ROWS", "plan_table", "table_batches"]

BATCH_ROWS: Final = 1_024
TASK_ROWS: Final = 20 * BATCH_ROWS
TASK_BYTES: Final = 4 << 20
"""Of a task's rows, about: attributes of segments, and names, may be long."""
_TIME_MS_MAX: Final = 253_370_764_800_000
"""The year 9999. Times are labels that clocks have made; Python's own end there."""

_COMPRESSED: Final = pa.ipc.IpcWriteOptions(compression="lz4")
"""The driver's JVM holds the tasks of a plan, all of them."""
_Row = Sequence[object]


def plan_table(replica: Replica, options: ReadOptions) -> list[TableTask]:
    """The partitions of the table ``options.metadata``, in the order of its keys; none where it has no row.

    Raises ``SegmentNotFound``, ``LedgerNotFound`` (one that is named), ``Conflict`` (the replica was refreshed meanwhile),
    ``ChunkNotFound`` (a collector took a part of the journal that is being read: read again), and what the replica raises.
    """
    assert options.metadata is not None
    lsn = replica.lsn
    known, columns = TABLES[options.metadata].columns, options.columns
    places = [list(known).index(name) for name in columns]
    schema = arrow_columns({name: known[name] for name in columns})
    found = _ROWS[options.metadata](replica, options)
    wanted = ([_plain(kind, row[place]) for place, kind in zip(places, schema.types, strict=True)] for row in found)
    tasks = [TableTask(options.metadata, encoded) for encoded in _encoded(wanted, schema)]
    require_lsn(replica, lsn)
    return tasks


def table_batches(task: TableTask, columns: Sequence[tuple[str, bool]]) -> Iterator[pa.RecordBatch]:
    """The rows of one task. ``columns``: those that were planned, and whether they may be null. Raises ``InvalidArgument``: a null
    where there may be none."""
    with pa.ipc.open_stream(task.rows) as rows:
        schema = pa.schema(
            [field.with_nullable(nullable) for field, (_, nullable) in zip(rows.schema, columns, strict=True)]
        )
        for batch in rows:
            for field, column in zip(schema, batch.columns, strict=True):
                if not field.nullable and column.null_count:
                    text = f"column {field.name!r} of metadata={task.table} has nulls, which the schema excludes"
                    raise InvalidArgument(text, argument="schema")
            yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)


def _encoded(rows: Iterable[_Row], schema: pa.Schema) -> Iterator[bytes]:
    """Cut where a task's rows are enough."""
    batches: list[pa.RecordBatch] = []
    left = iter(rows)
    while held := list(islice(left, BATCH_ROWS)):
        arrays = [pa.array(cell, field.type) for cell, field in zip(zip(*held, strict=True), schema, strict=True)]
        batches.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
        if len(batches) * BATCH_ROWS >= TASK_ROWS or sum(batch.nbytes for batch in batches) >= TASK_BYTES:
            yield _stream_of(batches, schema)
            batches = []
    if batches:
        yield _stream_of(batches, schema)


def _stream_of(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=_COMPRESSED) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def _plain(kind: pa.DataType, value: object) -> object:
    """What Arrow takes for a cell of this type."""
    if value is None:
        return None
    if pa.types.is_timestamp(kind):
        assert isinstance(value, int)
        return min(value, _TIME_MS_MAX) * 1000
    if isinstance(value, Mapping):
        return [(key, item.hex() if isinstance(item, bytes) else str(item)) for key, item in value.items()]
    return value.hex() if isinstance(value, bytes) else value


# The rows of each table, with all of its columns, in their order


def _chosen(replica: Replica, options: ReadOptions) -> Iterable[SegmentInfo]:
    """All segments, unless some are chosen: those that are named must be there."""
    if not options.segments and options.segments_pattern is None:
        return replica.segments()
    found = chosen_segments(replica, options)
    require_named(options, found)
    return [found[name] for name in sorted(found, key=str.encode)]


def _segments(replica: Replica, options: ReadOptions) -> Iterator[_Row]:
    yield from _chosen(replica, options)


def _chunks(replica: Replica, options: ReadOptions) -> Iterator[_Row]:
    for info in _chosen(replica, options):
        for chunk in replica.layout(info.name):
            yield (info.name, *chunk)


def _ledgers(replica: Replica, options: ReadOptions) -> Iterator[_Row]:
    from chunkstore.pulsar import LedgerReader  # the other tables need no codec
    from chunkstore.pulsar.contexts import iter_topics

    reader = LedgerReader(replica)
    named = options.topic is not None or options.topics_pattern is not None
    for topic in chosen_topics(replica, options) if named else iter_topics(replica):
        yield from reader.ledgers(topic, options.ledgers, sizes="size_bytes" in options.columns)


def _garbage(replica: Replica, _options: ReadOptions) -> Iterator[_Row]:
    def scanned(view: MetadataView) -> list[GarbageRecord]:
        rows = view.scan(GARBAGE, bytes((GARBAGE[0] + 1,)))
        return [decode_garbage(f"garbage row {key!r}", raw) for key, raw in rows]

    chunk = context_of(replica).names.chunk
    for item in read_view(replica, scanned):
        # What a spill removed are rows, and a segment may end without chunks: such garbage names none.
        yield (*(None if end == NO_CHUNK else chunk(end) for end in item[:2]), *item[2:7])


def _journal(replica: Replica, options: ReadOptions) -> Iterator[_Row]:
    lsn = replica.lsn
    for record in journal_records(options.path, options.container):
        at, digest = record["lsn"], record["digest"]
        assert isinstance(at, int)
        if at <= lsn:
            yield tuple({**record, "digest": f"{digest:064x}"}.values())


_ROWS: Final[Mapping[str, Callable[[Replica, ReadOptions], Iterator[_Row]]]] = {
    "segments": _segments,
    "chunks": _chunks,
    "ledgers": _ledgers,
    "garbage": _garbage,
    "journal": _journal,
}
