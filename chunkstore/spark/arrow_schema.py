"""Arrow's types for Spark's, by Spark's own rule, on every version of PySpark that is supported."""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["arrow_schema"]


def arrow_schema(schema: StructType) -> pa.Schema:
    """The schema of the batches that Spark takes for ``schema``; timestamps are of UTC. Raises what PySpark raises for a type it does
    not know."""
    from pyspark.sql.pandas.types import to_arrow_schema

    # Before 4.2 timestamps are of UTC unless told otherwise; since then it has to be said.
    told: dict[str, Any] = {"timezone": "UTC"} if "timezone" in signature(to_arrow_schema).parameters else {}
    return to_arrow_schema(schema, **told)
