"""Tasks of a job, called on executors with plain data; their results in the order of the tasks. Works through Spark Connect.

An interrupted driver cancels the tasks. A cancelled task may write a second later, so what it writes must be in no commit."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from chunkstore import runtime
from chunkstore.errors import ChunkstoreError, Unsupported
from chunkstore.spark.errors import annotated, original_error

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import TaskContext
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["JobFailed", "OnSpark", "session_on", "this_task"]

T = TypeVar("T")
R = TypeVar("R")

_POLL_S: Final = 0.2
_STOP_S: Final = 30.0
"""How long cancelled tasks are waited for."""


class JobFailed(ChunkstoreError):
    """Spark ended a job for a reason of its own, which is chained: look at its logs, and run the job again."""

    fields: ClassVar[tuple[str, ...]] = ("job",)

    def __init__(self, job: str, reason: str) -> None:
        super().__init__(f"Spark ended the job {job!r}: {reason}")
        self.job = job


class OnSpark:
    """Calls tasks on the executors of a session. ``title``: of the job, as Spark's own pages show it. ``progress``: is told of bytes."""

    def __init__(self, spark: SparkSession, title: str, progress: Callable[[int], object] | None = None) -> None:
        self._spark = spark
        self._remote = _is_remote(spark)
        self._title = title
        self._progress = progress
        self.width: int = 8 if self._remote else max(1, spark.sparkContext.defaultParallelism)
        """About how many tasks run at one time."""

    def __call__(self, call: Callable[[T, int], R], tasks: Sequence[T], sizes: Sequence[int]) -> list[R]:
        """What ``call(task, attempt_id)`` returns for each task, in order. ``sizes``: what each is worth in bytes.

        Raises the ``ChunkstoreError`` that a task raised, else ``JobFailed``. Retry: what the tasks do is what counts."""
        if not tasks:
            return []
        numbers = self._spark.range(0, len(tasks), 1, len(tasks))
        pickled = [pickle.dumps(task) for task in tasks]
        frame = numbers.mapInArrow(_called(call, pickled), "number long, result binary")
        rows = self.collect(frame, sum(sizes), len(tasks))
        found: dict[int, Any] = {row.number: pickle.loads(row.result) for row in rows}  # noqa: S301  (of our own tasks)
        return [found[number] for number in range(len(tasks))]

    def collect(self, frame: DataFrame, total_bytes: int = 0, tasks: int = 1) -> list[Any]:
        """The frame's rows; where the driver is interrupted meanwhile the tasks are cancelled. Raises as a call."""
        from pyspark import inheritable_thread_target

        spark, tag = self._spark, f"chunkstore-{runtime.token(8).hex()}"
        rows: list[Any] = []
        failures: list[BaseException] = []

        def collect() -> None:
            try:
                if self._remote:
                    spark.addTag(tag)
                else:
                    spark.sparkContext.setJobGroup(tag, self._title)
                rows.extend(frame.collect())
            except BaseException as error:  # noqa: BLE001  (the caller raises it)
                failures.append(error)

        inheriting: Any = inheritable_thread_target(spark)
        task = runtime.spawn(inheriting(collect), "chunkstore-spark-job")
        shown_bytes = 0
        try:
            while task.is_alive():
                task.join(_POLL_S)
                if self._progress is not None and not self._remote:
                    done_bytes = total_bytes * min(_tasks_done(spark, tag), tasks) // tasks
                    self._progress(max(0, done_bytes - shown_bytes))
                    shown_bytes = max(shown_bytes, done_bytes)
        except BaseException:
            with suppress(Exception):
                if self._remote:
                    spark.interruptTag(tag)
                else:
                    spark.sparkContext.cancelJobGroup(tag)
            task.join(_STOP_S)
            raise
        for failure in failures:
            reported = original_error(failure)
            if reported is not None:
                raise reported from failure
            if not isinstance(failure, Exception):
                raise failure
            raise JobFailed(self._title, str(failure).strip().partition("\n")[0]) from failure
        if self._progress is not None:
            self._progress(total_bytes - shown_bytes)
        return rows


def _called(
    call: Callable[[T, int], R], pickled: Sequence[bytes]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        task = this_task()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                with annotated(task=number):
                    result = call(pickle.loads(pickled[number]), task.taskAttemptId())  # noqa: S301  (the driver's)
                columns = [pa.array([number], pa.int64()), pa.array([pickle.dumps(result)], pa.binary())]
                yield pa.record_batch(columns, names=["number", "result"])

    return run


def this_task() -> TaskContext:
    """The task that runs in this process of an executor."""
    from pyspark import TaskContext

    from chunkstore.spark.batches import settle_process

    settle_process()
    context = TaskContext.get()
    assert context is not None
    return context


@contextmanager
def session_on(master: str | None) -> Iterator[SparkSession]:
    """A session of Spark for a command: ``master`` as Spark knows it, or ``sc://`` of Spark Connect; None: what Spark is configured to.

    Raises ``Unsupported`` (pyspark or Java is missing)."""
    try:
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError as error:
        text = "jobs on Spark need the extra 'spark': pip install 'chunkstore-engine[spark]'"
        raise Unsupported(text, feature="spark") from error
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else executors take whatever python3 is on PATH
    builder = SparkSession.builder.appName("chunkstore")
    if master is not None:
        builder = builder.remote(master) if master.startswith("sc://") else builder.master(master)
    try:
        spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    except PySparkException as error:
        text = f"Spark does not start (it needs Java 17 or newer): {str(error).partition(chr(10))[0]}"
        raise Unsupported(text, feature="spark") from error
    try:
        if not _is_remote(spark):
            spark.sparkContext.setLogLevel("OFF")
        yield spark
    finally:
        spark.stop()


def _is_remote(spark: SparkSession) -> bool:
    return type(spark).__module__.startswith("pyspark.sql.connect")


def _tasks_done(spark: SparkSession, group: str) -> int:
    tracker = spark.sparkContext.statusTracker()
    jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(group)]
    stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
    return sum(stage.numCompletedTasks for stage in stages if stage is not None)
