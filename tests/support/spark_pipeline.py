"""A project of Spark's declarative pipelines on disk, and ``spark-pipelines run`` over it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from pyarrow import parquet

from tests.support.spark_cluster import clean_environment, spark_home

__all__ = ["Pipeline"]

_SPEC = """\
name: orders
storage: file://{folder}/storage
libraries:
  - glob:
      include: transformations/**
configuration:
  spark.sql.shuffle.partitions: "2"
"""
_CONF = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.ui.enabled": "false",
}


class Pipeline:
    """A project in ``folder`` whose tables are made by ``source``; run by ``python``, which has the installed package."""

    def __init__(self, folder: Path, python: Path, source: str) -> None:
        self.folder = folder
        (folder / "transformations").mkdir(parents=True)
        (folder / "spark-pipeline.yml").write_text(_SPEC.format(folder=folder))
        (folder / "transformations" / "tables.py").write_text(source)
        self._environment = clean_environment(folder / "own", "127.0.0.1") | {"PYSPARK_PYTHON": str(python)}
        self._environment |= {"PYSPARK_DRIVER_PYTHON": str(python)}

    def run(self, *arguments: str, timeout_s: float = 560) -> subprocess.CompletedProcess[str]:
        """``spark-pipelines run``; says what it printed, however it ended."""
        conf = [word for item in _CONF.items() for word in ("--conf", "=".join(item))]
        return subprocess.run(
            [
                str(spark_home() / "bin" / "spark-pipelines"),
                "run",
                "--remote",
                "local[2]",
                *conf,
                *arguments,
            ],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def rows(self, table: str) -> list[dict[str, object]]:
        """What the last run made of a table."""
        found: list[dict[str, object]] = parquet.read_table(self.folder / "spark-warehouse" / table).to_pylist()
        return found

    def forget(self) -> None:
        """The tables alone: their catalog is in memory, and would find their files in its way."""
        shutil.rmtree(self.folder / "spark-warehouse")
