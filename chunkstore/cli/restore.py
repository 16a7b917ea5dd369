"""``restore`` and ``import``: a state of a container, a backup or an export, or a part of it, as a new container; and header files.

The source is only read; what is missing is listed before anything is made, and before a former owner is fenced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import typer

from chunkstore import backup as backups
from chunkstore.backup import RestoreReport, SalvageReport
from chunkstore.backup import restore as restore_container
from chunkstore.cli import access, options
from chunkstore.cli.options import argument, flag, option
from chunkstore.cli.output import Meter, human_bytes, human_time, meter, print_facts, print_json, print_table
from chunkstore.errors import InvalidArgument

__all__ = ["export_headers", "import_", "import_headers", "restore"]


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Which state of the source is copied; of a verb that makes a container of it."""

    from_: Annotated[
        str | None,
        option(
            "ROOT2",
            "Of an export: where its container is. Of a salvage: backups, or a copy, of what has rotted.",
            "--from",
        ),
    ] = None
    lsn: Annotated[int | None, option("N", "The state after the record with this number.", "--lsn")] = None
    time: Annotated[
        str | None,
        option(
            "T",
            "The state after the newest record up to this time: 2026-03-01, 2026-03-01T12:00:00Z, or milliseconds since 1970.",
            "--time",
        ),
    ] = None
    snapshot: Annotated[str | None, option("NAME", "The state of this pin.", "--snapshot")] = None
    dry_run: options.DryRun = False

    def options(self, here: access.Claiming, progress: Meter, *, salvage: bool = False) -> backups.RestoreOptions:
        """As ``restore`` takes them."""
        return {
            "from_": self.from_,
            "lsn": self.lsn,
            "snapshot": self.snapshot,
            "salvage": salvage,
            "dry_run": self.dry_run,
            "time": options.moment_of(self.time, "--time"),
            "settings": here.settings,
            "take_over": here.take_over,
            "progress": progress,
        }


def restore(
    root: Annotated[str, argument("SOURCE", "Root of a container or of backups, or an export file.")],
    new_root: Annotated[str, argument("NEWROOT", "Root of the new container.")],
    *,
    segments: Annotated[
        list[str] | None, option("SEGMENT", "Only this one, or this prefix ('orders-*'); again for more.")
    ] = None,
    new_container: Annotated[str | None, option("NAME", "Name of the new container.", show_default="the same")] = None,
    salvage: Annotated[
        bool, flag("Of a damaged container: its last good state, and all bytes that are sound.")
    ] = False,
    state: State,
    here: access.Claiming,
) -> None:
    """Copy a past or present state, or some segments of it, into a new container. After an interruption, run the same command again."""
    access.require_lasting(new_root)
    with meter(f"restore {here.container}", None, as_json=here.as_json) as progress:
        report = restore_container(
            root,
            new_root,
            segments or (),
            container=here.container,
            new_container=new_container,
            **state.options(here, progress, salvage=salvage),
        )
    _show_report(here, report, "restored")


def _show_report(here: access.Reading, report: RestoreReport, done: str) -> None:
    """Print what was done, or would be; exit code 1 where something is missing or lost."""
    if here.as_json:
        print_json(report)
    else:
        _show(report, done)
    if report.missing or not (report.salvaged is None or report.salvaged.ok):
        raise typer.Exit(1)


def _show(report: RestoreReport, done: str) -> None:
    facts = {
        f"would be {done}" if report.dry_run else done: report.container,
        "lsn": report.lsn,
        "segments": report.segments,
        "chunks": report.chunks,
        "bytes": human_bytes(report.size_bytes),
        "table rows": report.rows,
    }
    print_facts(facts if not report.missing else {**facts, "missing chunks": report.missing_chunks})
    if report.missing:
        print_table(("segment", "chunk", "start", "stop", "reason"), report.missing, right=("start", "stop"))
    if report.salvaged is not None:
        _show_salvaged(report.salvaged)


