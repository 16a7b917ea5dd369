"""Repair: going on behind the last good record of a container whose history no replay accepts (protocol 3.15).

Promises: never by itself: ``open`` refuses, and a person runs this. ``dry_run`` reads only, and reports what would be done.
Leaves out: finding the last good record, fencing and the OPEN (``chunkstore_journal``); what is kept (``operations.regain``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from chunkstore.arguments import check_flags
from chunkstore.config import Settings
from chunkstore.invariants import Finding
from chunkstore.metadata.port import MetadataCache
from chunkstore.names import ContainerNames
from chunkstore.operations.cut_off import CutOff
from chunkstore.operations.regain import Regain, plan_regain, regain
from chunkstore.operations.repair_report import RepairReport, Unread
from chunkstore.owning import Claim, check_patience
from chunkstore.parts import cache_of, checked_settings, scratch_of, storage_of
from chunkstore.registry import Root
from chunkstore.storage import ChunkStorage

__all__ = ["repair"]


def repair(
    root: Root | ChunkStorage,
    *,
    container: str = "default",
    settings: Settings | None = None,
    dry_run: bool = False,
    wait_s: float | None = None,
    take_over: bool = False,
    cache: MetadataCache | None = None,
) -> RepairReport:
    """Go on behind the last good record of a container whose history no replay accepts, as a new epoch (protocol 3.15).

    What lies behind that record stays stored, and is history no more; acknowledged bytes that lie in chunks as their records say are kept,
    and so is what else can be read there and still makes sense. What is lost is in the report. Nothing happens where
    history is sound, and with ``dry_run``. ``wait_s``, ``take_over`` as in ``open_store``. Stop every process that works on the
    container first. The local metadata cache is replaced. Atomic up to the new epoch's OPEN; what is kept is committed a segment at a time.
    Durable.

    ``root`` may be a storage of the caller's own, which stays open, with a metadata ``cache`` of its own, too.

    Raises as ``open_store``; ``Damaged`` where there is nothing to go on from. Retry: safe; an interrupted repair is continued.
    """
    from chunkstore_bindings.wrappers.wrapping import guarded

    chosen, names = checked_settings(settings), ContainerNames(container)
    check_flags(dry_run=dry_run)
    patience_s = check_patience(wait_s, take_over)
    with storage_of(root, settings) as opened:
        return _repair(guarded(opened), names, chosen, cache, dry_run=dry_run, patience_s=patience_s)


def _repair(
    storage: ChunkStorage,
    names: ContainerNames,
    settings: Settings,
    cache: MetadataCache | None,
    *,
    dry_run: bool,
    patience_s: float | None,
) -> RepairReport:
    from chunkstore_journal.container import check_writable, read_format
    from chunkstore_journal.ends import WAY_ON, contradicts, missing
    from chunkstore_journal.history import open_streams
    from chunkstore_journal.lease import read_lease, wait_politely
    from chunkstore_journal.mend import interrupted_repair
    from chunkstore_journal.repair import diagnose
    from chunkstore_journal.service import ContainerJournal
    from chunkstore_journal.walk import find_last_claim

    format_ = read_format(storage, names)
    if not dry_run:
        check_writable(storage, format_, settings)
    streams = open_streams(storage, names)
    room = scratch_of(storage, format_.uuid, settings, cache)()
    try:
        found = diagnose(streams, room, find_last_claim(streams))
        interrupted = interrupted_repair(found.store) if found.cause is None else None
        if found.damage is None and interrupted is None:
            position = found.store.head().position
            lease, ends = read_lease(storage, names), tuple[Finding, ...]()
            if lease is not None and contradicts(lease, position):
                text = f"{missing(position, lease.lsn)}, according to the lease of epoch {position.epoch}. {WAY_ON}"
                ends = (Finding(5, "damage", "", "", names.lease, 0, text),)
            return RepairReport(
                container=names.container,
                sound=True,
                dry_run=dry_run,
                last_lsn=position.lsn,
                last_epoch=position.epoch,
                findings=ends,
            )
        if dry_run:
            return replace(_plan(storage, names, room, interrupted)[0], continued=interrupted is not None)
        lease = wait_politely(storage, names, settings, patience_s)
        parts = cache if cache is not None else cache_of(storage, format_.uuid, settings, "owner")
        closing: list[Callable[[], None]] = [] if cache is not None else [parts.close]
        service = ContainerJournal(storage, names, format_, parts, settings)
        if found.damage is None:
            ownership = service.take_over(own=None, lease=lease)
        else:
            cut = found.previous.epoch if found.previous is not None else 0
            ownership = service.mend(from_epoch=cut)
        epoch = ownership.journal.epoch
        claim = Claim(storage, names, format_, settings, cache, close_storage=False)
        with claim.serve(service, ownership, closing) as store:
            report, plan = _plan(storage, names, room, interrupted or epoch)
            segments = regain(store.owned, plan)
            findings = tuple(item for item in store.check("exists") if item.severity == "damage" and item.segment)
            # What is damaged behind us is needed no more.
            store.snapshot()
        return replace(
            report, continued=interrupted is not None, dry_run=False, epoch=epoch, segments=segments, findings=findings
        )
    finally:
        room.close()


def _plan(
    storage: ChunkStorage, names: ContainerNames, room: MetadataCache, epoch: int | None
) -> tuple[RepairReport, Regain]:
    """What the repair of ``epoch`` (None: the next one) finds below it, and what it can keep."""
    from chunkstore_journal.behind import Behind, records_behind
    from chunkstore_journal.history import open_streams
    from chunkstore_journal.repair import diagnose
    from chunkstore_journal.walk import find_last_claim

    streams = open_streams(storage, names)
    found = diagnose(streams, room, find_last_claim(streams) if epoch is None else epoch - 1)
    with found.store.view() as view:
        cut_off, behind, unreadable = CutOff(view, names), 0, []
        for item in records_behind(streams, found):
            if isinstance(item, Behind):
                behind += 1
                cut_off.add(item.lsn, item.ops, item.rows, item.lines)
            else:
                unreadable.append(Unread(*item))
        plan = plan_regain(storage, names, cut_off)
        position, cause = view.head.position, found.damage
    report = RepairReport(
        container=names.container,
        sound=False,
        dry_run=True,
        damage=cause.message if cause is not None else "",
        object=cause.object if cause is not None else "",
        position=cause.position if cause is not None else 0,
        last_lsn=position.lsn,
        last_epoch=position.epoch,
        behind=behind,
        unreadable=tuple(unreadable),
        segments=plan.outcomes,
        not_applied=plan.not_applied,
        pins=tuple(name for name, _ in plan.pins),
    )
    return report, plan
