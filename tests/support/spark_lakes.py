"""A lake without Spark: its tasks run here, and its frame's rows are those of its files and of what is behind them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow.parquet as pq

from chunkstore.changes import TablePut
from chunkstore.registry import open_storage
from chunkstore.spark.batches import Column, read_task
from chunkstore.spark.lake_files import FileTask, LakeFile
from chunkstore.spark.lake_frame import Halves, plan_lake
from chunkstore.spark.lake_runs import LakeJob, new_bytes, parse_job, reader_options, run_job
from chunkstore.spark.lake_tasks import write_files
from chunkstore.spark.options import parse_options
from chunkstore.spark.owners import AskerDoor
from chunkstore.spark.stream import tasks_between
from tests.support.spark_ground import Ground
from tests.support.spark_streams import rows_of

__all__ = ["Killed", "Killing", "Lake", "run_until_killed"]


class Lake:
    """One lake of ``ground``'s container, in a folder beside its root. ``given``: the job's options."""

    def __init__(self, ground: Ground, name: str = "history", **given: object) -> None:
        self.ground, self.name, self.given = ground, name, given
        self.folder = ground.path / "lakes"
        self.url = f"file://{self.folder}"
        self.meanwhile: Callable[[], object] = lambda: None
        """Called behind the tasks of each commit."""

    def job(self) -> LakeJob:
        return parse_job(self.ground.url, "default", self.name, self.url, self.given)

    def run(self, *, clean: bool = False) -> list[LakeFile]:
        return run_job(self.job(), "the columns", self.write, clean=clean)

    def new_bytes(self) -> dict[str, int]:
        return new_bytes(self.job(), "the columns")

    def write(self, start: dict[str, Any], end: dict[str, Any], task: FileTask) -> list[LakeFile]:
        job = self.job()
        options = parse_options({**reader_options(job), "lakeOffsets": "null"})
        columns = [Column(name) for name in options.columns]
        tasks = tasks_between(options, json.dumps([start, end]))
        files = [file for item in tasks for file in write_files(task, read_task(item, columns))]
        self.meanwhile()
        return files

    def plan(self) -> Halves:
        return plan_lake(self.name, self.ground.url, "default", foreign_roots=(self.url,))

    def rows(self, halves: Halves | None = None) -> Counter[tuple[Any, ...]]:
        """All rows of the frame, and how often each is there."""
        halves = halves or self.plan()
        found: Counter[tuple[Any, ...]] = Counter()
        for url in halves.files:
            table = pq.read_table(unquote(urlsplit(url).path), page_checksum_verification=True)
            found.update(tuple(row.values()) for row in table.to_pylist())
        options = parse_options(halves.options)
        assert options.lake_offsets is not None
        found.update(rows_of(tasks_between(options, options.lake_offsets), options.columns))
        return found

    def objects(self) -> list[Path]:
        return sorted(path for path in self.folder.rglob("*") if path.is_file())


class Killed(BaseException):
    """The process ends here: nothing of it does anything any more."""


class Killing:
    """Kills a run at its ``step``-th change of anything outside its process: before it, or with ``after`` behind it."""

    def __init__(self, monkeypatch: Any, step: int, *, after: bool) -> None:
        self.left, self.after = step, after
        killing = self

        class Door(AskerDoor):
            def put(self, once: TablePut) -> int:
                return int(killing.call(super().put, once))

        def opened(url: str, settings: Any) -> Any:
            return _Storage(open_storage(url, settings), killing)

        monkeypatch.setattr("chunkstore.spark.lake_runs.AskerDoor", Door)
        monkeypatch.setattr("chunkstore.spark.lake_runs.open_storage", opened)
        monkeypatch.setattr("chunkstore.spark.lake_tasks.open_storage", opened)

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        self.left -= 1
        if self.left < 0 or (self.left == 0 and not self.after):
            raise Killed
        found = function(*arguments)
        if self.left == 0:
            raise Killed
        return found


class _Storage:
    def __init__(self, inner: Any, killing: Killing) -> None:
        self._inner, self._killing = inner, killing

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in ("create", "sync", "delete"):
            return found
        return lambda *arguments: self._killing.call(found, *arguments)


def run_until_killed(lake: Lake, **options: bool) -> bool:
    """Whether it was."""
    with suppress(Killed):
        lake.run(**options)
        return False
    return True
