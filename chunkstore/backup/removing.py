"""Dropping a backup, with the copies that only it names; and looking whether all copies are there.

    R1  refuse while a run that is under way relies on the backup, or on an older one
    R2  ``done/<run>`` says that the backup counts no more, for ever
    R3  list exports, then runs that are under way, then what counts. An export goes if its backup does not count, no run is making it,
        and it is of an older state than the newest backup and than what any run relies on. Then list runs and what counts again
    R4  delete the copies that only exports name which go
    R5  delete these exports

Why no copy goes that is needed: a chunk that was live at a backup's lsn and not at a later one's was removed in between, and is never
live again; so no backup of a still later state names it. A run that began before relies on its base, and names nothing else that is
below it. So what the newest backup named goes when a later one counts, with the next backup that is dropped. Assumes that a LIST shows
what was put before it (S3, HDFS and disks do)."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import closing, suppress
from functools import partial
from heapq import merge
from itertools import groupby, islice
from typing import Final, NamedTuple

from chunkstore import runtime
from chunkstore.backup import runs
from chunkstore.backup.copies import named_copies, without
from chunkstore.backup.files import delete_export, open_stored_export
from chunkstore.config import Settings
from chunkstore.engine import parts
from chunkstore.engine.parts import container_of
from chunkstore.errors import ChunkNotFound, Conflict, Damaged, InvalidArgument
from chunkstore.records.arguments import check_flags
from chunkstore.records.invariants import Finding
from chunkstore.records.names import BackupNames, parse_run
from chunkstore.registry import Root
from chunkstore.storage import ChunkStorage, iter_listing

__all__ = ["Removed", "Verified", "remove", "verify_copies"]

_AT_ONCE: Final = 256


class _Stored(NamedTuple):
    """An export that a listing shows."""

    lsn: int
    run: str


class Removed(NamedTuple):
    """A backup that was dropped (``dry_run``: would be), and the copies that went. ``readable``: whether its metadata were; else its copies
    stay."""

    run: str
    lsn: int
    readable: bool
    chunks: int
    size_bytes: int
    dry_run: bool


class Verified(NamedTuple):
    """Every copy that a backup names, compared with a listing."""

    backups: int
    chunks: int
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return not self.findings


def remove(
    backup_root: Root | ChunkStorage,
    run: str,
    *,
    container: str = "default",
    settings: Settings | None = None,
    dry_run: bool = False,
) -> Removed:
    """Drop one backup, whether it can be read or not; then delete the copies that nothing else names. Those of the newest backup go
    with the next one that is removed after a later backup.

    ``run``: as ``list_backups`` says. ``dry_run``: only look. What a backup names that stays, or may come to be named by a run that is
    under way, stays. Not atomic: the backup is gone first. Raises ``InvalidArgument`` (no such backup), ``Conflict`` (a run that is under
    way relies on it, or another process removes another one), ``ContainerNotFound``, ``AccessDenied`` (the storage does not let a copy go),
    ``Damaged`` (the backup is gone, and another one cannot be read), and what the storage raises. Retry: safe.
    """
    names, chosen = BackupNames(container), parts.checked_settings(settings)
    check_flags(dry_run=dry_run)
    if parse_run(names.done(run), names.done("")) is None:
        raise InvalidArgument("a backup is named by the 32 hex digits that 'backup ls' shows", argument="run")
    with (
        parts.storage_of(backup_root, chosen) as storage,
        closing(runtime.pool("chunkstore-backup", chosen.tuning.io_workers)) as pool,
    ):
        container_of(storage, names)
        list(runs.iter_complete(storage, names, passed_over=run))  # all others can be read
        lsn, readable = _look_at(storage, names, run)
        if any(item.base_lsn <= lsn for item in runs.under_way(storage, names)):
            raise Conflict(
                f"backup {run}",
                expected="to be dropped",
                found="a run under way that relies on it: wait for that one (of a killed run, a day)",
            )
        if dry_run:
            return Removed(run, lsn, readable, 0, 0, dry_run)
        runs.withdraw(storage, names, run)
        return Removed(run, lsn, readable, *_delete_unneeded(storage, names, pool), dry_run)


def _look_at(storage: ChunkStorage, names: BackupNames, run: str) -> tuple[int, bool]:
    """Its lsn, as far as that can be known (else above all), and whether it can be read. Raises ``InvalidArgument``: there is none."""
    try:
        info = runs.find_done(storage, names, run)
    except Damaged:
        return sys.maxsize, False
    lsn = None if info is None else info.lsn
    if lsn is None and storage.exists(names.done(run)):
        # It was dropped, and its copies were not all deleted.
        listed = (names.parse_stored(found.name) for found in iter_listing(storage, names.stored_prefix()))
        lsn = next((found[0] for found in listed if found is not None and found[1] == run), None)
    if lsn is None:
        raise InvalidArgument(f"no backup {run} counts at {storage.url}; 'backup ls' shows all", argument="run")
    return lsn, _is_whole(storage, names, _Stored(lsn, run))


def _delete_unneeded(storage: ChunkStorage, names: BackupNames, pool: runtime.Pool) -> tuple[int, int]:
    """R3 to R5: how many copies were deleted, and their bytes."""
    # In this order: an export that is seen belongs to a run that is seen, or to one that is decided already.
    listed = (names.parse_stored(info.name) for info in iter_listing(storage, names.stored_prefix()))
    stored = [_Stored(*found) for found in listed if found is not None]
    running = runs.under_way(storage, names)
    complete = list(runs.iter_complete(storage, names))
    newest_lsn = max((item.lsn for item in complete), default=0)
    low = min((item.base_lsn for item in running), default=newest_lsn)
    counts, busy = {item.run for item in complete}, {item.run for item in running}
    goes = [item for item in stored if item.run not in counts | busy and item.lsn < min(low, newest_lsn)]
    low = min((item.base_lsn for item in runs.under_way(storage, names)), default=newest_lsn)
    goes = [item for item in goes if item.lsn < low]
    # Backups that were completed after the first listing are included.
    late = [_Stored(item.lsn, item.run) for item in runs.iter_complete(storage, names)]
    counts |= {item.run for item in late}
    stays = {*(item for item in stored if item not in goes), *late}
    try:
        # One that is not whole is of a run that did not come to its end; but if it counts, nothing goes that it may name.
        named = without(
            merge(*(named_copies(storage, names, *item) for item in goes if _is_whole(storage, names, item))),
            *(
                named_copies(storage, names, *item)
                for item in stays
                if item.run in counts or _is_whole(storage, names, item)
            ),
        )
        once = (next(same) for _, same in groupby(named, key=lambda copy: copy[:2]))
        found = _delete_all(storage, pool, ((copy.name(names), copy.length) for copy in once))
    except Damaged as error:
        if all(item.run not in counts or runs.find_done(storage, names, item.run) is not None for item in stays):
            raise
        raise Conflict("backups", expected="to stay", found="others being dropped: run it again") from error
    for item in goes:
        delete_export(storage, names.stored(*item))
    return found


def _delete_all(storage: ChunkStorage, pool: runtime.Pool, found: Iterable[tuple[str, int]]) -> tuple[int, int]:
    """How many were deleted, and their bytes."""
    items, done, size_bytes = iter(found), 0, 0
    while step := list(islice(items, _AT_ONCE)):
        pool.run_all([partial(_delete, storage, name) for name, _ in step])
        done, size_bytes = done + len(step), size_bytes + sum(length for _, length in step)
    return done, size_bytes


def _delete(storage: ChunkStorage, name: str) -> None:
    with suppress(ChunkNotFound):
        storage.delete(name)


def _is_whole(storage: ChunkStorage, names: BackupNames, item: _Stored) -> bool:
    try:
        for _ in open_stored_export(storage, names.stored(*item)):
            pass
    except (Damaged, ChunkNotFound):
        return False
    return True


def verify_copies(backup_root: Root, *, container: str = "default", settings: Settings | None = None) -> Verified:
    """List all copies and compare them with what every backup names: are they there, and long enough. Changes nothing.

    Memory: about 200 bytes for each copy. Raises ``ContainerNotFound``, ``InvalidArgument``, and what the storage raises.
    """
    names = BackupNames(container)
    with parts.storage_of(backup_root, settings) as storage:
        container_of(storage, names)
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
        return Verified(len(complete), len(named), tuple(findings.values()))
