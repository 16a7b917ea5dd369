"""The composition root: the only module that knows concrete parts, and it imports them inside functions.

Promises: ``open_store`` and ``open_replica`` close everything they opened if anything on the way fails. Settings travel apart from
components: tests and embedders may bring their own storage and metadata cache.
Leaves out: everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

from chunkstore.config import OptimiserPolicy, Settings, default_cache_dir
from chunkstore.engine import ChunkedSegmentStorage
from chunkstore.errors import ContainerNotFound, Damaged, InvalidArgument
from chunkstore.invariants import PINNED, Finding
from chunkstore.journal import JournalService, Ownership
from chunkstore.metadata.port import Head, MetadataCache
from chunkstore.metrics import CallCounts
from chunkstore.names import ContainerNames
from chunkstore.observer import Observer
from chunkstore.operations.check import CheckLevel
from chunkstore.operations.lazy_chunks import close_lazy_chunks
from chunkstore.operations.snapshots import SnapshotWriter
from chunkstore.operations.space import Reserve
from chunkstore.registry import open_storage
from chunkstore.replica import Replica
from chunkstore.storage import ChunkStorage
from chunkstore.upkeep.usage import StoredSizes

__all__ = [
    "cache_of",
    "checked_settings",
    "describe_owner",
    "journal_records",
    "list_containers",
    "open_metered_store",
    "open_replica",
    "open_replica_on",
    "open_store",
    "open_store_on",
    "scratch_of",
    "serve",
    "storage_of",
]


_SEVERITY = {"error": "damage", "warning": "warning"}


def checked_settings(settings: Settings | None) -> Settings:
    """The caller's settings, or the default ones. Raises ``InvalidArgument``."""
    if settings is None:
        return Settings()
    if not isinstance(settings, Settings):
        raise InvalidArgument(
            f"settings must be chunkstore.Settings, not {type(settings).__name__}", argument="settings"
        )
    return settings


def cache_of(storage: ChunkStorage, container: bytes, settings: Settings, role: str) -> MetadataCache:
    """The metadata cache of a container at this root. Raises as ``LmdbMetadataCache``."""
    address = storage.address
    if storage.capabilities.medium == "memory" and settings.cache_dir is None:
        from chunkstore.metadata.memory import MemoryMetadataCache

        return MemoryMetadataCache(container, address, role)
    from chunkstore.metadata.lmdb import LmdbMetadataCache

    return LmdbMetadataCache(settings.cache_dir or default_cache_dir(), container, address, role, settings=settings)


def open_store(
    root: str,
    *,
    container: str = "default",
    create: bool = True,
    settings: Settings | None = None,
    wait_s: float = 0,
    observer: Observer | None = None,
    accept_rollback: bool = False,
    optimiser: OptimiserPolicy | None = None,
) -> ChunkedSegmentStorage:
    """Claim the next epoch of a container, recover its state, and serve it.

    Arguments: ``root`` as a URL (``file:///PATH``, ``s3://...``, ``hdfs://...``, ``memory://NAME``); ``container``: 1 to 64 letters,
    digits, ``.``, ``_``, ``-``; ``create``: make the container if it is missing; ``wait_s``: how long to
    watch a former owner for signs of life (0: do not look, claim at once; a live one is then fenced). An idle one shows its
    lease only, so that less than about two periods of ``settings.lease_s``, which should be the owner's, is lengthened to that;
    one that shows no lease (``lease_s`` 0) is not seen. ``accept_rollback``: go on where the journal does not reach what was seen of it
    (``RolledBack``, or ``Damaged`` that speaks of it): a restored backup; what is given up is told in ``store.report.findings``. Safe only
    where no former owner runs any more: epochs recur, and an old owner's deletions may still land. ``optimiser``: upkeep in the background
    besides the collections of ``settings.collect_s``.

    Raises ``InvalidArgument``, ``ContainerNotFound`` (missing and not ``create``), ``ContainerBusy`` (the owner showed a sign
    of life; at once, and nothing was claimed), ``NotOwner`` (overtaken while opening), ``Unsupported`` (this storage cannot be
    owned safely), ``Damaged`` (``RolledBack``: this root is older than what was seen here), ``StorageFull``, ``StorageUnavailable``.
    Retry: safe. Source: protocol 3.4, 3.12.
    """
    chosen = checked_settings(settings)
    names = ContainerNames(container)
    storage = open_storage(root, chosen)
    try:
        return open_store_on(
            storage,
            container=names.container,
            create=create,
            settings=chosen,
            wait_s=wait_s,
            root=root,
            close_storage=True,
            observer=observer,
            accept_rollback=accept_rollback,
            optimiser=optimiser,
        )
    except BaseException:
        storage.close()
        raise


