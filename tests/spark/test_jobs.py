"""What jobs have in common, and their command, without a JVM."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

import chunkstore
from chunkstore.spark.jobs.running import grouped
from tests.cli.conftest import Call, call
from tests.support.spark_tasks import home, store

__all__ = ["call", "home", "store"]


def test_tasks_are_neighbours_of_about_one_size() -> None:
    sizes = [3, 3, 3, 100, 1, 1]
    assert grouped("abcdef", sizes, 1, 1000) == [(list("abcd"), 109), (list("ef"), 2)]
    assert grouped("abcdef", sizes, 0, 6) == [(["a", "b"], 6), (["c", "d"], 103), (["e", "f"], 2)]
    assert grouped("", [], 4, 100) == []


def test_a_dry_run_of_the_command_starts_no_spark(
    store: chunkstore.ChunkedSegmentStorage, home: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_spark(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr("chunkstore.spark.jobs.running.session_on", no_spark)
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
