"""The job whose bytes executors move: ``offload`` (docs/guide-spark-writing.md).

It is planned in the driver, calls its tasks through ``running``, which alone knows pyspark, commits through the container's owner, and
gives a frame of what it did.
"""

from chunkstore.spark.jobs.offload import offload
from chunkstore.spark.jobs.running import JobFailed

__all__ = ["JobFailed", "offload"]
