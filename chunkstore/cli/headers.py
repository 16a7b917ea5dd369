"""Header files: ``import --headers`` and ``export --headers``.

Promises: an import only reads the files, and checks all of them before a former owner is fenced. Leaves out: what headers say
(``chunkstore.headers``).
"""

from __future__ import annotations

from collections.abc import Sequence

import typer

from chunkstore import backup as backups
from chunkstore.cli import access
from chunkstore.cli.output import human_bytes, print_table

__all__ = ["export_headers", "import_headers"]


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
