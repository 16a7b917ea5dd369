"""The verb ``import``: an export, a backup or a container, or a part of it, as a new container or into one that works.

Promises: the source, its chunks and the names are looked at before anybody is fenced and anything is made; ``--dry-run`` and ``import ls``
claim nothing. Leaves out: importing (``chunkstore.backup``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
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
    str,
    typer.Argument(
        metavar="ROOT|ls|drop",
        help="Of the container that takes it in, or of a new one; 'ls' lists imports that have not ended, 'drop' ends one.",
    ),
]
Source = Annotated[
    str,
    typer.Argument(metavar="FILE", help="An export file, or a root of backups or of a container; with ls, drop: ROOT."),
]
Segments = Annotated[
    list[str] | None,
    typer.Argument(metavar="[SEGMENT]...", help="Segments, or prefixes ('orders-*'); none: everything."),
]
SourceRoot = Annotated[
    str | None,
    typer.Option(
        "--from", metavar="SOURCEROOT", help="Of an export: where its container lies.", show_default="as it says"
    ),
]
Renames = Annotated[list[str] | None, typer.Option("--rename", metavar="OLD=NEW", help="Another name; again for more.")]
Prefix = Annotated[str, typer.Option("--prefix", metavar="P", help="In front of all other names.")]
Lsn = Annotated[
    int | None, typer.Option("--lsn", metavar="N", help="Of a root: as of this record.", show_default="newest")
]
Time = Annotated[
    str | None,
    typer.Option(
        "--time", metavar="T", help="Of a root: as it was then: 2026-03-01T12:00:00+01:00, or milliseconds since 1970."
    ),
]
Adopt = Annotated[
    bool, typer.Option("--adopt", help="Leave chunks where they are, pinned, and read them there; nothing is copied.")
]
AsHeaders = Annotated[
    bool, typer.Option("--headers", help="FILE is a folder: copy the segments that its header files list.")
]
NoPin = Annotated[
    bool, typer.Option("--no-pin", help="With --adopt: without a pin; see to it that nothing is collected.")
]
Merge = Annotated[bool, typer.Option("--merge", help="Only into a container that is there.")]
New = Annotated[bool, typer.Option("--new", help="Only as a new container.")]
Name = Annotated[
    str | None, typer.Option("--as", metavar="NAME", help="Name of the container at ROOT.", show_default="--container")
]


def import_(
    root: Root,
    source: Source,
    segments: Segments = None,
    *,
    source_root: SourceRoot = None,
    renames: Renames = None,
    prefix: Prefix = "",
    lsn: Lsn = None,
    time: Time = None,
    merge: Merge = False,
    new: New = False,
    name: Name = None,
    adopt: Adopt = False,
    no_pin: NoPin = False,
    as_headers: AsHeaders = False,
    dry_run: options.DryRun = False,
    here: access.Owning,
) -> None:
    """Copy segments from an export, a backup, a container or header files: into the container at ROOT, or, where there is none, as a
    new one.

    Interrupted, the same command goes on.
    """
    if as_headers:
        if any((source_root, renames, prefix, time, merge, new, name, adopt, no_pin)) or lsn is not None:
            raise InvalidArgument("--headers goes with SEGMENTs, --container and --dry-run only", argument="--headers")
        import_headers(here, root, source, segments or (), dry_run=dry_run)
        return
    target = here.container if name is None else name
    if root in ("ls", "drop"):
        there = replace(here, container=target)
        if root == "drop":
            _drop(there, source, segments or [])
            return
        with there.replica(source) as replica:
            _show_pending(here, backups.pending_imports(replica))
        return
    if merge and new:
        raise InvalidArgument("--merge and --new say different things: say one of them", argument="--merge")
    if no_pin and not adopt:
        raise InvalidArgument("--no-pin is about what --adopt leaves where it is", argument="--no-pin")
    names, moment = _renames(renames or ()), options.moment_of(time, "--time")
    with meter(f"import {source}", None, as_json=here.as_json) as progress:
        report = backups.import_(
            root,
            source,
            segments or (),
            rename=names,
            prefix=prefix,
            source_root=source_root,
            source_container=here.container,
            lsn=lsn,
            time=moment,
            container=target,
            new=True if new else False if merge else None,
            settings=here.settings,
            wait_s=here.wait_s,
            accept_rollback=here.accept_rollback,
            adopt=adopt,
            no_pin=no_pin,
            dry_run=dry_run,
            progress=progress.advance,
        )
    show_report(here, report, "imported")


def _renames(given: Sequence[str]) -> dict[str, str]:
    found = dict[str, str]()
    for item in given:
        old, equals, name = item.partition("=")
        if not equals or old in found:
            raise InvalidArgument(f"--rename takes OLD=NEW, once for each segment, not {item!r}", argument="--rename")
        found[old] = name
    return found


def _drop(here: access.Owning, root: str, ids: list[str]) -> None:
    if len(ids) != 1:
        raise InvalidArgument("say which import, as 'import ls ROOT' does: import drop ROOT ID", argument="ID")
    with here.owner(root) as store:
        backups.drop_import(store, ids[0])
    here.show({"id": ids[0], "dropped": True}, {"dropped": ids[0]})


def _show_pending(here: access.Reading, found: list[backups.PendingImport]) -> None:
    here.show_each(
        found,
        ("import", "of container", "lsn", "phase"),
        lambda item: (item.id, item.container.hex(), item.lsn, item.phase),
        right=("lsn",),
        document=lambda item: {**item._asdict(), "container": item.container.hex()},
    )
