"""``gc``, ``defrag``, ``usage``, ``quota``. Only ``--orphans --delete`` deletes what no removal made garbage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from chunkstore import Asker, ChunkedSegmentStorage
from chunkstore.cli import access, options
from chunkstore.cli.options import age_option, argument, flag, option
from chunkstore.cli.output import (
    fields_of,
    human_bytes,
    human_time,
    meter,
    print_facts,
    print_json,
    print_note,
    print_table,
    shown,
)
from chunkstore.cli.streams import VerbFailed
from chunkstore.errors import InvalidArgument
from chunkstore.metadata.reserved import encode_quota
from chunkstore.upkeep.defrag import DefragAction, DefragReport
from chunkstore.upkeep.sweep import SweepReport, SweptKind

__all__ = ["defrag", "gc", "rm", "set_", "usage"]

_DAY_S = 86_400.0
_WAITING = (
    "clocks of owners cannot be compared, so the grace of removed chunks begins anew with each claim, and no later gc deletes them; "
    "--grace-s 0 deletes them now, --ask leaves it to a live owner, serve deletes them in time"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collecting(access.Asking):
    """The options of ``gc``."""

    orphans: Annotated[bool, flag("Also search for orphans (chunks left by crashes); lists every chunk.")] = False
    delete: Annotated[bool, flag("With --orphans: delete them.")] = False
    keep_in: Annotated[
        str | None,
        option("FOLDER", "With --delete: first copy them into this folder of the container, such as 'lost'."),
    ] = None
    age_s: Annotated[float, age_option("With --orphans: only orphans of at least this age.")] = _DAY_S
    grace_s: Annotated[
        float | None,
        age_option(
            "Time that removed chunks stay for readers, from the removal or from this claim if that is later. "
            "Default 3600; 0 deletes them now."
        ),
    ] = None
    dry_run: options.DryRun = False


def gc(root: options.Root, *, here: Collecting) -> None:
    """Delete removed chunks after their grace, and unneeded journal objects and snapshots.

    With --orphans --delete also orphans: chunks left by crashes.
    """
    _check_options(here)
    if here.dry_run:
        with here.replica(root) as replica:
            garbage = replica.garbage()
            lost = replica.orphans(age_s_min=here.age_s) if here.orphans else None
        _show_plan(here, garbage, lost, is_due=here.grace_s == 0)
        return
    with here.owner_or_asker(root, gc_grace_s=here.grace_s) as store:
        collected = store.collect()
        has_claimed = isinstance(store, ChunkedSegmentStorage)
        swept = None
        if here.orphans and isinstance(store, ChunkedSegmentStorage):
            swept = store.sweep(delete=here.delete, keep_in=here.keep_in, age_s_min=here.age_s)
    facts: dict[str, object] = {
        "collected": f"{collected.chunks} chunks, {human_bytes(collected.chunk_bytes)}",
        "in their grace": f"{collected.waiting} chunks",
        "pinned": f"{collected.pinned} chunks" if collected.pinned else "",
        "refused": f"{collected.refused} rows" if collected.refused else "",
        "journal": f"{collected.journal_objects} objects, {human_bytes(collected.journal_bytes)}",
    }
    shown_facts = {name: value for name, value in {**facts, **_facts_of(swept)}.items() if value}
    here.show({**collected._asdict(), "orphans": swept}, shown_facts)
    if collected.waiting and has_claimed and not here.as_json:
        print_note(_WAITING)


def _check_options(given: Collecting) -> None:
    if (given.delete or given.keep_in is not None) and not given.orphans:
        raise InvalidArgument("--delete and --keep-in need --orphans", argument="--delete")
    if given.keep_in is not None and not given.delete:
        raise InvalidArgument("--keep-in needs --delete", argument="--keep-in")
    if given.ask and (given.orphans or given.grace_s is not None):
        text = "with --ask the owner uses its own grace; for --orphans and --grace-s claim the container"
        raise InvalidArgument(text, argument="--ask")


def _facts_of(swept: SweepReport | None) -> dict[str, object]:
    if swept is None:
        return {}
    return {
        "orphans": f"{swept.orphans}, {human_bytes(swept.orphan_bytes)}",
        "orphans deleted": f"{swept.deleted}, {human_bytes(swept.deleted_bytes)}",
        "too young yet": f"{swept.waiting}, {human_bytes(swept.waiting_bytes)}",
        "strange names": swept.strangers,
        "uploads aborted": swept.uploads if swept.uploads is not None else "unknown: the server does not list them",
    }


def _show_plan(here: access.Reading, garbage: SweptKind, lost: SweepReport | None, *, is_due: bool) -> None:
    """What the run would do; ``requests`` are deletions. Its claim begins the grace of all garbage: without one, it is due."""
    parts = {"collect": garbage if is_due else SweptKind(0, 0)}
    waiting = 0 if is_due else garbage.objects
    if lost is not None:
        parts["sweep"] = SweptKind(lost.orphans, lost.orphan_bytes)
    actions = [{"action": what, "chunks": part.objects, "bytes": part.size_bytes} for what, part in parts.items()]
    size = sum(part.size_bytes for part in parts.values())
    here.show(
        {
            "actions": actions,
            "bytes": size,
            "requests": sum(part.objects for part in parts.values()),
            "waiting": waiting,
        },
        {f"would {what}": f"{part.objects} chunks, {human_bytes(part.size_bytes)}" for what, part in parts.items()}
        | {"in their grace": f"{waiting} chunks"},
    )
    if waiting and not here.as_json:
        print_note(_WAITING)


def defrag(
    root: options.Root,
    segment: Annotated[str | None, argument("[SEGMENT]", "Name of a segment; without it, all.")] = None,
    *,
    dry_run: options.DryRun = False,
    here: access.Asking,
) -> None:
    """Merge small neighbouring chunks into large ones. Needs space for both until 'gc' deletes the old ones.

    Exit code 1: a segment is damaged and was left unchanged.
    """
    if dry_run:
        with here.replica(root) as replica:
            report = replica.due_defrag(segment)
    else:
        with (
            here.owner_or_asker(root) as store,
            meter(f"merging {here.container}", None, as_json=here.as_json) as bar,
        ):
            if isinstance(store, Asker):
                report = store.defrag(segment)
            else:
                report = store.defrag(segment, progress=lambda action: bar(action.size_bytes))
    _show_defrag(here, report, dry_run=dry_run)
    if report.refused:
        raise typer.Exit(1)


def _show_defrag(here: access.Reading, report: DefragReport, *, dry_run: bool) -> None:
    if here.as_json:
        facts = {
            "actions": [{**action._asdict(), "bytes": action.size_bytes} for action in report.actions],
            "bytes": report.bytes_moved,
            "requests": report.requests,
            "segments": report.segments,
            "chunks_before": report.chunks_before,
            "chunks_after": report.chunks_after,
            "refused": report.refused,
            "ahead": report.ahead,
        }
        print_json(facts if dry_run else {**facts, "carried_bytes": report.carried_bytes})
        return
    if report.actions:
        print_table(DefragAction._fields, report.actions, right=("start", "stop", "chunks", "requests"))
    for name in report.refused:
        typer.echo(f"{shown(name)}: damaged; run check --deep")
    for name in report.ahead:
        typer.echo(f"{shown(name)}: has chunks that stay, because they are newer than this clock; correct the clock")
    would = "would move" if dry_run else "moved"
    print_facts(
        {
            "segments": report.segments,
            "chunks": f"{report.chunks_before}, then {report.chunks_after}",
            would: f"{human_bytes(report.bytes_moved)} by about {report.requests} requests",
        }
    )


class NoQuota(VerbFailed):
    """``quota rm``: no quota is stored. Python's ``set_quota`` answers False."""

    fields = ("container",)


