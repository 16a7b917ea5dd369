"""The guide's examples run in a real session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.documents import run_examples

GUIDE = Path(__file__).resolve().parent.parent.parent / "docs" / "guide-spark.md"


def test_examples_run(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_examples(GUIDE)["spark"] is spark
