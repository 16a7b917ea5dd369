"""The verb ``restore``: a state of the past as a container of its own.

Promises: the old container is only read; what is missing is listed before anything is made.
Leaves out: the copying (``chunkstore.backup``).
"""

from __future__ import annotations

from typing import Annotated

import typer

from chunkstore.backup import RestoreReport
from chunkstore.backup import restore as restore_container
from chunkstore.cli import access, options
from chunkstore.cli.output import human_bytes, meter, print_facts, print_json, print_table

__all__ = ["restore", "show_report"]


def restore(
    root: options.Root,
    new_root: Annotated[str, typer.Argument(metavar="NEWROOT", help="Root of the new container.", show_default=False)],
    *,
    lsn: Annotated[
        int | None, typer.Option("--lsn", metavar="N", help="What the record of this number left.", show_default=False)
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(
            "--time",
            metavar="T",
            help="What the newest record up to then left: 2026-03-01T12:00:00+01:00, or milliseconds since 1970.",
            show_default=False,
        ),
    ] = None,
    snapshot: Annotated[
        str | None, typer.Option("--snapshot", metavar="NAME", help="What this pin keeps.", show_default=False)
    ] = None,
    new_container: Annotated[
        str | None,
        typer.Option("--new-container", metavar="NAME", help="Name of the new container.", show_default="the same"),
    ] = None,
    dry_run: options.DryRun = False,
    container: options.Container = "default",
    take_over: options.TakeOver = False,
    cache_dir: options.CacheDir = None,
    as_json: options.AsJson = False,
) -> None:
    """Copy a container as it was (or as it is) into a new one. Interrupted, the same command goes on."""
    settings = access.settings_for(cache_dir)
    with meter(f"restore {container}", None, as_json=as_json) as progress:
        report = restore_container(
            root,
            new_root,
            lsn=lsn,
            time=options.moment_of(time, "--time"),
            snapshot=snapshot,
            container=container,
            new_container=new_container,
            settings=settings,
            wait_s=0.0 if take_over else access.wait_s(settings),
            dry_run=dry_run,
            progress=progress.advance,
        )
    show_report(report, "restored", as_json=as_json)


def show_report(report: RestoreReport, done: str, *, as_json: bool) -> None:
    """Print what was done, or would be; exit code 1 where chunks are missing."""
    if as_json:
        print_json({**report._asdict(), "missing": [item._asdict() for item in report.missing]})
    else:
        _show(report, done)
    if report.missing:
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
