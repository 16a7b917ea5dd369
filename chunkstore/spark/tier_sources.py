"""The formats of Spark that read a tier without a broker: "pulsar-offload" and "kafka-tiered"."""

from __future__ import annotations

from importlib import import_module
from typing import Any, ClassVar

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from chunkstore.spark.columns import no_column
from chunkstore.spark.errors import annotated
from chunkstore.spark.mapping import arrow_schema, check_schema, spark_schema

__all__ = ["KafkaTieredSource", "PulsarOffloadSource"]


class _TierSource(DataSource):
    """Spark loads it for every user, so it imports nothing more, and opens nothing, before it is used.

    ``_module`` has ``parse_options``, ``every_column`` (of a read with these options), and ``plan_runs``, which makes the reader."""

    _name: ClassVar[str]
    _module: ClassVar[str]

    @classmethod
    def name(cls) -> str:
        return cls._name

    def schema(self) -> StructType:
        """The columns that the options ask for. Raises ``InvalidArgument``, ``Unsupported``."""
        with annotated():
            _, options, known = self._parsed()
            for name in options.columns or ():
                if name not in known.names:
                    raise no_column(name, known.names, "columns")
            return StructType([known[name] for name in options.columns or known.names])

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of the columns in ``schema``, which may be the user's own. Raises as ``plan_runs`` of the format."""
        with annotated():
            runs, options, known = self._parsed()
            check_schema(schema, known)
            reader: DataSourceReader = runs.plan_runs(options, arrow_schema(schema))
            return reader

    def _parsed(self) -> tuple[Any, Any, StructType]:
        """The format's module, the options, and every column that a read can give."""
        runs = import_module(self._module)
        options = runs.parse_options(self.options)
        return runs, options, spark_schema(runs.every_column(options))


class PulsarOffloadSource(_TierSource):
    """``spark.read.format("pulsar-offload")``; Spark finds it by itself in the package ``pyspark_pulsar_offload``."""

    _name = "pulsar-offload"
    _module = "chunkstore.spark.pulsar_runs"


class KafkaTieredSource(_TierSource):
    """``spark.read.format("kafka-tiered")``; Spark finds it by itself in the package ``pyspark_kafka_tiered``."""

    _name = "kafka-tiered"
    _module = "chunkstore.spark.kafka_runs"
