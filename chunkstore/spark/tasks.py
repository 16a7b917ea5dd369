"""A planned task as Spark carries it to an executor, and what happens to it there."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING, Protocol

from pyspark.sql.datasource import InputPartition

from chunkstore.spark.metadata_tables import TableTask
from chunkstore.spark.runs import ReadTask

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Partition", "Step", "read_partition", "settle_process"]


class Step(Protocol):
    """What makes other batches of a task's, on the executor; it travels with the reader."""

    def batches(self, found: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Called once for each task."""


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
    partition: InputPartition, columns: Sequence[tuple[str, bool]], steps: Sequence[Step]
) -> Iterator[pa.RecordBatch]:
    """The rows of one task as Arrow batches, and what the steps make of them, one after the other. Raises as ``read_task`` and their
    ``batches``."""
    if not isinstance(partition, Partition):
        return iter(())  # Spark asks for one nameless partition where there are none
    from chunkstore.spark.batches import Column, read_task
    from chunkstore.spark.tables import table_batches

    settle_process()
    task = partition.task
    if isinstance(task, TableTask):
        found = table_batches(task, columns)
    else:
        parse = None
        if steps:
            from chunkstore.spark.json_rows import JsonRows  # others do not pay for it

            parse = next((step.of_lines for step in steps if isinstance(step, JsonRows)), None)
        found = read_task(task, [Column(*column) for column in columns], parse=parse)
    for step in steps:
        found = step.batches(found)
    return found
