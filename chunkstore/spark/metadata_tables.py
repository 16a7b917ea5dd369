"""The tables of option ``metadata``: their columns, and which options say something about them. Plain data.

Promises: columns are named and ordered as the fields of the Python record (and so of the command line's JSON); a field that is a time is a
TIMESTAMP, and ``_ms`` at the end of its name is ``_at``. ``time_ms`` is ``time``. Leaves out: the rows (``tables``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

__all__ = ["TABLES", "MetadataTable", "TableTask"]

_PAST: Final = ("lsnAsOf", "timestampAsOf")
_SEGMENTS: Final = ("segments", "segmentsPattern")


class MetadataTable(NamedTuple):
    """Its columns with their Spark types, in order; and the options that prune it."""

    columns: Mapping[str, str]
    options: tuple[str, ...]


class TableTask(NamedTuple):
    """One partition: plain data. ``rows``: record batches of the wanted columns, as a stream of Arrow's."""

    table: str
    rows: bytes


TABLES: Final[Mapping[str, MetadataTable]] = {
    "segments": MetadataTable(
        {
            "name": "STRING",
            "id": "LONG",
            "start_offset": "LONG",
            "length": "LONG",
            "sealed": "BOOLEAN",
            "chunk_count": "LONG",
            "owner_epoch": "LONG",
            "attributes": "MAP<STRING, STRING>",
            "created_at": "TIMESTAMP",
            "modified_at": "TIMESTAMP",
        },
        (*_SEGMENTS, *_PAST),
    ),
    "chunks": MetadataTable(
        {
            "segment": "STRING",
            "name": "STRING",
            "offset": "LONG",
            "length": "LONG",
            "crc32c": "LONG",
            "epoch": "LONG",
            "state": "STRING",
            "kind": "STRING",
            "object_offset": "LONG",
        },
        (*_SEGMENTS, *_PAST),
    ),
    "ledgers": MetadataTable(
        {
            "topic": "STRING",
            "ledger": "LONG",
            "first_entry": "LONG",
            "last_entry": "LONG",
            "segments": "LONG",
            "size_bytes": "LONG",
            "complete": "BOOLEAN",
            "entries": "LONG",
        },
        ("topic", "topicsPattern", "ledgers", *_PAST),
    ),
    "garbage": MetadataTable(
        {
            "first": "STRING",
            "last": "STRING",
            "count": "LONG",
            "size_bytes": "LONG",
            "lsn": "LONG",
            "time": "TIMESTAMP",
            "ended_segment_id": "LONG",
        },
        _PAST,
    ),
    "journal": MetadataTable(
        {
            "epoch": "LONG",
            "index": "LONG",
            "lsn": "LONG",
            "kind": "STRING",
            "time": "TIMESTAMP",
            "ops": "LONG",
            "rows": "LONG",
            "size": "LONG",
            "hash": "STRING",
            "digest": "STRING",
            "embedded": "BOOLEAN",
            "object": "STRING",
            "position": "LONG",
            "inline_bytes": "LONG",
        },
        _PAST,
    ),
}
