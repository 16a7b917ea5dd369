"""Chunks as files in HDFS, through WebHDFS: ``hdfs://HOST[:PORT]/PATH`` (extra ``hdfs``).

* ``root``: what a root says. ``rest``: requests, deadlines, data nodes. ``errors``: what answers mean.
* ``files``, ``atomic``: files, names that appear by rename. ``storage``: all of the port.
"""

from chunkstore_bindings.hdfs.storage import HdfsChunkStorage, open_hdfs

__all__ = ["HdfsChunkStorage", "open_hdfs"]
