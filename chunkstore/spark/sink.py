"""Writing with Spark: ``df.write``, ``writeStream`` and ``foreach_batch``, over ``chunks_out``, ``committing`` and ``owners``.

Executors write chunks; the driver commits them, each micro-batch and each version of a batch write once."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from chunkstore.engine.owner import Owner, end_session
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import ChunkstoreError, Conflict, InvalidArgument, Unsupported
from chunkstore.metadata.reserved import STREAM, decode_sink, sink_key
from chunkstore.spark.chunks_out import Offloaded, Output, WritePlan, write_task
from chunkstore.spark.committing import Job, commit_batch, commit_job, row_of, session_of, was_done
from chunkstore.spark.errors import annotated
from chunkstore.spark.mapping import TOLD, telling
from chunkstore.spark.once import Content, Incoming
from chunkstore.spark.owners import START_S, OwnerClient, batch_holder, foreach_holder, is_shared, stream_holder
from chunkstore.spark.write_options import Columns, WriteOptions, check_columns, parse_write_options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

__all__ = [
    "BatchWriter",
    "Message",
    "StreamWriter",
    "columns_of",
    "committing_to",
    "incoming_of",
    "job_of",
    "run_task",
    "warn_unframed",
]

_LOG: Final = logging.getLogger("chunkstore.spark")
_GIVING_UP_S: Final = 30.0


@dataclass
class Message(WriterCommitMessage):
    """What a task tells the driver. ``query``, ``run``, ``batch``: of the micro-batch, as Spark names them; None in a batch write."""

    container_uuid: bytes
    session_id: int
    outputs: tuple[Output | Offloaded | Content, ...] = ()
    query: str | None = None
    run: str = ""
    batch: int | None = None


def run_task(batches: Iterator[pa.RecordBatch], plan: WritePlan) -> Message:
    """On an executor: write a task's rows. Raises as ``write_task``."""
    context = TaskContext.get()
    if context is None:
        raise InvalidArgument("chunks are written by tasks of Spark, and this is none", argument="batches")
    batch = context.getLocalProperty("streaming.sql.batchId")
    query = context.getLocalProperty("sql.streaming.queryId")
    run = context.getLocalProperty("spark.jobGroup.id") or ""
    outputs = tuple(write_task(batches, plan, context.taskAttemptId()))
    number = None if batch is None else int(batch)
    return Message(plan.container_uuid, plan.session_id, outputs, query, run, number)


def columns_of(schema: StructType, options: WriteOptions) -> Columns:
    """Check a frame's columns. Raises ``InvalidArgument``."""
    return check_columns([(field.name, field.dataType.simpleString()) for field in schema.fields], options)


def warn_unframed(options: WriteOptions, columns: Columns) -> None:
    """Say what ``framing=none`` means."""
    if not options.lines and not columns.ledgers:
        _LOG.warning(
            "framing=none concatenates values, and they cannot be separated again; framing=lines ends each with a newline"
        )


def job_of(messages: Sequence[object]) -> tuple[list[Message], Job]:
    """What the tasks have written. Raises ``Conflict`` where they belong to different sessions."""
    received = [message for message in messages if isinstance(message, Message)]
    sessions = {(message.container_uuid, message.session_id) for message in received}
    if len(sessions) > 1:
        remedy = "the job was planned twice; run it again"
        raise Conflict("sessions of the tasks of one job", expected=1, found=len(sessions), remedy=remedy)
    session_id = received[0].session_id if received else 0
    outputs = tuple(message.outputs for message in received)
    return received, Job(session_id, outputs)


def incoming_of(
    received: Sequence[Message], owner: Owner, options: WriteOptions, batch: int, query: str | None = None
) -> tuple[Incoming, str]:
    """Which micro-batch this is, and the run of its query. Raises ``Unsupported`` where no task knows it.

    ``query``: as the driver knows it, where it does."""
    query = query or next((message.query for message in received if message.query), None)
    if query is None and options.sink_id is not None:
        entry = row_of(owner.state(), sink_key(STREAM, options.sink_id.encode()))
        query = "" if entry is None else decode_sink(entry.key, entry.value).query
    if query is None:
        raise Unsupported(
            "no task reported the query's id; give option txnAppId", feature="a micro-batch without tasks"
        )
    run = next((message.run for message in received if message.run), query)
    return Incoming(options.sink_id or query, query, batch, owner.uuid), run


def _require_container(received: Sequence[Message], owner: Owner) -> None:
    """Raise ``Conflict`` where the container that was planned for is not the one that is there now."""
    for message in received:
        if message.container_uuid != owner.uuid:
            what, remedy = (
                "the container that the tasks have written to",
                "it was deleted or restored during the write; run it again",
            )
            raise Conflict(what, expected=message.container_uuid.hex(), found=owner.uuid.hex(), remedy=remedy)


