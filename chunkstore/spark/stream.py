"""``spark.readStream.format("chunkstore")``: where a stream begins, how far the next batch goes, what is read between two offsets.

Offsets are positions (of segments by id, of topics by offload segment): the same (start, end) is the same rows. What is gone before it
was read is an error, or counted if that is allowed. A rolled-back container and another container's checkpoint are always errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from chunkstore import runtime
from chunkstore.engine.replica import Replica
from chunkstore.errors import ChunkstoreError, Conflict, RolledBack, Unsupported
from chunkstore.following import open_replica
from chunkstore.spark.batches import read_partition
from chunkstore.spark.errors import annotated
from chunkstore.spark.options import ReadOptions
from chunkstore.spark.positions import Limit, StreamOffset
from chunkstore.spark.stream_segments import SegmentFollower
from chunkstore.spark.stream_topics import TopicFollower

if TYPE_CHECKING:
    import pyarrow as pa

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # before 4.2
    HAS_LIMITS = False
else:
    HAS_LIMITS = True

__all__ = ["HAS_LIMITS", "StreamReader", "stream_reader"]

_IDLE_S: Final = 0.02
_IDLE_REMOTE_S: Final = 1.0
"""Spark asks again at once where there is nothing new; so often is the journal looked at then."""


class StreamReader(DataSourceStreamReader):
    """Plans in the driver's planning process, one call at a time; reads on executors. Plain data until it is asked for something."""

    def __init__(self, options: ReadOptions, columns: Sequence[tuple[str, bool]]) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._open: Replica | None = None
        self._follower = TopicFollower(options) if options.reads_topics else SegmentFollower(options)
        self._frozen = False
        self._latest: StreamOffset | None = None
        self._quiet: tuple[int, dict[str, Any]] | None = None
        """Up to which record of history there was nothing new after an offset."""
        self._initial: dict[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Where a new query begins. Raises ``SegmentNotFound``, ``SegmentTruncated``, ``BadOffset``, and as ``open_replica``.

        Spark keeps this nowhere: it asks again when it plans the first batch, and after a kill when it plans that anew."""
        with self._working() as replica:
            replica.refresh()
            self._latest = _stamped(self._follower.initial(replica), replica)
            self._initial = self._latest.to_json()
            return self._initial

    def latestOffset(self, start: dict[str, Any] | None = None, limit: object = None) -> dict[str, Any]:
        """How far the next batch goes, from ``start`` (None: from where the last one ended); ``start`` itself where nothing is new.

        Before Spark 4.2 there are no arguments. Raises ``Conflict`` (another container), ``RolledBack``, ``SegmentTruncated`` and
        ``SegmentNotFound`` (data loss), ``InvalidArgument`` (a line is too long), and as ``Replica.refresh``.
        """
        most = Limit()  # what Spark asks for goes before the options: all that is there is all
        if limit is not None and not isinstance(limit, ReadAllAvailable):
            most = Limit(
                limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._options.trigger_bytes,
                limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.trigger_rows,
            )
        with self._working() as replica:
            replica.refresh()
            before = self._latest if start is None else self._decoded(replica, start)
            if before is None:  # before Spark 4.2: a new query; one that goes on plans (end, end) first
                before = self._decoded(replica, self.initialOffset())
            same = before.to_json()
            if self._quiet != (replica.lsn, same):
                quiet_lsn = replica.lsn
                end = self._follower.advance(replica, before, most)
                if not before.lsn or end.positions != before.positions:
                    first = end.beginning_at(before) if same == self._initial else end
                    self._latest = _stamped(first, replica)
                    return self._latest.to_json()
                self._quiet = quiet_lsn, same
            if not self._frozen:
                runtime.sleep_s(_IDLE_REMOTE_S if replica.storage.capabilities.remote else _IDLE_S)
            return same

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """What is read between two offsets: the same rows each time. Raises as ``latestOffset``, and as ``plan_ranges``."""
        with self._working() as replica:
            first, last = self._decoded(replica, start), self._decoded(replica, end)
            if start == self._initial:
                first = first.began(last)
            self._latest = last
            return list(map(InputPartition, self._follower.tasks(replica, first, last)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task as Arrow batches. Raises as ``read_task``."""
        return read_partition(partition, self._columns)

    def stop(self) -> None:
        """Release everything. Raises nothing. Safe to repeat."""
        held, self._open, self._quiet = self._open, None, None
        self._follower.forget()
        if held is not None:
            held.close()

    @contextmanager
    def _working(self) -> Iterator[Replica]:
        """The replica, opened if it is not; after an error the next call opens it anew."""
        options = self._options
        with annotated(container=options.container):
            try:
                if self._open is None:
                    self._open = open_replica(options.path, container=options.container, settings=options.settings)
                yield self._open
            except ChunkstoreError:
                self.stop()
                raise

    def _decoded(self, replica: Replica, given: dict[str, Any]) -> StreamOffset:
        """An offset of this container, on the history that is there."""
        offset = StreamOffset.from_json(given)
        if offset.container != replica.uuid.hex():
            raise Conflict("the container of the checkpoint", expected=offset.container, found=replica.uuid.hex())
        if replica.lsn < offset.lsn:
            replica.refresh()
        if not replica.passes(offset.epoch, offset.lsn):
            raise RolledBack(
                f"the checkpoint has seen record {offset.lsn} of epoch {offset.epoch}, which is not in the history of container "
                f"{replica.container!r} (any more), perhaps after a restore. Begin with a new checkpoint",
                object="offset in the checkpoint",
                lsn_seen=offset.lsn,
                lsn_now=replica.lsn,
            )
        return offset


def _stamped(offset: StreamOffset, replica: Replica) -> StreamOffset:
    """With a point of history that has all of it."""
    return offset._replace(container=replica.uuid.hex(), epoch=replica.epoch, lsn=replica.lsn)


if HAS_LIMITS:

    class LimitedStreamReader(StreamReader, SupportsTriggerAvailableNow):
        """With what Spark 4.2 brought."""

        def getDefaultReadLimit(self) -> ReadLimit:
            """The limit of the options; with both, ``latestOffset`` heeds the other one, too."""
            size_bytes, rows = self._options.trigger_bytes, self._options.trigger_rows
            if size_bytes is not None:
                return ReadMaxBytes(size_bytes)
            return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

        def reportLatestOffset(self) -> dict[str, Any]:
            """What is there, for the progress report: what a batch without limits would reach. Raises as ``latestOffset``."""
            with self._working() as replica:
                return _stamped(self._follower.ends(replica), replica).to_json()

        def prepareForTriggerAvailableNow(self) -> None:
            """Go no further than what is there now. Raises as ``Replica.refresh``."""
            with self._working() as replica:
                replica.refresh()
                self._follower.freeze(replica)
                self._frozen = True


def stream_reader(options: ReadOptions, columns: Sequence[tuple[str, bool]]) -> StreamReader:
    """The reader that this version of Spark can use. Raises ``Unsupported``: it cannot do what the options ask for."""
    with annotated(container=options.container):
        if HAS_LIMITS:
            return LimitedStreamReader(options, columns)
        asked = {"maxBytesPerTrigger": options.trigger_bytes, "maxOffsetsPerTrigger": options.trigger_rows}
        for name, value in asked.items():
            if value is not None:
                raise Unsupported(f"option {name!r} needs Spark 4.2 or newer", feature=name)
        return StreamReader(options, columns)
