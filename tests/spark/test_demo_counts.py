"""Spark's own counts in the demonstration."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.spark import QUICK_TO_START, need_spark


def test_spark_counts_what_the_demonstration_stored(tmp_path: Path) -> None:
    need_spark()
    command = [
        sys.executable,
        "-m",
        "chunkstore",
        "demo",
        f"file://{tmp_path}/store",
        "--rows",
        "2000",
        "--seed",
        "5",
        "--json",
    ]
    # The demonstration starts Spark as users do; a minute of its own is what compiling costs a machine with two cores.
    environment = {**os.environ, "JAVA_TOOL_OPTIONS": QUICK_TO_START}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout)["spark"] == "equal"
