"""``to_parquet(spark, ...)``: what is new in a container, as parquet files of a lake (docs/guide-spark.md, decision 0029).

Promises: rows are read, and files written, by the same tasks; only the files' names cross to the JVM. Leaves out: what counts, and where
a run goes on (``lake_runs``); reading (``lake_frame``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from chunkstore.spark.errors import annotated
from chunkstore.spark.jobs.running import Progress, run_frame
from chunkstore.spark.lake_files import FileTask, LakeFile
from chunkstore.spark.lake_runs import LakeJob, new_bytes, parse_job, reader_options, run_job
from chunkstore.spark.lake_tasks import FILES, tell_files
from chunkstore.spark.mapping import map_batches, schema_json

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["LakeItem", "lake_on", "to_parquet"]

_WRITTEN = "name STRING, bytes LONG, rows LONG"


class LakeItem(NamedTuple):
    """A file that was written; of a dry run a segment or topic, with its new bytes, and ``rows`` None."""

    name: str
    size_bytes: int
    rows: int | None


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
    progress: Progress | None = None,
    **options: object,
) -> DataFrame:
    """Write what is new since the last run as parquet files of the lake ``name``, once; returns a frame of them (``name, bytes, rows``).

    ``root``, ``container``: of which; ``path``: URL below which the files go, into a folder of the lake's name; all machines reach it.
    ``options``: those of ``spark.readStream`` that say what the rows are (``segments`` and its like, ``framing``, ``columns``...), which
    stay the same from run to run; ``failOnDataLoss``, ``minPartitions``, ``maxBytesPerPartition``; ``fileBytes``, of a file, about (128
    MiB, as long as a partition has so many); ``maxBytesPerTrigger`` and ``maxOffsetsPerTrigger``, of a commit (16 GiB); ``takeOver``,
    ``ownerIdleS`` as of a sink. ``schema``: of the values, with ``valueFormat=json``, as option ``valueSchema``: a ``StructType``, its DDL
    or its JSON. ``dry_run``: writes nothing, and returns the segments or topics that have something new, with its bytes. ``clean``: deletes
    what runs that failed have left, afterwards; **not** where a copy of the root that bears the same uuid writes a lake of this name to the
    same ``path``. ``progress``: called with the bytes of each commit's files. Interrupted (Ctrl-C), a run cancels its tasks, and what is
    committed stays.

    The first run begins at ``startingOffsets`` (earliest); later ones where the last one ended. What is new is as of the start of the
    run. It is read by the rules of a stream: lines that have ended, whole blocks of topics. This process needs access to ``root`` and
    ``path``, also through Spark Connect.

    Raises ``InvalidArgument``, ``Unsupported`` (options; a root in memory), ``Conflict`` (another run came first; the lake has other
    rows, columns or another place), ``SegmentTruncated``, ``SegmentNotFound`` (gone before it was written), ``RolledBack`` (the lake has
    rows of a history that the container has left), ``Damaged`` (the lake's manifest; files that this machine does not see),
    ``OutcomeUnknown`` (the last commit may have happened, or may yet), ``JobFailed`` (Spark ended the tasks), and what asking the owner,
    reading and the storage raise. Atomic in each commit, durable. Retry: safe, at any time and from anywhere.
    """
    if schema is not None:
        options["valueSchema"] = schema_json(spark, schema)
    job = parse_job(root, container, name, path, options)
    return spark.createDataFrame(lake_on(None if dry_run else spark, job, clean=clean, progress=progress), _WRITTEN)


def lake_on(
    spark: SparkSession | None, job: LakeJob, *, clean: bool = False, progress: Progress | None = None
) -> list[LakeItem]:
    """``to_parquet`` of a job that was parsed; without ``spark``, its dry run. Raises as that."""
    from chunkstore.spark.source import DefaultSource  # which needs pyspark, though no session

    with annotated(container=job.reader.container, lake=job.name):
        columns = DefaultSource({**reader_options(job), "lakeOffsets": "null"}).schema().json()
        if spark is None:
            return [LakeItem(name, size_bytes, None) for name, size_bytes in new_bytes(job, columns).items()]
        files = run_job(job, columns, _Writing(spark, job, progress), clean=clean)
        return [LakeItem(file.name, file.size_bytes, file.rows) for file in files]


class _Writing:
    """A ``lake_runs.Write`` by Spark's tasks."""

    def __init__(self, spark: SparkSession, job: LakeJob, progress: Progress | None) -> None:
        self._spark = spark
        self._title = f"chunkstore to-parquet {job.name}"
        self._options: Mapping[str, str] = reader_options(job)
        self._progress = progress

    def __call__(self, start: dict[str, Any], end: dict[str, Any], task: FileTask) -> list[LakeFile]:
        options: dict[str, object] = {**self._options, "lakeOffsets": json.dumps([start, end])}
        frame = map_batches(self._spark, partial(tell_files, task), FILES, **options)
        files = [LakeFile(row.file, row.bytes, row.rows) for row in run_frame(frame, self._title)]
        if self._progress is not None:
            self._progress(sum(file.size_bytes for file in files))
        return files
