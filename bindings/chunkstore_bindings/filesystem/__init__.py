"""Chunks as files of a local disk or a network file system: ``file:///PATH``.

* ``storage``: all of the port. ``atomic``: names that appear with their contents. ``chunk_files``, ``file_cache``: open files.
* ``folders``, ``tree``: directories and listing. ``mounts``: what is under a root. ``posix``: system calls.
"""

from chunkstore_bindings.filesystem.storage import FilesystemChunkStorage

__all__ = ["FilesystemChunkStorage"]