class BatchWriter(DataSourceArrowWriter):
    """Of one ``df.write``: made in the driver's planner, which opens the session; plain data, so that it can be pickled."""

    def __init__(self, given: dict[str, str], schema: StructType, *, overwrite: bool) -> None:
        with annotated():
            _refuse_overwriting(overwrite=overwrite)
            self._options = options = parse_write_options(given, streaming=False)
            columns = columns_of(schema, options)
            warn_unframed(options, columns)
            with OwnerClient(options, claims=True) as owner:
                self._was_done = was_done(owner, options.application, options.version)
                self._is_older = self._was_done and was_done(owner, options.application, options.version + 1)
                session_id = 0 if self._was_done else session_of(owner, batch_holder(options))
                self._plan = WritePlan(options, columns, owner.uuid, session_id)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """One task. Raises as ``write_task``. Rows of the version that was written last are read again, those of older ones are not."""
        if self._is_older:
            return Message(self._plan.container_uuid, self._plan.session_id)
        return run_task(iterator, self._plan)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit all of it, once. Raises as ``commit_job``; then Spark calls ``abort``."""
        chosen = self._options
        if self._was_done:
            _LOG.info("txnVersion %d of %r was written before: nothing to write", chosen.version, chosen.application)
        if self._is_older:
            return
        with annotated(container=chosen.container), OwnerClient(chosen, claims=True) as owner:
            received, job = job_of(messages)
            _require_container(received, owner)
            job = job._replace(session_id=self._plan.session_id)
            commit_job(owner, chosen.application, chosen.version, job)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """End the session, so that nothing of it can be attached any more; deletes nothing. Raises nothing of ours: that is said."""
        if self._was_done:
            return
        try:
            with OwnerClient(self._options, claims=True, wait_s=_GIVING_UP_S) as owner:
                if owner.uuid == self._plan.container_uuid and not end_session(owner, self._plan.session_id):
                    _LOG.warning(
                        "the write failed, but its session has ended: unless it was withdrawn before, its rows are stored"
                    )
        except ChunkstoreError as error:
            _LOG.warning("session %d of a write that failed could not be ended: %s", self._plan.session_id, error)


class StreamWriter(DataSourceStreamArrowWriter):
    """Of one micro-batch. Made twice, so it finds the query's session, or opens one."""

    def __init__(self, given: dict[str, str], schema: StructType, *, overwrite: bool) -> None:
        with annotated():
            _refuse_overwriting(overwrite=overwrite)
            self._options = options = parse_write_options(given, streaming=True)
            columns = columns_of(schema, options)
            with OwnerClient(options, claims=False, wait_s=START_S) as owner:
                owner.require_owner()
                session_id = session_of(owner, stream_holder(options))
                self._plan = WritePlan(options, columns, owner.uuid, session_id)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """One task. Raises as ``write_task``."""
        return run_task(iterator, self._plan)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  (Spark's name)
        """Commit the micro-batch, once. Raises as ``commit_batch``; then the query ends, and goes on when it is started again."""
        with (
            annotated(container=self._options.container, batch=batchId),
            OwnerClient(self._options, claims=False) as owner,
        ):
            if batchId == 0:
                warn_unframed(self._options, self._plan.columns)
            received, job = job_of(messages)
            job = job._replace(shared=is_shared(self._options))
            _require_container(received, owner)
            incoming, run = incoming_of(received, owner, self._options, batchId)
            if not received:
                job = job._replace(session_id=self._plan.session_id)
            commit_batch(owner, incoming, run, job)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  (Spark's name)
        """Nothing: the micro-batch may be committed yet, or comes again; what no one commits the sweep takes."""


def _refuse_overwriting(*, overwrite: bool) -> None:
    if overwrite:
        text = "segments are appended to: use mode('append') or outputMode('append'); delete or truncate segments with chunkstore first"
        raise Unsupported(text, feature="overwrite")


def committing_to(store: ChunkedSegmentStorage, options: Mapping[str, object]) -> Callable[[DataFrame, int], None]:
    """See ``chunkstore.spark.foreach_batch``."""
    from chunkstore.spark.sink import columns_of, incoming_of, job_of, run_task, warn_unframed

    if "container" in options:
        raise Unsupported("foreach_batch takes no option 'container'; the store has one", feature="container")
    given = {"path": store.url, **{name: str(value) for name, value in options.items()}, "container": store.container}
    chosen = parse_write_options(given, streaming=True)

    def commit(frame: DataFrame, batch: int) -> None:
        with annotated(container=store.container, batch=batch):
            commit_frame(frame, batch)

    def commit_frame(frame: DataFrame, batch: int) -> None:
        if type(frame).__module__.startswith("pyspark.sql.connect"):
            raise _elsewhere()
        columns = columns_of(frame.schema, chosen)
        if batch == 0:
            warn_unframed(chosen, columns)
        query = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        session_id = session_of(store, foreach_holder(chosen.sink_id or query or ""))
        plan = WritePlan(chosen, columns, store.uuid, session_id)
        rows = frame.mapInArrow(telling(partial(run_task, plan=plan)), TOLD).collect()
        messages = [pickle.loads(row.message) for row in rows]  # noqa: S301  (of our own tasks)
        received, job = job_of(messages)
        incoming, run = incoming_of(received, store, chosen, batch, query)
        commit_batch(store, incoming, run, job._replace(session_id=session_id))

    return _Committing(commit)


def _elsewhere() -> Unsupported:
    text = "foreach_batch needs the driver's own process; through Spark Connect use writeStream.format('chunkstore')"
    return Unsupported(text, feature="Spark Connect")


class _Committing:
    """What Spark calls with each micro-batch, in the process that has the store. Spark Connect would send it to another."""

    def __init__(self, commit: Callable[[DataFrame, int], None]) -> None:
        self._commit = commit

    def __call__(self, frame: DataFrame, batch: int) -> None:
        self._commit(frame, batch)

    def __reduce__(self) -> NoReturn:
        raise _elsewhere()
