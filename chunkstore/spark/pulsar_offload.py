"""The format "pulsar-offload" of Spark: the entries or the messages of a Pulsar tier, without a broker and without a container.

Promises: an unknown option or column is refused by name. Errors keep their type and fields (``chunkstore.spark.errors``).
Leaves out: planning and reading (``pulsar_runs``), writing, streams.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructField, StructType

from chunkstore.errors import InvalidArgument
from chunkstore.spark.arrow_schema import arrow_schema
from chunkstore.spark.errors import annotated
from chunkstore.spark.options import unknown_name
from chunkstore.spark.pulsar_plan import OffloadOptions, parse_offload_options

__all__ = ["PulsarOffloadSource"]


class PulsarOffloadSource(DataSource):
    """``spark.read.format("pulsar-offload")``; Spark finds it by itself in the package ``pyspark_pulsar_offload``."""

    @classmethod
    def name(cls) -> str:
        return "pulsar-offload"

    def schema(self) -> StructType:
        """The columns that the options ask for. Raises ``InvalidArgument``, ``Unsupported``."""
        with annotated():
            options = parse_offload_options(self.options)
            known = _known(options)
            return StructType([_column(known, name) for name in options.columns or known.names])

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of the columns in ``schema``, which may be the user's own. Raises as ``PulsarBucket.ledgers``."""
        with annotated():
            options = parse_offload_options(self.options)
            known = _known(options)
            for field in schema.fields:
                if _column(known, field.name).dataType != field.dataType:
                    kind = known[field.name].dataType.simpleString()
                    raise InvalidArgument(f"column {field.name} is of type {kind}", argument="schema")
            from chunkstore.spark.pulsar_runs import plan_runs  # Spark loads this module for every user

            return plan_runs(options, arrow_schema(schema))


def _known(options: OffloadOptions) -> StructType:
    """Every column that a read can give."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import from_arrow_schema

    if options.messages:
        from chunkstore.codec.pulsar.message_batches import MESSAGE_SCHEMA

        own = MESSAGE_SCHEMA
    else:
        from chunkstore.codec.pulsar.arrow import SCHEMA

        own = SCHEMA
    return from_arrow_schema(pa.schema([pa.field("topic", pa.string()), *own]))


def _column(known: StructType, name: str) -> StructField:
    if name not in known.names:
        raise InvalidArgument(unknown_name("column", name, known.names), argument="columns")
    return known[name]
