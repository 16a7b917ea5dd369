"""Verbs about backups: ``export``, ``backup``.

Promises: both claim the container for their pin, or with ``--ask`` ask its live owner, and with ``--no-pin`` claim nothing; ``--list``,
``--verify`` and ``backup ls`` only read. Arguments are looked at before anybody is fenced. Leaves out: what exports and backups are
(``chunkstore.backup``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Annotated

import typer

import chunkstore
from chunkstore import backup as backups
from chunkstore.arguments import check_pin
from chunkstore.backup.selection import check_choice
from chunkstore.cli import access, options
from chunkstore.cli.headers import export_headers
from chunkstore.cli.output import Meter, human_bytes, human_time, meter, print_facts, print_json, print_table
from chunkstore.errors import InvalidArgument
from chunkstore.invariants import Finding

__all__ = ["backup", "export"]

NoPin = Annotated[
    bool,
    typer.Option(
        "--no-pin", help="Claim nothing and keep nothing: chunks that are removed and collected meanwhile, or later, are missing then."
    ),
]  # fmt: skip


def export(
    root: Annotated[
        str | None, typer.Argument(metavar="ROOT", help="As everywhere; with --verify: where the container is now.")
    ] = None,
    file: Annotated[str | None, typer.Argument(metavar="FILE", help="The file to write.", show_default=False)] = None,
    segments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SEGMENT]...", help="Segments, or prefixes ('orders-*'); none: everything."),
    ] = None,
    *,
    topic: Annotated[
        str | None, typer.Option(metavar="T", help="The segments of a topic's ledgers.", show_default=False)
    ] = None,
    no_pin: NoPin = False,
    expires_s: Annotated[
        float | None,
        typer.Option("--expires", metavar="S", help="The pin lasts at least S seconds.", show_default="until pins rm"),
    ] = None,
    listed: Annotated[
        str | None,
        typer.Option("--list", metavar="FILE", help="Show what an export holds.", show_default=False),
    ] = None,
    verified: Annotated[
        str | None,
        typer.Option("--verify", metavar="FILE", help="Look whether its chunks are there.", show_default=False),
    ] = None,
    as_headers: Annotated[
        bool, typer.Option("--headers", help="FILE is a folder: write header files of the old layout there.")
    ] = False,
    replaces: Annotated[bool, typer.Option("--replace", help="With --headers: replace those that are there.")] = False,
    deep: Annotated[
        bool, typer.Option("--deep", help="With --verify: read every chunk and compare checksums.")
    ] = False,
    container: options.Container = "default",
    ask: options.Ask = False,
    take_over: options.TakeOver = False,
    accept_rollback: options.AcceptRollback = False,
    cache_dir: options.CacheDir = None,
    as_json: options.AsJson = False,
) -> None:
    """Write the metadata of everything, or of some segments, into a file, under a pin that keeps its chunks.

    With --headers: header files of the old layout. With --list or --verify: look at such a file. Exit code 1: something is missing or
    damaged.
    """
    if _look_at(listed, verified, root, file, deep=deep, cache_dir=cache_dir, as_json=as_json):
        return
    if replaces and not as_headers:
        raise InvalidArgument("--replace is about --headers", argument="--replace")
    if as_headers and root is not None and file is not None:
        if topic is not None or no_pin or expires_s is not None or ask:
            raise InvalidArgument("--headers makes no pin ('pins add' does), and is of segments", argument="--headers")
        export_headers(root, file, segments or (), replaces, container, take_over, accept_rollback, cache_dir, as_json)
        return
    if root is None or file is None:
        raise InvalidArgument("say ROOT and FILE, or --list FILE, or --verify FILE", argument="FILE")
    check_choice(segments or (), topic)
    check_pin("", expires_s, None)
    backups.check_path(file)
    with _opened(
        root, container, cache_dir, no_pin=no_pin, ask=ask, take_over=take_over, accept_rollback=accept_rollback, quiet=as_json
    ) as (store, pins):  # fmt: skip
        report = backups.export(
            store, file, segments or (), topic=topic, pin=not no_pin, expires_s=expires_s, pins=pins
        )
    if as_json:
        print_json(report)
        return
    size = f"{report.chunks} chunks of {human_bytes(report.chunk_bytes)}, which stay where they are"
    pin = "none: what it names may be collected" if report.pin is None else report.pin.name
    facts = {"segments": report.segments, "names": size, "lsn": report.lsn, "pin": pin}
    print_facts({"file": report.path, **facts, "size": human_bytes(report.file_bytes)})


def _look_at(
    listed: str | None,
    verified: str | None,
    root: str | None,
    file: str | None,
    *,
    deep: bool,
    cache_dir: str | None,
    as_json: bool,
) -> bool:
    """``--list`` and ``--verify``; whether that was asked for."""
    if deep and verified is None:
        raise InvalidArgument("--deep is about --verify: say --verify FILE, too", argument="--deep")
    if listed is None and verified is None:
        return False
    if file is not None or (listed is not None and (root is not None or verified is not None)):
        raise InvalidArgument("--list and --verify take the place of FILE", argument="FILE")
    _list(listed, as_json=as_json) if listed is not None else _verify(str(verified), root, deep, cache_dir, as_json)
    return True


@contextmanager
def _opened(
    root: str,
    container: str,
    cache_dir: str | None,
    *,
    no_pin: bool,
    ask: bool,
    take_over: bool,
    accept_rollback: bool,
    quiet: bool,
) -> Iterator[tuple[chunkstore.ChunkedSegmentStorage | chunkstore.Replica, backups.Pins | None]]:
    """What is read, and who makes its pin: a replica and nobody, the owner that we are, or a replica beside the owner that is asked."""
    if no_pin:
        if ask or take_over:
            raise InvalidArgument("--no-pin claims nothing, and asks nobody for anything", argument="--no-pin")
        with access.replica(root, container, cache_dir) as replica:
            yield replica, None
        return
    with access.owner_or_asker(
        root, container, cache_dir, ask=ask, take_over=take_over, accept_rollback=accept_rollback, quiet=quiet
    ) as opened:
        yield (opened.replica, opened) if isinstance(opened, chunkstore.Asker) else (opened, None)


def _list(path: str, *, as_json: bool) -> None:
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
    if as_json:
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


def _verify(path: str, root: str | None, deep: bool, cache_dir: str | None, as_json: bool) -> None:
    with meter("verifying", None, as_json=as_json) as bar:
        settings = access.settings_for(cache_dir)
        found = backups.verify(path, root, deep=deep, settings=settings, progress=bar.advance)
    if as_json:
        print_json({"ok": found.ok, **found._asdict()})
    else:
        if found.findings:
            print_table(Finding._fields, found.findings)
        size = f"{found.chunks} chunks, {human_bytes(found.chunk_bytes)}"
        typer.echo(f"{path}: {'sound' if found.ok else 'DAMAGED'} ({'deep, ' if deep else ''}{size}, at {found.root})")
    if not found.ok:
        raise typer.Exit(1)


def backup(
    root: Annotated[str, typer.Argument(metavar="ROOT|ls", help="As everywhere; 'ls' lists.", show_default=False)],
    backup_root: Annotated[
        str, typer.Argument(metavar="BACKUPROOT", help="A root of its own, of any kind.", show_default=False)
    ],
    *,
    keep: Annotated[
        int | None, typer.Option(metavar="N", help="Afterwards keep the newest N.", show_default="all")
    ] = None,
    keep_days: Annotated[
        float | None,
        typer.Option(metavar="D", help="Afterwards keep those of the last D days.", show_default="all"),
    ] = None,
    audit: Annotated[
        bool, typer.Option("--audit", help="Copy anew what was lost there; then compare all copies with what is named.")
    ] = False,
    no_pin: NoPin = False,
    container: options.Container = "default",
    ask: options.Ask = False,
    take_over: options.TakeOver = False,
    accept_rollback: options.AcceptRollback = False,
    cache_dir: options.CacheDir = None,
    as_json: options.AsJson = False,
) -> None:
    """Back a container up into another root: what is new is copied. 'backup ls BACKUPROOT' lists what is there.

    A backup root is read like a root: ls, cat, check, open_replica. Exit code 1: no backup was made, or the audit found damage.
    """
    if root == "ls":
        _list_backups(backup_root, container, cache_dir, as_json=as_json)
        return
    backups.check_keep(keep, keep_days)
    settings = access.settings_for(cache_dir)
    backups.check_roots(root, backup_root, container=container, settings=settings)
    with (
        _opened(
            root, container, cache_dir, no_pin=no_pin, ask=ask, take_over=take_over, accept_rollback=accept_rollback, quiet=as_json
        ) as (store, pins),
        _progress(as_json=as_json) as (before, progress),
    ):  # fmt: skip
        report = backups.backup(
            store, backup_root, keep=keep, keep_days=keep_days, pin=not no_pin, pins=pins, audit=audit, before=before,
            progress=progress,
        )  # fmt: skip
    found = backups.audit(backup_root, container=container, settings=settings) if audit else None
    if as_json:
        print_json({**_info(report.backup), "given_up": report.given_up, "audit": found})
    else:
        _print_backup(report, found)
    if found is not None and not found.ok:
        raise typer.Exit(1)


@contextmanager
def _progress(*, as_json: bool) -> Iterator[tuple[Callable[[backups.BackupPlan], object], Callable[[int], object]]]:
    """What tells the costs, and then shows progress."""
    with ExitStack() as stack:
        bars: list[Meter] = []

        def before(plan: backups.BackupPlan) -> None:
            if not as_json:
                size = f"{plan.chunks} chunks, {human_bytes(plan.size_bytes)}, about {plan.requests} requests"
                typer.echo(f"to copy: {size}", err=True)
            bars.append(stack.enter_context(meter("copying", plan.size_bytes, as_json=as_json)))

        def progress(size_bytes: int) -> None:
            bars[0].advance(size_bytes)

        yield before, progress


def _info(found: backups.BackupInfo) -> dict[str, object]:
    fields = found._asdict()
    return {**fields, "hash": found.hash.hex()}


def _print_backup(report: backups.BackupReport, found: backups.Audit | None) -> None:
    made, given = report
    facts: dict[str, object] = {
        "backup": made.run,
        "lsn": made.lsn,
        "holds": f"{made.segments} segments, {made.chunks} chunks, {human_bytes(made.chunk_bytes)}",
        "copied": f"{made.copied_chunks} chunks, {human_bytes(made.copied_bytes)}",
    }
    if given is not None:
        facts["given up"] = f"{given.backups} backups, {given.chunks} chunks, {human_bytes(given.size_bytes)}"
        if given.put_off or given.refused:
            facts["left"] = (
                f"{given.put_off} backups that a run relies on, {given.refused} chunks that cannot be deleted"
            )
    if found is not None:
        facts["audit"] = f"{'sound' if found.ok else 'DAMAGED'}: {found.backups} backups, {found.chunks} copies"
        facts["unnamed"] = f"{found.unnamed} copies, {human_bytes(found.unnamed_bytes)}"
    print_facts(facts)
    if found is not None and found.findings:
        print_table(Finding._fields, found.findings)


def _list_backups(backup_root: str, container: str, cache_dir: str | None, *, as_json: bool) -> None:
    settings = access.settings_for(cache_dir)
    listed = backups.list_backups(backup_root, container=container, settings=settings)
    if as_json:
        for item, complete in listed:
            print_json({**_info(item), "complete": complete})
        return
    columns = ("time", "lsn", "segments", "chunks", "bytes", "copied", "complete", "backup")
    rows = (
        (
            human_time(item.time_ms),
            item.lsn,
            item.segments,
            item.chunks,
            human_bytes(item.chunk_bytes),
            human_bytes(item.copied_bytes),
            "yes" if complete else "NO",
            item.run,
        )
        for item, complete in listed
    )
    print_table(columns, rows, right=("lsn", "segments", "chunks", "bytes", "copied"))
