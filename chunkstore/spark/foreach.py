"""``foreach_batch(store, ...)``: a stream's sink in a driver that owns the container itself (docs/guide-spark-writing.md).

Promises: as the sink's (``sink``, ``once``): executors write the chunks, and every micro-batch is in the container once. Nobody is asked:
the commit is the store's own. A second frame of one micro-batch under one sink is refused, not taken for a repetition.
Leaves out: Spark Connect, whose driver is another process.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn

from chunkstore.config import Settings
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import InvalidArgument, Unsupported
from chunkstore.registry import open_storage, uuid_at
from chunkstore.spark.chunks_out import Output, WritePlan
from chunkstore.spark.committing import SESSION_TTL_S, Job, StoreDoor, commit_batch
from chunkstore.spark.errors import annotated
from chunkstore.spark.holders import foreach_holder
from chunkstore.spark.mapping import TOLD, telling
from chunkstore.spark.once import Incoming
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
    with closing(open_storage(chosen.path, Settings())) as storage:
        uuid = uuid_at(storage, store.container)

    def commit(frame: DataFrame, batch: int) -> None:
        with annotated(container=store.container, batch=batch):
            commit_frame(frame, batch)

    def commit_frame(frame: DataFrame, batch: int) -> None:
        if type(frame).__module__.startswith("pyspark.sql.connect"):
            raise _elsewhere()
        columns = columns_of(frame.schema, chosen)
        if batch == 0:
            warn_unframed(chosen, columns)
        door = StoreDoor(store, uuid)
        query = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        session_id = door.find_session(foreach_holder(chosen.sink_id or query or ""), SESSION_TTL_S)
        plan = WritePlan(chosen, columns, uuid, session_id)
        rows = frame.mapInArrow(telling(partial(run_task, plan=plan)), TOLD).collect()
        messages = [pickle.loads(row.message) for row in rows]  # noqa: S301  (of our own tasks)
        told, job = job_of(messages)
        incoming, run = incoming_of(told, door, chosen, batch, query)
        brought = _Brought(run, batch, _content_of(job))
        _require_one_frame(incoming, brought)
        commit_batch(door, incoming, run, job._replace(session_id=session_id))
        _LAST[incoming.container, incoming.sink] = brought

    return _Committing(commit)


class _Brought(NamedTuple):
    """A micro-batch that was committed here: of which run of its query, and what its chunks had, by segment, length and CRC32C."""

    run: str
    batch: int
    content: int


_LAST: Final[dict[tuple[bytes, str], _Brought]] = {}
"""The last one of each container and sink, of this process."""


def _content_of(job: Job) -> int:
    found: Counter[tuple[str, int, int]] = Counter()
    for output in chain.from_iterable(job.outputs):
        name, chunks = (output.segment, output.chunks) if isinstance(output, Output) else ("", output.data_chunks)
        found.update((name, chunk.length, chunk.crc32c) for chunk in chunks)
    return hash(frozenset(found.items()))


def _require_one_frame(incoming: Incoming, brought: _Brought) -> None:
    """Raise ``InvalidArgument`` for a second frame of one micro-batch: its number says that it is there, and it would be dropped. Spark
    repeats a micro-batch in another run of its query; whoever repeats it in this one brings the same again."""
    before = _LAST.get((incoming.container, incoming.sink))
    if before is None or before[:2] != brought[:2] or before == brought:
        return
    if brought.run == incoming.query:
        return  # no task knew the run: its query stands for it, which repeats micro-batches
    text = f"sink {incoming.sink!r} has written other rows of micro-batch {incoming.batch} already: where a query writes several"
    raise InvalidArgument(
        f"{text} frames, each needs a foreach_batch with a txnAppId of its own, called once for each micro-batch",
        argument="txnAppId",
    )


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
