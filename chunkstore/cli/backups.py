"""``export`` and ``backup``. Both claim the container for their pin, or ask its live owner, or with ``--no-pin`` claim nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import typer

import chunkstore
from chunkstore import backup as backups
from chunkstore.backup.selection import NameFilter
from chunkstore.cli import access
from chunkstore.cli.options import age_option, argument, flag, option
from chunkstore.cli.output import human_bytes, human_time, meter, print_facts, print_json, print_note, print_table
from chunkstore.cli.restore import export_headers
from chunkstore.errors import InvalidArgument
from chunkstore.records.arguments import check_pin
from chunkstore.records.invariants import Finding

__all__ = ["backup", "export"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinning(access.Asking):
    """Of a verb that pins what it reads."""

    no_pin: Annotated[
        bool, flag("Claim and pin nothing. Chunks that are removed and collected later are then missing.", "--no-pin")
    ] = False

    @contextmanager
    def subject(self, root: str) -> Iterator[chunkstore.ChunkedSegmentStorage | chunkstore.Asker | chunkstore.Replica]:
        """What is read: the owner that we become, a client of the live one, or where nothing is pinned a replica."""
        if not self.no_pin:
            with self.owner_or_asker(root) as opened:
                if isinstance(opened, chunkstore.Asker) and (text := opened.replica.why_short):
                    print_note(text)
                yield opened
        elif self.ask or self.take_over:
            raise InvalidArgument("--no-pin claims nothing and asks no owner; leave out --ask", argument="--no-pin")
        else:
            with self.replica(root) as replica:
                yield replica


def export(
    root: Annotated[str | None, argument("ROOT", "Root of the container.")] = None,
    file: Annotated[str | None, argument("FILE", "The file to write.")] = None,
    segments: Annotated[
        list[str] | None, argument("[SEGMENT]...", "Segments, or prefixes ('orders-*'); none: everything.")
    ] = None,
    *,
    expires_s: Annotated[
        float | None, age_option("The pin lasts at least this long.", "--expires", show_default="until pins rm")
    ] = None,
    listed: Annotated[str | None, option("FILE", "List the contents of an export.", "--list")] = None,
    as_headers: Annotated[bool, flag("FILE is a folder: write header files there.", "--headers")] = False,
    here: Pinning,
) -> None:
    """Write the metadata of all or some segments into a file, and pin the chunks.

    With --headers: header files. With --list: read such a file. 'restore FILE NEWROOT --dry-run' checks that its chunks exist.
    """
    if listed is not None:
        if root is not None or file is not None:
            raise InvalidArgument("--list replaces ROOT and FILE", argument="FILE")
        _list(here, listed)
        return
    if root is None or file is None:
        raise InvalidArgument("give ROOT and FILE, or --list FILE", argument="FILE")
    if as_headers:
        if here.no_pin or here.ask or expires_s is not None:
            raise InvalidArgument(
                "--headers makes no pin (use 'pins add') and takes segments only", argument="--headers"
            )
        export_headers(here, root, file, segments or ())
        return
    NameFilter(segments or ())
    check_pin("", expires_s)
    backups.check_path(file)
    with here.subject(root) as store:
        report = backups.export(store, file, segments or (), pin=not here.no_pin, expires_s=expires_s)
    size = f"{report.chunks} chunks of {human_bytes(report.chunk_bytes)}, which stay where they are"
    pin = "none: its chunks may be collected" if report.pin is None else report.pin.name
    facts = {"segments": report.segments, "names": size, "lsn": report.lsn, "pin": pin}
    here.show(report, {"file": report.path, **facts, "size": human_bytes(report.file_bytes)})


def _list(here: access.Reading, path: str) -> None:
    found = backups.read_export(path)
    header = found.header
    facts = {
        "container": header.name,
        "uuid": header.container.hex(),
        "root": header.root,
        "lsn": header.position.lsn,
        "hash": header.position.hash.hex(),
        "digest": f"{header.digest:064x}",
        "time": header.time_ms,
        "segments": list(header.segments),
        "pin": header.pin,
    }
    if here.as_json:
        print_json(facts)
        for info in backups.read_segments(found):
            print_json(info)
        return
    chosen = ", ".join(header.segments) or "everything"
    print_facts({**facts, "time": human_time(header.time_ms), "segments": chosen})
    columns = ("segment", "start", "length", "chunks", "sealed")
    rows = (
        (info.name, info.start_offset, info.length, info.chunk_count, "yes" if info.sealed else "no")
        for info in backups.read_segments(found)
    )
    print_table(columns, rows, right=("start", "length", "chunks"))


def backup(
    root: Annotated[str, argument("ROOT|ls|verify", "Root of the container, or ls or verify, see below.")],
    backup_root: Annotated[str, argument("BACKUPROOT", "A root of its own, of any kind.")],
    *,
    here: Pinning,
) -> None:
    """Copy a container's new chunks into a backup root. 'backup ls BACKUPROOT' lists its backups.

    'backup verify BACKUPROOT' checks that every copy exists and is long enough. A backup root is read like a root: ls, cat, check,
    open_replica. Exit code 1: no backup was made, or damage was found.
    """
    if root == "verify":
        _verify_copies(here, backup_root)
        return
    if root == "ls":
        _list_backups(here, backup_root)
        return
    access.require_lasting(backup_root)
    backups.check_roots(root, backup_root, container=here.container, settings=here.settings)
    with here.subject(root) as store, meter("backup", None, as_json=here.as_json) as progress:
        made = backups.backup(store, backup_root, pin=not here.no_pin, progress=progress)
    here.show(
        _document(made),
        {
            "backup": made.run,
            "lsn": made.lsn,
            "holds": f"{made.segments} segments, {made.chunks} chunks, {human_bytes(made.chunk_bytes)}",
            "copied": f"{made.copied_chunks} chunks, {human_bytes(made.copied_bytes)}",
        },
    )


def _document(found: backups.BackupInfo) -> dict[str, object]:
    return {**found._asdict(), "hash": found.hash.hex()}


def _verify_copies(here: access.Reading, backup_root: str) -> None:
    found = backups.verify_copies(backup_root, container=here.container, settings=here.settings)
    if here.as_json:
        print_json({"ok": found.ok, **found._asdict()})
    else:
        if found.findings:
            print_table(Finding._fields, found.findings)
        verdict = "sound" if found.ok else "DAMAGED"
        typer.echo(f"{backup_root}: {verdict} ({found.backups} backups, {found.chunks} copies)")
    if not found.ok:
        raise typer.Exit(1)


def _list_backups(here: access.Reading, backup_root: str) -> None:
    here.show_each(
        backups.list_backups(backup_root, container=here.container, settings=here.settings),
        ("time", "lsn", "segments", "chunks", "bytes", "copied", "complete", "backup"),
        lambda listed: _backup_row(*listed),
        right=("lsn", "segments", "chunks", "bytes", "copied"),
        document=lambda listed: {**_document(listed[0]), "complete": listed[1]},
    )


def _backup_row(item: backups.BackupInfo, complete: bool) -> tuple[object, ...]:
    sizes = (human_bytes(item.chunk_bytes), human_bytes(item.copied_bytes))
    return (
        human_time(item.time_ms),
        item.lsn,
        item.segments,
        item.chunks,
        *sizes,
        "yes" if complete else "NO",
        item.run,
    )
