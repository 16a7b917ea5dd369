"""What jobs have in common, and their command, without a JVM."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

import chunkstore
from chunkstore.spark.runs import share
from tests.cli.conftest import Call, call
from tests.support.spark_tasks import home, store

__all__ = ["call", "home", "store"]


def test_tasks_are_neighbours_of_about_one_size() -> None:
    sizes = [3, 3, 3, 100, 1, 1]
    assert share(sizes, 1) == [(0, 6)]
    assert share(sizes, 3) == [(0, 3), (3, 4), (4, 6)]
    assert share(sizes, 9) == [(number, number + 1) for number in range(6)], "none is empty"
    assert share([0, 0, 0], 2) == [(0, 2), (2, 3)]
    assert share([], 4) == []


def test_a_dry_run_of_the_command_starts_no_spark(
    store: chunkstore.ChunkedSegmentStorage, home: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_spark(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr("chunkstore.spark.job_runner.session_on", no_spark)
    root = f"file://{home}/root"
    (home / "in").mkdir()
    (home / "in" / "1").write_bytes(b"one\n")
    command = ["spark", "offload", root, str(home / "in"), "--topic", "t", "--dry-run"]
    assert call(*command, "--json").lines[0]["size_bytes"] == 4
    assert b"planned" in call(*command).out
    call(*command, "--entries", "words", code=2)


def test_without_pyspark_the_command_names_the_extra(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyspark", None)
    failed = call("spark", "offload", "file:///a", "f", "--topic", "t", "--json", code=1)
    assert failed.error["error"] == "Unsupported"
    assert "chunkstore-engine[spark]" in failed.error["message"]
