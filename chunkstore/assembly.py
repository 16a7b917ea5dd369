"""The composition root: the only module that knows concrete parts, and it imports them inside functions.

What opens here closes everything it opened if anything on the way fails. Settings travel apart from components: tests and embedders
may bring their own storage and metadata cache. ``following`` opens replicas of backups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from chunkstore.config import OptimiserPolicy, Settings
from chunkstore.engine import parts
from chunkstore.engine.owner import Asker
from chunkstore.engine.replica import Replica
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import InvalidArgument, Unsupported
from chunkstore.metadata.port import MetadataCache
from chunkstore.metrics import CallCounts
from chunkstore.observer import Observer
from chunkstore.operations.container import OwnedContainer
from chunkstore.operations.space import Reserve
from chunkstore.records.arguments import check_flags
from chunkstore.records.names import ContainerNames
from chunkstore.registry import Root, open_storage
from chunkstore.storage import ChunkStorage

__all__ = [
    "check_patience",
    "closed_if_this_fails",
    "describe_owner",
    "follow_container",
    "journal_records",
    "list_containers",
    "open_asker",
    "open_asker_on",
    "open_metered_store",
    "open_store",
    "open_store_on",
]


def open_store(
    root: Root,
    *,
    container: str = "default",
    create: bool = True,
    settings: Settings | None = None,
    wait_s: float | None = None,
    take_over: bool = False,
    observer: Observer | None = None,
    accept_rollback: bool = False,
    optimiser: OptimiserPolicy | None = None,
) -> ChunkedSegmentStorage:
    """Claim the next epoch of a container, recover its state, and serve it.

    Arguments: ``root``: a path, or a URL (``file:///PATH``, ``s3://...``, ``hdfs://...``, ``memory://NAME``); ``container``: 1 to 64
    letters, digits, ``.``, ``_``, ``-``; ``create``: make the container if it is missing, and its root's folder, but no parent;
    ``wait_s``: how many seconds a live owner may need to go; None: none. ``take_over``: claim at once and fence a live owner, without
    ``wait_s``. A former owner that has not closed, and is not seen to have ended, is watched until its lease has not moved for 11 s, or
    35 s over a network (``lease_s``, ``lease_remote_s``); one that shows no lease (``lease_s`` 0) is not seen.
    ``accept_rollback``: go on where the journal does not reach what was seen of it (``RolledBack``, or ``Damaged`` that speaks of it): a
    restored backup; what is given up is reported in ``store.report.findings``. Safe only where no former owner runs any more: epochs recur,
    and an old owner's deletions may still land. ``optimiser``: upkeep in the background besides the collections of ``settings.collect_s``.

    Raises ``InvalidArgument``, ``ContainerNotFound`` (missing and not ``create``), ``ContainerBusy`` (the owner showed a sign
    of life after ``wait_s``; nothing was claimed), ``NotOwner`` (overtaken while opening), ``Unsupported`` (this storage cannot be
    owned safely), ``Damaged`` (``RolledBack``: this root is older than what was seen here), ``StorageFull``, ``StorageUnavailable``.
    Retry: safe. Source: protocol 3.4, 3.12.
    """
    chosen = parts.checked_settings(settings)
    names = ContainerNames(container)
    return open_store_on(
        open_storage(root, chosen),
        container=names.container,
        create=create,
        settings=chosen,
        wait_s=wait_s,
        take_over=take_over,
        close_storage=True,
        observer=observer,
        accept_rollback=accept_rollback,
        optimiser=optimiser,
    )


def open_metered_store(
    root: Root,
    *,
    container: str,
    settings: Settings,
    take_over: bool,
    accept_rollback: bool,
    optimiser: OptimiserPolicy,
) -> tuple[ChunkedSegmentStorage, Callable[[], Mapping[str, CallCounts]]]:
    """As ``open_store``, of a container that is there; and what counts its calls of the storage, by operation."""
    from chunkstore_bindings.wrappers.metered import MeteredChunkStorage

    storage = MeteredChunkStorage(open_storage(root, settings))
    store = open_store_on(
        storage,
        container=container,
        create=False,
        settings=settings,
        take_over=take_over,
        close_storage=True,
        accept_rollback=accept_rollback,
        optimiser=optimiser,
    )
    return store, storage.snapshot


@contextmanager
def closed_if_this_fails(close: Callable[[], None] | None) -> Iterator[None]:
    """Call ``close`` if the block raises."""
    try:
        yield
    except BaseException:
        if close is not None:
            close()
        raise


def open_store_on(
    storage: ChunkStorage,
    *,
    container: str = "default",
    create: bool = True,
    settings: Settings | None = None,
    wait_s: float | None = None,
    take_over: bool = False,
    cache: MetadataCache | None = None,
    close_storage: bool = False,
    observer: Observer | None = None,
    accept_rollback: bool = False,
    optimiser: OptimiserPolicy | None = None,
) -> ChunkedSegmentStorage:
    """As ``open_store``, on a storage (and, if given, a metadata cache) of the caller's own.

    ``close_storage``: it is closed with the store, or at once if this fails.
    """
    from chunkstore_bindings.wrappers.probe import confirm_storage
    from chunkstore_bindings.wrappers.wrapping import guarded
    from chunkstore_journal.asks import StoredAsks
    from chunkstore_journal.container import check_writable
    from chunkstore_journal.lease import wait_politely
    from chunkstore_journal.objects import encode_format
    from chunkstore_journal.service import ContainerJournal

    with closed_if_this_fails(storage.close if close_storage else None):
        chosen, names = parts.checked_settings(settings), ContainerNames(container)
        _check_ownership(observer, optimiser, accept_rollback)
        check_flags(create=create)
        patience_s = check_patience(wait_s, take_over)
        storage = guarded(storage)
        format_, created = _find_or_create(storage, names, chosen, create=create)
        check_writable(storage, format_, chosen)
        lease = wait_politely(storage, names, chosen, patience_s)
        if not created:
            Reserve(storage, names, chosen).make_room()  # for the claim
            confirm_storage(storage, names.format, encode_format(format_), format_.probe, names.temporary(""))
        own = parts.ContainerParts(storage, names, format_.uuid, chosen, cache, close_storage=close_storage)
        with closed_if_this_fails(own.close):
            service = ContainerJournal(storage, names, format_, own.make_cache("owner"), chosen)
            ownership = service.take_over(own=None, lease=lease, accept_rollback=accept_rollback)
            try:
                return ChunkedSegmentStorage(
                    own,
                    service,
                    ownership,
                    observer=observer,
                    optimiser=optimiser,
                    asks=StoredAsks(storage, names, format_.uuid),
                    importer=_importer(chosen),
                )
            except BaseException:
                ownership.journal.close()
                ownership.store.close(clean=False)
                raise


def _importer(
    settings: Settings,
) -> Callable[[ChunkedSegmentStorage, OwnedContainer], Callable[[str], bool]] | None:
    """What imports unknown segments from header files (``Settings.headers``)."""
    if settings.headers != "import":
        return None
    from chunkstore.headers.importing import HeaderImporter

    return HeaderImporter


def _find_or_create(
    storage: ChunkStorage, names: ContainerNames, settings: Settings, *, create: bool
) -> tuple[Any, bool]:
    """The container's FORMAT (of ``chunkstore_journal``), and whether it was made just now."""
    from chunkstore_bindings.wrappers.probe import probe_storage
    from chunkstore_journal.container import container_missing, create_container, find_format

    if (found := find_format(storage, names)) is not None:
        return found, False
    if not create:
        raise container_missing(storage, names)
    return create_container(storage, names, settings, probe=probe_storage), True


def follow_container(
    storage: ChunkStorage,
    *,
    container: str,
    settings: Settings,
    cache: MetadataCache | None = None,
    close_storage: bool = False,
    moment: tuple[int | None, int | None] = (None, None),
    of_backups: Callable[[ChunkStorage], Replica] | None = None,
) -> Replica:
    """A container's journal, followed read-only, or its state at a moment (``check_moment``). ``of_backups`` opens what is shown where its
    backups are instead (``following``)."""
    from chunkstore_bindings.wrappers.wrapping import guarded
    from chunkstore_journal.container import read_format
    from chunkstore_journal.follower import Follower
    from chunkstore_journal.history import Streams
    from chunkstore_journal.past import Asked, FixedState

    with closed_if_this_fails(storage.close if close_storage else None):
        chosen, names = settings, ContainerNames(container)
        past = (asked := Asked(*moment)) != (None, None)
        storage = guarded(storage)
        try:
            format_ = read_format(storage, names)
        except Unsupported as error:
            if error.feature != "backup" or of_backups is None:
                raise
            return of_backups(storage)
        own = parts.ContainerParts(storage, names, format_.uuid, chosen, cache, close_storage=close_storage)
        with closed_if_this_fails(own.close):
            made = own.make_cache("past" if past else "replica")
            streams = Streams(storage, names, format_)
            follower = own.follower = (
                FixedState(streams, made, asked) if past else Follower(storage, names, format_, made, chosen)
            )
            tail = follower.tail if isinstance(follower, Follower) else None
            replica = Replica(own, follower, tail=tail, passes=streams.passes)
            with closed_if_this_fails(replica.close):
                streams.require_begun(follower.store.head().position)
            return replica


def open_asker(root: Root, *, container: str = "default", settings: Settings | None = None) -> Asker:
    """What asks a container's owner to do something, without claiming anything. ``settings.ask_s`` is the owner's.

    Raises as ``open_replica``, and ``Unsupported`` where requests cannot be stored safely.
    """
    chosen = parts.checked_settings(settings)
    names = ContainerNames(container)
    storage = open_storage(root, chosen)
    with closed_if_this_fails(storage.close):
        replica = follow_container(storage, container=names.container, settings=chosen, close_storage=True)
        return open_asker_on(storage, replica)


def open_asker_on(storage: ChunkStorage, replica: Replica) -> Asker:
    """As ``open_asker``, on a storage of the caller's own and a replica of it, which it closes."""
    from chunkstore_bindings.wrappers.wrapping import guarded
    from chunkstore_journal.asks import StoredAsks

    if not storage.capabilities.create_if_absent:
        replica.close()
        raise Unsupported(f"{storage.url} cannot store a request safely", feature="ask")
    able = storage.capabilities
    box = StoredAsks(guarded(storage), ContainerNames(replica.container), replica.uuid)
    return Asker(replica, box, syncs_prove=able.sync_repeatable or not able.append)


def list_containers(root: Root, *, settings: Settings | None = None) -> list[str]:
    """The containers under a root, in name order. Read-only. Raises ``InvalidArgument``, ``StorageUnavailable``."""
    from chunkstore_journal.container import list_containers as listed

    with parts.storage_of(root, settings) as storage:
        return list(listed(storage))


def describe_owner(root: Root, container: str = "default", *, settings: Settings | None = None) -> dict[str, object]:
    """Which epochs were claimed and opened last, who opened last (``host``, ``pid``, ``claimed_at``: of the claim that was
    opened), and the lease hint, as plain data. Read-only.

    Raises ``ContainerNotFound``, ``Damaged``, ``StorageUnavailable``, ``InvalidArgument``.
    """
    from chunkstore_journal.history import open_streams
    from chunkstore_journal.inspect import describe_owner as described

    with parts.storage_of(root, settings) as storage:
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
    root: Root, container: str = "default", epoch: int | None = None, *, settings: Settings | None = None
) -> Iterator[dict[str, object]]:
    """The records of history still stored, oldest first, as plain data; only stream ``epoch`` where given. Read-only.

    Raises as ``describe_owner`` (``InvalidArgument`` also where there is no such epoch), and
    ``ChunkNotFound`` when a collector takes what is being read: begin again.
    """
    from chunkstore_journal.history import open_streams
    from chunkstore_journal.inspect import iter_records

    with parts.storage_of(root, settings) as storage:
        for record in iter_records(open_streams(storage, ContainerNames(container)), epoch):
            yield record._asdict()


