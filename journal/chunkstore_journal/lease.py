"""The lease hint: it avoids needless take-overs, never decides safety (protocol A15), and records the end of a closed stream (A17).

Promises: reading and renewing it never fails a store; a polite claimant watches on its own clock and refuses to depose a live owner.
"""

from __future__ import annotations

from contextlib import suppress

from chunkstore import runtime
from chunkstore.config import Settings
from chunkstore.deadline import paced_s
from chunkstore.errors import ChunkNotFound, ChunkstoreError, ContainerBusy
from chunkstore.journal import LeaseInfo
from chunkstore.metadata.port import Position
from chunkstore.processes import is_alive
from chunkstore.records.names import ContainerNames
from chunkstore.storage import ChunkStorage
from chunkstore_journal.history import probe_dense
from chunkstore_journal.objects import decode_lease, encode_lease
from chunkstore_journal.slots import read_hint
from chunkstore_journal.wire import TOKEN_BYTES

__all__ = ["overrule_lease", "read_lease", "wait_politely", "write_lease"]

_LOOK_EVERY_S_MAX = 0.25
_LOOK_LATE_S_MAX = 10.0
_LEASES_WATCHED = 2.2
"""A live owner rewrites its lease every ``lease_s``: watching a little over two periods tells it from a dead one."""
_RENEWED_LATE_S = 1.0
"""How much longer than its period a living owner may need to renew its lease, at least: it checks the clock from time to time."""
_NO_LEASE = LeaseInfo(0, 0, "", 0, "", released=True)


def read_lease(storage: ChunkStorage, names: ContainerNames) -> LeaseInfo | None:
    """The lease hint; None when there is none, or it cannot be read (then openers do not wait)."""
    return read_hint(storage, names.lease, decode_lease)


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
    with suppress(ChunkstoreError):  # one that could not be renewed looks like a dead owner: others may claim sooner
        storage.put(names.lease, encode_lease(lease))


def overrule_lease(storage: ChunkStorage, names: ContainerNames, epoch: int) -> None:
    """Replace a lease whose end was given up by one without an end: epochs recur. ``epoch``: the last one that is open here, 0: none.

    Raises: ``StorageFull``, ``StorageUnavailable``.
    """
    storage.put(names.lease, encode_lease(_lease(epoch, 0, released=False)))


def _lease(epoch: int, counter: int, *, released: bool) -> LeaseInfo:
    who = runtime.identity()
    return LeaseInfo(epoch, counter, who.host[:255], who.pid, who.boot_id[:255], released)


def wait_politely(
    storage: ChunkStorage, names: ContainerNames, settings: Settings, patience_s: float | None
) -> LeaseInfo | None:
    """The lease read last, when no owner seems to be alive: no lease, released, its process gone, or nothing moved for 2.2 times
    ``lease_s`` and a little more than the lease's period.

    ``patience_s``: how long an owner that shows life is waited for. Returns None, and reads nothing, where that is None (a caller that
    takes over), and without ``lease_s`` and patience. Raises ``ContainerBusy`` at the first sign of life after ``patience_s``.
    """
    period_s = settings.lease_period_s(remote=storage.capabilities.remote)
    if patience_s is None or not (period_s or patience_s):
        return None
    quiet_s = patience_s
    if period_s:
        quiet_s = max(_LEASES_WATCHED * settings.lease_s, period_s + max(settings.lease_s, _RENEWED_LATE_S))
    often_s = max(0.01, min(_LOOK_EVERY_S_MAX, quiet_s / 8))
    now = read_lease(storage, names)
    if now is not None and not now.released and not _is_gone(now):
        with suppress(ChunkstoreError):
            storage.put(names.bell, runtime.token(TOKEN_BYTES))  # a live owner renews its lease for it
    began_s = moved_s = runtime.monotonic_s()
    seen: tuple[LeaseInfo, tuple[int, int]] | None = None
    journal = _Progress(storage, names)
    while now is not None and not now.released and not _is_gone(now):
        last, seen = seen, (now, journal.look(now.epoch))
        now_s = runtime.monotonic_s()
        if last is not None and seen != last:
            if now_s - began_s >= patience_s:
                who = runtime.identity()
                here = (now.host, now.pid, now.boot_id) == (who.host, who.pid, who.boot_id)
                raise ContainerBusy(names.container, host=now.host, pid=now.pid, here=here)
            moved_s = now_s
        watched_s = now_s - moved_s
        if watched_s >= quiet_s:
            break
        runtime.sleep_s(min(quiet_s - watched_s, paced_s(watched_s, often_s, _LOOK_LATE_S_MAX)))
        now = read_lease(storage, names)
    return now or _NO_LEASE


def _is_gone(lease: LeaseInfo) -> bool:
    """Whether the owner's process has surely ended. Another boot id under our host name may be another machine of that name."""
    who = runtime.identity()
    is_ours = all(who.boot_id.partition("/")) and (lease.host, lease.boot_id) == (who.host, who.boot_id)
    return is_ours and not is_alive(lease.pid)


class _Progress:
    """Something that changes whenever the owner of an epoch commits: the log's length or time, or the last slot's index."""

    def __init__(self, storage: ChunkStorage, names: ContainerNames) -> None:
        self._storage = storage
        self._names = names
        self._epoch, self._last = 0, -1

    def look(self, epoch: int) -> tuple[int, int]:
        """Two requests, once the last slot is known: listing 65,536 of them four times a second is no hint any more."""
        names = self._names
        if epoch != self._epoch:
            self._epoch, self._last = epoch, -1
        try:
            log = self._storage.stat(names.log(epoch))
            return log.length, log.modified_ms or 0
        except ChunkNotFound:
            pass
        self._last = probe_dense(lambda index: self._storage.exists(names.slot(epoch, index)), self._last)
        return -1, self._last
