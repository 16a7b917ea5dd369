"""The lease hint: it avoids needless take-overs, never decides safety (protocol A15), and records the end of a closed stream (A17).

Promises: reading and renewing it never fails a store; a polite claimant watches for signs of life on its own clock and
refuses to depose a live owner. Leaves out: everything that decides ownership (``claim``).
"""

from __future__ import annotations

from chunkstore import runtime
from chunkstore.config import LIMITS, Settings
from chunkstore.deadline import paced_s
from chunkstore.errors import ChunkNotFound, ChunkstoreError, ContainerBusy, Damaged
from chunkstore.journal import LeaseInfo
from chunkstore.metadata.port import Position
from chunkstore.names import ContainerNames
from chunkstore.processes import is_alive
from chunkstore.storage import ChunkStorage
from chunkstore_journal.history import probe_dense
from chunkstore_journal.objects import decode_lease, encode_lease
from chunkstore_journal.slots import read_if_present

__all__ = ["overrule_lease", "read_lease", "wait_politely", "write_lease"]

_LOOK_EVERY_S_MAX = 0.25
_LOOK_LATE_S_MAX = 10.0
_RENEWED_LATE_S = 1.0
"""How much longer than its period a living owner may need to renew its lease, at least: it checks the clock from time to time."""


def read_lease(storage: ChunkStorage, names: ContainerNames) -> LeaseInfo | None:
    """The lease hint; None when there is none, or it cannot be read (then openers do not wait)."""
    try:
        data = read_if_present(storage, names.lease, size_max=LIMITS.small_object_bytes_max)
        return None if data is None else decode_lease(data, object=names.lease)
    except Damaged:
        return None


def write_lease(
    storage: ChunkStorage,
    names: ContainerNames,
    *,
    epoch: int,
    counter: int,
    released: bool,
    end: Position | None = None,
) -> None:
    """Overwrite the hint; storage errors are swallowed. ``end``: the last record of an epoch that is released (A17)."""
    lease = _lease(epoch, counter, released=released)
    if end is not None:
        lease = lease._replace(lsn=end.lsn, hash=end.hash)
    try:
        storage.put(names.lease, encode_lease(lease))
    except ChunkstoreError:
        return  # a hint that could not be renewed looks like a dead owner: another process may claim sooner


def overrule_lease(storage: ChunkStorage, names: ContainerNames, epoch: int) -> None:
    """Replace a lease whose end was discarded (accepted rollback) by one without an end: epochs recur, so the old end misleads.

    ``epoch``: the last one that is open here, 0 if there is none. The claimant's own is not open yet, and may never be.

    Raises: ``StorageFull``, ``StorageUnavailable``.
    """
    storage.put(names.lease, encode_lease(_lease(epoch, 0, released=False)))


def _lease(epoch: int, counter: int, *, released: bool) -> LeaseInfo:
    who = runtime.identity()
    return LeaseInfo(epoch, counter, who.host[:255], who.pid, who.boot_id[:255], released)


def wait_politely(storage: ChunkStorage, names: ContainerNames, wait_s: float, settings: Settings) -> None:
    """Return when no owner seems to be alive: no lease, released, its process gone, or nothing moved for ``wait_s``.

    An idle owner only renews its lease, once per period. So ``wait_s`` is lengthened to a little more than that period.

    Raises: ``ContainerBusy`` as soon as the lease or the journal of its epoch changes.
    """
    first = read_lease(storage, names)
    if first is None or first.released or _is_gone(first):
        return
    journal = _Progress(storage, names, first.epoch)
    progress = journal.look()
    period_s = settings.lease_period_s(remote=storage.capabilities.remote)
    if period_s:
        wait_s = max(wait_s, period_s + max(settings.lease_s, _RENEWED_LATE_S))
    often_s = max(0.01, min(_LOOK_EVERY_S_MAX, wait_s / 8))
    began_s = runtime.monotonic_s()
    while True:
        watched_s = runtime.monotonic_s() - began_s
        if watched_s >= wait_s:
            return
        runtime.sleep_s(min(wait_s - watched_s, paced_s(watched_s, often_s, _LOOK_LATE_S_MAX)))
        now = read_lease(storage, names)
        if now is None or now.released:
            return
        if now != first or journal.look() != progress:
            raise ContainerBusy(names.container, host=now.host, pid=now.pid)


def _is_gone(lease: LeaseInfo) -> bool:
    """Whether the owner's process has surely ended. Another boot id under our host name may be another machine of that name."""
    who = runtime.identity()
    is_ours = all(who.boot_id.partition("/")) and (lease.host, lease.boot_id) == (who.host, who.boot_id)
    return is_ours and not is_alive(lease.pid)


class _Progress:
    """Something that changes whenever the owner of an epoch commits: the log's length, or the last slot's index."""

    def __init__(self, storage: ChunkStorage, names: ContainerNames, epoch: int) -> None:
        self._storage = storage
        self._names = names
        self._epoch = epoch
        self._last = -1

    def look(self) -> tuple[int, int]:
        """Two requests, once the last slot is known: listing 65,536 of them four times a second is no hint any more."""
        names, epoch = self._names, self._epoch
        try:
            return self._storage.stat(names.log(epoch)).length, -1
        except ChunkNotFound:
            pass
        self._last = probe_dense(lambda index: self._storage.exists(names.slot(epoch, index)), self._last)
        return -1, self._last
