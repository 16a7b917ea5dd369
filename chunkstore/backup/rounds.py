"""``backup``: one more backup of a container, in which only what is new is copied.

    B1  put ``running/<run>`` with the lsn of a backup that counts, the base; then look that it still counts, else take another one
    B2  pin; export the rows after the pin into a local file
    B3  copy the chunks that the base does not name
    B4  write the export under the run's name, read it back
    B5  put ``done/<run>`` once: the backup counts, or another run has withdrawn it
    B6  unpin, delete ``running/<run>``

A backup counts only if every copy that it names is there. A killed run leaves copies for the next one, a pin that ends by itself, and no
backup. Runs may work at the same time."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import KW_ONLY, dataclass, field
from typing import Final, NamedTuple, Unpack

from chunkstore import runtime
from chunkstore.backup import runs
from chunkstore.backup.copies import Copier, Copy, copies, named_copies, without
from chunkstore.backup.exporting import (
    Claim,
    FileSink,
    Pins,
    ReadOptions,
    Subject,
    opened_to_read,
    pinned,
    read_export,
    write_rows_of,
)
from chunkstore.backup.files import (
    ExportHeader,
    container_uuid,
    delete_export,
    keep_private,
    open_stored_export,
    stored_sink,
    write_export,
)
from chunkstore.backup.runs import BackupInfo
from chunkstore.backup.selection import NameFilter
from chunkstore.config import MIB, Settings
from chunkstore.engine import parts
from chunkstore.engine.parts import container_of
from chunkstore.engine.reading import context_of
from chunkstore.engine.replica import Replica
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import (
    ChunkNotFound,
    ChunkstoreError,
    Conflict,
    Damaged,
    OutcomeUnknown,
    RolledBack,
    StorageUnavailable,
)
from chunkstore.metadata.keys import CHUNK
from chunkstore.records.arguments import check_flags
from chunkstore.records.invariants import FUTURE_MS
from chunkstore.records.names import BackupNames, ContainerNames
from chunkstore.registry import Root
from chunkstore.storage import ChunkStorage, iter_listing

__all__ = ["BackupPlan", "BackupReport", "backup", "backup_figures", "check_roots", "list_backups"]

_PIN_S: Final = 7 * 86_400.0
"""What a killed run leaves ends by itself."""
_REFRESH_S: Final = 60.0
_BASES_MAX: Final = 8
_REQUEST_BYTES: Final = 16 * MIB


class BackupPlan(NamedTuple):
    """What a run is going to copy, and what that costs: chunks, bytes, requests of both storages together, about."""

    base_lsn: int
    lsn: int
    chunks: int
    size_bytes: int
    requests: int


class BackupReport(NamedTuple):
    """The backup that was made, and the chunks that were linked for it; what was copied, the backup says."""

    backup: BackupInfo
    linked_chunks: int
    linked_bytes: int


def backup(
    store: Subject,
    backup_root: Root | ChunkStorage,
    *,
    link: bool = False,
    verify: bool = True,
    before: Callable[[BackupPlan], object] | None = None,
    progress: Callable[[int], object] | None = None,
    **options: Unpack[ReadOptions],
) -> BackupReport:
    """Make one more backup of what the container holds now: copy the chunks that the last one does not name, then the metadata.

    ``store``, ``container``, ``settings``, ``wait_s``, ``take_over``: as for ``export``. ``backup_root``: a root of its own, or a storage
    of one, which stays open; one may hold backups of several containers. ``pin``: keep what is copied until then; without one the run
    fails where a chunk is collected meanwhile. ``pins``: as for ``export``.
    ``verify``: what a server is to copy (from bucket to bucket of one S3) is read first and compared with its CRC; else the server is
    trusted with it. Bytes copied here always are. ``link``: make hard links where both roots are on one file system; links are not
    read, and do not protect from rot. ``before`` gets the expected cost, ``progress`` bytes.

    The backup counts, whole, or nothing does; then copies stay for the next run. Durable. Raises ``InvalidArgument`` (a number; no root for
    backups of this container, or one inside its tree; a replica without ``pins``), ``RolledBack`` (the last backup is of a later state than
    this; of a replica, which may not see that yet, ``StorageUnavailable``), ``Damaged`` (a chunk, or a copy, is not what it should be: all
    else is copied), ``Conflict`` (another run withdrew this one: it says which, and the clocks; without a pin: a chunk was collected),
    ``OutcomeUnknown`` (it may count), ``StorageFull``,
    ``StorageUnavailable``, ``Unsupported``, and what pinning and reading raise. Retry: safe.
    """
    claim = Claim(**options)
    check_flags(pin=claim.pin, link=link, verify=verify)
    with (
        opened_to_read(store, claim) as (shown, maker),
        parts.storage_of(backup_root, shown.settings) as target,
        closing(runtime.pool("chunkstore-backup", shown.settings.tuning.io_workers)) as pool,
    ):
        context = context_of(shown)
        names, uuid = BackupNames(shown.container), container_uuid(context.storage, context.names)
        runs.require_apart(context.storage, shown.container, target, shown.container, "backup_root")
        keep_private(target)
        runs.claim_root(target, names, uuid)
        if isinstance(shown, ChunkedSegmentStorage):
            with suppress(ChunkstoreError):
                shown.spill()  # one object instead of many; what stays in records is copied from there
        run = _Run(shown, target, names, pool, maker, progress or (lambda _: None), link=link, verify=verify)
        return run.make(before or (lambda _: None))


def check_roots(root: Root, backup_root: Root, *, container: str = "default", settings: Settings | None = None) -> None:
    """Check whether backups of the container at ``root`` can be stored at ``backup_root``. Changes nothing.

    Raises ``InvalidArgument`` (they cannot), ``ContainerNotFound``, ``Damaged``, ``Unsupported``, and what the storages raise.
    """
    names = BackupNames(container)
    with parts.storage_of(root, settings) as source, parts.storage_of(backup_root, settings) as target:
        runs.require_apart(source, container, target, container, "backup_root")
        runs.check_root(target, names, container_uuid(source, names))


def list_backups(
    backup_root: Root, *, container: str = "default", settings: Settings | None = None
) -> Iterator[tuple[BackupInfo, bool]]:
    """The backups of a container that count, the oldest state first, and whether the export of each is there. Read-only.

    Raises ``ContainerNotFound`` (no backups are stored here), ``InvalidArgument``, ``Damaged``, and what the storage raises.
    """
    names = BackupNames(container)
    with parts.storage_of(backup_root, settings) as storage:
        container_of(storage, names)
        for item in sorted(runs.iter_complete(storage, names), key=lambda item: (item.lsn, item.time_ms)):
            yield item, storage.exists(item.stored(names))


def backup_figures(
    backup_root: Root, *, container: str = "default", settings: Settings | None = None
) -> dict[str, float]:
    """The values of ``metrics.BACKUP_GAUGES``, from the backup root: of all backups that still exist, whatever process made them.
    Backups with a time after now, by a wrong clock, have no age. Costs a LIST and two requests for each backup.
    Raises as ``list_backups``."""
    made_ms = [
        item.time_ms for item, complete in list_backups(backup_root, container=container, settings=settings) if complete
    ]
    figures: dict[str, float] = {"count": len(made_ms)}
    now_ms = runtime.now_ms()
    believed_ms = [time_ms for time_ms in made_ms if time_ms <= now_ms + FUTURE_MS]
    return figures | ({"age_s": max(0, now_ms - max(believed_ms)) / 1000} if believed_ms else {})


@dataclass
class _Run:
    """One attempt; see the module."""

    store: ChunkedSegmentStorage | Replica
    target: ChunkStorage
    names: BackupNames
    pool: runtime.Pool
    maker: Pins | None
    progress: Callable[[int], object]
    _: KW_ONLY
    link: bool
    verify: bool
    run: str = field(default_factory=lambda: runtime.token(16).hex())
    began_ms: int = field(default_factory=runtime.now_ms)
    seen_s: float = field(default_factory=runtime.monotonic_s)
    has_copied: bool = False
    base_lsn: int = 0

    def make(self, before: Callable[[BackupPlan], object]) -> BackupReport:
        base = self._begin()
        try:
            # B2: the pin is below the state that is read, and ends with the copying.
            with (
                pinned(self.store, self.maker, f"backup-{self.run}", "backup", _PIN_S, stays=False),
                tempfile.TemporaryDirectory(prefix="chunkstore-backup-") as folder,
            ):
                path = os.path.join(folder, "export")
                with closing(FileSink(path)) as sink:
                    header, selection, _ = write_rows_of(self.store, sink, NameFilter(), "")
                self._check_order(header, base)
                copier = self._copy(path, header, base, before)
                found = BackupInfo(
                    self.run,
                    header.position.lsn,
                    header.position.hash,
                    self.began_ms,
                    selection.segments,
                    selection.chunks,
                    selection.chunk_bytes,
                    copier.copied,
                    copier.copied_bytes,
                )
                self._store_export(path, header, found)
                # After this everything that the export names is there, and stays as long as it counts.
                runs.decide(self.target, self.names, found)
        except OutcomeUnknown:
            raise  # what is there may count
        except BaseException as error:
            given_up = None
            with suppress(ChunkstoreError):
                given_up = runs.why_given_up(self.target, self.names, self.run)
                runs.void(self.target, self.names, self.run)
                if not self.has_copied:
                    runs.forget(self.target, self.names, self.run)
            if given_up is not None and isinstance(error, ChunkstoreError):
                raise given_up from error
            if isinstance(error, Damaged | ChunkNotFound) and self._is_given_up(base):
                raise _base_gone("a withdrawn one, and this run was considered dead; run it again") from error
            raise
        self._end()
        return BackupReport(found, copier.linked, copier.linked_bytes)

    def _begin(self) -> BackupInfo | None:
        """B1: in this order, so that a run that withdraws a backup sees our use of it, or we see the withdrawal."""
        for _ in range(_BASES_MAX):
            base = runs.newest_known(self.target, self.names)
            runs.note_running(self.target, self.names, self.run, 0 if base is None else base.lsn)
            if base is None or runs.find_done(self.target, self.names, base.run) is not None:
                self.base_lsn = 0 if base is None else base.lsn
                return base
        raise _base_gone(f"{_BASES_MAX} that were withdrawn during the run")

    def _is_given_up(self, base: BackupInfo | None) -> bool:
        with suppress(ChunkstoreError):
            return base is not None and runs.find_done(self.target, self.names, base.run) is None
        return False

    def _end(self) -> None:
        """B6. A hint and a marker: nothing relies on them."""
        with suppress(ChunkstoreError):
            runs.note_newest(self.target, self.names, self.run)
            runs.forget(self.target, self.names, self.run)
            if self.has_copied:
                runs.under_way(self.target, self.names, f"run {self.run}")

    def _check_order(self, header: ExportHeader, base: BackupInfo | None) -> None:
        lsn, identity, epoch = header.position[:3]
        if base is None:
            return
        if lsn < base.lsn and isinstance(self.store, Replica):
            # What an owner has acknowledged a replica may not be able to believe yet.
            raise StorageUnavailable(
                f"its backup {base.run} is of lsn {base.lsn}, but this replica is at lsn {lsn}; run it again. If this "
                "repeats, the root was rolled back or copied; use another root for its backups",
                object=base.stored(self.names),
            )
        seen_epoch = 0
        with suppress(Damaged, ChunkNotFound):  # copying says so
            seen_epoch = open_stored_export(self.target, base.stored(self.names)).header.position.epoch
        # A history that continues after a rollback may have passed the base's lsn, but hardly its epoch.
        if lsn < base.lsn or epoch < seen_epoch or (lsn == base.lsn and identity != base.hash):
            raise RolledBack(
                f"its backup {base.run} is of lsn {base.lsn} and epoch {seen_epoch}, this state of lsn {lsn} and "
                f"epoch {epoch}: the root was rolled back or copied. Use another root for its backups",
                object=base.stored(self.names),
                lsn_seen=base.lsn,
                lsn_now=lsn,
            )

    def _copy(
        self, path: str, header: ExportHeader, base: BackupInfo | None, before: Callable[[BackupPlan], object]
    ) -> Copier:
        """B3."""

        def missing() -> Iterator[Copy]:
            wanted = copies(
                read_export(path).of_kind(CHUNK), ContainerNames(self.names.container), header.position.epoch
            )
            there = iter(()) if base is None else named_copies(self.target, self.names, base.lsn, base.run)
            return without(wanted, there)

        chunks = size_bytes = requests = 0
        for item in missing():
            chunks, size_bytes = chunks + 1, size_bytes + item.length
            requests += 2 + 2 * (item.length // _REQUEST_BYTES)
        before(BackupPlan(0 if base is None else base.lsn, header.position.lsn, chunks, size_bytes, requests))
        source = context_of(self.store).storage
        copier = Copier(source, self.target, self.names, self.pool, self._step, link=self.link, verify=self.verify)
        if chunks:
            self.has_copied = True
            try:
                copier.copy(missing(), self._present())
            except ChunkNotFound as error:
                raise self._gone(error) from error
        return copier

    def _gone(self, error: ChunkNotFound) -> ChunkstoreError:
        if self.maker is not None:
            return Damaged("absent from the storage; run check --exists", object=error.chunk)
        return Conflict(
            f"chunk {error.chunk}", expected="to stay until it is copied", found="it collected: run it again"
        )

    def _present(self) -> Callable[[Copy], bool]:
        """Copies of unfinished runs; without such a run nothing is listed."""
        others = [other for other in runs.iter_running(self.target, self.names) if other.run != self.run]
        there = dict[tuple[bytes, int], int]()
        for prefix in (self.names.copies_prefix(), self.names.growing_prefix()) if others else ():
            for info in iter_listing(self.target, prefix):
                found = self.names.parse_copy(info.name)
                if found is not None:
                    there[found[0], -1 if found[1] is None else found[1]] = info.length
        return lambda item: there.get(item[:2], -1) >= item.length

    def _step(self, size_bytes: int) -> None:
        self.progress(size_bytes)
        if runtime.monotonic_s() - self.seen_s >= _REFRESH_S:
            self.seen_s = runtime.monotonic_s()
            runs.note_running(self.target, self.names, self.run, self.base_lsn)

    def _store_export(self, path: str, header: ExportHeader, info: BackupInfo) -> None:
        """B4."""
        name = info.stored(self.names)
        try:
            rows = write_export(stored_sink(self.target, name), header, read_export(path), name)
            reread = open_stored_export(self.target, name)
            if reread.header != header or sum(1 for _ in reread) != rows:
                raise Damaged("the export that was read back is not the one written", object=name)
        except BaseException:
            with suppress(ChunkstoreError):
                delete_export(self.target, name)
            raise


def _base_gone(found: str) -> Conflict:
    return Conflict("the backup to begin with", expected="to stay", found=found)
