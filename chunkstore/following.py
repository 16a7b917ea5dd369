"""Following a root read-only: a container's journal, a moment of its past, or its backups.

Promises: everything that was opened here is closed if anything on the way fails; what reads backups is imported where backups are.
Leaves out: what is followed (``chunkstore_journal.follower``, ``chunkstore.backup.opened``), and asking owners (``assembly``).
"""

from __future__ import annotations

from datetime import datetime
from functools import partial

from chunkstore import runtime
from chunkstore.assembly import closed_if_this_fails, follow_container
from chunkstore.config import Settings
from chunkstore.engine import parts
from chunkstore.engine.replica import Replica
from chunkstore.errors import ContainerNotFound
from chunkstore.metadata.port import MetadataCache
from chunkstore.records.arguments import check_moment, check_timeout
from chunkstore.records.names import BackupNames, ContainerNames
from chunkstore.registry import Root, open_storage
from chunkstore.storage import ChunkStorage

__all__ = ["open_replica", "open_replica_on"]


def open_replica(
    root: Root,
    *,
    container: str = "default",
    settings: Settings | None = None,
    at_lsn: int | None = None,
    at_time: datetime | int | None = None,
    wait_s: float = 0,
) -> Replica:
    """Follow a container's journal read-only; or show it as it was, and stay there. Never claims, never writes to the container. Where
    its backups are instead (``chunkstore.backup``), the newest of them is read, or that of the moment: of that very lsn, or the newest
    that was made by that time.

    ``at_lsn``: what the record of this number left. ``at_time`` (a ``datetime`` with a time zone, or whole milliseconds since 1970): what
    the newest record whose label of time is not after it left. Labels are what the owners' clocks said, but never go back along
    history: where a clock ran ahead, all records that follow have its label until the others have caught up, and so they have where a
    clock was put back. ``chunkstore journal`` lists the labels; ``at_lsn`` depends on no clock.

    A state of the past is built in a cache of its own, from the newest snapshot at or before it, and deleted when the replica is closed.
    It costs local space as the container's metadata do. Its chunks may be gone: then reading them raises ``PastCollected``.

    A container that does not exist yet may appear within ``wait_s``: local roots are polled ten times a second, others once.

    Raises ``InvalidArgument`` (also: both are given, the future, or a wrong clock's records hide where the time is),
    ``ContainerNotFound``, ``PastCollected`` (what leads to that moment is not stored any more), ``Damaged``, ``StorageFull`` (cache
    disk), ``StorageUnavailable``. Retry: safe.
    """
    chosen = parts.checked_settings(settings)
    names = ContainerNames(container)
    check_moment(at_lsn, at_time)
    deadline_s = runtime.monotonic_s() + check_timeout(wait_s, "wait_s")
    while True:
        storage = open_storage(root, chosen)
        try:
            return open_replica_on(
                storage, container=names.container, settings=chosen, close_storage=True, at_lsn=at_lsn, at_time=at_time
            )
        except ContainerNotFound:
            left_s = deadline_s - runtime.monotonic_s()
            if left_s <= 0:
                raise
        runtime.sleep_s(min(left_s, 1.0 if storage.capabilities.remote else 0.1))


def open_replica_on(
    storage: ChunkStorage,
    *,
    container: str = "default",
    settings: Settings | None = None,
    cache: MetadataCache | None = None,
    close_storage: bool = False,
    at_lsn: int | None = None,
    at_time: datetime | int | None = None,
) -> Replica:
    """As ``open_replica``, on a storage (and, if given, a metadata cache) of the caller's own."""
    with closed_if_this_fails(storage.close if close_storage else None):
        chosen, moment = parts.checked_settings(settings), check_moment(at_lsn, at_time)
        name = ContainerNames(container).container
    return follow_container(
        storage,
        container=name,
        settings=chosen,
        cache=cache,
        close_storage=close_storage,
        moment=moment,
        of_backups=partial(_open_backup, name, chosen, cache, moment, close_storage=close_storage),
    )


def _open_backup(
    container: str,
    settings: Settings,
    cache: MetadataCache | None,
    moment: tuple[int | None, int | None],
    storage: ChunkStorage,
    *,
    close_storage: bool,
) -> Replica:
    """The newest backup of a container, or that of a moment, where its backups are."""
    from chunkstore.backup.opened import BackupFollower, BackupParts
    from chunkstore.engine.parts import container_of

    names = BackupNames(container)
    uuid = container_of(storage, names)
    role = "replica" if moment == (None, None) else "past"
    own = BackupParts(storage, names, uuid, settings, cache, close_storage=close_storage)
    with closed_if_this_fails(own.close):
        follower = own.backup = BackupFollower(storage, names, own.make_cache(role), moment)
        return Replica(own, follower)
