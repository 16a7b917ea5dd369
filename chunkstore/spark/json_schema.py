"""Which columns a read of JSON records gives: those of Spark's schema that are in the records, and those that the raw rows have.

Promises: a type that the parser cannot give exactly as Spark's own reader does is refused by name, with what to take instead. Leaves out:
parsing (``json_rows``).
"""

from __future__ import annotations

import json
from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
)

from chunkstore.errors import InvalidArgument, Unsupported
from chunkstore.spark.arrow_schema import arrow_schema
from chunkstore.spark.json_rows import CORRUPT, JsonColumn, JsonRows
from chunkstore.spark.options import ReadOptions

__all__ = ["json_rows", "value_fields"]

_EXACT: Final = tuple(
    kind() for kind in (BooleanType, ByteType, ShortType, IntegerType, LongType, FloatType, DoubleType, StringType)
)
_INSTEAD: Final = {
    "binary": "unbase64 or unhex",
    "date": "to_date",
    "decimal": "cast, for its digits are kept",
    "map": "from_json, for it is the map's own text",
    "timestamp": "to_timestamp, which takes a format",
    "timestamp_ntz": "to_timestamp_ntz, which takes a format",
    "variant": "parse_json, for it is the value's own text",
}
_CHAR_VARCHAR: Final = "__CHAR_VARCHAR_TYPE_STRING"


def value_fields(text: str) -> StructType:
    """The fields that option ``valueSchema`` declares. Raises ``InvalidArgument``, ``Unsupported``."""
    try:
        schema = StructType.fromJson(json.loads(text))
    except Exception as error:
        raise InvalidArgument(
            f"option 'valueSchema' is the JSON of a StructType (its json()), not {text!r:.200}", argument="valueSchema"
        ) from error
    _check_fields(schema, "")
    return schema


def json_rows(schema: StructType, declared: StructType | None, options: ReadOptions, native: StructType) -> JsonRows:
    """What parses the columns of ``schema``. Fields that ``valueSchema`` has ``declared`` are the records'; else a name that has a
    ``native`` column's type is that column. Raises ``InvalidArgument``, ``Unsupported``."""
    fields = StructType()
    columns: list[bool] = []
    for field in schema.fields:
        is_native = field.name in native.names and field.dataType == native[field.name].dataType
        is_native = is_native and (declared is None or field.name not in declared.names)
        fields.add(StructField(field.name, field.dataType, True, field.metadata))
        columns.append(is_native)
    own = StructType([field for field, is_native in zip(schema.fields, columns, strict=True) if not is_native])
    if not set(own.names) - {CORRUPT}:
        raise InvalidArgument("valueFormat=json needs a column that the records have, in the schema", argument="schema")
    _check_fields(own, "")
    if CORRUPT in own.names and own[CORRUPT].dataType != StringType():
        raise InvalidArgument(f"column {CORRUPT} is a STRING", argument="schema")
    return JsonRows(
        [JsonColumn(field, is_native) for field, is_native in zip(arrow_schema(fields), columns, strict=True)],
        value="payload" if options.reads_topics else "value",
        place=("topic", "ledger", "entry") if options.reads_topics else ("segment", "offset"),
        fail_fast=options.fail_fast,
    )


def _check_fields(kind: DataType, path: str) -> None:
    if isinstance(kind, StructType):
        if not kind.fields or len(set(kind.names)) < len(kind.names):
            raise InvalidArgument(f"{path or 'a schema'} names at least one field, and none twice", argument="schema")
        for field in kind.fields:
            where = f"{path}.{field.name}" if path else field.name
            if not field.nullable:
                raise _never_null(where)
            if _CHAR_VARCHAR in field.metadata:
                raise _unsupported(where, field.metadata[_CHAR_VARCHAR])
            _check_fields(field.dataType, where)
    elif isinstance(kind, ArrayType):
        if not kind.containsNull:
            raise _never_null(f"{path}[]")
        _check_fields(kind.elementType, f"{path}[]")
    elif kind not in _EXACT:
        raise _unsupported(path, kind.simpleString())


def _never_null(path: str) -> InvalidArgument:
    return InvalidArgument(f"{path} may be null, because records may lack it: leave out NOT NULL", argument="schema")


def _unsupported(path: str, kind: str) -> Unsupported:
    how = next((how for name, how in _INSTEAD.items() if kind.partition("(")[0].partition("<")[0] == name), "cast")
    return Unsupported(
        f"{path} is {kind}, which is not parsed from JSON exactly as Spark does it: take it as STRING, and then {how}",
        feature=f"valueFormat=json with {kind}",
    )
