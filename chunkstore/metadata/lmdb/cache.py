"""Opening LMDB stores: which one is current, whether it can be trusted, and making new ones.

Promises: ``open_current`` answers None rather than a store that might be torn, foreign, of another format, or held by a
stopped process. Leaves out: directories and their locks (``chunkstore.metadata.cachedir``).
"""

from __future__ import annotations

from collections.abc import Callable

import lmdb

from chunkstore.config import Settings
from chunkstore.errors import ChunkstoreError, Closed, InvalidArgument
from chunkstore.metadata.cachedir import (
    CacheDirectory,
    current_store,
    delete_unused,
    is_in_use,
    is_local,
    is_this_boot,
    read_state,
    role_path,
    this_boot,
    translate_os,
    write_state,
)
from chunkstore.metadata.lmdb.environment import WRITER_PROBE_S, Environment, acquire, release, translate
from chunkstore.metadata.lmdb.proof import file_mark, is_well_formed
from chunkstore.metadata.lmdb.store import LmdbMetadataStore
from chunkstore.metadata.port import GENESIS, Head, MetadataCache, MetadataStore
from chunkstore.runtime import defer_interrupt, token

__all__ = ["LmdbMetadataCache", "open_reader"]


class LmdbMetadataCache(MetadataCache):
    """The LMDB stores of one container and role below ``cache_dir``.

    ``role`` is ``"owner"`` or ``"replica"``; a replica has a directory of its own while the cache is open. Where
    ``cache_dir`` is not on a local file system (``local`` decides), a temporary directory is used and a
    ``RuntimeWarning`` says so. Of ``settings``, ``lmdb_map_bytes`` and ``op_deadline_s`` count.

    Raises: ``InvalidArgument``, ``StorageFull``, ``StorageUnavailable``.
    """

    def __init__(
        self,
        cache_dir: str,
        container_uuid: bytes,
        role: str = "owner",
        *,
        settings: Settings | None = None,
        local: Callable[[str], bool] = is_local,
    ) -> None:
        self._settings = settings if settings is not None else Settings()
        self._directory = CacheDirectory(cache_dir, container_uuid, role, local=local)
        self._uuid = container_uuid
        self._closed = False

    @property
    def path(self) -> str:
        """The role's directory."""
        return self._directory.path

    @property
    def cache_dir(self) -> str:
        """The directory in use, for ``open_reader``: a temporary one where the given one is not on a local file system."""
        return self._directory.root

    def _check(self) -> None:
        if self._closed:
            raise Closed("this metadata cache")

    def open_current(self) -> MetadataStore | None:
        self._check()
        path = self._directory.current()
        return None if path is None else _open(path, self._uuid, self._settings, opener=token(16).hex())

    def create(self) -> MetadataStore:
        self._check()
        opener = token(16).hex()
        try:
            path, users = self._directory.make_store()
            environment = acquire(path, self._settings.lmdb_map_bytes, users)
        except OSError as error:
            raise translate_os(error, self.path) from error
        except lmdb.Error as error:
            raise translate(error, self.path) from error
        store = LmdbMetadataStore(environment, self._uuid, opener=opener, deadline_s=self._settings.op_deadline_s)
        try:
            store.finish_load(Head(GENESIS, 0, 0))
            write_state(path, this_boot(opener))
        except BaseException as error:
            self.discard(store)
            if isinstance(error, OSError):
                raise translate_os(error, path) from error
            raise
        return store

    def make_current(self, store: MetadataStore) -> None:
        self._check()
        try:
            self._directory.make_current(_path_of(store))
        except OSError as error:
            raise translate_os(error, self.path) from error

    def discard(self, store: MetadataStore) -> None:
        path = _path_of(store)
        self._directory.forget_current(path)
        store.close(clean=False)
        delete_unused(path)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._directory.close()


def open_reader(
    cache_dir: str, container_uuid: bytes, *, role: str = "owner", settings: Settings | None = None
) -> MetadataStore | None:
    """The present store of a container, for reading beside its owner, in any process; None if there is none to trust.

    ``role`` may also name one replica's directory (``"replica-0"``). Changing calls raise ``Unsupported``. The reader
    keeps the store it opened also when the owner makes another one current: open again to see that.
    """
    path = current_store(role_path(cache_dir, container_uuid, role))
    return None if path is None else _open(path, container_uuid, settings or Settings(), opener=None)


def _path_of(store: MetadataStore) -> str:
    if not isinstance(store, LmdbMetadataStore):
        raise InvalidArgument("this store is not of this cache", argument="store")
    return store.path


def _open(path: str, container_uuid: bytes, settings: Settings, *, opener: str | None) -> MetadataStore | None:
    state = read_state(path)
    if state is None or (state.clean is None and not is_this_boot(state)):
        return None
    try:
        in_use = is_in_use(path)
        if not in_use and not (is_well_formed(path) if state.clean is None else file_mark(path) == state.clean):
            return None
        environment = acquire(path, settings.lmdb_map_bytes)
    except (OSError, lmdb.Error):
        return None  # being deleted, a parent's, damaged, or no room: a new one is made, or says why it cannot be
    if not environment.writer_answers():
        release(environment, None)
        return None
    store = LmdbMetadataStore(environment, container_uuid, opener=opener, deadline_s=settings.op_deadline_s)
    try:
        trusted = environment.is_whole() and store.head().owner_epoch >= 0
        if trusted and state.clean is None and not in_use:
            with store.view() as view:
                view.audit()
        if trusted and opener is not None:
            _mark_open(environment, opener)
    except (ChunkstoreError, OSError, lmdb.Error):
        trusted = False
    if not trusted:
        store.close(clean=False)
    return store if trusted else None


def _mark_open(environment: Environment, opener: str) -> None:
    with defer_interrupt(), environment.alone(WRITER_PROBE_S):  # in order with others' marks, and with marking clean
        write_state(environment.path, this_boot(opener))
