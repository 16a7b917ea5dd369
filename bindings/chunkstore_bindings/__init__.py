"""Chunk storages, one module each, all behind ``chunkstore.storage.ChunkStorage``.

* ``memory``: a dict in this process; reference semantics.
* ``filesystem``: a directory tree on a local disk or a network file system.
* ``hdfs``: files in HDFS, through WebHDFS (``hdfs_*`` are its parts).
* ``length_only``: a wrapper that keeps lengths and forgets contents, for tests of very large segments.
* ``probe``: checks that a storage really has put-if-absent before anything trusts it.

``chunkstore.registry.open_storage`` finds the right one from a URL; nothing here is imported before it is needed.
"""

__all__: list[str] = []
