"""Spark reads a container: ``spark.read`` and ``spark.readStream`` of the format "chunkstore" (docs/guide-spark.md).

The planners (``options``, ``ranges``, ``plan``, ``stream``, ``ledgers``) and the readers (``pieces``, ``framing``, ``batches``) are plain
functions that run without a JVM; only ``source``, ``stream_source``, ``tasks`` and ``mapping`` know pyspark, and only what runs on
executors knows pyarrow. Leaves out: writing.
"""

from chunkstore.spark.mapping import map_batches

__all__ = ["map_batches"]
