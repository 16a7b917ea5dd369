"""Silver as parquet files, for whoever reads those.

``python -m examples.flights.parquet --root file:///srv/flights --to file:///srv/silver.parquet``
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from chunkstore.spark import map_batches
from examples.flights.pipeline import CONTAINER, SILVER, SILVER_SCHEMA, command, session

if TYPE_CHECKING:
    import pyarrow as pa


def table(spark: SparkSession, root: str) -> DataFrame:
    """Silver, typed where it is read: only columns cross to the JVM, no text."""
    from pyspark.sql.pandas.types import to_arrow_schema

    columns = StructType.fromDDL(SILVER_SCHEMA)
    assert isinstance(columns, StructType)
    schema = to_arrow_schema(columns, timezone="UTC")

    def parsed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow.json

        options = pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error")
        for batch in batches:
            if batch.num_rows:
                text = io.BytesIO(b"\n".join(batch.column("value").to_pylist()))
                yield from pyarrow.json.read_json(text, parse_options=options).select(schema.names).to_batches()

    wanted = {
        "path": root,
        "container": CONTAINER,
        "segmentsPattern": f"{SILVER}-.*",
        "framing": "lines",
        "columns": "value",
    }
    return map_batches(spark, parsed, SILVER_SCHEMA, **wanted)


def main(arguments: list[str] | None = None) -> None:
    parser = command(__doc__)
    parser.add_argument("--to", required=True, help="where the files go, as Spark writes it")
    given = parser.parse_args(arguments)
    spark = session()
    table(spark, given.root).write.mode("overwrite").parquet(given.to)
    print(f"{spark.read.parquet(given.to).count()} rows in {given.to}")


if __name__ == "__main__":
    main()
