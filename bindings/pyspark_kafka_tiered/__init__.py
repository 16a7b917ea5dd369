"""What Spark looks for: ``DefaultSource`` of the format "kafka-tiered". Importing it opens nothing; see ``chunkstore.spark``."""

from chunkstore.spark.tier_sources import KafkaTieredSource as DefaultSource

__all__ = ["DefaultSource"]