def open_metered_store(
    root: str, *, container: str, settings: Settings, wait_s: float, accept_rollback: bool, optimiser: OptimiserPolicy
) -> tuple[ChunkedSegmentStorage, Callable[[], Mapping[str, CallCounts]]]:
    """As ``open_store``, of a container that is there; and what counts its calls of the storage, by operation."""
    from chunkstore_bindings.wrappers.metered import MeteredChunkStorage

    storage = MeteredChunkStorage(open_storage(root, settings))
    try:
        store = open_store_on(
            storage,
            container=container,
            create=False,
            settings=settings,
            wait_s=wait_s,
            root=root,
            close_storage=True,
            accept_rollback=accept_rollback,
            optimiser=optimiser,
        )
    except BaseException:
        storage.close()
        raise
    return store, storage.snapshot


def open_store_on(
    storage: ChunkStorage,
    *,
    container: str = "default",
    create: bool = True,
    settings: Settings | None = None,
    wait_s: float = 0,
    cache: MetadataCache | None = None,
    root: str | None = None,
    close_storage: bool = False,
    observer: Observer | None = None,
    accept_rollback: bool = False,
    optimiser: OptimiserPolicy | None = None,
) -> ChunkedSegmentStorage:
    """As ``open_store``, on a storage (and, if given, a metadata cache) of the caller's own.

    ``root``: the URL under which another process finds the same storage; with it, large snapshots are written by a worker.
    """
    from chunkstore_bindings.probe import confirm_storage, probe_storage
    from chunkstore_bindings.wrappers.guarded import guarded
    from chunkstore_journal.container import check_writable, create_container, read_format
    from chunkstore_journal.objects import encode_format
    from chunkstore_journal.service import ContainerJournal

    chosen = checked_settings(settings)
    names = ContainerNames(container)
    if observer is not None and not isinstance(observer, Observer):
        raise InvalidArgument(
            f"observer must be a chunkstore.observer.Observer, not {type(observer).__name__}", argument="observer"
        )
    if optimiser is not None and not isinstance(optimiser, OptimiserPolicy):
        raise InvalidArgument(
            f"optimiser must be a chunkstore.OptimiserPolicy, not {type(optimiser).__name__}", argument="optimiser"
        )
    if not isinstance(wait_s, (int, float)) or not 0 <= wait_s <= 86_400:
        raise InvalidArgument(f"wait_s must be from 0 to 86400 seconds, not {wait_s!r}", argument="wait_s")
    storage = guarded(storage)
    try:
        format_ = read_format(storage, names)
    except ContainerNotFound:
        if not create:
            raise
        format_ = create_container(storage, names, chosen, probe=probe_storage)
    else:
        Reserve(storage, names, chosen).make_room()  # for the claim
        confirm_storage(storage, names.format, encode_format(format_), format_.probe, names.temporary(""))
    check_writable(storage, format_, chosen)
    parts = cache if cache is not None else cache_of(storage, format_.uuid, chosen, "owner")
    closing: list[Callable[[], None]] = [] if cache is not None else [parts.close]
    if close_storage:
        closing.append(storage.close)
    try:
        service = ContainerJournal(storage, names, format_, parts, chosen)
        ownership = service.take_over(own=None, wait_s=float(wait_s), accept_rollback=accept_rollback)
        store = serve(
            service, ownership, storage, names, chosen, cache, format_.uuid, root, observer, closing, optimiser
        )
        if chosen.verify_chunks_at_open:
            _verify_chunks(store)
        return store
    except BaseException:
        if cache is None:
            parts.close()
        raise


def serve(
    service: JournalService,
    ownership: Ownership,
    storage: ChunkStorage,
    names: ContainerNames,
    settings: Settings,
    cache: MetadataCache | None,
    uuid: bytes,
    root: str | None,
    observer: Observer | None,
    closing: list[Callable[[], None]],
    optimiser: OptimiserPolicy | None = None,
) -> ChunkedSegmentStorage:
    """The store of a fresh ownership, which is given up if that fails."""
    try:
        close_lazy_chunks(storage, names, ownership)
        return ChunkedSegmentStorage(
            storage=storage,
            names=names,
            settings=settings,
            service=service,
            ownership=ownership,
            journal_findings=partial(
                _journal_findings, storage, names.container, scratch_of(storage, uuid, settings, cache)
            ),
            stored_sizes=_stored_sizes(storage, names),
            observer=observer,
            optimiser=optimiser,
            snapshot_worker=_snapshot_worker(storage, names, settings, root) if cache is None else None,
            sweep_unfinished=partial(_sweep_unfinished, storage),
            open_copy=partial(open_storage, settings=settings),
            on_close=closing,
        )
    except BaseException:
        ownership.journal.close()
        ownership.store.close(clean=False)
        raise


