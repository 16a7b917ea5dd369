"""The Spark format with the planner of ``tests.support.ledgers``, under a name of its own."""

from __future__ import annotations

from pyspark.sql.types import StructType

from chunkstore.spark.plan import LedgerPlanner
from chunkstore.spark.source import DefaultSource, Reader
from tests.support.ledgers import plan_from_table

__all__ = ["PlannedSource"]


class PlannedReader(Reader):
    def ledger_planner(self) -> LedgerPlanner:
        return plan_from_table


class PlannedSource(DefaultSource):
    @classmethod
    def name(cls) -> str:
        return "chunkstore-planned"

    def reader(self, schema: StructType) -> Reader:
        plain = super().reader(schema)
        return PlannedReader(plain._options, plain._columns)
