"""``spark.readStream.format("chunkstore")``: what Spark calls, over ``stream``. Limits need Spark 4.2."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from chunkstore.errors import Unsupported
from chunkstore.spark.errors import annotated
from chunkstore.spark.options import ReadOptions
from chunkstore.spark.stream import Stream
from chunkstore.spark.tasks import Partition, read_partition

if TYPE_CHECKING:
    import pyarrow as pa

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        SupportsTriggerAvailableNow,
    )
except ImportError:  # before 4.2
    HAS_LIMITS = False
else:
    HAS_LIMITS = True

__all__ = ["StreamReader", "stream_reader"]


class StreamReader(DataSourceStreamReader):
    """Plans in the driver's planning process, reads on executors; plain data until it is asked for something."""

    def __init__(self, options: ReadOptions, columns: Sequence[tuple[str, bool]]) -> None:
        self._columns = tuple(columns)
        self._stream = Stream(options)
        self._trigger_bytes = options.trigger_bytes

    def initialOffset(self) -> dict[str, Any]:
        """Raises as ``Stream.initial``."""
        return self._stream.initial()

    def latestOffset(self, start: dict[str, Any] | None = None, limit: object = None) -> dict[str, Any]:
        """Raises as ``Stream.latest``. Before Spark 4.2 there are no arguments."""
        if limit is None or isinstance(limit, ReadAllAvailable):
            size_bytes = None  # what Spark asks for goes before the options: all that is there is all
        else:
            size_bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._trigger_bytes
        return self._stream.latest(start, size_bytes)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Raises as ``Stream.tasks``."""
        return [Partition(task) for task in self._stream.tasks(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task as Arrow batches. Raises as ``read_task``."""
        return read_partition(partition, self._columns)

    def stop(self) -> None:
        """Raises nothing."""
        self._stream.close()


if HAS_LIMITS:

    class LimitedStreamReader(StreamReader, SupportsTriggerAvailableNow):
        """With what Spark 4.2 brought."""

        def getDefaultReadLimit(self) -> ReadLimit:
            """The limit of the options."""
            return ReadAllAvailable() if self._trigger_bytes is None else ReadMaxBytes(self._trigger_bytes)

        def reportLatestOffset(self) -> dict[str, Any]:
            """What is there, for the progress report. Raises as ``Stream.report``."""
            return self._stream.report()

        def prepareForTriggerAvailableNow(self) -> None:
            """Raises as ``Stream.freeze``."""
            self._stream.freeze()


def stream_reader(options: ReadOptions, columns: Sequence[tuple[str, bool]]) -> StreamReader:
    """The reader that this version of Spark can use. Raises ``Unsupported``: it cannot do what the options ask for."""
    with annotated(container=options.container):
        if HAS_LIMITS:
            return LimitedStreamReader(options, columns)
        if options.trigger_bytes is not None:
            raise Unsupported("option 'maxBytesPerTrigger' needs Spark 4.2 or newer", feature="maxBytesPerTrigger")
        return StreamReader(options, columns)
