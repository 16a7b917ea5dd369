"""The guides' examples run in a real session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.documents import run_examples

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"


@pytest.mark.parametrize("name", sorted(path.name for path in DOCS.glob("guide-spark*.md")))
@pytest.mark.proof
def test_examples_run(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    assert run_examples(DOCS / name)["spark"] is spark