def check_patience(wait_s: float | None, take_over: bool) -> float | None:
    """How long a live owner is waited for, in seconds; None: it is deposed at once. Raises ``InvalidArgument``."""
    check_flags(take_over=take_over)
    if wait_s is None:
        return None if take_over else 0.0
    if not isinstance(wait_s, (int, float)) or not 0 <= wait_s <= 86_400:
        raise InvalidArgument(f"wait_s must be from 0 to 86400 seconds, not {wait_s!r}", argument="wait_s")
    if take_over:
        raise InvalidArgument("take_over=True claims at once, wait_s waits: give one of them", argument="wait_s")
    return float(wait_s)


def _check_ownership(observer: object, optimiser: object, accept_rollback: object) -> None:
    """Check what an owner is made with. Raises ``InvalidArgument``."""
    check_flags(accept_rollback=accept_rollback)
    if observer is not None and not isinstance(observer, Observer):
        raise InvalidArgument(
            f"observer must be a chunkstore.observer.Observer, not {type(observer).__name__}", argument="observer"
        )
    if optimiser is not None and not isinstance(optimiser, OptimiserPolicy):
        raise InvalidArgument(
            f"optimiser must be a chunkstore.OptimiserPolicy, not {type(optimiser).__name__}", argument="optimiser"
        )
