"""The verb ``import``: an export, a backup or a container, or a part of it, as a new container; or header files.

Promises: the source and its chunks are looked at before anything is made; ``--dry-run`` claims nothing. Leaves out: importing
(``chunkstore.backup``).
"""

from __future__ import annotations

from typing import Annotated

import typer

from chunkstore import backup as backups
from chunkstore.cli import access, options
from chunkstore.cli.headers import import_headers
from chunkstore.cli.output import meter
from chunkstore.cli.restore import show_report
from chunkstore.errors import InvalidArgument

__all__ = ["import_"]


Root = Annotated[
    str, typer.Argument(metavar="ROOT", help="Root of the new container; with --headers: also of one that is there.")
]
Source = Annotated[
    str,
    typer.Argument(metavar="FILE", help="An export file, or a root of backups or of a container."),
]
Segments = Annotated[
    list[str] | None,
    typer.Argument(metavar="[SEGMENT]...", help="Segments, or prefixes ('orders-*'); none: everything."),
]
SourceRoot = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="SOURCEROOT", help="Of an export: where its container is.", show_default="as it says"
    ),
]
Lsn = Annotated[
    int | None, typer.Option("--lsn", metavar="N", help="Of a root: as of this record.", show_default="newest")
]
Time = Annotated[
    str | None,
    typer.Option(
        "--time",
        metavar="T",
        help="Of a root: as it was then: 2026-03-01, 2026-03-01T12:00:00Z, or milliseconds since 1970.",
    ),
]
AsHeaders = Annotated[
    bool, typer.Option("--headers", help="FILE is a folder: copy the segments that its header files list.")
]
Name = Annotated[
    str | None, typer.Option("--as", metavar="NAME", help="Name of the new container.", show_default="--container")
]


def import_(
    root: Root,
    source: Source,
    segments: Segments = None,
    *,
    source_root: SourceRoot = None,
    lsn: Lsn = None,
    time: Time = None,
    name: Name = None,
    as_headers: AsHeaders = False,
    dry_run: options.DryRun = False,
    here: access.Owning,
) -> None:
    """Make a new container of an export, a backup or a container, or of some of its segments; or copy what header files list.

    Interrupted, the same command goes on.
    """
    if as_headers:
        if any((source_root, time, name)) or lsn is not None:
            raise InvalidArgument("--headers goes with SEGMENTs, --container and --dry-run only", argument="--headers")
        import_headers(here, root, source, segments or (), dry_run=dry_run)
        return
    access.require_lasting(root)
    moment = options.moment_of(time, "--time")
    with meter(f"import {source}", None, as_json=here.as_json) as progress:
        report = backups.import_(
            root,
            source,
            segments or (),
            from_=source_root,
            source_container=here.container,
            lsn=lsn,
            time=moment,
            container=here.container if name is None else name,
            settings=here.settings,
            take_over=here.take_over,
            dry_run=dry_run,
            progress=progress.advance,
        )
    show_report(here, report, "imported")
