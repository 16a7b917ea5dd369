"""Jobs of Spark over containers (docs/guide-spark.md): executors move the bytes, the driver commits through the owner."""

from __future__ import annotations

from chunkstore.spark.jobs.parquet import to_parquet

__all__ = ["to_parquet"]
