"""Spark reads and writes a container: ``spark.read``, ``readStream``, ``df.write`` and ``writeStream`` (docs/guide-spark.md,
docs/guide-spark-writing.md).

Planners, readers and commits are plain modules that run without a JVM. Only ``source``, ``stream``, ``mapping``,
``sink``, ``tier_sources``, ``kafka_runs``, ``pulsar_runs`` and ``jobs`` know pyspark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.spark.mapping import map_batches

__all__ = ["foreach_batch", "map_batches"]


def foreach_batch(store: ChunkedSegmentStorage, **options: Any) -> Callable[[Any, int], None]:
    """What ``writeStream.foreachBatch`` takes: commits each micro-batch to ``store``, which this driver owns, exactly once.

    ``options``: those of ``writeStream.format("chunkstore")`` but for ``container``; ``path`` is the store's own root
    unless given. Raises ``InvalidArgument``, ``Unsupported`` (an option; a root in memory), ``ContainerNotFound`` (at
    ``path``), and what opening that root raises.

    The function raises ``Unsupported`` through Spark Connect, ``InvalidArgument`` (columns, rows), and as the sink's commit; then the
    query ends, and goes on where it was when it is started again. Atomic, durable. Retry: safe.
    """
    from chunkstore.spark.sink import ForeachBatch

    return ForeachBatch(store, options)
