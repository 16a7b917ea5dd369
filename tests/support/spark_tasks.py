"""What Spark does with a writer, without a JVM: it travels pickled to tasks, and a new one commits what they tell."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

import chunkstore
from chunkstore.config import Tuning
from chunkstore.spark import sink
from chunkstore.spark.sink import BatchWriter, StreamWriter
from tests.support.paths import SOURCES

ATTEMPTS = count(1)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where caches lie."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", SOURCES)
    return tmp_path


@pytest.fixture
def store(home: Path) -> Iterator[chunkstore.ChunkedSegmentStorage]:
    settings = chunkstore.Settings(cache_dir=str(home / "owner"), tuning=Tuning(lmdb_map_bytes=1 << 28))
    with chunkstore.open(f"file://{home}/root", settings=settings) as opened:
        yield opened


class Task:
    """As ``TaskContext``."""

    def __init__(self, properties: Mapping[str, str], attempt: int) -> None:
        self._properties = properties
        self._id = next(ATTEMPTS)
        self._attempt = attempt

    def taskAttemptId(self) -> int:  # noqa: N802
        return self._id

    def attemptNumber(self) -> int:  # noqa: N802
        return self._attempt

    def getLocalProperty(self, key: str) -> str | None:  # noqa: N802
        return self._properties.get(key)


@contextmanager
def as_task(properties: Mapping[str, str], attempt: int = 0) -> Iterator[None]:
    class Context:
        @staticmethod
        def get() -> Task:
            return Task(properties, attempt)

    with patch.object(sink, "TaskContext", Context):
        yield


def _schema(tables: list[pa.Table]) -> Any:
    return from_arrow_schema(tables[0].schema)


def told(writer: Any, tables: list[pa.Table], properties: Mapping[str, str], attempt: int = 0) -> list[Any]:
    """What the tasks tell, one for each table."""
    raw = pickle.dumps(writer)
    messages = []
    for table in tables:
        with as_task(properties, attempt):
            messages.append(pickle.loads(raw).write(iter(table.to_batches(max_chunksize=1000))))
    return [pickle.loads(pickle.dumps(message)) for message in messages]


def write_batch(options: Mapping[str, str], *tables: pa.Table) -> None:
    """One ``df.write``; each table is a partition."""
    writer = BatchWriter(dict(options), _schema([*tables]), overwrite=False)
    raw = pickle.dumps(writer)
    messages = told(writer, [*tables], {})
    try:
        pickle.loads(raw).commit(messages)
    except BaseException:
        pickle.loads(raw).abort(messages)
        raise


def write_micro_batch(
    options: Mapping[str, str], number: int, *tables: pa.Table, query: str = "q", run: str = "r", commits: bool = True
) -> None:
    """One micro-batch; not ``commits``: the driver is killed before."""
    properties = {"sql.streaming.queryId": query, "streaming.sql.batchId": str(number), "spark.jobGroup.id": run}
    messages = told(StreamWriter(dict(options), _schema([*tables]), overwrite=False), [*tables], properties)
    if commits:
        StreamWriter(dict(options), _schema([*tables]), overwrite=False).commit(messages, number)
