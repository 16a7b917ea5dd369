"""The command line of a benchmark that has a session of Spark: ``[--dir DIR] [--quick]``."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness import Report, scratch
from tests.support.spark import missing, start_session

__all__ = ["measured"]


def measured(doc: str | None, name: str, measure: Callable[[Report, Any, Path, bool], object]) -> None:
    """Call ``measure`` with a report, a session, a directory and whether to be quick; save the report under ``name``."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--dir", help="a directory on the disk to measure")
    parser.add_argument("--quick", action="store_true", help="a small share of the work, to see that it runs")
    options = parser.parse_args()
    if missing():
        print(f"{name}: not measured; {missing()}")
        return
    report = Report(f"{name}-quick" if options.quick else name)
    with scratch(options.dir) as path:
        spark = start_session(path, java_options="-XX:+UseParallelGC")
        measure(report, spark, path, options.quick)
        spark.stop()
    report.save()