def _snapshot_worker(
    storage: ChunkStorage, names: ContainerNames, settings: Settings, root: str | None
) -> SnapshotWriter | None:
    if root is None or storage.capabilities.medium == "memory":
        return None
    from chunkstore.snapshot_worker import SnapshotWorker

    return SnapshotWorker(root, names.container, settings).write


def _sweep_unfinished(storage: ChunkStorage) -> int:
    """Abort uploads in parts that were never finished, where the binding has such; returns how many. Raises ``StorageUnavailable``."""
    from chunkstore_bindings.wrappers.wrapping import layers

    return sum(layer.sweep_uploads() for layer in layers(storage) if hasattr(layer, "sweep_uploads"))


def _verify_chunks(store: ChunkedSegmentStorage) -> None:
    try:
        # What only a pin needs does not keep anybody from opening: it may have to be removed for that very reason.
        found = (item for item in store.check("exists") if item.severity == "damage" and item.invariant != PINNED)
        damage = next(found, None)
    except BaseException:
        store.close()
        raise
    if damage is not None:
        store.close()
        raise Damaged(f"segment {damage.segment!r}: {damage.message}", object=damage.object, position=damage.position)


def open_replica(root: str, *, container: str = "default", settings: Settings | None = None) -> Replica:
    """Follow a container's journal read-only. Never claims, never writes to the container.

    Raises ``InvalidArgument``, ``ContainerNotFound``, ``Damaged``, ``StorageFull`` (cache disk), ``StorageUnavailable``.
    """
    chosen = checked_settings(settings)
    names = ContainerNames(container)
    storage = open_storage(root, chosen)
    try:
        return open_replica_on(storage, container=names.container, settings=chosen, close_storage=True)
    except BaseException:
        storage.close()
        raise


def open_replica_on(
    storage: ChunkStorage,
    *,
    container: str = "default",
    settings: Settings | None = None,
    cache: MetadataCache | None = None,
    close_storage: bool = False,
) -> Replica:
    """As ``open_replica``, on a storage (and, if given, a metadata cache) of the caller's own."""
    from chunkstore_bindings.wrappers.guarded import guarded
    from chunkstore_journal.container import read_format
    from chunkstore_journal.follower import Follower

    chosen = checked_settings(settings)
    names = ContainerNames(container)
    storage = guarded(storage)
    format_ = read_format(storage, names)
    parts = cache if cache is not None else cache_of(storage, format_.uuid, chosen, "replica")
    closing: list[Callable[[], None]] = [] if cache is not None else [parts.close]
    if close_storage:
        closing.append(storage.close)
    try:
        follower = Follower(storage, names, format_, parts, chosen)
        scratch = scratch_of(storage, format_.uuid, chosen, cache)

        def journal_findings(level: CheckLevel, head: Head, pinned_lsn: int | None) -> list[Finding]:
            memory = None if cache is not None else _memory_of_owner(storage, format_.uuid, chosen)
            found = _journal_findings(storage, container, scratch, level, head, pinned_lsn, memory)
            if follower.ahead:
                found.append(_finding(12, "warning", "metadata cache", 0, follower.ahead))
            return found

        return Replica(
            storage=storage,
            names=names,
            settings=chosen,
            follower=follower,
            journal_findings=journal_findings,
            stored_sizes=_stored_sizes(storage, names),
            on_close=closing,
        )
    except BaseException:
        if cache is None:
            parts.close()
        raise


def _memory_of_owner(storage: ChunkStorage, container: bytes, settings: Settings) -> Head | None:
    """Where the cache of an owner on this machine stands: what was seen here of this container. None: nothing to be trusted."""
    if storage.capabilities.medium == "memory" and settings.cache_dir is None:
        store = cache_of(storage, container, settings, "owner").open_current()
        if store is None:
            return None
        try:
            return store.head()
        finally:
            store.close(clean=False)
    from chunkstore.metadata.lmdb import newest_head

    return newest_head(settings.cache_dir or default_cache_dir(), container, storage.address, settings=settings)


def list_containers(root: str, *, settings: Settings | None = None) -> list[str]:
    """The containers under a root, in name order. Read-only. Raises ``InvalidArgument``, ``StorageUnavailable``."""
    from chunkstore_journal.container import list_containers as listed

    with storage_of(root, settings) as storage:
        return list(listed(storage))


