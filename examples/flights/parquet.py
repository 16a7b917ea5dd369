"""Silver as a lake of parquet files, for whoever reads those: what is new since the last run.

``python -m examples.flights.parquet --root file:///srv/flights --to file:///srv/lakes``
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession

from chunkstore.spark import lake
from chunkstore.spark.jobs import to_parquet
from examples.flights.pipeline import CONTAINER, SILVER, SILVER_SCHEMA, command, session


def export(spark: SparkSession, root: str, to: str) -> DataFrame:
    """The files that this run has written."""
    rows: dict[str, Any] = {
        "segmentsPattern": f"{SILVER}-.*",
        "framing": "lines",
        "valueFormat": "json",
        "schema": SILVER_SCHEMA,
    }
    return to_parquet(spark, root, name=SILVER, path=to, container=CONTAINER, **rows)


def history(spark: SparkSession, root: str, files: str) -> DataFrame:
    """All of silver: files as far as they reach, the container behind them."""
    return lake(spark, SILVER, root, CONTAINER, files=files)


def main(arguments: list[str] | None = None) -> None:
    parser = command(__doc__)
    parser.add_argument("--to", required=True, help="where the files go: file:///..., s3://..., hdfs://...")
    given = parser.parse_args(arguments)
    spark = session()
    written = export(spark, given.root, given.to).collect()
    print(f"{sum(file.rows for file in written)} rows more in {given.to}")


if __name__ == "__main__":
    main()
