"""``export`` and ``backup``. Both claim the container for their pin, or ask its live owner, or with ``--no-pin`` claim nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import typer

import chunkstore
from chunkstore import backup as backups
from chunkstore.backup.selection import NameFilter
from chunkstore.cli import access
from chunkstore.cli.options import age_option, argument, flag, option
from chunkstore.cli.output import (
    Meter,
    human_bytes,
    human_time,
    meter,
    print_facts,
    print_json,
    print_note,
    print_table,
)
from chunkstore.cli.restore import export_headers
from chunkstore.errors import InvalidArgument
from chunkstore.metrics import backup_collector, exposition
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Looking:
    """What ``export`` looks at instead of writing."""

    listed: Annotated[str | None, option("FILE", "List the contents of an export.", "--list")] = None
    verified: Annotated[str | None, option("FILE", "Check that its chunks exist.", "--verify")] = None
    deep: Annotated[bool, flag("With --verify: read every chunk and compare checksums.", "--deep")] = False

    def look(self, here: access.Reading, root: str | None, file: str | None) -> bool:
        """Whether that was asked for. Raises ``InvalidArgument``."""
        if self.deep and self.verified is None:
            raise InvalidArgument("--deep needs --verify FILE", argument="--deep")
        if self.listed is None and self.verified is None:
            return False
        if file is not None or (self.listed is not None and (root is not None or self.verified is not None)):
            raise InvalidArgument("--list and --verify replace FILE; give one of them", argument="FILE")
        _list(here, self.listed) if self.listed is not None else _verify(here, str(self.verified), root, deep=self.deep)
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What ``export`` writes."""

    topic: Annotated[str | None, option("T", "The segments of a topic's ledgers.", "--topic")] = None
    expires_s: Annotated[
        float | None, age_option("The pin lasts at least this long.", "--expires", show_default="until pins rm")
    ] = None
    as_headers: Annotated[bool, flag("FILE is a folder: write header files there.", "--headers")] = False
    replaces: Annotated[bool, flag("With --headers: replace existing files.", "--replace")] = False


def export(
    root: Annotated[str | None, argument("ROOT", "Root of the container; with --verify: its present root.")] = None,
    file: Annotated[str | None, argument("FILE", "The file to write.")] = None,
    segments: Annotated[
        list[str] | None, argument("[SEGMENT]...", "Segments, or prefixes ('orders-*'); none: everything.")
    ] = None,
    *,
    content: Content,
    looking: Looking,
    here: Pinning,
) -> None:
    """Write the metadata of all or some segments into a file, and pin the chunks.

    With --headers: header files. With --list or --verify: read such a file. Exit code 1: something is missing or
    damaged.
    """
    if looking.look(here, root, file):
        return
    topic, expires_s = content.topic, content.expires_s
    if content.replaces and not content.as_headers:
        raise InvalidArgument("--replace needs --headers", argument="--replace")
    if root is None or file is None:
        raise InvalidArgument("give ROOT and FILE, or --list FILE, or --verify FILE", argument="FILE")
    if content.as_headers:
        if topic is not None or here.no_pin or expires_s is not None or here.ask:
            raise InvalidArgument(
                "--headers makes no pin (use 'pins add') and takes segments only", argument="--headers"
            )
        export_headers(here, root, file, segments or (), replaces=content.replaces)
        return
    NameFilter(segments or (), topic)
    check_pin("", expires_s)
    backups.check_path(file)
    with here.subject(root) as store:
        report = backups.export(store, file, segments or (), topic=topic, pin=not here.no_pin, expires_s=expires_s)
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
        "segments": list(header.choice.names),
        "topic": header.choice.topic,
        "pin": header.pin,
    }
    if here.as_json:
        print_json(facts)
        for info in backups.read_segments(found):
            print_json(info)
        return
    chosen = ", ".join(header.choice.names) or (f"topic {header.choice.topic}" if header.choice.topic else "everything")
    print_facts({**facts, "time": human_time(header.time_ms), "segments": chosen, "topic": header.choice.topic})
    columns = ("segment", "start", "length", "chunks", "sealed")
    rows = (
        (info.name, info.start_offset, info.length, info.chunk_count, "yes" if info.sealed else "no")
        for info in backups.read_segments(found)
    )
    print_table(columns, rows, right=("start", "length", "chunks"))


def _verify(here: access.Reading, path: str, root: str | None, *, deep: bool) -> None:
    with meter("verifying", None, as_json=here.as_json) as bar:
        found = backups.verify(path, root, deep=deep, settings=here.settings, progress=bar)
    size = f"{'deep, ' if deep else ''}{found.chunks} chunks, {human_bytes(found.chunk_bytes)}"
    _show_verdict(here, found, path, f"{size}, at {found.root}")


def _show_verdict(
    here: access.Reading, found: backups.ExportVerification | backups.Verified, what: str, size: str
) -> None:
    """What a check found; exit code 1 where something is damaged."""
    if here.as_json:
        print_json({"ok": found.ok, **found._asdict()})
    else:
        if found.findings:
            print_table(Finding._fields, found.findings)
        typer.echo(f"{what}: {'sound' if found.ok else 'DAMAGED'} ({size})")
    if not found.ok:
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Copying:
    """How ``backup`` copies."""

    link: Annotated[
        bool, flag("Hard links instead of copies, on one file system: they do not protect from rot.", "--link")
    ] = False
    no_verify: Annotated[
        bool, flag("Do not read back chunks that the server copied between buckets.", "--no-verify")
    ] = False


