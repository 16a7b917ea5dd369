"""From a bucket's URL to the bucket: objects of other programs, such as the tiers of Pulsar and Kafka.

Promises: a binding is imported when a bucket needs it, never before; credentials in a URL never reach a message.
Leaves out: roots of containers (``registry``), and calls of buckets (``chunkstore_bindings.bucket.port``).
"""

from __future__ import annotations

from chunkstore.errors import InvalidArgument
from chunkstore.registry import SCHEME, path_of, shown, without_extra
from chunkstore_bindings.bucket.port import Bucket

__all__ = ["open_bucket"]


def open_bucket(url: str) -> Bucket:
    """The bucket that ``url`` names: ``s3://BUCKET/PREFIX``, ``file:///PATH`` or ``hdfs://HOST:HTTPPORT/PATH``, with the options of roots.

    Raises ``InvalidArgument`` (another scheme, a malformed URL), ``Unsupported`` (a package is missing). Makes no request.
    """
    match = SCHEME.match(url)
    scheme = "" if match is None else match[1].lower()
    try:
        if scheme == "file":
            from chunkstore_bindings.bucket.folder import FolderBucket

            return FolderBucket(path_of(url))
        if scheme == "s3":
            from chunkstore_bindings.bucket.s3 import S3Bucket

            return S3Bucket(url)
        if scheme == "hdfs":
            from chunkstore_bindings.bucket.hdfs import HdfsBucket

            return HdfsBucket(url)
    except ModuleNotFoundError as error:
        raise without_extra(scheme, error) from error
    remedy = "write s3://BUCKET/PREFIX, file:///absolute/path or hdfs://HOST:HTTPPORT/PATH"
    raise InvalidArgument(f"{shown(url)!r} is no bucket's URL; {remedy}", argument="url")
