"""The verb ``restore``: a state of the past as a container of its own, or in place.

Promises: the old container is only read, unless it is asked to go back itself; what is missing is listed before anything is made.
Leaves out: the copying (``chunkstore.backup``).
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from chunkstore.backup import InPlaceReport, RestoreReport, restore_in_place
from chunkstore.backup import restore as restore_container
from chunkstore.cli import access, options
from chunkstore.cli.output import human_bytes, meter, print_facts, print_json, print_table
from chunkstore.errors import InvalidArgument

__all__ = ["restore", "show_report"]


def restore(
    root: options.Root,
    new_root: Annotated[str | None, typer.Argument(metavar="[NEWROOT]", help="Root of the new container.")] = None,
    *,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Make the moment the present again: what came later is lost. No NEWROOT.")
    ] = False,
    lsn: Annotated[int | None, typer.Option(metavar="N", help="What the record of this number left.")] = None,
    time: Annotated[
        str | None,
        typer.Option(
            metavar="T",
            help="What the newest record up to then left: 2026-03-01T12:00:00+01:00, or milliseconds since 1970.",
        ),
    ] = None,
    snapshot: Annotated[str | None, typer.Option(metavar="NAME", help="What this pin keeps.")] = None,
    new_container: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the new container.", show_default="the same")
    ] = None,
    dry_run: options.DryRun = False,
    here: access.Claiming,
) -> None:
    """Copy a container as it was (or as it is) into a new one; interrupted, the same command goes on. Or let it go back itself."""
    common: dict[str, Any] = {
        "lsn": lsn,
        "time": options.moment_of(time, "--time"),
        "snapshot": snapshot,
        "container": here.container,
        "settings": here.settings,
        "wait_s": here.wait_s,
        "dry_run": dry_run,
    }
    if in_place == (new_root is not None) or (in_place and new_container is not None):
        raise InvalidArgument("name the root of the new container, or say --in-place, not both", argument="new_root")
    with meter(f"restore {here.container}", None, as_json=here.as_json) as progress:
        if new_root is None:
            _answer_in_place(here, restore_in_place(root, **common, progress=progress.advance))
            return
        report = restore_container(root, new_root, **common, new_container=new_container, progress=progress.advance)
    show_report(here, report, "restored")


def show_report(here: access.Reading, report: RestoreReport, done: str) -> None:
    """Print what was done, or would be; exit code 1 where chunks are missing."""
    if here.as_json:
        print_json(report)
    else:
        _show(report, done)
    if report.missing:
        raise typer.Exit(1)


def _answer_in_place(here: access.Reading, report: InPlaceReport) -> None:
    if here.as_json:
        print_json(report)
    else:
        _show_in_place(report)
    if report.missing:
        raise typer.Exit(1)


def _show_in_place(report: InPlaceReport) -> None:
    facts = {
        "would go back" if report.dry_run else "went back": report.container,
        "to lsn": report.lsn,
        "records cut off": report.last_lsn - report.lsn,
        "epoch": report.epoch or "as before",
        "chunks copied": report.copied_chunks,
        "bytes copied": human_bytes(report.copied_bytes),
    }
    print_facts(facts if not report.missing else {**facts, "missing chunks": report.missing_chunks})
    changes = [[item.segment, _extent(*item[1:3]), _extent(*item[3:])] for item in report.segments]
    others = [
        *(["row", f"{namespace} {key!r}", ""] for namespace, key in report.rows),
        *(["writer", f"{item.segment} {item.writer_id!r}", f"{item[2]} to {item[3]}"] for item in report.writers),
        *(["session ends", name, ""] for name in report.sessions),
        *(["pin goes", name, ""] for name in report.pins),
        *(["pin stays given up", name, ""] for name in report.pins_given_up),
    ]
    if changes:
        print_table(("segment", "now" if report.dry_run else "was", "then"), changes)
    if others:
        print_table(("what changes", "name", "event number"), others)
    if report.missing:
        print_table(("segment", "chunk", "start", "stop", "reason"), report.missing, right=("start", "stop"))


def _extent(start: int | None, length: int | None) -> str:
    return "not there" if start is None else f"{start} to {length}"


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
