"""``backup``: one more backup of a container, in which only what is new is copied.

    B1  pin; find the newest backup that counts, the base
    B2  write the rows after the pin as an export under the run's name
    B3  read the export back, and copy the chunks that it names and the base does not
    B4  put ``done/<lsn>-<run>``: the backup counts
    B5  unpin

A backup counts only if every copy that it names is there. A killed run leaves copies for the next one, a pin that ends by itself, and no
backup. Runs may work at the same time: nothing is ever deleted but what no other run can name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Final, NamedTuple

from chunkstore import parts, runtime
from chunkstore.backup import runs
from chunkstore.backup.copies import copy_all, named_copies, without
from chunkstore.backup.exporting import Subject, opened_to_read, pinned, write_rows_of
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
from chunkstore.backup.selection import EVERYTHING, Selection
from chunkstore.config import Settings
from chunkstore.engine.reading import context_of
from chunkstore.engine.replica import Replica
from chunkstore.engine.store import ChunkedSegmentStorage
from chunkstore.errors import (
    ChunkNotFound,
    ChunkstoreError,
    Conflict,
    Damaged,
    RolledBack,
    StorageUnavailable,
)
from chunkstore.parts import container_of
from chunkstore.records.arguments import check_flags
from chunkstore.records.invariants import Finding
from chunkstore.records.names import BackupNames
from chunkstore.registry import Root
from chunkstore.storage import ChunkStorage, iter_listing

__all__ = ["Verified", "backup", "check_roots", "list_backups", "verify_copies"]

_PIN_S: Final = 7 * 86_400.0
"""What a killed run leaves ends by itself."""


def backup(
    store: Subject,
    backup_root: Root | ChunkStorage,
    *,
    pin: bool = True,
    progress: Callable[[int], object] | None = None,
    container: str = "default",
    settings: Settings | None = None,
) -> BackupInfo:
    """Make one more backup of what the container holds now: copy the chunks that the last one does not name, and the metadata.

    ``store``, ``container``, ``settings``: as for ``export``. ``backup_root``: a root of its own, or a storage of one, which stays open;
    one may hold backups of several containers. ``pin``: keep what is copied until then; without one the run fails where a chunk is
    collected meanwhile. ``progress`` gets bytes. Every byte is compared with its CRC32C on the way.

    The backup counts, whole, or nothing does; then copies stay for the next run. Durable. Raises ``InvalidArgument`` (no root for
    backups of this container, or one inside its tree; a replica that is to pin), ``RolledBack`` (the last backup is of a later state than
    this; of a replica, which may not see that yet, ``StorageUnavailable``), ``Damaged`` (a chunk, or a copy, is not what it should be: all
    else is copied), ``Conflict`` (without a pin: a chunk was collected), ``OutcomeUnknown`` (it may count), ``StorageFull``,
    ``StorageUnavailable``, ``Unsupported``, and what pinning and reading raise. Retry: safe.
    """
    check_flags(pin=pin)
    run, began_ms = runtime.token(16).hex(), runtime.now_ms()
    with (
        opened_to_read(store, pin=pin, container=container, settings=settings) as (shown, maker),
        parts.storage_of(backup_root, shown.settings) as target,
    ):
        context = context_of(shown)
        names, uuid = BackupNames(shown.container), container_uuid(context.storage, context.names)
        runs.require_apart(context.storage, shown.container, target, shown.container, "backup_root")
        keep_private(target)
        runs.claim_root(target, names, uuid)
        if isinstance(shown, ChunkedSegmentStorage):
            with suppress(ChunkstoreError):
                shown.spill()  # one object instead of many; what stays in records is copied from there
        base = runs.newest_complete(target, names)
        with pinned(shown, maker, f"backup-{run}", "backup", _PIN_S, stays=False):
            header, selection = _write_export(shown, target, names, run)
            stored = names.stored(header.position.lsn, run)
            try:
                _check_order(shown, target, names, header, base)
                if open_stored_export(target, stored).header != header:
                    raise Damaged("the export that was read back is not the one written", object=stored)
                wanted = named_copies(target, names, header.position.lsn, run)
                if base is not None:
                    wanted = without(wanted, named_copies(target, names, base.lsn, base.run))
                with closing(runtime.pool("chunkstore-backup", shown.settings.tuning.io_workers)) as pool:
                    copied = copy_all(context.storage, target, names, wanted, pool, progress or (lambda _: None))
            except ChunkNotFound as error:
                _delete_quietly(target, stored)
                if pin:
                    raise Damaged("absent from the storage; run check --exists", object=error.chunk) from error
                what = f"chunk {error.chunk}"
                raise Conflict(
                    what, expected="to stay until it is copied", found="it collected: run it again"
                ) from error
            except BaseException:
                _delete_quietly(target, stored)
                raise
        position = header.position
        counts = (selection.segments, selection.chunks, selection.chunk_bytes, *copied)
        found = BackupInfo(run, position.lsn, position.hash, began_ms, *counts)
        # After this everything that the export names stays. Whatever this raises, the backup may count.
        runs.note_complete(target, names, found)
        return found


def _write_export(
    shown: ChunkedSegmentStorage | Replica, target: ChunkStorage, names: BackupNames, run: str
) -> tuple[ExportHeader, Selection]:
    """B2; what is stored, and what it counts."""

    def write(header: ExportHeader, rows: Selection) -> int:
        name = names.stored(header.position.lsn, run)
        try:
            return write_export(stored_sink(target, name), header, rows, name)
        except BaseException:
            _delete_quietly(target, name)
            raise

    return write_rows_of(shown, EVERYTHING, "", write)[:2]


def _delete_quietly(target: ChunkStorage, export: str) -> None:
    with suppress(ChunkstoreError):
        delete_export(target, export)


def _check_order(
    shown: ChunkedSegmentStorage | Replica,
    target: ChunkStorage,
    names: BackupNames,
    header: ExportHeader,
    base: BackupInfo | None,
) -> None:
    """Raise ``RolledBack`` where the state is not one after the last backup's."""
    lsn, identity, epoch = header.position[:3]
    if base is None:
        return
    if lsn < base.lsn and isinstance(shown, Replica):
        # What an owner has acknowledged a replica may not be able to believe yet.
        raise StorageUnavailable(
            f"its backup {base.run} is of lsn {base.lsn}, but this replica is at lsn {lsn}; run it again. If this "
            "repeats, the root was rolled back or copied; use another root for its backups",
            object=base.stored(names),
        )
    seen_epoch = 0
    with suppress(Damaged, ChunkNotFound):  # copying says so
        seen_epoch = open_stored_export(target, base.stored(names)).header.position.epoch
    # A history that continues after a rollback may have passed the base's lsn, but hardly its epoch.
    if lsn < base.lsn or epoch < seen_epoch or (lsn == base.lsn and identity != base.hash):
        raise RolledBack(
            f"its backup {base.run} is of lsn {base.lsn} and epoch {seen_epoch}, this state of lsn {lsn} and "
            f"epoch {epoch}: the root was rolled back or copied. Use another root for its backups",
            object=base.stored(names),
            lsn_seen=base.lsn,
            lsn_now=lsn,
        )


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
        for item in runs.iter_complete(storage, names):
            yield item, storage.exists(item.stored(names))


