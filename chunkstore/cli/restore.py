"""The verb ``restore``: a state of a container, a backup or an export, or a part of it, or what is left of it, as a new container.

Promises: the source is only read; what is missing is listed before anything is made.
Leaves out: the copying (``chunkstore.backup``).
"""

from __future__ import annotations

from typing import Annotated

import typer

from chunkstore.backup import RestoreReport, SalvageReport
from chunkstore.backup import restore as restore_container
from chunkstore.cli import access, options
from chunkstore.cli.output import human_bytes, human_time, meter, print_facts, print_json, print_table

__all__ = ["restore", "show_report"]


def restore(
    root: Annotated[
        str, typer.Argument(metavar="SOURCE", help="Root of a container or of backups, or an export file.")
    ],
    new_root: Annotated[str, typer.Argument(metavar="NEWROOT", help="Root of the new container.")],
    *,
    segments: Annotated[
        list[str] | None,
        typer.Option(
            "--segments", metavar="SEGMENT", help="Only this one, or this prefix ('orders-*'); again for more."
        ),
    ] = None,
    from_: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="ROOT2",
            help="Of an export: where its container is. With --salvage: backups, or a copy, of what has rotted.",
        ),
    ] = None,
    lsn: Annotated[int | None, typer.Option(metavar="N", help="The state after the record with this number.")] = None,
    time: Annotated[
        str | None,
        typer.Option(
            metavar="T",
            help="The state after the newest record up to this time: 2026-03-01, 2026-03-01T12:00:00Z, or milliseconds since 1970.",
        ),
    ] = None,
    snapshot: Annotated[str | None, typer.Option(metavar="NAME", help="The state of this pin.")] = None,
    new_container: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the new container.", show_default="the same")
    ] = None,
    salvage: Annotated[
        bool,
        typer.Option("--salvage", help="Of a damaged container: its last good state, and all bytes that are sound."),
    ] = False,
    dry_run: options.DryRun = False,
    here: access.Claiming,
) -> None:
    """Copy a past or present state, or some segments of it, into a new container. After an interruption, run the same command again."""
    access.require_lasting(new_root)
    with meter(f"restore {here.container}", None, as_json=here.as_json) as progress:
        report = restore_container(
            root,
            new_root,
            segments or (),
            salvage=salvage,
            from_=from_,
            lsn=lsn,
            time=options.moment_of(time, "--time"),
            snapshot=snapshot,
            container=here.container,
            settings=here.settings,
            take_over=here.take_over,
            dry_run=dry_run,
            new_container=new_container,
            progress=progress.advance,
        )
    show_report(here, report, "restored")


def show_report(here: access.Reading, report: RestoreReport, done: str) -> None:
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
