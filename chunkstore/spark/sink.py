"""Writing with Spark: ``df.write``, ``writeStream`` and ``foreach_batch``, over ``chunks_out``, ``committing`` and ``owners``.

Executors write chunks; the driver commits them, each micro-batch and each version of a batch write once."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator, Mapping, Sequence
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
from chunkstore.spark.chunks_out import Content, Offloaded, Output, WritePlan, write_task
from chunkstore.spark.committing import Job, MicroBatch, Version, commit, row_of, session_of, was_done
from chunkstore.spark.errors import annotated
from chunkstore.spark.owners import START_S, OwnerClient, batch_holder, foreach_holder, is_shared, stream_holder
from chunkstore.spark.write_options import Columns, WriteOptions, check_columns, parse_write_options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

__all__ = ["BatchWriter", "ForeachBatch", "Message", "StreamWriter"]

_LOG: Final = logging.getLogger("chunkstore.spark")
_GIVING_UP_S: Final = 30.0


@dataclass
class Message(WriterCommitMessage):
    """What a task tells the driver. ``query``, ``run``: of the micro-batch, as Spark names them; none in a batch write."""

    container_uuid: bytes
    session_id: int
    outputs: tuple[Output | Offloaded | Content, ...] = ()
    query: str | None = None
    run: str = ""


def _run_task(batches: Iterator[pa.RecordBatch], plan: WritePlan) -> Message:
    """On an executor: write a task's rows. Raises as ``write_task``."""
    context = TaskContext.get()
    if context is None:
        raise InvalidArgument("chunks are written by tasks of Spark, and this is none", argument="batches")
    outputs = tuple(write_task(batches, plan, context.taskAttemptId()))
    query = context.getLocalProperty("sql.streaming.queryId")
    run = context.getLocalProperty("spark.jobGroup.id") or ""
    return Message(plan.container_uuid, plan.session_id, outputs, query, run)


def _columns_of(schema: StructType, options: WriteOptions, *, warn: bool) -> Columns:
    """Check a frame's columns; ``warn``: say what ``framing=none`` means. Raises ``InvalidArgument``."""
    columns = check_columns([(field.name, field.dataType.simpleString()) for field in schema.fields], options)
    if warn and not options.lines and not columns.ledgers:
        _LOG.warning(
            "framing=none concatenates values, and they cannot be separated again; framing=lines ends each with a newline"
        )
    return columns


def _received(messages: Sequence[object], owner: Owner) -> list[Message]:
    """What the tasks tell. Raises ``Conflict`` where they belong to different sessions, or to a container that is not there any more."""
    received = [message for message in messages if isinstance(message, Message)]
    sessions = {(message.container_uuid, message.session_id) for message in received}
    if len(sessions) > 1:
        remedy = "the job was planned twice; run it again"
        raise Conflict("sessions of the tasks of one job", expected=1, found=len(sessions), remedy=remedy)
    for uuid, _ in sessions:
        if uuid != owner.uuid:
            what = "the container that the tasks have written to"
            remedy = "it was deleted or restored during the write; run it again"
            raise Conflict(what, expected=uuid.hex(), found=owner.uuid.hex(), remedy=remedy)
    return received


def _job(session_id: int, received: Sequence[Message], *, shared: bool = False) -> Job:
    return Job(session_id, tuple(message.outputs for message in received), shared)


def _micro_batch(
    received: Sequence[Message], owner: Owner, options: WriteOptions, batch: int, query: str | None = None
) -> MicroBatch:
    """Which one this is. ``query``: as the driver knows it, where it does. Raises ``Unsupported`` where no task knows it."""
    query = query or next((message.query for message in received if message.query), None)
    if query is None and options.sink_id is not None:
        entry = row_of(owner.state(), sink_key(STREAM, options.sink_id.encode()))
        query = "" if entry is None else decode_sink(entry.key, entry.value).query
    if query is None:
        raise Unsupported(
            "no task reported the query's id; give option txnAppId", feature="a micro-batch without tasks"
        )
    run = next((message.run for message in received if message.run), query)
    return MicroBatch(options.sink_id or query, query, batch, owner.uuid, run)


