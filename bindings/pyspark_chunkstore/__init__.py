"""What Spark looks for: ``DefaultSource`` of the format "chunkstore". Importing it opens nothing; see ``chunkstore.spark``."""

from chunkstore.spark.source import DefaultSource

__all__ = ["DefaultSource"]
