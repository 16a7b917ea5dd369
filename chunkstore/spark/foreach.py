"""``foreach_batch(store, ...)``: a stream's sink in a driver that owns the container itself (docs/guide-spark-writing.md).

Promises: as the sink's (``sink``, ``once``): executors write the chunks, and every micro-batch is in the container once. Nobody is asked:
the commit is the store's own. A second frame of one micro-batch under one sink is refused, not taken for a repetition.
Leaves out: Spark Connect, whose driver is another process.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import Unsupported
from chunkstore.spark.chunks_out import WritePlan
from chunkstore.spark.committing import commit_batch, session_of
from chunkstore.spark.errors import annotated
from chunkstore.spark.holders import foreach_holder
from chunkstore.spark.mapping import TOLD, telling
from chunkstore.spark.write_options import parse_write_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["committing_to"]


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
        told, job = job_of(messages)
        incoming, run = incoming_of(told, store, chosen, batch, query)
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
