"""The example of ``make demo`` shows a broker's bucket; its Spark part is that of ``tests/spark/test_spark_pulsar.py``."""

from __future__ import annotations

import runpy

import pytest

from tests.support.paths import ROOT
from tests.support.pulsar_broker import FOLDER


def test_the_example_counts_and_checks(capsys: pytest.CaptureFixture[str]) -> None:
    example = runpy.run_path(str(ROOT / "examples" / "pulsar" / "bucket.py"))
    example["show"]((FOLDER / "plain" / "objects").as_uri())
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 6 + 1
    assert lines[1].startswith("persistent://public/fx/plain-cpp-")
    assert lines[-1].startswith("check: 0 findings in ")
