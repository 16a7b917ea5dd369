"""The format "kafka-tiered" of Spark: its options, planning, and the records of one task.

Planning lists each topic once and finds out how transactions ended; a task reads runs of segments and lists nothing."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final, Literal

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from chunkstore.codec.kafka.record_batches import RECORD_SCHEMA
from chunkstore.codec.kafka.records import Transactions
from chunkstore.config import MIB
from chunkstore.errors import ChunkNotFound, InvalidArgument, SegmentNotFound
from chunkstore.kafka.bucket import KafkaBucket, PlannedPartition
from chunkstore.kafka.container import ContainerSource
from chunkstore.spark.batches import settle_process
from chunkstore.spark.errors import annotated
from chunkstore.spark.options import (
    EARLIEST,
    LATEST,
    items_of,
    known_values,
    numbers_of,
    one_of,
    path_option,
    refused,
    whole_number,
)
from chunkstore.spark.runs import partition_count, share

__all__ = ["TieredOptions", "TieredReader", "every_column", "parse_options", "plan_runs"]

_LOG: Final = logging.getLogger("chunkstore.spark")


@contextmanager
def _opened(options: TieredOptions) -> Iterator[KafkaBucket]:
    """The source; its notes go to the log of this process, also after a failure."""
    keys = []
    for path in options.key_files:
        try:
            with open(path, "rb") as file:
                keys.append(file.read(1 * MIB))
        except OSError as error:
            text = f"option 'keyFiles': {path}: {error.strerror}; the driver and every executor need the file"
            raise InvalidArgument(text, argument="keyFiles") from error
    metadata_log, prefix, container = options.metadata_log, options.prefix, options.container
    with KafkaBucket(options.path, metadata_log=metadata_log, keys=keys, prefix=prefix, container=container) as bucket:
        try:
            yield bucket
        finally:
            for note in bucket.notes:
                _LOG.warning("kafka-tiered: %r", note)


def every_column(_options: TieredOptions) -> pa.Schema:
    """Every column that a read can give."""
    return RECORD_SCHEMA


def plan_runs(options: TieredOptions, schema: pa.Schema) -> TieredReader:
    """The reader of the columns in ``schema``: one snapshot of the source.

    Raises as ``KafkaBucket.plan``, ``Damaged`` where a segment is lost, and ``InvalidArgument`` for keys that cannot be read and
    partitions that are not there.
    """
    plan: dict[str, PlannedPartition] = {}
    with _opened(options) as bucket:
        for found in (found for topic in options.topics or (None,) for found in bucket.plan(topic)):
            if options.partitions is None or found.partition in options.partitions:
                name = f"{found.topic}-{found.partition}"
                start, end = (bounds[1].get(name, bounds[0]) for bounds in (options.starting, options.ending))
                plan[name] = bucket.narrowed(found, options.isolation, start, end)
                plan[name].require_whole()
        is_container = isinstance(bucket.source, ContainerSource)
    numbers = {each.partition for each in plan.values()}
    absent = [("partitions", str(number)) for number in options.partitions or () if number not in numbers]
    absent += [("startingOffsets", name) for name in options.starting[1] if name not in plan]
    absent += [("endingOffsets", name) for name in options.ending[1] if name not in plan]
    for option, name in absent:
        raise InvalidArgument(f"option {option!r} names {name}, which is not read here", argument=option)
    cells = [
        ((each, number), piece.segment.bytes)
        for each in plan.values()
        for number, piece in enumerate(each.pieces)
        if piece.start < each.end and each.start < piece.stop
    ]
    tasks = []
    sizes = [size for _, size in cells]
    for begin, end in share(sizes, partition_count(sum(sizes), options.min_partitions)):
        runs = groupby((cell for cell, _ in cells[begin:end]), lambda cell: cell[0])
        tasks.append([_run(each, [number for _, number in run]) for each, run in runs])
    # Tasks have the states of segments in their plan, and open the same kind of source.
    own = replace(options, metadata_log=None, container=options.container if is_container else None)
    return TieredReader(own, schema, tasks)


def _run(planned: PlannedPartition, numbers: Sequence[int]) -> PlannedPartition:
    """These pieces, which are consecutive, of a plan, with the transactions that have records in them."""
    first, known = numbers[0], planned.transactions
    pieces = planned.pieces[first : numbers[-1] + 1]
    if known is not None:
        begin, stop = pieces[0].start, pieces[-1].stop
        aborted = (each for each in known.aborted if each.first_offset < stop and begin <= each.last_offset)
        known = Transactions(tuple(aborted))
    # From where the run before it ends, so that the task notes offsets that are missing between them.
    start = max(planned.start, planned.pieces[first - 1].stop) if first else planned.start
    return planned._replace(pieces=pieces, start=start, transactions=known)


class TieredReader(DataSourceReader):
    """Planned already, reads on executors; plain data, so that it can be pickled."""

    def __init__(self, options: TieredOptions, schema: pa.Schema, tasks: list[list[PlannedPartition]]) -> None:
        self._options, self._schema, self._tasks = options, schema, tasks

    def partitions(self) -> Sequence[InputPartition]:
        """A partition for each run of segments; small ones share one."""
        return list(map(InputPartition, self._tasks))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The records of one task. Raises as ``KafkaBucket.planned_batches``; a segment deleted meanwhile is ``SegmentNotFound``."""
        settle_process()
        if not partition.value:
            return  # Spark asks for one nameless partition where there are none
        with annotated(), _opened(self._options) as bucket:
            for planned in partition.value:
                try:
                    for batch in bucket.planned_batches(planned, self._schema.names):
                        columns = [batch.column(field.name).cast(field.type) for field in self._schema]
                        yield pa.RecordBatch.from_arrays(columns, schema=self._schema)
                except (ChunkNotFound, SegmentNotFound) as error:
                    name = error.chunk if isinstance(error, ChunkNotFound) else error.segment
                    text = f"{name} of {planned.topic}-{planned.partition} was deleted since the plan was made: load() it again"
                    raise SegmentNotFound(name, text) from error


