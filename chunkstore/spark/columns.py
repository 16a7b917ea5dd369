"""The columns of raw segments, of ledgers and of metadata tables, with their Spark types."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, NamedTuple

from chunkstore.errors import InvalidArgument

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "LEDGER_COLUMNS",
    "LEDGER_EXTRAS",
    "SEGMENT_COLUMNS",
    "SEGMENT_EXTRAS",
    "TABLES",
    "MetadataTable",
    "TableTask",
    "arrow_columns",
    "no_column",
    "split_partition",
    "unknown_name",
]


def _columns(text: str) -> dict[str, str]:
    """From names and Spark types, as in DDL."""
    return dict(re.findall(r"(\w+) (\w+(?:<.*?>)?)", text))


def arrow_columns(columns: Mapping[str, str]) -> pa.Schema:
    """These columns as Arrow has them."""
    import pyarrow as pa  # every user of Spark loads this module

    types = {
        "STRING": pa.string(),
        "INT": pa.int32(),
        "LONG": pa.int64(),
        "BINARY": pa.binary(),
        "BOOLEAN": pa.bool_(),
        "TIMESTAMP": pa.timestamp("us", "UTC"),
        "MAP<STRING, STRING>": pa.map_(pa.string(), pa.string()),
    }
    return pa.schema([(name, types[kind]) for name, kind in columns.items()])


SEGMENT_COLUMNS: Final = _columns("segment STRING, offset LONG, value BINARY")
"""The columns of raw segments, in order."""
SEGMENT_EXTRAS: Final = _columns("topic STRING, partition INT, timestamp TIMESTAMP")
"""Those that come only if asked for: both from the segment's name, and the time at which the chunk of the first byte was begun."""
LEDGER_COLUMNS: Final = _columns("topic STRING, ledger LONG, entry LONG, payload BINARY")
"""The columns of offloaded ledgers, in order."""
LEDGER_EXTRAS: Final = _columns("value BINARY, offset LONG, partition INT, timestamp TIMESTAMP")
"""Those that come only if asked for: payload, entry, from the topic's name, and the time at which the chunk of the block was begun."""
_CHUNKS_TIME = "the time is always that of the chunk"
_NOT_DECODED = "an entry holds the broker's bytes, one message or a batch, which are not decoded here"
_ABSENT: Final = {
    "raw segments": (
        {*SEGMENT_COLUMNS, *SEGMENT_EXTRAS},
        {
            "key": "a segment is a sequence of bytes, whose records have no keys",
            "headers": "a segment is a sequence of bytes, whose records have no headers",
            "timestampType": _CHUNKS_TIME,
        },
    ),
    "ledgers": (
        {*LEDGER_COLUMNS, *LEDGER_EXTRAS},
        {"key": _NOT_DECODED, "headers": _NOT_DECODED, "timestampType": _CHUNKS_TIME},
    ),
}
"""By what is read: all of its columns; and those of Kafka that are not there, and why."""
_PARTITION = re.compile(r"(.+)-partition-(0|[1-9][0-9]{0,9})", re.DOTALL)
_PARTITION_MAX: Final = (1 << 31) - 1


def split_partition(name: str) -> tuple[str, int | None]:
    """A name as Pulsar gives it to a topic's partition, ``<topic>-partition-<n>``, in its two parts; of any other: all of it, and None."""
    found = _PARTITION.fullmatch(name)
    if found is None or int(found[2]) > _PARTITION_MAX:
        return name, None
    return found[1], int(found[2])


def unknown_name(what: str, given: str, names: Iterable[str]) -> str:
    """The text that refuses a name, with the closest one that is known."""
    lowered = {name.lower(): name for name in names}
    close = [lowered[match] for match in get_close_matches(given.lower(), list(lowered), 1)]
    hint = f"did you mean {close[0]!r}? The" if close else "the"
    return f"unknown {what} {given!r}; {hint} {what}s are {', '.join(lowered.values())}"


def no_column(name: str, known: Iterable[str], argument: str) -> InvalidArgument:
    """The error of a column that is not there, with the reason where Kafka has it."""
    names = list(known)
    for kind, (columns, reasons) in _ABSENT.items():
        if name in reasons and columns.issuperset(names):
            text = f"{kind} have no column {name!r}: {reasons[name]}; the columns are {', '.join(names)}"
            return InvalidArgument(text, argument=argument)
    return InvalidArgument(unknown_name("column", name, names), argument=argument)


_PAST: Final = ("lsnAsOf", "timestampAsOf")
_SEGMENTS: Final = ("segments", "segmentsPattern")


class MetadataTable(NamedTuple):
    """Its columns, in order; and the options that prune it."""

    columns: Mapping[str, str]
    options: tuple[str, ...]


class TableTask(NamedTuple):
    """One partition: plain data. ``rows``: record batches of the wanted columns, as a stream of Arrow's."""

    table: str
    rows: bytes


def _table(columns: str, *options: str) -> MetadataTable:
    return MetadataTable(_columns(columns), (*options, *_PAST))


TABLES: Final[Mapping[str, MetadataTable]] = {
    "segments": _table(
        "name STRING, id LONG, start_offset LONG, length LONG, sealed BOOLEAN, chunk_count LONG, "
        "owner_epoch LONG, attributes MAP<STRING, STRING>, created_at TIMESTAMP, modified_at TIMESTAMP",
        *_SEGMENTS,
    ),
    "chunks": _table(
        "segment STRING, name STRING, offset LONG, length LONG, crc32c LONG, epoch LONG, state STRING, "
        "kind STRING, object_offset LONG",
        *_SEGMENTS,
    ),
    "ledgers": _table(
        "topic STRING, ledger LONG, first_entry LONG, last_entry LONG, segments LONG, size_bytes LONG, "
        "complete BOOLEAN, entries LONG",
        "topic",
        "topicsPattern",
        "ledgers",
    ),
    "garbage": _table(
        "first STRING, last STRING, count LONG, size_bytes LONG, lsn LONG, time TIMESTAMP, ended_segment_id LONG",
    ),
    "journal": _table(
        "epoch LONG, index LONG, lsn LONG, kind STRING, time TIMESTAMP, ops LONG, rows LONG, size LONG, "
        "hash STRING, digest STRING, embedded BOOLEAN, object STRING, position LONG, inline_bytes LONG",
    ),
}