class Verified(NamedTuple):
    """Every copy that a backup names, compared with a listing."""

    backups: int
    chunks: int
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return not self.findings


def verify_copies(backup_root: Root, *, container: str = "default", settings: Settings | None = None) -> Verified:
    """List all copies and compare them with what every backup names: are they there, and long enough. Changes nothing.

    Memory: about 200 bytes for each copy. Raises ``ContainerNotFound``, ``InvalidArgument``, and what the storage raises.
    """
    names = BackupNames(container)
    findings: dict[str, Finding] = {}
    named = set[str]()
    with parts.storage_of(backup_root, settings) as storage:
        container_of(storage, names)
        complete = list(runs.iter_complete(storage, names))
        lengths: dict[str, int] = {}
        for prefix in (names.copies_prefix(), names.growing_prefix()):
            lengths |= {info.name: info.length for info in iter_listing(storage, prefix)}
        for item in complete:
            try:
                for copy in named_copies(storage, names, item.lsn, item.run):
                    name = copy.name(names)
                    named.add(name)
                    length = lengths.get(name)
                    if length is None or length < copy.length:
                        what = "absent" if length is None else f"{length} bytes long, {copy.length} belong there"
                        text = f"{what}: backup {item.run}"
                        findings.setdefault(name, Finding(20, "damage", "", name, name, 0, text))
            except Damaged as error:
                findings[error.object] = Finding(0, "damage", "", "", error.object, error.position, str(error))
    return Verified(len(complete), len(named), tuple(findings.values()))
