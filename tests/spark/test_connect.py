"""An application of Spark Connect: no JVM of its own, and no planner, reader or writer in its process."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import chunkstore
from chunkstore.config import Tuning
from tests.support.data import pattern
from tests.support.paths import ROOT, SOURCES
from tests.support.spark import missing_of_connect
from tests.support.spark_ground import flip

SCRIPT = ROOT / "tests" / "support" / "spark_connected.py"


def make_store(path: Path) -> str:
    """Three chunks of orders, and a segment that is damaged."""
    url = f"file://{path}/root"
    settings = chunkstore.Settings(cache_dir=str(path / "cache"), lease_s=0, tuning=Tuning(lmdb_map_bytes=1 << 28))
    with chunkstore.open(url, settings=settings) as store:
        store.create("orders", rolling=chunkstore.RollingPolicy(chunk_size_bytes_max=1 << 20))
        store.append("orders", pattern(0, 5 << 19))
        store.create("damaged")
        store.append("damaged", pattern(0, 100_000, 1))
        [chunk] = store.layout("damaged")
    flip(path / "root" / chunk.name, 77)
    return url


def check_told(told: dict[str, Any]) -> None:
    """What the script must tell of ``make_store``."""
    data = pattern(0, 5 << 19)
    assert told["client"].startswith("pyspark.sql.connect")
    assert told["sha256"] == hashlib.sha256(data).hexdigest()
    assert told["columns"] == ["segment", "offset", "value"]
    assert told["counted"] == len(data)
    assert told["missing"] == ["SegmentNotFound", {"segment": "nix"}]
    assert told["unknown"] == ["InvalidArgument", {"argument": "colums"}]
    assert told["damaged"][0] == "Damaged"
    assert told["damaged"][1]["segment"] == "damaged"
    assert told["foreach"] == ["Unsupported", {"feature": "Spark Connect"}]


def run_client(
    remote: str, url: str, scratch: Path, *, python: str = sys.executable, sources: str = SOURCES, checkpoint: str = ""
) -> Any:
    """What the script tells. ``checkpoint``: it writes and streams, too."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("SPARK_")}
    environment |= {"PYSPARK_PYTHON": python, "PYTHONPATH": sources, "SPARK_LOCAL_IP": "127.0.0.1"}
    environment |= {"SPARK_TESTING": "1"}  # a server beside the client takes a free port, instead of 15002
    environment |= {"XDG_CACHE_HOME": str(scratch / "cache"), "SPARK_LOCAL_DIRS": str(scratch / "local")}
    done = subprocess.run(
        [python, str(SCRIPT), remote, url, checkpoint],
        cwd=scratch,
        env=environment,
        capture_output=True,
        text=True,
        timeout=560,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.timeout(600)
@pytest.mark.proof
def test_a_local_server(tmp_path: Path) -> None:
    if missing_of_connect():
        pytest.skip(missing_of_connect())
    check_told(run_client("local[2]", make_store(tmp_path), tmp_path))
