"""What Spark looks for: ``DefaultSource`` of the format "pulsar-offload". Importing it opens nothing; see ``chunkstore.spark``."""

from chunkstore.spark.pulsar_offload import PulsarOffloadSource as DefaultSource

__all__ = ["DefaultSource"]
