"""What Spark looks for: ``DefaultSource`` of the format "pulsar-offload". Importing it opens nothing; see ``chunkstore.spark``."""

from chunkstore.spark.tier_sources import PulsarOffloadSource as DefaultSource

__all__ = ["DefaultSource"]