def describe_owner(root: str, container: str = "default", *, settings: Settings | None = None) -> dict[str, object]:
    """Which epochs were claimed and opened last, who opened last (``host``, ``pid``, ``claimed_at``: of the claim that was
    opened), and the lease hint, as plain data. Read-only.

    Raises ``ContainerNotFound``, ``Damaged``, ``StorageUnavailable``, ``InvalidArgument``.
    """
    from chunkstore_journal.history import open_streams
    from chunkstore_journal.inspect import describe_owner as described

    with storage_of(root, settings) as storage:
        streams = open_streams(storage, ContainerNames(container))
        info = described(streams)
        claim, lease = info.claim, info.lease
        return {
            "container": container,
            "uuid": streams.container.hex(),
            "journal_mode": streams.mode,
            "claimed_epoch": info.claimed_epoch,
            "opened_epoch": info.opened_epoch,
            "host": claim.host if claim is not None else None,
            "pid": claim.pid if claim is not None else None,
            "claimed_at": claim.time_ms if claim is not None else None,
            "lease": {**lease._asdict(), "hash": lease.hash.hex()} if lease is not None else None,
        }


def journal_records(
    root: str, container: str = "default", epoch: int | None = None, *, settings: Settings | None = None
) -> Iterator[dict[str, object]]:
    """The records of history still stored, oldest first, as plain data; only stream ``epoch`` where given. Read-only.

    Raises as ``describe_owner`` (``InvalidArgument`` also where there is no such epoch), and
    ``ChunkNotFound`` when a collector takes what is being read: begin again.
    """
    from chunkstore_journal.history import open_streams
    from chunkstore_journal.inspect import iter_records

    with storage_of(root, settings) as storage:
        for record in iter_records(open_streams(storage, ContainerNames(container)), epoch):
            yield record._asdict()


@contextmanager
def storage_of(root: str, settings: Settings | None) -> Iterator[ChunkStorage]:
    """The storage of a root, closed when the block ends. Raises ``InvalidArgument``, ``StorageUnavailable``."""
    storage = open_storage(root, checked_settings(settings))
    try:
        yield storage
    finally:
        storage.close()


def scratch_of(
    storage: ChunkStorage, container: bytes, settings: Settings, cache: MetadataCache | None
) -> Callable[[], MetadataCache]:
    """Makes caches for a replay that serves no caller: in memory where the caller brought a cache, else like the cache."""

    def make() -> MetadataCache:
        if cache is None:
            return cache_of(storage, container, settings, "replica")
        from chunkstore.metadata.memory import MemoryMetadataCache, MemoryShelf

        return MemoryMetadataCache(container, storage.address, "replica", shelf=MemoryShelf())

    return make


def _journal_findings(
    storage: ChunkStorage,
    container: str,
    scratch: Callable[[], MetadataCache],
    level: CheckLevel,
    head: Head,
    pinned_lsn: int | None,
    memory: Head | None = None,
) -> list[Finding]:
    """The journal's own invariants (1 to 6, 11, 12, 25, 28, 30, 39; ``deep``: 10 and all of 11), for ``check``.

    ``memory``: where the cache of an owner on this machine stands.
    """
    from chunkstore_journal.history import open_streams
    from chunkstore_journal.inspect import check_journal
    from chunkstore_journal.pin_check import check_pinned
    from chunkstore_journal.replay_check import check_replay

    names = ContainerNames(container)

    def stored() -> list[Finding]:
        streams = open_streams(storage, names)
        pinned = check_pinned(streams, pinned_lsn) if pinned_lsn else ()
        return [_finding(*item) for item in (*check_journal(streams, head, memory), *pinned)]

    def replayed() -> list[Finding]:
        room = scratch()
        try:
            return [_finding(*item) for item in check_replay(open_streams(storage, names), room)]
        finally:
            room.close()

    found = _found_twice(stored)
    if level == "deep":
        known = {(item.invariant, item.object) for item in found}
        found += [item for item in _found_twice(replayed) if (item.invariant, item.object) not in known]
    return found


def _stored_sizes(storage: ChunkStorage, names: ContainerNames) -> StoredSizes:
    from chunkstore_journal.sizes import stored_sizes

    return partial(stored_sizes, storage, names)


def _finding(invariant: int, severity: str, object: str, position: int, message: str) -> Finding:
    """One of the journal's findings, as ``check`` reports it."""
    return Finding(invariant, _SEVERITY[severity], "", "", object, position, message)


def _found_twice(look: Callable[[], list[Finding]]) -> list[Finding]:
    """Only what a second look finds again counts: a collector or a take-over may be at work meanwhile."""
    found = look()
    if found:
        again = {(item.invariant, item.object) for item in look()}
        found = [item for item in found if (item.invariant, item.object) in again]
    return found
