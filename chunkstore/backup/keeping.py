"""What of a backup root is given up: backups that are no longer wanted, and the copies that only they name.

    K1  list exports, then runs that are under way, then what counts; runs that have not been heard of for a day are given up
    K2  an export stays if its backup is wanted, or if it is at or above the base of a run that is under way, whatever it counts; the
        newest always stays
    K3  of what goes first ``done/<run>`` says that it counts no more; then runs are listed again, then what counts: that stays, and what
        a run relies on now
    K4  copies that only exports name which go; at last these exports. What is said of them is deleted 90 days later

Why no copy goes that is needed: a chunk that was live at a backup's lsn and not at a later one's was removed in between, and is never
live again; so no backup of a still later state names it. A run that began before relies on its base, and names nothing else that lies
below it. An export that does not count is one of which K4 did not come to its end, and is gone on with.
(Histories that were cut by a repair may bring chunks back: stop backups before one, as all who work on the container.)

Promises: what is deleted is named by no backup that counts, now or later, however late a deletion comes. Assumes that a LIST shows what
was put before it (S3, HDFS and disks do): it is the only thing that knows of others. Leaves out: making backups.
"""

from __future__ import annotations

import math
from heapq import merge
from typing import Final, NamedTuple

from chunkstore import runtime
from chunkstore.backup import runs
from chunkstore.backup.copies import Copy, named_copies, without
from chunkstore.backup.files import delete_export, open_stored_export
from chunkstore.backup.runs import BackupInfo
from chunkstore.config import Settings
from chunkstore.errors import ChunkNotFound, ChunkstoreError, Damaged, InvalidArgument
from chunkstore.invariants import Finding
from chunkstore.names import BackupNames
from chunkstore.registry import open_storage
from chunkstore.storage import ChunkStorage, iter_listing

__all__ = ["Audit", "Given", "Keep", "audit", "check_keep", "give_up"]

_DAY_MS: Final = 86_400_000
_SILENT_MS: Final = _DAY_MS
"""A run that has said nothing for so long is given up. One that was only slow notices, and fails."""
_FORGOTTEN_MS: Final = 90 * _DAY_MS


class Keep(NamedTuple):
    """The newest ``newest`` backups stay, and those that are no older than ``age_ms``."""

    newest: int
    age_ms: int


class _Stored(NamedTuple):
    """An export that a listing shows."""

    lsn: int
    run: str


class Given(NamedTuple):
    """Backups that were given up, and the copies that went with them. ``refused``: could not be deleted (object lock, rights).
    ``put_off``: backups that a run relies on which is under way."""

    backups: int
    chunks: int
    size_bytes: int
    refused: int
    put_off: int


class Audit(NamedTuple):
    """Every copy that a backup names, compared with a listing. ``unnamed``: copies that none names: of runs that did not end."""

    backups: int
    chunks: int
    unnamed: int
    unnamed_bytes: int
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return not self.findings


def check_keep(keep: int | None, keep_days: float | None) -> Keep | None:
    """What is to stay; None: everything. Raises ``InvalidArgument``."""
    if keep is not None and (type(keep) is not int or keep < 1):
        raise InvalidArgument(f"keep must be a whole number from 1 on, not {keep!r}", argument="keep")
    if keep_days is not None and not (type(keep_days) in (int, float) and 0 < keep_days < 1e6):
        raise InvalidArgument(f"keep_days must be a number of days above 0, not {keep_days!r}", argument="keep_days")
    if keep is None and keep_days is None:
        return None
    return Keep(keep or 1, 0 if keep_days is None else math.ceil(keep_days * _DAY_MS))