def backup(
    root: Annotated[str, argument("ROOT|ls|verify|rm", "Root of the container, or ls, verify or rm, see below.")],
    backup_root: Annotated[str, argument("BACKUPROOT", "A root of its own, of any kind.")],
    dropped: Annotated[str | None, argument("[NAME]", "With rm: a name from 'backup ls'.")] = None,
    *,
    copying: Copying,
    dry_run: Annotated[bool, flag("With rm: show what would be removed; remove nothing.")] = False,
    metrics: Annotated[bool, flag("With ls: age and number of backups, as Prometheus reads them.")] = False,
    here: Pinning,
) -> None:
    """Copy a container's new chunks into a backup root. 'backup ls BACKUPROOT' lists its backups.

    'backup verify BACKUPROOT' checks that every copy exists and is long enough. 'backup rm BACKUPROOT NAME' removes one backup, also one
    that cannot be read. A backup root is read like a root: ls, cat, check, open_replica. Exit code 1: no backup was made, or damage
    was found.
    """
    if (dropped is None) == (root == "rm") or (dry_run and root != "rm"):
        raise InvalidArgument(
            "only 'rm' takes the NAME of a backup and --dry-run, and it needs a NAME", argument="NAME"
        )
    if metrics and root != "ls":
        raise InvalidArgument("--metrics needs 'backup ls'", argument="--metrics")
    if metrics and here.as_json:
        raise InvalidArgument("--metrics is text for Prometheus: leave out --json", argument="--metrics")
    if root == "rm":
        _remove(here, backup_root, str(dropped), dry_run=dry_run)
        return
    if root == "verify":
        _verify_copies(here, backup_root)
        return
    if root == "ls":
        (_tell_age if metrics else _list_backups)(here, backup_root)
        return
    access.require_lasting(backup_root)
    settings = here.settings
    backups.check_roots(root, backup_root, container=here.container, settings=settings)
    with (
        here.subject(root) as store,
        _progress("link" if copying.link else "copy", as_json=here.as_json) as (before, progress),
    ):
        report = backups.backup(
            store,
            backup_root,
            pin=not here.no_pin,
            link=copying.link,
            verify=not copying.no_verify,
            before=before,
            progress=progress,
        )
    if here.as_json:
        linked = {"linked_chunks": report.linked_chunks, "linked_bytes": report.linked_bytes}
        print_json({**_info(report.backup), **linked})
    else:
        _print_backup(report, link=copying.link)


@contextmanager
def _progress(
    verb: str, *, as_json: bool
) -> Iterator[tuple[Callable[[backups.BackupPlan], object], Callable[[int], object]]]:
    """What tells the costs, and then shows progress."""
    with ExitStack() as stack:
        bars: list[Meter] = []

        def before(plan: backups.BackupPlan) -> None:
            if not as_json:
                size = f"{plan.chunks} chunks, {human_bytes(plan.size_bytes)}, about {plan.requests} requests"
                typer.echo(f"to {verb}: {size}", err=True)
            bars.append(stack.enter_context(meter(f"to {verb}", plan.size_bytes, as_json=as_json)))

        def progress(size_bytes: int) -> None:
            bars[0](size_bytes)

        yield before, progress


def _info(found: backups.BackupInfo) -> dict[str, object]:
    fields = found._asdict()
    return {**fields, "hash": found.hash.hex()}


def _print_backup(report: backups.BackupReport, *, link: bool) -> None:
    made = report.backup
    copied = f"copied {made.copied_chunks}"
    print_facts(
        {
            "backup": made.run,
            "lsn": made.lsn,
            "holds": f"{made.segments} segments, {made.chunks} chunks, {human_bytes(made.chunk_bytes)}",
            "new": f"linked {report.linked_chunks}, {copied}" if link else copied,
            "bytes": human_bytes(report.linked_bytes + made.copied_bytes),
        }
    )
    if report.linked_chunks:
        typer.echo("links share their bytes with the container: they do not protect from rot", err=True)


def _verify_copies(here: access.Reading, backup_root: str) -> None:
    found = backups.verify_copies(backup_root, container=here.container, settings=here.settings)
    _show_verdict(here, found, backup_root, f"{found.backups} backups, {found.chunks} copies")


def _remove(here: access.Reading, backup_root: str, run: str, *, dry_run: bool) -> None:
    done = backups.remove(backup_root, run, container=here.container, settings=here.settings, dry_run=dry_run)
    state = "its metadata can be read" if done.readable else "it CANNOT be read"
    facts = {"would drop" if dry_run else "dropped": f"{run}; {state}"}
    deleted = f"{done.chunks} copies, {human_bytes(done.size_bytes)}"
    here.show(done, facts if dry_run else {**facts, "deleted": deleted})


def _tell_age(here: access.Reading, backup_root: str) -> None:
    figures = partial(backups.backup_figures, backup_root, container=here.container, settings=here.settings)
    typer.echo(exposition([backup_collector(here.container, figures)]), nl=False)


def _list_backups(here: access.Reading, backup_root: str) -> None:
    here.show_each(
        backups.list_backups(backup_root, container=here.container, settings=here.settings),
        ("time", "lsn", "segments", "chunks", "bytes", "copied", "complete", "backup"),
        lambda listed: _backup_row(*listed),
        right=("lsn", "segments", "chunks", "bytes", "copied"),
        document=lambda listed: {**_info(listed[0]), "complete": listed[1]},
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
