"""Spark reads a container: ``spark.read.format("chunkstore")`` (docs/guide-spark.md).

The planner (``options``, ``plan``, ``ledgers``) and the reader (``pieces``, ``batches``) are plain functions that run without
a JVM; only ``source`` knows pyspark, and only what runs on executors knows pyarrow. Leaves out: writing and streaming.
"""
