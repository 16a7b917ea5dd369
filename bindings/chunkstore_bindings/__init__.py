"""Chunk storages, a module or a package each, all of them a ``chunkstore.storage.ChunkStorage``.

* ``memory``: a dict in this process; reference semantics.
* ``filesystem``: a directory tree on a local disk or a network file system.
* ``hdfs``: files in HDFS, through WebHDFS.
* ``s3``: objects of S3 and of servers that speak like it.
* ``wrappers``: storages around other storages, and the probe that checks put-if-absent before anything trusts it.
* ``in_time``: answers of HTTP servers, which end by a deadline.

``chunkstore.registry.open_storage`` finds the right one from a URL; nothing here is imported before it is needed.
"""

__all__: list[str] = []
