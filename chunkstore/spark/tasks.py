"""A planned task as Spark carries it to an executor, and what happens to it there."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from chunkstore.spark.columns import TableTask
from chunkstore.spark.mapping import Mapped
from chunkstore.spark.runs import ReadTask

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Partition", "read_partition", "settle_process"]


class Partition(InputPartition):
    """A planned task, as Spark carries it to an executor."""

    def __init__(self, task: ReadTask | TableTask) -> None:
        super().__init__(task)
        self.task = task


@cache
def settle_process() -> None:
    """Once in an executor's Python process: take what is loaded by now out of the garbage collector's sight.

    Spark's workers collect garbage after every task; going through all that pandas, pyarrow and the like keep for good took
    70 ms of it, more than reading 64 MiB does. Objects made later are collected as ever.
    """
    gc.collect()
    gc.freeze()


def read_partition(
    partition: InputPartition, columns: Sequence[tuple[str, bool]], mapped: Mapped | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of one task as Arrow batches, or what ``mapped`` makes of them. Raises as ``read_task`` and
    ``Mapped.batches``."""
    if not isinstance(partition, Partition):
        return iter(())  # Spark asks for one nameless partition where there are none
    from chunkstore.spark.batches import Column, read_task
    from chunkstore.spark.tables import table_batches

    settle_process()
    task, wanted = partition.task, [Column(*column) for column in columns]
    found = table_batches(task, columns) if isinstance(task, TableTask) else read_task(task, wanted)
    return found if mapped is None else mapped.batches(found)
