"""A bucket of objects that other programs write, too: over S3, a folder, and HDFS.

Pulsar's and Kafka's tiers are read, checked and cleaned through it. It is no chunk storage: keys are arbitrary, objects have
user metadata, and unfinished uploads can be listed.
"""

from chunkstore_bindings.bucket.port import Bucket, ObjectHead, ObjectInfo, UnfinishedUpload

__all__ = ["Bucket", "ObjectHead", "ObjectInfo", "UnfinishedUpload"]