def set_(
    root: options.Root,
    quota_bytes: Annotated[int, argument("SIZE", "Chunks may take so much.", parser=options.size)],
    *,
    here: access.Owning,
) -> None:
    """Store the quota of a container, for all its owners. Deletes nothing; what does not fit is refused."""
    encode_quota(quota_bytes)
    with here.owner(root) as store:
        store.set_quota(quota_bytes)
    here.show({"quota_bytes": quota_bytes}, {"quota": human_bytes(quota_bytes)})


def rm(root: options.Root, *, here: access.Owning) -> None:
    """Remove the quota of a container."""
    with here.owner(root) as store:
        if not store.set_quota(None):
            raise NoQuota(here.container, f"container {here.container!r} stores no quota; usage shows what is in force")
    here.show({"removed": True}, {"quota": "removed"})


def usage(
    root: options.Root,
    segment: Annotated[str | None, argument("[SEGMENT]", "Only this segment.")] = None,
    *,
    here: access.Reading,
) -> None:
    """Show how much space is taken up, and by what."""
    with here.replica(root) as store:
        used = store.usage(segment)
    if here.as_json:
        print_json(used)
        return
    facts: dict[str, object] = {}
    for name, value in fields_of(used).items():
        if not isinstance(value, int):
            continue  # not known here, or not of one segment
        what, _, unit = name.rpartition("_")
        shown = {"bytes": human_bytes, "ms": human_time}.get(unit, str)(value)
        label = {"bytes": what, "ms": f"{what} at"}.get(unit, name)
        facts[label.replace("_", " ")] = shown
    print_facts(facts)
