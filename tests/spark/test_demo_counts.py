"""Spark's own counts in the demonstration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from chunkstore.cli import main


@pytest.mark.proof
def test_spark_counts_what_the_demonstration_stored(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The demonstration takes a session that runs, and stops it, as it does with its own; here it goes on."""
    stopped: list[object] = []
    monkeypatch.setattr(spark, "stop", lambda: stopped.append(spark))
    assert main(["demo", f"file://{tmp_path}/store", "--rows", "2000", "--seed", "5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["spark"] == "equal"
    assert stopped == [spark]
