"""Jobs on a container whose bytes executors move: ``offload``, ``scrub`` and ``copy`` (docs/guide-spark.md;
decision 0030).

Each plans in the driver, calls its tasks through ``running``, which alone knows pyspark, commits through the container's owner, and gives a
frame of what it did.
"""

from chunkstore.spark.jobs.copy import copy
from chunkstore.spark.jobs.offload import offload
from chunkstore.spark.jobs.running import JobFailed
from chunkstore.spark.jobs.scrub import scrub

__all__ = ["JobFailed", "copy", "offload", "scrub"]
