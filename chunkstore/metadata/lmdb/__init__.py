"""The metadata store in LMDB: one environment per store directory and process, on local disk, never synced while in use.

A commit costs its row puts and one more for the head. A store belongs to the cache object that holds its lock; others make their own.
The map grows by itself where it is too small; a full disk is ``StorageFull`` and leaves the last commit as it was.

Handles of one process on the same directory share an environment, by reference count, because LMDB forbids a second
one. A forked child must not use what its parent opened: it gets ``StorageUnavailable`` and its caches start new stores.

Durability: none while in use (protocol 3.8, A12): the journal is the truth. ``close(clean=True)`` syncs once.
Limits: LMDB 0.9 has no checksums: a cache whose pages rot on disk may crash the process; deleting the cache is always safe.
"""

from chunkstore.metadata.lmdb.cache import LmdbMetadataCache, environment_of, seen_end

__all__ = ["LmdbMetadataCache", "environment_of", "seen_end"]
