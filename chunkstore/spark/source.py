"""The format "chunkstore" of Spark: its schema, its planner and its reader, as Spark's Python data source API wants them.

Promises: planning opens one replica, which never claims and never writes to the container, and closes it; executors open the
chunk storage and nothing else. Errors keep their type and fields (``chunkstore.spark.errors``). Leaves out: what filters mean
(``filters``), writing (``sink``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from chunkstore import runtime
from chunkstore.errors import InvalidArgument, Unsupported
from chunkstore.spark.errors import annotated
from chunkstore.spark.filters import Wanted, take_filters
from chunkstore.spark.frame_pins import planning_replica
from chunkstore.spark.mapping import Mapped
from chunkstore.spark.options import ReadOptions, parse_options
from chunkstore.spark.plan import LedgerPlanner, plan_read
from chunkstore.spark.tasks import Partition, Step, read_partition

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["DefaultSource", "Reader"]

_TYPES: dict[str, DataType] = {
    "STRING": StringType(),
    "INT": IntegerType(),
    "LONG": LongType(),
    "BINARY": BinaryType(),
    "BOOLEAN": BooleanType(),
    "TIMESTAMP": TimestampType(),
    "MAP<STRING, STRING>": MapType(StringType(), StringType()),
    "MAP<STRING, LONG>": MapType(StringType(), LongType()),
    "ARRAY<STRING>": ArrayType(StringType()),
}
_SEGMENT_FILTERS: Final[Mapping[str, type]] = {"segment": str, "offset": int}
_TOPIC_FILTERS: Final[Mapping[str, type]] = {"topic": str, "ledger": int, "entry": int}
"""The columns whose filters prune a plan."""
_LOAD_BYTES: Final = 8
_PUSHED: Final[dict[bytes, frozenset[str]]] = {}
"""By ``load()``, the filters it was planned with."""
_PUSHED_MAX: Final = 1_000


class DefaultSource(DataSource):
    """``spark.read.format("chunkstore")``; Spark finds it by itself in the package ``pyspark_chunkstore``."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._load = runtime.token(_LOAD_BYTES)
        """Of this ``load()``: Spark carries it from plan to plan."""

    @classmethod
    def name(cls) -> str:
        return "chunkstore"

    def schema(self) -> StructType:
        """The columns that the options ask for. Raises ``InvalidArgument``, ``Unsupported``."""
        with annotated():
            options = parse_options(self.options, stream=None)
            known = _known_columns(options)
            declared = _declared(options)
            if options.json and declared is None:
                raise InvalidArgument(
                    "valueFormat=json needs a schema: .schema(...) or option 'valueSchema'", argument="schema"
                )
            names = options.columns or (declared.names if declared is not None else ())
            for name in names:
                if name not in known.names:
                    raise options.no_column(name, "columns")
            return StructType([known[name] for name in names])

    def reader(self, schema: StructType) -> Reader:
        """A reader of the columns in ``schema``, which may be the user's own. Raises ``InvalidArgument``, ``Unsupported``."""
        with annotated():
            options = parse_options(self.options)
            if options.function is None:
                filtered, columns, steps = self._wanted(options, schema)
                if options.pushdown:
                    return FilteringReader(filtered, columns, steps, self._load, self._native(options, schema))
                return Reader(filtered, columns, steps)
            options, columns, steps = self._wanted(options, self.schema())
            return Reader(options, columns, (*steps, Mapped(options.function or "", schema)))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """As ``reader``, for a stream."""
        from chunkstore.spark.stream_source import stream_reader

        with annotated():
            return stream_reader(*self._wanted(parse_options(self.options, stream=True), schema))

    def _wanted(
        self, options: ReadOptions, schema: StructType
    ) -> tuple[ReadOptions, list[tuple[str, bool]], tuple[Step, ...]]:
        """The raw columns that tasks read for this schema (the options name them, too), and what makes the schema's of them."""
        names = tuple(schema.names)
        if not names or len(set(names)) < len(names):
            raise InvalidArgument("a schema names at least one column, and none twice", argument="schema")
        if "columns" in {key.lower() for key in self.options} and names != options.columns:
            raise InvalidArgument(
                f"option 'columns' asks for {', '.join(options.columns)}, the schema for {', '.join(names)}",
                argument="columns",
            )
        known = _known_columns(options)
        if not options.json or options.value_schema is not None:
            _check_schema(schema, known, options)
        columns = [(field.name, field.nullable) for field in schema.fields]
        steps: tuple[Step, ...] = ()
        if options.json:
            from chunkstore.spark.json_schema import json_rows

            rows = json_rows(schema, _declared(options), options, known)
            columns, steps = rows.needed, (rows,)
        return replace(options, columns=tuple(name for name, _ in columns)), columns, steps

    def _native(self, options: ReadOptions, schema: StructType) -> list[str]:
        """The container's columns that no field of records hides."""
        fields = {field.name: field.dataType for field in schema.fields}
        hidden = (_declared(options) or StructType()).names
        known = options.known_columns.items()
        return [name for name, kind in known if name not in hidden and fields.get(name, _TYPES[kind]) == _TYPES[kind]]

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """A writer of a batch. Raises ``InvalidArgument``, ``Unsupported`` and what asking the owner raises."""
        from chunkstore.spark.sink import BatchWriter

        return BatchWriter(dict(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """A writer of one micro-batch. Raises as ``writer``."""
        from chunkstore.spark.sink import StreamWriter

        return StreamWriter(dict(self.options), schema, overwrite=overwrite)


def _declared(options: ReadOptions) -> StructType | None:
    """The fields that ``valueSchema`` gives."""
    if options.value_schema is None:
        return None
    from chunkstore.spark.json_schema import value_fields

    return value_fields(options.value_schema)


def _known_columns(options: ReadOptions) -> StructType:
    """What a read can give, as far as the options know; fields of records that they declare hide columns of the same name."""
    declared = _declared(options) or StructType()
    own = [
        StructField(name, _TYPES[kind]) for name, kind in options.known_columns.items() if name not in declared.names
    ]
    return StructType([*declared.fields, *own])


def _check_schema(schema: StructType, known: StructType, options: ReadOptions) -> None:
    for field in schema.fields:
        if field.name not in known.names:
            raise options.no_column(field.name, "schema")
        if field.dataType != known[field.name].dataType:
            columns = ", ".join(f"{item.name} {item.dataType.simpleString()}" for item in known.fields)
            raise InvalidArgument(
                f"no column {field.name} of type {field.dataType.simpleString()} here; the columns are {columns}",
                argument="schema",
            )


class Reader(DataSourceReader):
    """Plans in the driver, reads on executors; plain data, so that it can be pickled."""

    def __init__(self, options: ReadOptions, columns: Sequence[tuple[str, bool]], steps: Sequence[Step] = ()) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._steps = tuple(steps)
        self._filters = Wanted()

    def partitions(self) -> Sequence[InputPartition]:
        """One snapshot's worth of tasks. Raises as ``plan_read``, ``plan_table`` and ``chunkstore.open_replica``."""
        options = self._options
        with annotated(container=options.container):
            planner = self.ledger_planner() if options.reads_topics else None
            with planning_replica(options) as replica:
                if options.metadata is not None:
                    from chunkstore.spark.tables import plan_table  # others do not pay for it

                    return [
                        Partition(task) for task in plan_table(replica, options, [name for name, _ in self._columns])
                    ]
                return [Partition(task) for task in plan_read(replica, options, planner, self._filters)]

    def ledger_planner(self) -> LedgerPlanner:
        """What finds the blocks of a topic's ledgers: the offload layer."""
        from chunkstore.pulsar import plan

        return plan

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task as Arrow batches. Raises as ``read_partition``."""
        return read_partition(partition, self._columns, self._steps)


class FilteringReader(Reader):
    """A ``Reader`` whose plan has what filters leave. Spark refuses one of this kind unless it is told to push filters down at all.

    Spark keeps one plan for each ``load()``, the last one, and reads all that was made of it by that (decision 0032): so another set of
    filters is refused, where this process has seen the first.
    """

    def __init__(
        self,
        options: ReadOptions,
        columns: Sequence[tuple[str, bool]],
        steps: Sequence[Step],
        load: bytes,
        native: Collection[str],
    ) -> None:
        """``native``: columns that are the container's own, not fields of records."""
        super().__init__(options, columns, steps)
        self._load = load
        self._native = frozenset(native)

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take what prunes the plan; returns those that Spark must apply to the rows. Raises ``Unsupported``: this ``load()`` was planned
        with other filters."""
        options = self._options
        pushed = frozenset(map(repr, filters))
        if _PUSHED.setdefault(self._load, pushed) != pushed:
            with annotated(container=options.container):
                text = (
                    "Spark reads all frames of one load() by the last filters: with pushdown=true load again for others"
                )
                raise Unsupported(text, feature="pushdown")
        while len(_PUSHED) > _PUSHED_MAX:
            _PUSHED.pop(next(iter(_PUSHED)))
        known = _TOPIC_FILTERS if options.reads_topics else _SEGMENT_FILTERS
        columns = {name: kind for name, kind in known.items() if name in self._native}
        self._filters, left = take_filters(filters, columns, ("entry", "offset") if options.lines else ("entry",))
        return left
