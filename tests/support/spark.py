"""A local Spark session for tests, where Java and pyspark are there; else a reason that the end of the run shows."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import SOURCES
from tests.support.servers.s3server import CREDENTIALS

JAVA_LEAST = 17
QUICK_TO_START = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


@cache
def missing() -> str:
    """Why there can be no session; empty if there can."""
    for package in ("pyspark", "pyarrow"):
        if importlib.util.find_spec(package) is None:
            return f"{package} is not installed (extra: spark): reading from Spark is not tested"
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if not java or not os.path.exists(java):
        return f"no Java (needs {JAVA_LEAST} or newer): reading from Spark is not tested"
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)', said)
    if version is None or int(version[1]) < JAVA_LEAST:
        return f"Java is older than {JAVA_LEAST}: reading from Spark is not tested"
    return ""


@cache
def missing_of_connect() -> str:
    """Why there can be no client of Spark Connect, nor a pipeline; empty if there can."""
    for package in ("grpc", "grpc_status", "google.rpc", "zstandard", "yaml"):
        try:
            found = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            found = None
        if found is None:
            return f"{package} is not installed (pyspark[connect,pipelines], extra: dev): Spark Connect and pipelines are not tested"
    return missing()


def need_spark() -> None:
    if missing():
        pytest.skip(missing())


def settings_of(scratch: Path, *, java_options: str = QUICK_TO_START) -> dict[str, str]:
    """What every session of tests is made with: 1 GiB for the JVM, its files below ``scratch``, nothing that listens to others."""
    return {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": java_options,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.local.dir": str(scratch / "local"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def start_session(
    scratch: Path,
    *,
    java_options: str = QUICK_TO_START,
    master: str = "local[2]",
    more: Mapping[str, str] | None = None,
) -> Any:
    """The session of this process: two cores, no retries, unless ``master`` says else. ``more``: settings beside ours."""
    # Workers start from these: the very Python that runs the tests, and the sources as they lie here.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = SOURCES
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ.update(CREDENTIALS)  # a server for S3 may be wanted later; what workers see is decided now
    os.environ["XDG_CACHE_HOME"] = str(scratch / "cache")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName("chunkstore-tests")
    for key, value in (settings_of(scratch, java_options=java_options) | dict(more or {})).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session
