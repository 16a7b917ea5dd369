"""The metadata store in LMDB: one environment per store directory and process, on local disk, never synced while in use.

Promises: the port's. A commit costs its row puts and one more for the head. Readers in any number of processes
(``open_reader``) see whole commits only. Writers of several processes are put in order by LMDB, and all but the owner are
refused by the conditions of ``apply``. The map grows by itself where it is too small; a full disk is ``StorageFull`` and
leaves the last commit as it was.

Two stores of one process on the same directory share an environment, by reference count, because LMDB forbids a second
one. A forked child must not use what its parent opened: it gets ``StorageUnavailable`` and its caches start new stores.

Durability: none while in use (protocol 3.8, A12): the journal is the truth. ``close(clean=True)`` syncs once.
Limits: LMDB's writer lock knows no deadline. A process that is stopped (not killed) inside one of its microseconds long
transactions holds it; ``open_current`` notices and gives the directory up. LMDB 0.9 has no checksums: a cache whose pages
rot on disk may crash the process; deleting the cache is always safe.
"""

from chunkstore.metadata.lmdb.cache import LmdbMetadataCache, open_reader
from chunkstore.metadata.lmdb.store import LmdbMetadataStore, LmdbMetadataView

__all__ = ["LmdbMetadataCache", "LmdbMetadataStore", "LmdbMetadataView", "open_reader"]
