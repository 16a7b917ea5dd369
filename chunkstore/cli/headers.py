"""Header files of PDP-34's old layout: the verb ``import-headers``, and ``export --headers``.

Promises: the old layout is only read by an import, and all of it is looked at before anybody is fenced. Leaves out: what headers say, and
which layout a container has (``chunkstore.backup``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, cast

import typer

from chunkstore import backup as backups
from chunkstore.cli import access, options
from chunkstore.cli.output import human_bytes, print_table
from chunkstore.config import LAYOUTS, Layout
from chunkstore.errors import InvalidArgument
from chunkstore.invariants import Finding
from chunkstore.metadata.layouts import find_layout

__all__ = ["export_headers", "import_headers"]


def import_headers(
    old_root: Annotated[str, typer.Argument(metavar="OLDROOT", help="Where the header files lie: a path or a URL.")],
    root: options.Root,
    segments: Annotated[
        list[str] | None, typer.Argument(metavar="[SEGMENT]...", help="Segments; none: all that have a header.")
    ] = None,
    *,
    chunks: Annotated[str | None, typer.Option(metavar="DIR", help="Where chunk files lie that are not there.")] = None,
    layout: Annotated[
        str | None, typer.Option(metavar="L", help=f"{', '.join(LAYOUTS[1:])}.", show_default="as it is")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on: segments that are there are compared byte by byte.")
    ] = False,
    dry_run: options.DryRun = False,
    here: access.Claiming,
) -> None:
    """Copy segments of the old layout, which their header files list, into a container, which is made where there is none."""
    if layout is not None and layout not in LAYOUTS[1:]:
        raise InvalidArgument(f"--layout is one of {', '.join(LAYOUTS[1:])}, not {layout!r}", argument="--layout")
    settings = here.settings
    found = backups.import_headers(root, old_root, segments or (), chunks=chunks, settings=settings, dry_run=True)
    if not dry_run and not any(item.severity == "damage" for item in found.findings):
        found = backups.import_headers(
            root,
            old_root,
            segments or (),
            chunks=chunks,
            container=here.container,
            settings=settings if layout is None else replace(settings, layout=cast(Layout, layout)),
            wait_s=here.wait_s,
            resume=resume,
        )
    damaged = any(item.severity == "damage" for item in found.findings)
    done = "would import" if dry_run else "not imported" if damaged else "imported"
    facts = {done: len(found.segments), "there already": len(found.there), "size": human_bytes(found.length)}
    here.show(found, facts)
    if found.findings and not here.as_json:
        print_table(Finding._fields, found.findings)
    if damaged:
        raise typer.Exit(1)


def export_headers(here: access.Owning, root: str, directory: str, segments: Sequence[str], *, replaces: bool) -> None:
    """``export ROOT DIR --headers``: by the owner where headers follow the journal, else by a replica."""
    with here.replica(root) as replica:
        follows = replica.look(find_layout) == "CODE_ONLY_UPGRADE"
        report = None if follows else backups.export_headers(replica, directory, segments, replace=replaces)
    if report is None:
        with here.owner(root) as store:
            report = backups.export_headers(store, directory, segments, replace=replaces)
    facts: dict[str, object] = {"headers": report.segments, "chunks": report.chunks}
    facts["copied"] = f"{report.copied} files, {human_bytes(report.copied_bytes)}"
    if report.unsealed:
        facts["look open"] = f"{report.unsealed} sealed segments: this storage has no read-only files"
    here.show(report, facts)