def _show_salvaged(salvaged: SalvageReport) -> None:
    past = salvaged.past
    facts = {
        "history": f"damaged: {salvaged.damage}" if salvaged.damage else "read to its end",
        "from the copy": human_bytes(salvaged.replaced_bytes),
        "lost": f"{human_bytes(salvaged.lost_bytes)} in {salvaged.lost_ranges} ranges",
    }
    if past.records:
        times = f"{human_time(past.first_ms or 0)} to {human_time(past.last_ms or 0)}"
        facts["not replayed"] = f"{past.records} records, lsn {past.lsn_min} to {past.lsn_max}, {times}"
        facts["their segments"] = ", ".join(past.segments)
    print_facts(facts)
    if salvaged.lost:
        print_table(("segment", "start", "stop", "chunk", "continues as"), salvaged.lost, right=("start", "stop"))


Root = Annotated[str, argument("ROOT", "Root of the new container; with --headers: also of one that is there.")]
Source = Annotated[str, argument("FILE", "An export file, or a root of backups or of a container.")]
Segments = Annotated[
    list[str] | None, argument("[SEGMENT]...", "Segments, or prefixes ('orders-*'); none: everything.")
]
AsHeaders = Annotated[bool, flag("FILE is a folder: copy the segments that its header files list.", "--headers")]
Name = Annotated[str | None, option("NAME", "Name of the new container.", "--as", show_default="--container")]


def import_(
    root: Root,
    source: Source,
    segments: Segments = None,
    *,
    name: Name = None,
    as_headers: AsHeaders = False,
    state: State,
    here: access.Owning,
) -> None:
    """Make a new container of an export, a backup or a container, or of some of its segments; or copy what header files list.

    Interrupted, the same command goes on.
    """
    if as_headers:
        if name is not None or replace(state, dry_run=False) != State():
            raise InvalidArgument("--headers goes with SEGMENTs, --container and --dry-run only", argument="--headers")
        import_headers(here, root, source, segments or (), dry_run=state.dry_run)
        return
    access.require_lasting(root)
    with meter(f"import {source}", None, as_json=here.as_json) as progress:
        chosen = state.options(here, progress)
        made = here.container if name is None else name
        report = backups.import_(
            root, source, segments or (), source_container=here.container, container=made, **chosen
        )
    _show_report(here, report, "imported")


def import_headers(here: access.Owning, root: str, directory: str, segments: Sequence[str], *, dry_run: bool) -> None:
    """``import ROOT DIR --headers``: into the container at ROOT, which is made where there is none."""
    found = backups.survey_headers(directory, segments, settings=here.settings)
    damaged = any(item.severity == "damage" for item in found.findings)
    if not dry_run and not damaged:
        with here.owner(root, create=True) as store:
            found = backups.import_headers(store, directory, segments)
    done = "would import" if dry_run else "not imported" if damaged else "imported"
    facts = {done: len(found.segments), "there already": len(found.there), "size": human_bytes(found.length)}
    here.show(found, facts)
    if found.findings and not here.as_json:
        print_table(
            ("severity", "segment", "object", "position", "message"), [item[1:3] + item[4:] for item in found.findings]
        )
    if damaged:
        raise typer.Exit(1)


def export_headers(here: access.Owning, root: str, directory: str, segments: Sequence[str], *, replaces: bool) -> None:
    """``export ROOT DIR --headers``: by a replica."""
    with here.replica(root) as replica:
        report = backups.export_headers(replica, directory, segments, replace=replaces)
    facts: dict[str, object] = {"headers": report.segments, "chunks": report.chunks}
    facts["copied"] = f"{report.copied} files, {human_bytes(report.copied_bytes)}"
    if report.unsealed:
        facts["look open"] = f"{report.unsealed} sealed segments: this storage has no read-only files"
    here.show(report, facts)