class BatchWriter(DataSourceArrowWriter):
    """Of one ``df.write``: made in the driver's planner, which opens the session; plain data, so that it can be pickled."""

    def __init__(self, given: dict[str, str], schema: StructType, *, overwrite: bool) -> None:
        with annotated():
            _refuse_overwriting(overwrite=overwrite)
            self._options = options = parse_write_options(given, streaming=False)
            columns = _columns_of(schema, options, warn=True)
            with OwnerClient(options, claims=True) as owner:
                version = Version(options.application, options.version, owner.uuid)
                self._was_done = was_done(owner, version)
                self._is_older = self._was_done and was_done(owner, version._replace(version=options.version + 1))
                session_id = 0 if self._was_done else session_of(owner, batch_holder(options))
                self._plan = WritePlan(options, columns, owner.uuid, session_id)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """One task. Raises as ``write_task``. Rows of the version that was written last are read again, those of older ones are not."""
        if self._is_older:
            return Message(self._plan.container_uuid, self._plan.session_id)
        return _run_task(iterator, self._plan)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit all of it, once. Raises as ``commit``; then Spark calls ``abort``."""
        chosen = self._options
        if self._was_done:
            _LOG.info("txnVersion %d of %r was written before: nothing to write", chosen.version, chosen.application)
        if self._is_older:
            return
        with annotated(container=chosen.container), OwnerClient(chosen, claims=True) as owner:
            session_id = self._plan.session_id
            number = session_id if chosen.application is None else chosen.version
            job = _job(session_id, _received(messages, owner))
            commit(owner, Version(chosen.application, number, owner.uuid), job)

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
            columns = _columns_of(schema, options, warn=False)
            with OwnerClient(options, claims=False, wait_s=START_S) as owner:
                owner.require_owner()
                session_id = session_of(owner, stream_holder(options))
                self._plan = WritePlan(options, columns, owner.uuid, session_id)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """One task. Raises as ``write_task``."""
        return _run_task(iterator, self._plan)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  (Spark's name)
        """Commit the micro-batch, once. Raises as ``commit``; then the query ends, and goes on when it is started again."""
        with (
            annotated(container=self._options.container, batch=batchId),
            OwnerClient(self._options, claims=False) as owner,
        ):
            received = _received(messages, owner)
            session_id = received[0].session_id if received else self._plan.session_id
            job = _job(session_id, received, shared=is_shared(self._options))
            commit(owner, _micro_batch(received, owner, self._options, batchId), job)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  (Spark's name)
        """Nothing: the micro-batch may be committed yet, or comes again; what no one commits the sweep takes."""


def _refuse_overwriting(*, overwrite: bool) -> None:
    if overwrite:
        text = "segments are appended to: use mode('append') or outputMode('append'); delete or truncate segments with chunkstore first"
        raise Unsupported(text, feature="overwrite")


class ForeachBatch:
    """See ``chunkstore.spark.foreach_batch``. Spark calls it with each micro-batch, in the process that has the store."""

    def __init__(self, store: ChunkedSegmentStorage, options: Mapping[str, object]) -> None:
        if "container" in options:
            raise Unsupported("foreach_batch takes no option 'container'; the store has one", feature="container")
        given = {name: str(value) for name, value in options.items()} | {"container": store.container}
        self._store = store
        self._options = parse_write_options({"path": store.url, **given}, streaming=True)

    def __call__(self, frame: DataFrame, batch: int) -> None:
        store, options = self._store, self._options
        with annotated(container=store.container, batch=batch):
            if type(frame).__module__.startswith("pyspark.sql.connect"):
                raise _elsewhere()
            columns = _columns_of(frame.schema, options, warn=batch == 0)
            query = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
            session_id = session_of(store, foreach_holder(options.sink_id or query or ""))
            plan = WritePlan(options, columns, store.uuid, session_id)
            rows = frame.mapInArrow(partial(_tell, plan), "message binary").collect()
            received = _received([pickle.loads(row.message) for row in rows], store)  # noqa: S301  (of our own tasks)
            commit(store, _micro_batch(received, store, options, batch, query), _job(session_id, received))

    def __reduce__(self) -> NoReturn:
        raise _elsewhere()  # Spark Connect would send it to another process


def _tell(plan: WritePlan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """On an executor: the task's message is its one row."""
    import pyarrow as pa

    message = pickle.dumps(_run_task(batches, plan))
    yield pa.record_batch([pa.array([message], pa.binary())], names=["message"])


def _elsewhere() -> Unsupported:
    text = "foreach_batch needs the driver's own process; through Spark Connect use writeStream.format('chunkstore')"
    return Unsupported(text, feature="Spark Connect")
