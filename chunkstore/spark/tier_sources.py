"""The formats of Spark that read a tier without a broker: "pulsar-offload" and "kafka-tiered"."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructField, StructType

from chunkstore.errors import InvalidArgument
from chunkstore.spark.errors import annotated
from chunkstore.spark.kafka_runs import TieredOptions, parse_tiered_options
from chunkstore.spark.mapping import arrow_schema
from chunkstore.spark.options import unknown_name
from chunkstore.spark.pulsar_runs import OffloadOptions, parse_offload_options

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["KafkaTieredSource", "PulsarOffloadSource"]


class _TierSource(DataSource):
    """Spark loads it for every user, so it imports nothing more, and opens nothing, before it is used."""

    _name: ClassVar[str]

    @abstractmethod
    def _parsed(self) -> Any:
        """The options; ``columns`` of them may be None."""

    @abstractmethod
    def _every(self, options: Any) -> pa.Schema:
        """Every column that a read can give."""

    @abstractmethod
    def _plan(self, options: Any, schema: pa.Schema) -> DataSourceReader:
        """A reader of these columns."""

    @classmethod
    def name(cls) -> str:
        return cls._name

    def schema(self) -> StructType:
        """The columns that the options ask for. Raises ``InvalidArgument``, ``Unsupported``."""
        with annotated():
            options = self._parsed()
            known = self._known(options)
            return StructType([_column(known, name) for name in options.columns or known.names])

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of the columns in ``schema``, which may be the user's own. Raises as ``plan_runs`` of the format."""
        with annotated():
            options = self._parsed()
            known = self._known(options)
            for field in schema.fields:
                if _column(known, field.name).dataType != field.dataType:
                    kind = known[field.name].dataType.simpleString()
                    raise InvalidArgument(f"column {field.name} is of type {kind}", argument="schema")
            return self._plan(options, arrow_schema(schema))

    def _known(self, options: Any) -> StructType:
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(self._every(options)).toNullable()


class PulsarOffloadSource(_TierSource):
    """``spark.read.format("pulsar-offload")``; Spark finds it by itself in the package ``pyspark_pulsar_offload``."""

    _name = "pulsar-offload"

    def _parsed(self) -> OffloadOptions:
        return parse_offload_options(self.options)

    def _every(self, options: OffloadOptions) -> pa.Schema:
        import pyarrow as pa

        if options.messages:
            from chunkstore.codec.pulsar.message_batches import MESSAGE_SCHEMA

            own = MESSAGE_SCHEMA
        else:
            from chunkstore.codec.pulsar.arrow import SCHEMA

            own = SCHEMA
        return pa.schema([pa.field("topic", pa.string()), *own])

    def _plan(self, options: OffloadOptions, schema: pa.Schema) -> DataSourceReader:
        from chunkstore.spark.pulsar_runs import plan_runs

        return plan_runs(options, schema)


class KafkaTieredSource(_TierSource):
    """``spark.read.format("kafka-tiered")``; Spark finds it by itself in the package ``pyspark_kafka_tiered``."""

    _name = "kafka-tiered"

    def _parsed(self) -> TieredOptions:
        return parse_tiered_options(self.options)

    def _every(self, options: TieredOptions) -> pa.Schema:
        from chunkstore.codec.kafka.record_batches import RECORD_SCHEMA

        return RECORD_SCHEMA

    def _plan(self, options: TieredOptions, schema: pa.Schema) -> DataSourceReader:
        from chunkstore.spark.kafka_runs import plan_runs

        return plan_runs(options, schema)


def _column(known: StructType, name: str) -> StructField:
    if name not in known.names:
        raise InvalidArgument(unknown_name("column", name, known.names), argument="columns")
    return known[name]
