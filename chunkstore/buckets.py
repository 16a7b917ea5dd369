"""From a bucket's root to the bucket: objects of other programs, such as the tiers of Pulsar and Kafka.

A binding is imported when a bucket needs it, never before; credentials in a URL never reach a message.
"""

from __future__ import annotations

from chunkstore.errors import InvalidArgument
from chunkstore.records.logs import without_credentials
from chunkstore.registry import Root, path_of, root_url, without_extra
from chunkstore_bindings.bucket.port import Bucket

__all__ = ["open_bucket"]


def open_bucket(place: Root) -> Bucket:
    """The bucket at ``place``: ``s3://BUCKET/PREFIX``, ``hdfs://HOST:HTTPPORT/PATH``, a path or ``file:///PATH``; options as of roots.

    Raises ``InvalidArgument`` (another scheme, a malformed URL), ``Unsupported`` (a package is missing). Makes no request.
    """
    url = root_url(place, "url")
    scheme = url.partition("://")[0].lower()
    try:
        if scheme == "file":
            from chunkstore_bindings.bucket.files import FileBucket
            from chunkstore_bindings.filesystem import FilesystemChunkStorage

            return FileBucket(FilesystemChunkStorage(path_of(url)))
        if scheme == "s3":
            from chunkstore_bindings.bucket.s3 import S3Bucket

            return S3Bucket(url)
        if scheme == "hdfs":
            from chunkstore_bindings.bucket.files import FileBucket
            from chunkstore_bindings.hdfs import HdfsChunkStorage

            return FileBucket(HdfsChunkStorage(url))
    except ModuleNotFoundError as error:
        raise without_extra(scheme, error) from error
    remedy = "write a path, s3://BUCKET/PREFIX, file:///absolute/path or hdfs://HOST:HTTPPORT/PATH"
    raise InvalidArgument(f"{without_credentials(url)!r} is no bucket's URL; {remedy}", argument="url")
