"""A user's function over Arrow batches inside the tasks that read: only its result crosses to the JVM.

The function travels cloudpickled in an option of the ordinary reader, so Spark Connect works, too."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from inspect import signature
from typing import TYPE_CHECKING, Any, TypeAlias

from chunkstore.errors import InvalidArgument
from chunkstore.spark.columns import no_column
from chunkstore.spark.errors import annotated

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

__all__ = ["BatchFunction", "Mapped", "arrow_schema", "check_schema", "map_batches", "spark_schema"]

BatchFunction: TypeAlias = "Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]"
"""As ``DataFrame.mapInArrow`` takes one: from the batches of a task to others; called once for each task."""


def map_batches(spark: SparkSession, function: BatchFunction, schema: StructType | str, **options: object) -> DataFrame:
    """A frame of what ``function`` makes of a container's rows, in the tasks that read them.

    ``function``: gets an iterator over the Arrow batches of one task (rows and columns as ``spark.read`` with the same options has
    them, about 1 MiB each) and returns an iterator of record batches of ``schema``, a ``StructType`` or its DDL. It must pickle, as user
    functions of Spark do, and it runs again where a task does. ``options``: of ``spark.read.format("chunkstore")``, ``path`` among
    them; numbers and booleans may be given as such.

    Nothing is read before the frame is used. Raises ``InvalidArgument``: the function is none, or cannot be pickled. When used, what the
    reader raises; and in tasks what the function raises, and ``InvalidArgument`` where it gives something else than batches of ``schema``.
    """
    from pyspark import cloudpickle

    if not callable(function):
        raise InvalidArgument(f"function must be callable, not {function!r}", argument="function")
    try:
        pickled = cloudpickle.dumps(function)  # type: ignore[no-untyped-call]
    except Exception as error:
        raise InvalidArgument(f"the function cannot be pickled: {error}", argument="function") from error
    reader = spark.read.format("chunkstore").schema(schema)
    for name, value in options.items():
        reader = reader.option(name, value)  # type: ignore[arg-type]
    return reader.option("mapFunction", base64.b64encode(pickled).decode("ascii")).load()


class Mapped:
    """A function, pickled, and the schema of what it makes."""

    def __init__(self, function: str, schema: StructType) -> None:
        try:
            self._pickled = base64.b64decode(function, validate=True)
        except ValueError as error:
            raise InvalidArgument("option 'mapFunction' is set by map_batches only", argument="mapFunction") from error
        self._schema = schema

    def batches(self, found: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """What the function makes of batches, checked. Raises ``InvalidArgument``, and what the function raises."""
        import pyarrow as pa
        from pyspark import cloudpickle

        expected = arrow_schema(self._schema)
        with annotated():
            made: Any = cloudpickle.loads(self._pickled)(found)
            if isinstance(made, pa.RecordBatch) or not hasattr(made, "__iter__"):
                raise _wrong(f"the function returned {type(made).__name__}, not an iterator of batches, as it gets one")
            for batch in made:
                if not isinstance(batch, pa.RecordBatch):
                    raise _wrong(f"the function returned {type(batch).__name__}, not a pyarrow.RecordBatch")
                yield _checked(batch, expected)


def _checked(batch: pa.RecordBatch, expected: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    names = batch.schema.names
    if sorted(names) != sorted(expected.names):
        raise _wrong(f"the function gave the columns {', '.join(names)}; the schema has {', '.join(expected.names)}")
    columns = []
    for field in expected:
        column = batch.column(names.index(field.name))
        if column.type != field.type:
            raise _wrong(f"column {field.name!r} of the function's batch is {column.type}, in the schema {field.type}")
        if not field.nullable and column.null_count:
            raise _wrong(f"column {field.name!r} of the function's batch has nulls, which the schema excludes")
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=expected)


def _wrong(what: str) -> InvalidArgument:
    return InvalidArgument(f"map_batches: {what}", argument="function")


def spark_schema(columns: pa.Schema) -> StructType:
    """As Spark has these columns, all of which may be null."""
    from pyspark.sql.pandas.types import from_arrow_schema

    schema: StructType = from_arrow_schema(columns).toNullable()
    return schema


def check_schema(schema: StructType, known: StructType) -> None:
    """Raise ``InvalidArgument`` unless all columns of a user's schema are known, and of these types."""
    for field in schema.fields:
        if field.name not in known.names:
            raise no_column(field.name, known.names, "schema")
        kind = known[field.name].dataType
        if field.dataType != kind:
            text = f"no column {field.name} of type {field.dataType.simpleString()} here; it is of type {kind.simpleString()}"
            raise InvalidArgument(text, argument="schema")


def arrow_schema(schema: StructType) -> pa.Schema:
    """The schema of the batches that Spark takes for ``schema``; timestamps are of UTC. Raises what PySpark raises for a type it does
    not know."""
    from pyspark.sql.pandas.types import to_arrow_schema

    # Before 4.2 timestamps are of UTC unless told otherwise; since then it has to be said.
    reported: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(schema, **reported)
