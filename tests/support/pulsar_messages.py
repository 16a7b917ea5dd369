"""Rows of Arrow batches as those of the iterator, so that the two can be compared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from chunkstore.codec.pulsar.messages import Message


def _plain(name: str, value: Any) -> Any:
    if value is not None and name in ("first_chunk", "txn"):
        return tuple(value)
    if value is not None and name == "properties":
        assert len(dict(value)) == len(value)
        return dict(value)
    return value


def arrow_rows(batches: Iterator[pa.RecordBatch]) -> list[Any]:
    """``Message`` for each row; tuples where not all of its columns are there. Every batch is valid."""
    rows: list[Any] = []
    for batch in batches:
        batch.validate(full=True)
        assert batch.num_rows
        names = batch.schema.names
        make = Message if names == list(Message._fields) else lambda *values: values
        rows += [make(*(_plain(name, value) for name, value in row.items())) for row in batch.to_pylist()]
    return rows
