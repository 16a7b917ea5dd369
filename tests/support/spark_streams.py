"""A streaming query without Spark: the log it keeps, its restarts, and replays that must give the same rows."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from typing import Any

from pyspark.sql.streaming.datasource import ReadMaxBytes, ReadMaxRows

from chunkstore.spark.batches import read_task
from chunkstore.spark.options import parse_options
from chunkstore.spark.positions import StreamOffset
from chunkstore.spark.runs import ReadTask
from chunkstore.spark.stream import stream_reader

__all__ = ["Row", "Stream", "rows_of"]

Row = tuple[Any, ...]


def rows_of(tasks: Sequence[ReadTask], columns: Sequence[str]) -> list[Row]:
    """What tasks that have travelled read."""
    rows: list[Row] = []
    for task in pickle.loads(pickle.dumps(tasks)):
        for batch in read_task(task, [(name, True) for name in columns]):
            batch.validate(full=True)
            rows += [tuple(row.values()) for row in batch.to_pylist()]
    return rows


class Stream:
    """A query: it goes on from what it wrote down, as Spark does."""

    def __init__(self, url: str, **given: str) -> None:
        self.given = {"path": url, **given}
        self.log: list[str] = []
        self.rows: list[list[Row]] = []
        self.planner: Any
        self.restart()

    def __del__(self) -> None:
        if hasattr(self, "planner"):
            self.planner.stop()

    def restart(self, **given: str) -> None:
        """Another planning process."""
        if self.log:
            self.planner.stop()
        self.given |= given
        self.options = parse_options(self.given, stream=True)
        self.planner = stream_reader(self.options, [])
        if not self.log:
            self.log.append(json.dumps(self.planner.initialOffset()))

    def step(self, size_bytes: int | None = None, rows: int | None = None) -> list[Row]:
        """One micro-batch, limited by the options unless a limit is given; no rows where there is nothing new."""
        start = json.loads(self.log[-1])
        limit = self.planner.getDefaultReadLimit()
        if size_bytes is not None:
            limit = ReadMaxBytes(size_bytes)
        elif rows is not None:
            limit = ReadMaxRows(rows)
        end = self.planner.latestOffset(start, limit)
        if json.dumps(end) == self.log[-1]:
            return []
        self.log.append(json.dumps(end))
        self.rows.append(self.read(-1))
        return self.rows[-1]

    def read(self, number: int) -> list[Row]:
        """Plan and read a batch of the log, as a replay does. Spark keeps no start of the first one: it asks anew."""
        at = number % len(self.log)
        start = self.planner.initialOffset() if at == 1 else json.loads(self.log[at - 1])
        partitions = self.planner.partitions(start, json.loads(self.log[at]))
        return rows_of([partition.value for partition in partitions], self.options.columns)

    def drain(self, size_bytes: int | None = None, rows: int | None = None) -> None:
        while self.step(size_bytes, rows):
            pass

    def replay(self) -> None:
        """A new process plans every batch again: the same rows."""
        self.restart()
        for number, rows in enumerate(self.rows, 1):
            assert self.read(number) == rows

    def bytes_of(self, segment: str, start: int = 0) -> bytes:
        """The rows of a segment so far, one behind the other."""
        found = b""
        for name, offset, value in (row for rows in self.rows for row in rows):
            if name == segment:
                assert offset == start + len(found)
                found += value
        return found

    def offset(self) -> StreamOffset:
        return StreamOffset.from_json(json.loads(self.log[-1]))
