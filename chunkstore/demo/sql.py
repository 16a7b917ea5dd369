"""The demonstration's counts once more, by Spark SQL over ``spark.read.format("chunkstore")``, where Spark and Java are there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from importlib.util import find_spec

__all__ = ["count_by_spark", "missing"]

_JAVA_LEAST = 17


def missing() -> str | None:
    """Why Spark cannot run here, with the remedy; None if it can."""
    if find_spec("pyspark") is None:
        return "pyspark is not installed: pip install 'chunkstore-engine[spark]'"
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    remedy = f"Spark needs Java {_JAVA_LEAST} or newer: sudo apt-get install openjdk-{_JAVA_LEAST}-jre-headless"
    if java is None:
        return f"Java is missing. {remedy}"
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=60).stderr
    except (OSError, subprocess.TimeoutExpired):
        return f"{java} does not run. {remedy}"
    version = re.search(r'version "(\d+)', said)
    return None if version is not None and int(version[1]) >= _JAVA_LEAST else f"Java is too old. {remedy}"


def count_by_spark(root: str, container: str, topics: Iterable[str]) -> dict[tuple[str, str], int]:
    """Departures by (origin, carrier), as Spark SQL counts them. Raises what Spark raises."""
    from pyspark.sql import SparkSession

    # Spark's workers shall run the Python that has chunkstore; a machine's "python3" may be another one.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("chunkstore demo")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    try:
        counts: dict[tuple[str, str], int] = {}
        for topic in topics:
            options = {"path": root, "container": container, "topic": topic, "columns": "topic,payload"}
            frame = spark.read.format("chunkstore").options(**options).load()
            frame.createOrReplaceTempView("departures")
            rows = spark.sql(
                "SELECT topic, get_json_object(CAST(payload AS STRING), '$.carrier') AS carrier, count(*) AS flights "
                "FROM departures GROUP BY topic, carrier"
            ).collect()
            counts.update({(row["topic"], row["carrier"]): row["flights"] for row in rows})
        return counts
    finally:
        spark.stop()