OPTIONS: Final = (
    *("path", "topic", "partitions", "startingOffsets", "endingOffsets", "isolation", "metadataLog", "keyFiles"),
    *("prefix", "container", "columns", "minPartitions"),
)
_OFFSET_MAX: Final = (1 << 63) - 1
_WORDS: Final = {"earliest": 0, "latest": _OFFSET_MAX}
_NUMBERS: Final = {EARLIEST: 0, LATEST: _OFFSET_MAX}


@dataclass(frozen=True, slots=True)
class TieredOptions:
    """What one read asks for; None: all. ``starting``, ``ending``: the offset in partitions, and those of some by "topic-partition"."""

    path: str
    topics: tuple[str, ...] | None
    partitions: tuple[int, ...] | None
    starting: tuple[int, Mapping[str, int]]
    ending: tuple[int, Mapping[str, int]]
    isolation: Literal["read_uncommitted", "read_committed"]
    metadata_log: str | None
    key_files: tuple[str, ...]
    prefix: str
    container: str | None
    columns: tuple[str, ...] | None
    min_partitions: int


def parse_options(given: Mapping[str, str]) -> TieredOptions:
    """Check the options as Spark hands them over. Raises ``InvalidArgument`` naming the option, ``Unsupported``."""
    values = known_values(given, OPTIONS)
    path = path_option(values, "a tier, a container's root or a log directory, for example s3://bucket/prefix")
    committed = one_of(values, "isolation", ("read_uncommitted", "read_committed")) == "read_committed"
    return TieredOptions(
        path=path if "://" in path else os.path.abspath(path),
        topics=_names(values, "topic"),
        partitions=numbers_of(values, "partitions", "partition"),
        starting=_offsets(values, "startingOffsets", "earliest"),
        ending=_offsets(values, "endingOffsets", "latest"),
        isolation="read_committed" if committed else "read_uncommitted",
        metadata_log=values.get("metadataLog"),
        key_files=_names(values, "keyFiles") or (),
        prefix=values.get("prefix", ""),
        container=values.get("container", "default"),
        columns=_names(values, "columns"),
        min_partitions=whole_number(values, "minPartitions", 1, 100_000) or 1,
    )


def _names(values: Mapping[str, str], name: str) -> tuple[str, ...] | None:
    return tuple(map(str, items_of(values, name))) if name in values else None


def _offsets(values: Mapping[str, str], name: str, default: str) -> tuple[int, Mapping[str, int]]:
    """earliest, latest, or Kafka's JSON; a partition that is not in there has the default."""
    text = values.get(name, default).strip()
    if text.lower() in _WORDS:
        return _WORDS[text.lower()], {}
    try:
        found = {
            f"{topic}-{int(number)}": _NUMBERS.get(offset, offset)
            for topic, offsets in json.loads(text).items()
            for number, offset in offsets.items()
        }
    except (ValueError, TypeError, AttributeError, RecursionError):
        found = {}
    if not found or not all(type(offset) is int and 0 <= offset <= _OFFSET_MAX for offset in found.values()):
        example = 'earliest, latest, or offsets (-2: earliest, -1: latest), such as {"orders": {"0": 23}}'
        raise refused(name, f"is {example}; not {text[:200]!r}")
    return _WORDS[default], found
