"""``to_parquet(spark, ...)``: what is new in a container, as parquet files of a lake (docs/guide-spark.md, decision 0029).

Promises: rows are read, and files written, by the same tasks; only the files' names cross to the JVM. Leaves out: what counts, and where
a run goes on (``lake_runs``); reading (``lake_frame``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from chunkstore.spark.errors import annotated, original_error
from chunkstore.spark.lake_files import FileTask, LakeFile
from chunkstore.spark.lake_runs import LakeJob, new_bytes, parse_job, reader_options, run_job
from chunkstore.spark.lake_tasks import FILES, tell_files
from chunkstore.spark.mapping import map_batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["to_parquet"]

_WRITTEN = "name STRING, bytes LONG, rows LONG"


def to_parquet(
    spark: SparkSession,
    root: str,
    *,
    name: str,
    path: str,
    container: str = "default",
    schema: StructType | str | None = None,
    dry_run: bool = False,
    clean: bool = False,
    **options: object,
) -> DataFrame:
    """Write what is new since the last run as parquet files of the lake ``name``, once; returns a frame of them (``name, bytes, rows``).

    ``root``, ``container``: of which; ``path``: URL below which the files go, into a folder of the lake's name; all machines reach it.
    ``options``: those of ``spark.readStream`` that say what the rows are (``segments`` and its like, ``framing``, ``columns``...), which
    stay the same from run to run; ``failOnDataLoss``, ``minPartitions``, ``maxBytesPerPartition``; ``fileBytes``, of a file, about (128
    MiB, as long as a partition has so many); ``maxBytesPerTrigger`` and ``maxOffsetsPerTrigger``, of a commit (16 GiB); ``takeOver``,
    ``ownerIdleS`` as of a sink. ``schema``: of the values, with ``valueFormat=json``, as option ``valueSchema``. ``dry_run``: writes
    nothing, and returns the segments or topics that have something new, with its bytes. ``clean``: deletes what runs that failed have
    left, afterwards; **not** where a copy of the root that bears the same uuid writes a lake of this name to the same ``path``.

    The first run begins at ``startingOffsets`` (earliest); later ones where the last one ended. What is new is as of the start of the
    run. It is read by the rules of a stream: lines that have ended, whole blocks of topics. This process needs access to ``root`` and
    ``path``, also through Spark Connect.

    Raises ``InvalidArgument``, ``Unsupported`` (options; a root in memory), ``Conflict`` (another run came first; the lake has other
    rows, columns or another place), ``SegmentTruncated``, ``SegmentNotFound`` (gone before it was written), ``RolledBack`` (the lake has
    rows of a history that the container has left), ``Damaged`` (the lake's manifest; files that this machine does not see),
    ``OutcomeUnknown`` (the last commit may have happened, or may yet), and what asking the owner, reading and the storage raise. Atomic
    in each commit, durable. Retry: safe, at any time and from anywhere.
    """
    if schema is not None:
        options["valueSchema"] = _as_json(spark, schema)
    with annotated(container=container, lake=name):
        job = parse_job(root, container, name, path, options)
        columns = _columns(spark, job)
        rows: list[tuple[str, int, int | None]]
        if dry_run:
            rows = [(item, size, None) for item, size in new_bytes(job, columns).items()]
        else:
            files = run_job(job, columns, _Writing(spark, job), clean=clean)
            rows = [(file.name, file.size_bytes, file.rows) for file in files]
    return spark.createDataFrame(rows, _WRITTEN)


def _as_json(spark: SparkSession, schema: StructType | str) -> str:
    """A schema as option ``valueSchema`` has it; only a session can read DDL."""
    return str((spark.createDataFrame([], schema).schema if isinstance(schema, str) else schema).json())


def _columns(spark: SparkSession, job: LakeJob) -> str:
    """The columns of the files, as Spark's JSON."""
    with _told():
        frame = spark.read.format("chunkstore").options(**reader_options(job), lakeOffsets="null").load()
        return str(frame.schema.json())


@contextmanager
def _told() -> Iterator[None]:
    """What Spark raises is what was raised behind it, where that is ours."""
    try:
        yield
    except Exception as error:
        cause = original_error(error)
        if cause is None:
            raise
        raise cause from error


class _Writing:
    """A ``lake_runs.Write`` by Spark's tasks."""

    def __init__(self, spark: SparkSession, job: LakeJob) -> None:
        self._spark = spark
        self._options: Mapping[str, str] = reader_options(job)

    def __call__(self, start: dict[str, Any], end: dict[str, Any], task: FileTask) -> list[LakeFile]:
        options: dict[str, object] = {**self._options, "lakeOffsets": json.dumps([start, end])}
        with _told():
            rows = map_batches(self._spark, partial(tell_files, task), FILES, **options).collect()
        return [LakeFile(row.file, row.bytes, row.rows) for row in rows]
