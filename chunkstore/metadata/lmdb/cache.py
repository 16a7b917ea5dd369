"""Opening LMDB stores: one that was closed cleanly is used again, and made anew otherwise.

``open_current`` answers None rather than a store that might be torn, foreign, of another address or another format, or that is
held: no store is ever written to by two cache objects. Directories and their locks are in ``chunkstore.metadata.cachedir``.
"""

from __future__ import annotations

import lmdb

from chunkstore.config import Settings
from chunkstore.errors import ChunkstoreError, Closed, InvalidArgument
from chunkstore.metadata.cachedir import (
    CacheDirectory,
    EndFile,
    StoreLock,
    delete_unused,
    end_path,
    forget,
    is_unchanged,
    read_end,
    role_path,
    sweep_ends,
    translate_os,
)
from chunkstore.metadata.lmdb.environment import Environment, acquire, translate
from chunkstore.metadata.port import GENESIS, Head, MetadataCache, MetadataStore, furthest
from chunkstore.metadata.store import RowStore

__all__ = ["LmdbMetadataCache", "environment_of", "seen_end"]


class LmdbMetadataCache(MetadataCache):
    """The LMDB stores of one container and role below ``cache_dir``, for a root at ``address`` (``ChunkStorage.address``).

    ``role`` is one of ``ROLES``. Where ``cache_dir`` is not on a local file system, a temporary directory is used and a
    ``RuntimeWarning`` says so. Of ``settings``, ``tuning.lmdb_map_bytes`` and ``op_deadline_s`` count.

    Raises: ``InvalidArgument``, ``StorageFull``, ``StorageUnavailable``.
    """

    def __init__(
        self,
        cache_dir: str,
        container_uuid: bytes,
        address: str,
        role: str = "owner",
        *,
        settings: Settings | None = None,
    ) -> None:
        self._settings = settings if settings is not None else Settings()
        self._directory = CacheDirectory(cache_dir, container_uuid, address, role)
        self._uuid = container_uuid
        self._current: Environment | None = None
        self._end_path = end_path(self._directory.path, address) if role == "owner" else None
        self._closed = False

    @property
    def path(self) -> str:
        """The role's directory."""
        return self._directory.path

    def _check(self) -> None:
        if self._closed:
            raise Closed("this metadata cache")

    def _handle(self, environment: Environment) -> RowStore:
        return RowStore(environment, self._uuid, deadline_s=self._settings.op_deadline_s)

    def open_current(self) -> MetadataStore | None:
        self._check()
        if self._current is not None and self._current.share():
            return self._handle(self._current)
        for path in self._directory.stores():
            if (found := self._open_free(path)) is not None:
                return self._take(found)
        return None

    def _take(self, store: MetadataStore) -> MetadataStore | None:
        environment = environment_of(store)
        try:
            # Before the first write: what is written from now on is not synced.
            self._directory.mark(environment.path)
            self._record_end(environment, furthest(store.head(), self.seen()))
        except OSError:
            store.close(clean=False)
            return None
        self._current = environment
        return store

    def seen(self) -> Head | None:
        return None if self._end_path is None else read_end(self._end_path)

    def _record_end(self, environment: Environment, head: Head | None) -> None:
        """From now on what ``environment`` applies is recorded, beginning with ``head``. Raises ``OSError``."""
        if self._end_path is not None and head is not None:
            environment.record_end(EndFile(self._end_path, head))

    def _open_free(self, path: str) -> MetadataStore | None:
        """The store, ours from now on, if it is not held and was closed cleanly; else it is deleted."""
        try:
            held = StoreLock(path)
        except OSError:
            return None  # held, or being deleted
        found = self._open(path, held)
        if found is None:
            forget(path)
            delete_unused(path)
        return found

    def _open(self, path: str, held: StoreLock) -> MetadataStore | None:
        try:
            unchanged = is_unchanged(path)
        except OSError:
            unchanged = False
        if not unchanged:
            held.release()
            return None
        try:
            store = self._handle(acquire(path, self._settings.tuning.lmdb_map_bytes, held))
        except (OSError, lmdb.Error):
            return None  # no room: a new one is made, or says why it cannot be
        try:
            store.head()
        except ChunkstoreError:  # of another container or version
            store.close(clean=False)
            return None
        return store

    def create(self) -> MetadataStore:
        self._check()
        try:
            path, held = self._directory.make_store()
            environment = acquire(path, self._settings.tuning.lmdb_map_bytes, held)
        except OSError as error:
            raise translate_os(error, self.path) from error
        except lmdb.Error as error:
            raise translate(error, self.path) from error
        store = self._handle(environment)
        try:
            store.finish_load(Head(GENESIS, 0))
        except BaseException:
            self.discard(store)
            raise
        return store

    def make_current(self, store: MetadataStore) -> None:
        self._check()
        made = environment_of(store)
        try:
            self._directory.mark(made.path)
            # What was seen before is part of this store's history, or was given up.
            self._record_end(made, store.head())
        except OSError as error:
            raise translate_os(error, self.path) from error
        self._current = made
        self._directory.supersede(made.path)
        sweep_ends(self._directory.path)

    def discard(self, store: MetadataStore) -> None:
        given_up = environment_of(store)
        if given_up is self._current:
            self._current = None
        forget(given_up.path)
        store.close(clean=False)
        delete_unused(given_up.path)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._directory.close()


def seen_end(cache_dir: str, container_uuid: bytes, address: str) -> Head | None:
    """The end of history that owners on this machine have seen of the root at ``address``; None if nothing is recorded."""
    return read_end(end_path(role_path(cache_dir, container_uuid, "owner"), address))


def environment_of(store: MetadataStore | None) -> Environment:
    """What a store in LMDB is on. Raises ``InvalidArgument``."""
    if not isinstance(store, RowStore) or not isinstance(store.environment, Environment):
        raise InvalidArgument("this store is not of this cache", argument="store")
    return store.environment
