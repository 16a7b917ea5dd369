"""Tasks of a job, called on executors with plain data; their results in the order of the tasks. Works through Spark Connect.

An interrupted driver cancels the tasks. A cancelled task may write a second later, so what it writes must be in no commit."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Protocol, TypeVar

from chunkstore import runtime
from chunkstore.errors import ChunkstoreError, Unsupported
from chunkstore.spark.errors import annotated, original_error

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

__all__ = [
    "Attempt",
    "JobFailed",
    "OnSpark",
    "Progress",
    "Runner",
    "grouped",
    "run_frame",
    "session_on",
    "this_attempt",
]

T = TypeVar("T")
R = TypeVar("R")

_POLL_S: Final = 0.2
_STOP_S: Final = 30.0
"""How long cancelled tasks are waited for."""
Progress = Callable[[int], object]


class JobFailed(ChunkstoreError):
    """Spark ended a job for a reason of its own, which is chained: look at its logs, and run the job again."""

    fields: ClassVar[tuple[str, ...]] = ("job",)

    def __init__(self, job: str, reason: str) -> None:
        super().__init__(f"Spark ended the job {job!r}: {reason}")
        self.job = job


class Attempt(NamedTuple):
    """Which call of a task this is. ``id`` differs between all of a Spark application; ``partition``: of the frame that is worked on."""

    id: int
    partition: int = 0


class Runner(Protocol):
    """Calls ``call(task, attempt)`` for each task, somewhere; the results in order. ``sizes``: what each task is worth in bytes."""

    def __call__(self, call: Callable[[T, Attempt], R], tasks: Sequence[T], sizes: Sequence[int]) -> list[R]:
        """Raises what ``call`` raises where that is a ``ChunkstoreError``, else ``JobFailed``."""


class OnSpark:
    """A ``Runner`` on the executors of a session. ``title``: of the job, as Spark's own pages show it."""

    def __init__(self, spark: SparkSession, title: str, progress: Progress | None = None) -> None:
        self._spark = spark
        self._title = title
        self._progress = progress

    @property
    def width(self) -> int:
        """About how many tasks run at one time."""
        if _is_remote(self._spark):
            return 8
        return max(1, self._spark.sparkContext.defaultParallelism)

    def __call__(self, call: Callable[[T, Attempt], R], tasks: Sequence[T], sizes: Sequence[int]) -> list[R]:
        if not tasks:
            return []
        pickled = [pickle.dumps(task) for task in tasks]
        numbers = self._spark.range(0, len(tasks), 1, len(tasks))
        frame = numbers.mapInArrow(_called(call, pickled), "number long, result binary")
        rows = run_frame(frame, self._title, _Meter(self._progress, sum(sizes), len(tasks)))
        found: dict[int, Any] = {row.number: pickle.loads(row.result) for row in rows}  # noqa: S301  (of our own tasks)
        return [found[number] for number in range(len(tasks))]


@dataclass
class _Meter:
    """From tasks that are done to bytes, about; all of them at the end."""

    progress: Progress | None
    total_bytes: int
    tasks: int
    told_bytes: int = 0

    def __call__(self, done: int) -> None:
        due_bytes = self.total_bytes * min(done, self.tasks) // self.tasks
        if self.progress is not None and due_bytes > self.told_bytes:
            self.progress(due_bytes - self.told_bytes)
            self.told_bytes = due_bytes

    def finish(self) -> None:
        self(self.tasks)


def _called(
    call: Callable[[T, Attempt], R], pickled: Sequence[bytes]
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        attempt = this_attempt()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                with annotated(task=number):
                    result = pickle.dumps(call(pickle.loads(pickled[number]), attempt))  # noqa: S301  (the driver's)
                columns = [pa.array([number], pa.int64()), pa.array([result], pa.binary())]
                yield pa.record_batch(columns, names=["number", "result"])

    return run


def this_attempt() -> Attempt:
    """On an executor: that of the task that runs here."""
    from pyspark import TaskContext

    from chunkstore.spark.tasks import settle_process

    settle_process()
    context = TaskContext.get()
    assert context is not None
    return Attempt(context.taskAttemptId(), context.partitionId())


def run_frame(frame: DataFrame, title: str, meter: _Meter | None = None) -> list[Any]:
    """Collect a frame's rows; where the driver is interrupted meanwhile its tasks are cancelled.

    Raises the ``ChunkstoreError`` that a task raised; ``JobFailed``. Retry: what the tasks do is what counts.
    """
    from pyspark import inheritable_thread_target

    spark = frame.sparkSession
    tag = f"chunkstore-{runtime.token(8).hex()}"
    remote = _is_remote(spark)
    rows: list[Any] = []
    failures: list[BaseException] = []

    def collect() -> None:
        try:
            if remote:
                spark.addTag(tag)
            else:
                spark.sparkContext.setJobGroup(tag, title)
            rows.extend(frame.collect())
        except BaseException as error:  # noqa: BLE001  (the caller raises it)
            failures.append(error)

    inheriting: Any = inheritable_thread_target(spark)
    task = runtime.spawn(inheriting(collect), "chunkstore-spark-job")
    try:
        while task.is_alive():
            task.join(_POLL_S)
            if meter is not None and not remote:
                meter(_tasks_done(spark, tag))
    except BaseException:
        with suppress(Exception):
            if remote:
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
        raise JobFailed(title, str(failure).strip().partition("\n")[0]) from failure
    if meter is not None:
        meter.finish()
    return rows


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


def grouped(items: Sequence[T], sizes: Sequence[int], width: int, task_bytes_max: int) -> list[tuple[list[T], int]]:
    """Cut neighbours into tasks of about ``task_bytes_max`` bytes, and of less where there would be fewer than four for each of ``width``
    that run at one time; each with its bytes."""
    least = sum(sizes) // max(1, 4 * width)
    goal = max(1, min(task_bytes_max, least))
    tasks: list[tuple[list[T], int]] = []
    held: list[T] = []
    held_bytes = 0
    for item, size in zip(items, sizes, strict=True):
        held.append(item)
        held_bytes += size
        if held_bytes >= goal:
            tasks.append((held, held_bytes))
            held, held_bytes = [], 0
    return [*tasks, (held, held_bytes)] if held else tasks
