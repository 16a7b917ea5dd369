"""Chunks as files in HDFS, through WebHDFS: ``hdfs://HOST[:PORT]/PATH`` (extra ``hdfs``).

* ``root``: what a root says. ``rest``, ``connections``: requests, deadlines, data nodes. ``errors``: what answers mean.
* ``names``, ``files``, ``atomic``: paths, files, names that appear by rename. ``storage``: all of the port.
"""

from chunkstore_bindings.hdfs.storage import HdfsChunkStorage, open_hdfs

__all__ = ["HdfsChunkStorage", "open_hdfs"]