def give_up(storage: ChunkStorage, names: BackupNames, keep: Keep, own: BackupInfo) -> Given:
    """Give up what is not to be kept; ``own`` was made just now. Raises what listing and reading raise. Retry: safe."""
    # In this order: an export that is seen belongs to a run that is seen, or to one that has been decided by then.
    listed = (names.parse_stored(info.name) for info in iter_listing(storage, names.stored_prefix()))
    stored = [_Stored(*found) for found in listed if found is not None]
    running = _under_way(storage, names, own)
    complete = sorted(runs.iter_complete(storage, names), key=lambda item: (item.lsn, item.time_ms), reverse=True)
    newest = complete[0] if complete else own
    base_lsn = min((item.base_lsn for item in running), default=newest.lsn)
    now_ms = runtime.now_ms()
    wanted = {
        item.run for place, item in enumerate(complete) if place < keep.newest or now_ms - item.time_ms < keep.age_ms
    }
    counts, busy = {item.run for item in complete}, {item.run for item in running}
    goes = [item for item in stored if item.run not in wanted | busy and item.lsn < min(base_lsn, newest.lsn)]
    stays = [item for item in stored if item not in goes]
    put_off = sum(item.run in counts - wanted for item in stays)
    for item in goes:
        if item.run in counts:
            runs.withdraw(storage, names, item.run)
    low = min((other.base_lsn for other in _under_way(storage, names, own)), default=newest.lsn)
    relied = [item for item in goes if item.lsn >= low]
    goes = [item for item in goes if item.lsn < low]
    # What came to count behind the first looks is there, too.
    late = [_Stored(item.lsn, item.run) for item in runs.iter_complete(storage, names)]
    counts |= {item.run for item in late}
    stays = list({*stays, *relied, *late})
    # One that is not whole is of a run that did not come to its end; but if it counts, nothing goes that it may name.
    stays = [item for item in stays if item.run in counts or _is_whole(storage, names, item)]
    given = _delete(storage, names, goes, stays)._replace(put_off=put_off + len(relied))
    # No request that put one of them is on its way any more.
    runs.forget(storage, names, now_ms - _FORGOTTEN_MS)
    return given


def _delete(storage: ChunkStorage, names: BackupNames, goes: list[_Stored], stays: list[_Stored]) -> Given:
    """K4."""
    chunks = size_bytes = refused = 0
    last: Copy | None = None
    whole = (named_copies(storage, names, *item) for item in goes if _is_whole(storage, names, item))
    for copy in without(merge(*whole), *(named_copies(storage, names, *item) for item in stays)):
        if last is not None and copy[:2] == last[:2]:
            continue
        last = copy
        if _deleted(storage, copy.name(names)):
            chunks, size_bytes = chunks + 1, size_bytes + copy.length
        else:
            refused += 1
    if not refused:
        for item in goes:
            delete_export(storage, names.stored(*item))
    return Given(len(goes), chunks, size_bytes, refused, 0)


def _under_way(storage: ChunkStorage, names: BackupNames, own: BackupInfo) -> list[runs.Running]:
    """Other runs that may still come to count. Those that are silent are given up."""
    found = []
    now_ms = runtime.now_ms()
    for item in runs.iter_running(storage, names):
        if item.run == own.run:
            continue
        if now_ms - item.seen_ms > _SILENT_MS:
            runs.void(storage, names, item.run)
        else:
            found.append(item)
    return found


def _is_whole(storage: ChunkStorage, names: BackupNames, item: _Stored) -> bool:
    try:
        for _ in open_stored_export(storage, names.stored(*item)):
            pass
    except (Damaged, ChunkNotFound):
        return False
    return True


def _deleted(storage: ChunkStorage, name: str) -> bool:
    try:
        storage.delete(name)
    except ChunkNotFound:
        return True
    except ChunkstoreError:
        return False
    return True


def audit(backup_root: str, *, container: str = "default", settings: Settings | None = None) -> Audit:
    """List all copies and compare them with what every backup names: are they there, and long enough. Changes nothing.

    Memory: about 200 bytes for each copy. Raises ``ContainerNotFound``, ``InvalidArgument``, and what the storage raises.
    """
    names, storage = BackupNames(container), open_storage(backup_root, Settings() if settings is None else settings)
    try:
        runs.container_of(storage, names)
        complete = list(runs.iter_complete(storage, names))
        lengths: dict[str, int] = {}
        for prefix in (names.copies_prefix(), names.growing_prefix()):
            lengths |= {info.name: info.length for info in iter_listing(storage, prefix)}
        findings: dict[str, Finding] = {}
        named = set[str]()
        for item in complete:
            try:
                for copy in named_copies(storage, names, item.lsn, item.run):
                    name = copy.name(names)
                    named.add(name)
                    if lengths.get(name, -1) < copy.length:
                        what = (
                            "absent"
                            if name not in lengths
                            else f"{lengths[name]} bytes long, {copy.length} belong there"
                        )
                        findings.setdefault(
                            name, Finding(20, "damage", "", name, name, 0, f"{what}: backup {item.run}")
                        )
            except (Damaged, ChunkNotFound) as error:
                name = item.stored(names)
                findings[name] = Finding(0, "damage", "", "", name, getattr(error, "position", 0), str(error))
        unnamed = [length for name, length in lengths.items() if name not in named]
        return Audit(len(complete), len(named), len(unnamed), sum(unnamed), tuple(findings.values()))
    finally:
        storage.close()
