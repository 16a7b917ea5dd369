"""What of a backup root is given up: backups that are no longer wanted, the copies that only they name, and what runs have left.

    K1  list exports, then runs that are under way, then what counts; runs that have not been heard of for a day are given up
    K2  an export stays if its backup is wanted, or if it is at or above the base of a run that is under way, whatever it counts; the
        newest always stays
    K3  of what goes first ``done/<run>`` says that it counts no more; then runs are listed again, then what counts: that stays, and what
        a run relies on now. What is said is deleted 90 days later (``forget_withdrawn``)
    K4  copies that only exports name which go
    K5  where a run has ended that does not count, or an export that goes cannot be read, and no run is under way: list all copies, and
        delete those that nothing names which stays, and that nothing ever will; then the marks of these runs
    K6  at last the exports that go

Why no copy goes that is needed: a chunk that was live at a backup's lsn and not at a later one's was removed in between, and is never
live again; so no backup of a still later state names it. A run that began before relies on its base, and names nothing else that lies
below it. An export that does not count is one of which K4 did not come to its end, and is gone on with.
K5 knows no lsn at which its copies were live. It goes by the epoch of a backup that counted before runs were listed, the floor: what is of
an epoch below the floor's, and not live there, is live at no later state (the rule of the sweep of orphans), and who was not seen under
way reads a later one. Chunks of sessions stay: they may be attached in a later epoch. That copies are a day old is a margin, no more.
(Histories that were cut by a repair may bring chunks back: stop backups before one, as all who work on the container. A restore in place
brings them back under other names.)

Promises: what is deleted is named by no backup that counts, now or later, however late a deletion comes. What cannot be deleted stays,
and is told. Assumes that a LIST shows what was put before it (S3, HDFS and disks do): it is the only thing that knows of others. Leaves
out: making backups.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from contextlib import closing
from functools import partial
from heapq import merge
from itertools import groupby, islice
from typing import Final, NamedTuple

from chunkstore import parts, runtime
from chunkstore.arguments import check_flags
from chunkstore.backup import runs
from chunkstore.backup.copies import named_copies, without
from chunkstore.backup.files import delete_export, open_stored_export
from chunkstore.backup.runs import BackupInfo
from chunkstore.config import Settings
from chunkstore.errors import AccessDenied, ChunkNotFound, Conflict, Damaged, InvalidArgument
from chunkstore.invariants import Finding
from chunkstore.names import BackupNames, chunk_epoch, chunk_session, parse_run
from chunkstore.storage import ChunkInfo, ChunkStorage, iter_listing

__all__ = ["Audit", "Given", "Keep", "Removed", "audit", "check_keep", "give_up", "remove"]

_DAY_MS: Final = 86_400_000
_AT_ONCE: Final = 256
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
    """Backups that were given up, and the copies that went with them. ``refused``: objects that the storage does not let go (object lock,
    rights), ``locked_until_ms``: the latest time until which it says so. ``put_off``: backups that a run relies on which is under way.
    ``swept``: copies of runs that never counted."""

    backups: int
    chunks: int
    size_bytes: int
    refused: int
    put_off: int
    swept: int = 0
    swept_bytes: int = 0
    locked_until_ms: int | None = None


class Removed(NamedTuple):
    """A backup that was dropped (``dry_run``: would be). ``readable``: whether its metadata were; else its copies go with runs that never
    counted."""

    run: str
    lsn: int
    readable: bool
    given_up: Given
    dry_run: bool


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


def give_up(storage: ChunkStorage, names: BackupNames, keep: Keep, own: BackupInfo, pool: runtime.Pool) -> Given:
    """Give up what is not to be kept; ``own`` was made just now. Raises ``Damaged`` (a backup that stays cannot be read), and what listing
    and reading raise. Retry: safe."""

    def wanted(complete: list[BackupInfo]) -> set[str]:
        now_ms = runtime.now_ms()
        return {
            item.run
            for place, item in enumerate(complete)
            if place < keep.newest or now_ms - item.time_ms < keep.age_ms
        }

    return _Giving(storage, names, own, pool).give(wanted)


def remove(
    backup_root: str, run: str, *, container: str = "default", settings: Settings | None = None, dry_run: bool = False
) -> Removed:
    """Drop one backup, whether it can be read or not; then what ``--keep`` would delete that is named by nothing else. The newest goes at
    once, its copies with the next backup that gives up old ones.

    ``run``: as ``list_backups`` says. ``dry_run``: only look. What a backup names that stays, or may come to be named by a run that is
    under way, stays. Not atomic: the backup is gone first. Raises ``InvalidArgument`` (no such backup), ``Conflict`` (a run that is under
    way relies on it), ``ContainerNotFound``, ``AccessDenied``, ``Damaged`` (the backup is gone, and another one cannot be read), and what
    the storage raises. Retry: safe.
    """
    names, chosen = BackupNames(container), parts.checked_settings(settings)
    check_flags(dry_run=dry_run)
    if parse_run(names.done(run), names.done("")) is None:
        raise InvalidArgument("a backup is named by the 32 hex digits that 'backup ls' shows", argument="run")
    with (
        parts.storage_of(backup_root, chosen) as storage,
        closing(runtime.pool("chunkstore-backup", chosen.io_workers)) as pool,
    ):
        runs.container_of(storage, names)
        complete = list(runs.iter_complete(storage, names, passed_over=run))
        lsn, readable = _look_at(storage, names, run)
        floor = max(complete, key=lambda item: item.lsn, default=None)
        giving = _Giving(storage, names, floor, pool)
        if any(item.base_lsn <= lsn for item in giving.under_way()):
            raise Conflict(
                f"backup {run}", expected="to be dropped", found="a run under way that relies on it: wait for that one"
            )
        given = Given(0, 0, 0, 0, 0)
        if not dry_run:
            runs.withdraw(storage, names, run)
            given = giving.give(lambda complete: {item.run for item in complete})
        return Removed(run, lsn, readable, given, dry_run)


def _look_at(storage: ChunkStorage, names: BackupNames, run: str) -> tuple[int, bool]:
    """Its lsn, as far as that can be known (else above all), and whether it can be read. Raises ``InvalidArgument``: it does not count."""
    try:
        info = runs.find_done(storage, names, run)
        if info is None:
            raise InvalidArgument(f"no backup {run} counts at {storage.url}; 'backup ls' shows all", argument="run")
    except Damaged:
        return sys.maxsize, False
    return info.lsn, _is_whole(storage, names, _Stored(info.lsn, run))


class _Giving:
    """One pass; see the module. ``floor``: a backup that counted before anything was listed; None: none did."""

    def __init__(self, storage: ChunkStorage, names: BackupNames, floor: BackupInfo | None, pool: runtime.Pool) -> None:
        self._storage = storage
        self._names = names
        self._floor = floor
        self._pool = pool
        self._ended: list[str] = []
        self._refused = 0
        self._locked_ms: int | None = None

    def under_way(self) -> list[runs.Running]:
        """Other runs that may still come to count. Those that are silent are given up; of those that have ended marks are left."""
        live, self._ended = [], []
        now_ms = runtime.now_ms()
        for item in runs.iter_running(self._storage, self._names):
            decided = self._storage.exists(self._names.done(item.run))
            if not decided and now_ms - item.seen_ms > _SILENT_MS:
                runs.void(self._storage, self._names, item.run)
                decided = True
            if decided:
                self._ended.append(item.run)
            else:
                live.append(item)
        return live

    def give(self, wanted: Callable[[list[BackupInfo]], set[str]]) -> Given:
        """``wanted``: of what counts, the newest first, the runs that are to stay."""
        storage, names = self._storage, self._names
        # In this order: an export that is seen belongs to a run that is seen, or to one that has been decided by then.
        listed = (names.parse_stored(info.name) for info in iter_listing(storage, names.stored_prefix()))
        stored = [_Stored(*found) for found in listed if found is not None]
        running = self.under_way()
        complete = sorted(runs.iter_complete(storage, names), key=lambda item: (item.lsn, item.time_ms), reverse=True)
        newest = complete[0] if complete else self._floor
        if newest is None:
            return Given(0, 0, 0, 0, 0)
        stay = wanted(complete)
        base_lsn = min((item.base_lsn for item in running), default=newest.lsn)
        counts, busy = {item.run for item in complete}, {item.run for item in running}
        goes = [item for item in stored if item.run not in stay | busy and item.lsn < min(base_lsn, newest.lsn)]
        goes = [item for item in goes if item.run not in counts or self._withdrawn(item.run)]
        stays = [item for item in stored if item not in goes]
        put_off = sum(item.run in counts - stay for item in stays)
        again = self.under_way()
        low = min((other.base_lsn for other in again), default=newest.lsn)
        relied = [item for item in goes if item.lsn >= low]
        goes = [item for item in goes if item.lsn < low]
        # What came to count behind the first looks is there, too.
        late = [_Stored(item.lsn, item.run) for item in runs.iter_complete(storage, names)]
        counts |= {item.run for item in late}
        stays = list({*stays, *relied, *late})
        # One that is not whole is of a run that did not come to its end; but if it counts, nothing goes that it may name.
        stays = [item for item in stays if item.run in counts or _is_whole(storage, names, item)]
        put_off += len(relied)
        whole = [item for item in goes if _is_whole(storage, names, item)]
        try:
            given = self._delete(goes, whole, stays, quiet=not (running or again))._replace(put_off=put_off)
        except (Damaged, ChunkNotFound):
            if not self._was_given_up(whole + stays, counts):
                raise
            # What this pass has begun the next one goes on with.
            given = Given(0, 0, 0, self._refused, put_off + len(goes))
        runs.forget_withdrawn(storage, names, _FORGOTTEN_MS)
        return given

    def _was_given_up(self, read: list[_Stored], counts: set[str]) -> bool:
        """Whether somebody else has given up meanwhile what this pass was to read."""
        floor = [] if self._floor is None else [_Stored(self._floor.lsn, self._floor.run)]
        return not all(
            _is_whole(self._storage, self._names, item)
            or (item.run in counts and runs.find_done(self._storage, self._names, item.run) is not None)
            for item in read + floor
        )

    def _delete(self, goes: list[_Stored], whole: list[_Stored], stays: list[_Stored], *, quiet: bool) -> Given:
        """K4 to K6. ``whole``: those of ``goes`` whose export can be read. ``quiet``: no run is under way."""
        storage, names = self._storage, self._names
        named = without(
            merge(*(named_copies(storage, names, *item) for item in whole)),
            *(named_copies(storage, names, *item) for item in stays),
        )
        once = (next(same) for _, same in groupby(named, key=lambda copy: copy[:2]))
        chunks, size_bytes = self._delete_all((copy.name(names), copy.length) for copy in once)
        left = len(whole) < len(goes) or bool(self._ended)
        swept = swept_bytes = 0
        if left and quiet and self._floor is not None:
            found, waiting = self._left_behind(self._floor, stays)
            swept, swept_bytes = self._delete_all(found)
            left = waiting or self._refused > 0
            for run in () if left else self._ended:
                runs.forget(storage, names, run)
        if not self._refused:
            for item in goes if not left else whole:
                if self._deleted(names.stored(*item)):
                    delete_export(storage, names.stored(*item))
        return Given(len(goes), chunks, size_bytes, self._refused, 0, swept, swept_bytes, self._locked_ms)

    def _left_behind(self, floor: BackupInfo, stays: list[_Stored]) -> tuple[list[tuple[str, int]], bool]:
        """K5: names and lengths, and whether there are more that may go one day. Memory: about 300 bytes for each copy."""
        storage, names = self._storage, self._names
        until_ms = runtime.now_ms() - _DAY_MS
        epoch = open_stored_export(storage, floor.stored(names)).header.position.epoch
        there: dict[tuple[bytes, int], ChunkInfo] = {}
        for prefix in (names.copies_prefix(), names.growing_prefix()):
            for info in iter_listing(storage, prefix):
                copy = names.parse_copy(info.name)
                if copy is not None and chunk_session(copy[0]) is None:
                    there[copy[0], -1 if copy[1] is None else copy[1]] = info
        for item in {*stays, _Stored(floor.lsn, floor.run)} if there else ():
            for named in named_copies(storage, names, *item):
                there.pop(named[:2], None)
        found = [
            (info.name, info.length)
            for (identity, _), info in there.items()
            if chunk_epoch(identity) < epoch and _is_old(info, until_ms)
        ]
        pieces = [info.name for info in iter_listing(storage, names.temporary("")) if _is_old(info, until_ms)]
        return found + [(name, 0) for name in pieces], len(found) < len(there)

    def _delete_all(self, found: Iterable[tuple[str, int]]) -> tuple[int, int]:
        """How many were deleted, and their bytes."""
        items, done, size_bytes = iter(found), 0, 0
        while step := list(islice(items, _AT_ONCE)):
            answers = self._pool.run_all([partial(_try_delete, self._storage, name) for name, _ in step])
            for (_, length), refusal in zip(step, answers, strict=True):
                if self._is_gone(refusal):
                    done, size_bytes = done + 1, size_bytes + length
        return done, size_bytes

    def _withdrawn(self, run: str) -> bool:
        try:
            runs.withdraw(self._storage, self._names, run)
        except AccessDenied as error:
            return self._is_gone(error)
        return True

    def _deleted(self, name: str) -> bool:
        return self._is_gone(_try_delete(self._storage, name))

    def _is_gone(self, refusal: AccessDenied | None) -> bool:
        if refusal is not None:
            self._refused += 1
            self._locked_ms = max(filter(None, (self._locked_ms, refusal.until_ms)), default=None)
        return refusal is None


def _try_delete(storage: ChunkStorage, name: str) -> AccessDenied | None:
    """None: it is gone; else why the storage does not let it go."""
    try:
        storage.delete(name)
    except ChunkNotFound:
        return None
    except AccessDenied as error:
        return error
    return None


def _is_old(info: ChunkInfo, until_ms: int) -> bool:
    return info.modified_ms is not None and info.modified_ms <= until_ms


def _is_whole(storage: ChunkStorage, names: BackupNames, item: _Stored) -> bool:
    try:
        for _ in open_stored_export(storage, names.stored(*item)):
            pass
    except (Damaged, ChunkNotFound):
        return False
    return True


def audit(backup_root: str, *, container: str = "default", settings: Settings | None = None) -> Audit:
    """List all copies and compare them with what every backup names: are they there, and long enough. Changes nothing.

    Memory: about 200 bytes for each copy. Raises ``ContainerNotFound``, ``InvalidArgument``, and what the storage raises.
    """
    names = BackupNames(container)
    with parts.storage_of(backup_root, settings) as storage:
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
