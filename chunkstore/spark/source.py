"""The format "chunkstore" of Spark: its schema, planner and reader, as Spark's Python data source API wants them.

Planning opens one replica, which never claims; executors open the chunk storage and nothing else."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from chunkstore.errors import InvalidArgument
from chunkstore.following import open_replica
from chunkstore.spark.columns import arrow_columns
from chunkstore.spark.errors import annotated
from chunkstore.spark.mapping import Mapped, check_schema, spark_schema
from chunkstore.spark.options import ReadOptions, parse_options
from chunkstore.spark.plan import plan_read

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["DefaultSource", "Reader"]


class DefaultSource(DataSource):
    """``spark.read.format("chunkstore")``; Spark finds it by itself in the package ``pyspark_chunkstore``."""

    @classmethod
    def name(cls) -> str:
        return "chunkstore"

    def schema(self) -> StructType:
        """The columns that the options ask for. Raises ``InvalidArgument``, ``Unsupported``."""
        with annotated():
            options = parse_options(self.options, stream=None)
            known = _known_columns(options)
            return StructType([known[name] for name in options.columns])

    def reader(self, schema: StructType) -> Reader:
        """A reader of the columns in ``schema``, which may be the user's own. Raises ``InvalidArgument``, ``Unsupported``."""
        with annotated():
            options = parse_options(self.options)
            if options.function is None:
                return Reader(*self._wanted(options, schema))
            return Reader(*self._wanted(options, self.schema()), Mapped(options.function, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """As ``reader``, for a stream."""
        from chunkstore.spark.stream import stream_reader

        with annotated():
            return stream_reader(*self._wanted(parse_options(self.options, stream=True), schema))

    def _wanted(self, options: ReadOptions, schema: StructType) -> tuple[ReadOptions, list[tuple[str, bool]]]:
        """The columns that tasks read for this schema; the options name them, too."""
        names = tuple(schema.names)
        if not names or len(set(names)) < len(names):
            raise InvalidArgument("a schema names at least one column, and none twice", argument="schema")
        if "columns" in {key.lower() for key in self.options} and names != options.columns:
            raise InvalidArgument(
                f"option 'columns' asks for {', '.join(options.columns)}, the schema for {', '.join(names)}",
                argument="columns",
            )
        check_schema(schema, _known_columns(options))
        columns = [(field.name, field.nullable) for field in schema.fields]
        return replace(options, columns=names), columns

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A writer of a batch. Raises ``InvalidArgument``, ``Unsupported`` and what asking the owner raises."""
        from chunkstore.spark.sink import BatchWriter

        return BatchWriter(dict(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """A writer of one micro-batch. Raises as ``writer``."""
        from chunkstore.spark.sink import StreamWriter

        return StreamWriter(dict(self.options), schema, overwrite=overwrite)


def _known_columns(options: ReadOptions) -> StructType:
    """What a read can give, as far as the options know."""
    return spark_schema(arrow_columns(options.known_columns))


class Reader(DataSourceReader):
    """Plans in the driver, reads on executors; plain data, so that it can be pickled."""

    def __init__(self, options: ReadOptions, columns: Sequence[tuple[str, bool]], mapped: Mapped | None = None) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._mapped = mapped

    def partitions(self) -> Sequence[InputPartition]:
        """One snapshot's worth of tasks. Raises as ``plan_read``, ``plan_table`` and ``chunkstore.open_replica``."""
        options = self._options
        with (
            annotated(container=options.container),
            open_replica(
                options.path,
                container=options.container,
                settings=options.settings,
                at_lsn=options.as_of_lsn,
                at_time=options.as_of_ms,
            ) as replica,
        ):
            if text := replica.why_short:
                warnings.warn(f"container {options.container!r}: {text}", stacklevel=2)
            if options.metadata is not None:
                from chunkstore.spark.tables import plan_table  # others do not pay for it

                return list(map(InputPartition, plan_table(replica, options)))
            return list(map(InputPartition, plan_read(replica, options)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task as Arrow batches. Raises as ``read_partition``."""
        from chunkstore.spark.batches import read_partition  # with pyarrow

        return read_partition(partition, self._columns, self._mapped)
